//! Statistics that another process asks for while this one runs: `hakmem stats --pid`. They are kept as text
//! in memory, where it reads them: no file is written.

use crate::api::control::{self, CONTROL, FORGET, STATS};
use crate::front::thread;
use crate::sync::Ordering::{Relaxed, Release};
use crate::{os, stats};
use core::ptr;

/// Does what the bits of a request for statistics say.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn obey(request: u32) {
    match request {
        STATS => answer(),
        FORGET if !stats::forget() => {
            // Again, unless something else is asked for by now, which does away with it, too.
            let _ = CONTROL.request.compare_exchange(0, FORGET, Relaxed, Relaxed);
        }
        _ => {}
    }
}

#[unsafe(link_section = "hakmem_rare")]
fn answer() {
    // The options are read, and with them what the system allows, before the first heap.
    let none = thread::with_heap(None, |heap| heap.is_null());
    // Once, since who asks may say so again before the answer comes. The form goes with it.
    let number = CONTROL.asked.load(Relaxed);
    let publish = |text: *const u8, length: usize| {
        CONTROL.text.store(text.expose_provenance() as u64, Relaxed);
        CONTROL.length.store(length as u64, Relaxed);
        // Release: the other process sees the text when it sees this.
        CONTROL.answered.store(number, Release);
    };
    // They are in files of the kernel, too.
    if none || os::is_confined() {
        return publish(ptr::null(), 0);
    }
    // Not twice, nor once another question has been answered: those answers are being read.
    let wanted = || CONTROL.answered.load(Relaxed) != number && CONTROL.asked.load(Relaxed) == number;
    stats::keep(number & 1 != 0, wanted, publish);
}

/// In the child of a fork: nobody has asked that.
pub(super) fn inherit() {
    let (profile, _) = control::split(CONTROL.request.load(Relaxed));
    CONTROL.request.store(profile, Relaxed);
    stats::inherit();
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use crate::api::request;
    use crate::sync::Ordering::Acquire;
    use std::string::String;

    /// What an allocation does that asks a slab, after this was asked for. One of another test may be faster.
    fn ask(request: u32, done: impl Fn() -> bool) {
        CONTROL.request.store(request, Relaxed);
        request::look();
        while !done() {
            std::thread::yield_now();
        }
    }

    fn text() -> String {
        let at = ptr::with_exposed_provenance::<u8>(CONTROL.text.load(Relaxed) as usize);
        assert!(!at.is_null());
        // SAFETY: the text that is kept, which goes only when this thread says so.
        let bytes = unsafe { core::slice::from_raw_parts(at, CONTROL.length.load(Relaxed) as usize) };
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_question_is_answered_once_in_its_form() {
        for (number, begins, ends) in
            [(2, "hakmem 0.", "\n"), (3, "{\"hakmem\":\"0.", "]}\n"), (4, "hakmem 0.", "\n")]
        {
            CONTROL.asked.store(number, Relaxed);
            ask(STATS, || CONTROL.answered.load(Acquire) == number);
            let first = text();
            assert!(first.starts_with(begins) && first.ends_with(ends), "{first}");
            // Again: what may be read meanwhile stays as it is.
            let at = CONTROL.text.load(Relaxed);
            ask(STATS, || CONTROL.request.load(Relaxed) == 0);
            assert_eq!((CONTROL.text.load(Relaxed), text()), (at, first));
        }
        for _ in 0..2 {
            ask(FORGET, || !stats::keeps_text());
        }
    }
}
