//! For tests that wait for what another thread does.
#![allow(dead_code)]

use std::time::{Duration, Instant};

/// Waits until `f` says so. The bound is against hanging only.
pub fn until(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what}: {:?}", hakmem::stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the background thread is there, and sleeps until it is woken.
pub fn background_sleeps() {
    until("it comes to rest", || {
        let before = hakmem::stats();
        std::thread::sleep(Duration::from_millis(500));
        let after = hakmem::stats();
        before.background_passes > 0
            && (before.background_passes, before.background_wakeups)
                == (after.background_passes, after.background_wakeups)
    });
}
