//! The background thread, from Rust: one test, since all of it is the process's own.

#[path = "support/waiting.rs"]
mod waiting;

use hakmem::{Hakmem, Options};
use std::alloc::{GlobalAlloc, Layout};
use std::time::Duration;
use waiting::{background_sleeps, until};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(100));

const MIB: usize = 1 << 20;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The names of the process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default().trim().to_owned()
    };
    tasks.map(name).collect()
}

fn has_thread() -> bool {
    threads().iter().any(|name| name == "hakmem")
}

/// Blocks of `size` bytes, every page written.
fn make(count: usize, size: usize) -> Vec<(*mut u8, Layout)> {
    let layout = Layout::from_size_align(size, 16).unwrap();
    let one = |_| {
        // SAFETY: the size is not zero.
        let block = unsafe { GLOBAL.alloc(layout) };
        assert!(!block.is_null());
        for at in (0..size).step_by(4096) {
            // SAFETY: inside the block.
            unsafe { block.add(at).write(1) };
        }
        (block, layout)
    };
    (0..count).map(one).collect()
}

fn free(blocks: Vec<(*mut u8, Layout)>) {
    for (block, layout) in blocks {
        // SAFETY: made with this layout.
        unsafe { GLOBAL.dealloc(block, layout) };
    }
}

/// What is freed leaves the process though nobody calls; 200 byte blocks and large mappings.
fn what_is_freed_goes_back() {
    for (count, size) in [(200_000, 200), (12, 3 * MIB)] {
        let before = resident();
        let blocks = make(count, size);
        let peak = resident();
        assert!(peak - before > 30 * MIB, "{} MiB", (peak - before) / MIB);
        free(blocks);
        until("resident falls", || resident().saturating_sub(before) < (peak - before) / 10);
    }
}

/// With nothing dirty it does not even wake up.
fn it_sleeps_when_nothing_is_dirty() {
    background_sleeps();
    // And what becomes dirty then wakes it.
    let before = hakmem::stats().background_wakeups;
    free(make(2000, 1000));
    until("it wakes", || hakmem::stats().background_wakeups > before);
}

/// Calls from many threads at once: all of them end, and the last word counts.
fn start_and_stop_from_many_threads() {
    std::thread::scope(|scope| {
        for i in 0..4 {
            scope.spawn(move || {
                for j in 0..50 {
                    if (i + j) % 2 == 0 {
                        assert!(hakmem::start_background());
                    } else {
                        hakmem::stop_background();
                    }
                }
            });
        }
    });
    for _ in 0..200 {
        hakmem::stop_background();
        // It has ended; its entry goes a moment later.
        until("it is gone", || !has_thread());
        assert!(hakmem::start_background());
    }
    hakmem::stop_background();
    hakmem::stop_background();
    assert!(hakmem::start_background() && hakmem::start_background());
    until("it has its name", has_thread);
    assert_eq!(threads().iter().filter(|&name| name == "hakmem").count(), 1);
}

unsafe extern "C" {
    /// `fork` without the handlers.
    fn _Fork() -> libc::pid_t;
}

/// A thread of the child; returns whether ours was started meanwhile.
extern "C" fn allocate(_: *mut libc::c_void) -> *mut libc::c_void {
    free(make(2000, 50 << 10));
    free(make(1000, 20 << 10));
    std::thread::sleep(Duration::from_millis(50));
    // Not null, which it is if the thread was not started.
    std::ptr::without_provenance_mut(1 + usize::from(has_thread()))
}

/// In a child made without the C library's handlers threads cannot be started safely, so ours is not started
/// there, though it is wanted; not even after a thread of the child's own has got a heap.
fn a_child_without_handlers_has_none() {
    assert!(has_thread());
    // SAFETY: the child uses no lock that another thread of this test could hold, and ends with `_exit`.
    let child = unsafe { _Fork() };
    if child == 0 {
        let mut thread = 0;
        let mut started = std::ptr::null_mut();
        // SAFETY: the function has the type that is asked for; the thread is joined before the process ends.
        // Not by std, which would allocate here first: then this thread would notice that it is in a child.
        unsafe {
            if libc::pthread_create(&mut thread, std::ptr::null(), allocate, std::ptr::null_mut()) == 0 {
                libc::pthread_join(thread, &mut started);
            }
            libc::_exit(started.addr() as i32);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child, which is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status}");
    assert_eq!(libc::WEXITSTATUS(status), 1, "2: it was started in the child");
}

/// Without the thread the same memory stays, and passes stay as they are.
fn stopped_it_does_nothing() {
    hakmem::stop_background();
    until("it is gone", || !has_thread());
    let before = hakmem::stats();
    // The thread that frees gives back itself what is old by then, so not too slowly.
    let mut freed = before;
    until("10 MB are freed within the purge delay", || {
        free(make(20_000, 500));
        freed = hakmem::stats();
        freed.dirty_bytes > 5 << 20
    });
    std::thread::sleep(Duration::from_millis(300));
    let after = hakmem::stats();
    assert_eq!(before.background_passes, after.background_passes);
    assert!(after.dirty_bytes >= freed.dirty_bytes, "{} bytes of {}", after.dirty_bytes, freed.dirty_bytes);
}

#[test]
fn background_thread() {
    assert!(!has_thread() && hakmem::stats().background_passes == 0, "off by default");
    assert!(hakmem::start_background());
    until("it has its name", has_thread);
    what_is_freed_goes_back();
    it_sleeps_when_nothing_is_dirty();
    start_and_stop_from_many_threads();
    a_child_without_handlers_has_none();
    stopped_it_does_nothing();
    // What the thread has made resident, or given back, is in the figures.
    let s = hakmem::stats();
    assert_eq!(
        s.resident_bytes,
        s.active_bytes - s.untouched_bytes + s.dirty_bytes + s.metadata_bytes,
        "{s:?}"
    );
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
}
