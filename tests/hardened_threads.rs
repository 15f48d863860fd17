//! What hardened mode keeps back for threads that end, and for threads that only free.

use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

/// Figures of the whole process are compared.
static ALONE: Mutex<()> = Mutex::new(());

const LAYOUT: Layout = Layout::new::<[u64; 6]>();
const PAGE: Layout = Layout::new::<[u64; 500]>();

fn block(layout: Layout) -> *mut u8 {
    // SAFETY: the size is not 0.
    let block = unsafe { GLOBAL.alloc(layout) };
    assert!(!block.is_null());
    block
}

/// What each of many threads has freed last lies in slabs of its own.
#[test]
fn the_quarantine_of_a_thread_that_has_ended_keeps_no_slab() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    const THREADS: usize = 32;
    const EACH: usize = 500;
    let held = || hakmem::stats().active_bytes;
    let before = held();
    let blocks: Vec<usize> = (0..THREADS * EACH).map(|_| block(PAGE).expose_provenance()).collect();
    let most = held();
    // 61 MiB; what a thread of another test lets go of late may be missing.
    assert!(most - before > 48 << 20);
    let all = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let free_some = |thread| {
            let (blocks, all) = (&blocks, &all);
            scope.spawn(move || {
                all.wait();
                // In no order, so that the last ones lie in many slabs.
                for i in 0..EACH {
                    let block = blocks[thread * EACH + i * 7919 % EACH];
                    // SAFETY: each is freed by one thread, once.
                    unsafe { GLOBAL.dealloc(ptr::with_exposed_provenance_mut(block), PAGE) };
                }
                // So that no heap serves two of them.
                all.wait();
            })
        };
        let threads: Vec<_> = (0..THREADS).map(free_some).collect();
        // The scope waits for what they do, but not for their ends, in which they let go of what is in
        // quarantine.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    hakmem::purge();
    let more = held().saturating_sub(before) >> 20;
    assert!(more <= 24, "{more} MiB are still in use");
}

/// A list of 8,192 blocks, 64 KiB of each.
#[test]
fn what_threads_that_have_ended_listed_in_quarantine_goes_back() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    const THREADS: usize = 16;
    let metadata = || hakmem::stats().metadata_bytes;
    hakmem::purge();
    let before = metadata();
    let all = std::sync::Barrier::new(THREADS + 1);
    let most = std::thread::scope(|scope| {
        let fill = || {
            for _ in 0..10_000 {
                // SAFETY: our own block, freed once.
                unsafe { GLOBAL.dealloc(block(LAYOUT), LAYOUT) };
            }
            all.wait();
            all.wait();
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(fill)).collect();
        all.wait();
        let most = metadata();
        all.wait();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        most
    });
    hakmem::purge();
    let (more, left) = ((most - before) >> 10, metadata().saturating_sub(before) >> 10);
    assert!(more >= 48 * THREADS as u64, "{more} KiB are counted");
    // SAFETY: no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64 >> 10;
    assert!(left <= page.max(30) * THREADS as u64, "{left} of {more} KiB are left");
}

/// Each would go through a slab of its own of every class, from end to end.
#[test]
fn threads_share_the_slabs_of_long_blocks() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    const THREADS: usize = 16;
    let held = || hakmem::stats().active_bytes;
    let (before, turn, all) = (held(), Mutex::new(()), std::sync::Barrier::new(THREADS + 1));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                // One after the other, and few of each class: where two meet, or for many, a thread has a
                // slab of its own.
                let ours = turn.lock().unwrap();
                for size in (9_000..60_000).step_by(1000).cycle().take(250) {
                    let layout = Layout::from_size_align(size, 16).unwrap();
                    // SAFETY: our own block, freed once.
                    unsafe { GLOBAL.dealloc(block(layout), layout) };
                }
                drop(ours);
                all.wait();
                all.wait();
            });
        }
        all.wait();
        let more = held().saturating_sub(before) >> 20;
        all.wait();
        assert!(more <= 16, "{more} MiB more");
    });
}

static LAST: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

extern "C" fn frees_one(_: *mut c_void) -> *mut c_void {
    // SAFETY: a block that nobody else uses.
    unsafe { GLOBAL.dealloc(LAST.load(SeqCst), PAGE) };
    ptr::null_mut()
}

/// Such a thread borrows a heap, which keeps the block in quarantine, and with it its slab.
#[test]
fn a_purge_lets_go_of_what_threads_have_freed_that_ended_without_a_heap() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    const EACH: usize = 64;
    let held = || hakmem::stats().active_bytes;
    hakmem::purge();
    let before = held();
    let blocks: Vec<_> = (0..64 * EACH).map(|_| block(PAGE)).collect();
    for (n, &block) in blocks.iter().enumerate() {
        if n % EACH != 0 {
            // SAFETY: our own block, freed once.
            unsafe { GLOBAL.dealloc(block, PAGE) };
            continue;
        }
        LAST.store(block, SeqCst);
        let mut thread = 0;
        // SAFETY: the function takes nothing and returns null; nobody else waits for the thread.
        unsafe {
            assert_eq!(libc::pthread_create(&mut thread, ptr::null(), frees_one, ptr::null_mut()), 0);
            assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
        }
    }
    hakmem::purge();
    let more = held().saturating_sub(before) >> 10;
    assert!(more <= 1 << 10, "{more} KiB are still in use");
}

const BLOCKS: usize = 64;
static FREED: [AtomicPtr<u8>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];
static DONE: AtomicBool = AtomicBool::new(false);
static ENDS: AtomicBool = AtomicBool::new(false);

/// A thread that the standard library knows nothing of, and so allocates nothing for.
extern "C" fn only_frees(_: *mut c_void) -> *mut c_void {
    for block in &FREED {
        // SAFETY: a block that nobody else uses.
        unsafe { GLOBAL.dealloc(block.load(SeqCst), LAYOUT) };
    }
    DONE.store(true, SeqCst);
    while !ENDS.load(SeqCst) {
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
    }
    ptr::null_mut()
}

#[test]
fn what_a_thread_frees_that_never_allocates_is_kept_back() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    FREED.iter().for_each(|freed| freed.store(block(LAYOUT), SeqCst));
    let mut thread = 0;
    // SAFETY: the function takes nothing and returns null.
    unsafe { assert_eq!(libc::pthread_create(&mut thread, ptr::null(), only_frees, ptr::null_mut()), 0) };
    while !DONE.load(SeqCst) {
        std::thread::yield_now();
    }
    let reused = (0..3000)
        .map(|_| block(LAYOUT))
        .filter(|&block| FREED.iter().any(|freed| freed.load(SeqCst) == block))
        .count();
    ENDS.store(true, SeqCst);
    // SAFETY: a thread that nobody else waits for.
    unsafe { assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0) };
    assert_eq!(reused, 0);
}
