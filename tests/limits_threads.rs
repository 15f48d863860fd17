//! At the hard limit: memory that other threads keep, or are just giving back.

#[path = "support/mod.rs"]
mod processes;
#[path = "support/limits.rs"]
mod support;

use processes::skips::skip;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::*;

/// Runs `f` while `count` other threads keep a run each, made by `make_run`, that they have freed.
fn while_they_keep(count: usize, make_run: impl Fn() -> (*mut u8, usize), f: impl FnOnce()) {
    let (ready, freed) = (Barrier::new(count + 1), Barrier::new(count + 1));
    std::thread::scope(|scope| {
        // The threads end when these are dropped, also if `f` panics.
        let mut runs = Vec::new();
        for _ in 0..count {
            let (run, given) = channel::<(usize, usize)>();
            runs.push(run);
            let (ready, freed) = (&ready, &freed);
            scope.spawn(move || {
                // A thread has a cache from its first block on, whose slab must not be what keeps a SuperSlab
                // that has a run.
                free(make(16), 16);
                ready.wait();
                let (run, size) = given.recv().unwrap();
                free(run as *mut u8, size);
                freed.wait();
                given.recv().unwrap_err();
            });
        }
        ready.wait();
        let made: Vec<_> = runs.iter().map(|_| make_run()).collect();
        for (thread, (run, size)) in runs.iter().zip(made) {
            thread.send((run as usize, size)).unwrap();
        }
        freed.wait();
        f();
    });
}

/// What threads keep of freed large blocks can be had by others. Each in a process of its own: just after
/// something was refused, which other tests cause, threads that sleep are left alone.
#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn what_sleeping_threads_keep_goes_before_anything_is_refused() {
    // No processes can be started under the emulator of other page sizes.
    if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
        return skip("under an emulator");
    }
    let name = "what_sleeping_threads_keep_goes_before_anything_is_refused";
    let cases: [fn(); 5] = [
        far_below_the_limit,
        at_the_limit_with_locked_memory,
        while_it_is_given_back,
        just_after_refusals,
        just_after_refusals_what_it_has_freed_itself,
    ];
    processes::in_own_processes(name, &cases, |case| {
        let _alone = alone();
        case();
    });
}

/// Runs in threads' caches still count as in use, and are nevertheless what can be given back.
fn far_below_the_limit() {
    let (start, size) = (held(), 900 << 10);
    let make_run = || (make(size), size);
    while_they_keep(16, make_run, || {
        assert!(held() >= start + 15 * MIB);
        limit(0, start + 66 * MIB);
        let block = make(64 * MIB);
        assert!(!block.is_null(), "{:?}", stats());
        free(block, 64 * MIB);
    });
}

/// What another thread has freed of a thread's own blocks can be had at once, however often that thread was
/// refused before.
fn just_after_refusals() {
    const BLOCK: usize = 512;
    for size in [900 << 10, 4 * MIB] {
        hakmem::purge();
        limit(0, held() + 6 * MIB);
        let next = || Some(make(BLOCK)).filter(|block| !block.is_null());
        let freed = Barrier::new(2);
        std::thread::scope(|scope| {
            let (blocks, given) = channel::<Vec<usize>>();
            let freed = &freed;
            let thread = scope.spawn(move || {
                for blocks in given {
                    for block in blocks {
                        free(block as *mut u8, BLOCK);
                    }
                    freed.wait();
                }
                // What it has not sent yet goes with its end.
            });
            // So that it has a heap before nothing is left. A slab of its own would be free memory later.
            blocks.send(vec![make(BLOCK) as usize]).unwrap();
            freed.wait();
            let all: Vec<_> = std::iter::from_fn(next).map(|block| block as usize).collect();
            // Until the pauses between the times at which all is tried are much longer than what follows:
            // 16 ms, and twice as long after each time, up to 128.
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(400) {
                assert!(make(size).is_null());
            }
            blocks.send(all).unwrap();
            freed.wait();
            drop(blocks);
            thread.join().unwrap();
            let block = make(size);
            assert!(!block.is_null(), "{size}: {:?}", stats());
            free(block, size);
        });
    }
}

/// What the thread itself has freed since then counts, too, though it keeps some of that: slabs, runs.
fn just_after_refusals_what_it_has_freed_itself() {
    const SIZE: usize = 8 * MIB;
    const SIZES: [usize; 6] = [64 << 10, 56 << 10, 48 << 10, 40 << 10, 32 << 10, 28 << 10];
    hakmem::purge();
    limit(0, held() + SIZE);
    let next = |size| Some((make(size), size)).filter(|(block, _)| !block.is_null());
    let all: Vec<_> = SIZES.into_iter().cycle().map_while(next).collect();
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(400) {
        assert!(make(SIZE).is_null());
    }
    for (block, size) in all {
        free(block, size);
    }
    let block = make(SIZE);
    assert!(!block.is_null(), "{:?}", stats());
    free(block, SIZE);
}

/// Memory that another thread is just giving back is waited for.
fn while_it_is_given_back() {
    const SIZE: usize = 32 * MIB;
    const ROUNDS: usize = 200;
    limit(0, held() + SIZE + 8 * MIB);
    let (given, taken) = (Barrier::new(2), Barrier::new(2));
    let fill = || {
        let block = make(SIZE);
        assert!(!block.is_null(), "{:?}", stats());
        // SAFETY: the block's size.
        unsafe { block.write_bytes(SIZE as u8 | 1, SIZE) };
        free(block, SIZE);
    };
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                fill();
                given.wait();
                hakmem::purge();
                taken.wait();
            }
        });
        for round in 0..ROUNDS {
            given.wait();
            // At different moments of what the other thread does.
            (0..round * 50).for_each(|_| std::hint::spin_loop());
            let since = Instant::now();
            let block = make(SIZE);
            // It does not wait for ever: 100 times a millisecond, in which the other thread may not run.
            if block.is_null() && since.elapsed() < Duration::from_millis(100) {
                refused.fetch_add(1, SeqCst);
            } else if !block.is_null() {
                free(block, SIZE);
            }
            taken.wait();
        }
    });
    assert_eq!(refused.into_inner(), 0, "of {ROUNDS}: {:?}", stats());
}

/// Where the system takes no page back, what other threads keep may still be what is needed.
fn at_the_limit_with_locked_memory() {
    // SAFETY: no preconditions.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        return skip("memory cannot be locked here");
    }
    // Three of them fit into a SuperSlab. The last two of these and the thread's make one full that is new.
    let (start, size) = (held(), 500 << 10);
    let mut runs = vec![make(size)];
    while held() == start {
        runs.push(make(size));
    }
    runs.push(make(size));
    let make_run = || (make(size), size);
    while_they_keep(1, make_run, || {
        limit(0, held());
        let run = make(size);
        assert!(!run.is_null(), "{:?}", stats());
        free(run, size);
    });
    free_all(runs, size);
}
