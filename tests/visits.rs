//! What one thread's heap holds is given back by another: blocks that others freed, magazines, shelves, whole
//! free pages of slabs that are hardly used. Each test runs in a process of its own, because the figures are
//! the process's.

mod support;

use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use support::{in_own_process, in_own_processes, resident};

static HAKMEM: Hakmem = Hakmem::new();

const MIB: usize = 1 << 20;

/// Addresses and sizes of blocks that are anybody's to free.
type Shared = Arc<Vec<Mutex<Vec<(usize, usize)>>>>;

/// A block of `size` bytes, filled with what follows from its address.
fn make(size: usize) -> usize {
    // SAFETY: not of size 0.
    let block = unsafe { HAKMEM.alloc(layout(size)) };
    assert!(!block.is_null());
    // SAFETY: ours, of that size.
    unsafe { block.write_bytes(tag(block as usize), size) };
    block as usize
}

fn tag(block: usize) -> u8 {
    (block >> 4) as u8 | 1
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Frees a block of `make`, which must be as that left it.
fn free(block: usize, size: usize) {
    // SAFETY: of `make`, with this size.
    unsafe {
        let bytes = std::slice::from_raw_parts(block as *const u8, size);
        assert!(bytes.iter().all(|&b| b == tag(block)), "{block:x} was changed");
        HAKMEM.dealloc(block as *mut u8, layout(size));
    }
}

/// Runs `f` while a thread that has made `bytes` bytes of blocks of `size` sleeps, or spins; `f` gets these.
fn beside(bytes: usize, size: usize, spins: bool, f: impl FnOnce(Vec<usize>)) {
    let (give, take) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let owner = thread::spawn(move || {
        give.send((0..bytes / size).map(|_| make(size)).collect::<Vec<_>>()).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            if spins {
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
        // It can still use its heap.
        let again: Vec<_> = (0..1000).map(|_| make(size)).collect();
        again.into_iter().for_each(|block| free(block, size));
    });
    f(take.recv().unwrap());
    stop.store(true, Ordering::Relaxed);
    owner.thread().unpark();
    owner.join().unwrap();
    hakmem::purge();
    assert_eq!(hakmem::stats().allocated_bytes, 0);
}

#[test]
fn what_others_free_comes_back_while_the_owner_sleeps_or_spins() {
    let name = "what_others_free_comes_back_while_the_owner_sleeps_or_spins";
    in_own_processes(name, &[(200, false), (2000, true), (24, false), (5000, false)], |(size, spins)| {
        let before = resident();
        beside(100 * MIB, size, spins, |blocks| {
            assert!(resident() - before > 100 * MIB);
            blocks.into_iter().for_each(|block| free(block, size));
            let left = resident().saturating_sub(before);
            // What the pool may keep, 8 MiB that are not worth a visit, and this process's own.
            assert!(left < 34 * MIB, "{left} bytes of blocks of {size}");
        });
    });
}

#[test]
fn a_block_in_a_hundred_keeps_only_its_page() {
    let name = "a_block_in_a_hundred_keeps_only_its_page";
    let cases = [(200, 100, 25), (2000, 50, 20), (5000, 40, 20), (40, 1500, 40)];
    in_own_processes(name, &cases, |(size, keep, part)| {
        let before = resident();
        let count = 100 * MIB / size;
        let blocks: Vec<_> = (0..count).map(|_| make(size)).collect();
        let peak = resident() - before;
        let (kept, rest): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % keep == 0);
        rest.into_iter().for_each(|(_, block)| free(block, size));
        let left = resident() - before;
        // Besides these, what may lie idle in the pool and in sparse slabs.
        assert!(left < peak * part / 100 + 32 * MIB, "{left} of {peak} bytes, one in {keep} of {size}");
        // What was given back is used again, beside what was kept.
        let again: Vec<_> = (0..count).map(|_| make(size)).collect();
        kept.into_iter().for_each(|(_, block)| free(block, size));
        again.into_iter().for_each(|block| free(block, size));
        hakmem::purge();
        assert_eq!(hakmem::stats().allocated_bytes, 0);
        // The lists of addresses are the system allocator's, which may keep them.
        let lists = 2 * 8 * count;
        assert!(resident() < before + 8 * MIB + lists, "{} bytes more than before", resident() - before);
    });
}

#[test]
fn survivors_of_a_thread_that_ended_keep_only_their_pages_after_a_purge() {
    in_own_process("survivors_of_a_thread_that_ended_keep_only_their_pages_after_a_purge", || {
        let before = resident();
        let kept = thread::spawn(|| {
            let blocks: Vec<_> = (0..40 * MIB / 200).map(|_| make(200)).collect();
            let (kept, rest): (Vec<_>, Vec<_>) =
                blocks.into_iter().enumerate().partition(|(i, _)| i % 100 == 0);
            // Not so many that they would be given back at once.
            rest.into_iter().for_each(|(_, block)| free(block, 200));
            kept
        });
        let kept = kept.join().unwrap();
        hakmem::purge();
        let left = resident() - before;
        assert!(left < 14 * MIB, "{left} bytes");
        kept.into_iter().for_each(|(_, block)| free(block, 200));
        hakmem::purge();
        assert_eq!(hakmem::stats().allocated_bytes, 0);
    });
}

#[test]
fn magazines_and_shelves_of_sleeping_threads_are_emptied() {
    in_own_process("magazines_and_shelves_of_sleeping_threads_are_emptied", || {
        const THREADS: usize = 16;
        const ROUNDS: usize = 3;
        const SIZES: [usize; 8] = [16, 64, 200, 500, 1000, 3000, 10_000, 200_000];
        let (ready, all) = channel();
        let (go_on, threads): (Vec<_>, Vec<_>) = (0..THREADS)
            .map(|_| {
                let (go_on, wait) = channel::<()>();
                let ready = ready.clone();
                let thread = thread::spawn(move || {
                    // From the second time on with magazines that somebody else has been at.
                    for _ in 0..ROUNDS {
                        for size in SIZES {
                            let blocks: Vec<_> = (0..1000.min(1 + MIB / size)).map(|_| make(size)).collect();
                            blocks.into_iter().for_each(|block| free(block, size));
                        }
                        ready.send(()).unwrap();
                        wait.recv().unwrap();
                    }
                });
                (go_on, thread)
            })
            .unzip();
        for _ in 0..ROUNDS {
            (0..THREADS).for_each(|_| all.recv().unwrap());
            let held = resident();
            let told = hakmem::purge();
            let left = resident();
            let came = held.saturating_sub(left);
            assert!(came > THREADS * MIB / 2, "{came} bytes came back");
            assert!(told > came / 2, "{told} of {came} bytes");
            // The page of the topmost block of each magazine, and the magazines' own memory, stay.
            assert!(left < 9 * MIB, "{left} bytes left");
            assert!(hakmem::purge() < MIB, "most comes at the first try");
            go_on.iter().for_each(|go_on| go_on.send(()).unwrap());
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        hakmem::purge();
        assert_eq!(hakmem::stats().allocated_bytes, 0);
    });
}

#[test]
fn threads_go_on_while_others_purge_all_the_time() {
    in_own_process("threads_go_on_while_others_purge_all_the_time", || {
        const ROUNDS: usize = 60_000;
        let stop = Arc::new(AtomicBool::new(false));
        let purgers: Vec<_> = (0..2)
            .map(|_| {
                let stop = stop.clone();
                thread::spawn(move || {
                    let mut bytes = 0;
                    while !stop.load(Ordering::Relaxed) {
                        bytes += hakmem::purge();
                    }
                    bytes
                })
            })
            .collect();
        let shared: Shared = Arc::new((0..4).map(|_| Mutex::default()).collect());
        let workers: Vec<_> = (0..3u64)
            .map(|seed| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut x = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut random = move |n: usize| {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        (x >> 11) as usize % n
                    };
                    let mut own: Vec<(usize, usize)> = Vec::new();
                    for round in 0..ROUNDS {
                        let goal = if round / 2000 % 2 == 0 { 3000 } else { 30 };
                        if own.len() < goal {
                            let size = [8, 24, 100, 200, 700, 2000, 9000, 70_000][random(8).min(random(8))];
                            own.push((make(size), size));
                        }
                        while own.len() > goal || own.len() > 2 && random(2) == 0 {
                            let (block, size) = own.swap_remove(random(own.len()));
                            match random(3) {
                                0 => shared[random(4)].lock().unwrap().push((block, size)),
                                _ => free(block, size),
                            }
                        }
                        if random(50) == 0 {
                            let theirs = std::mem::take(&mut *shared[random(4)].lock().unwrap());
                            theirs.into_iter().for_each(|(block, size)| free(block, size));
                        }
                    }
                    own.into_iter().for_each(|(block, size)| free(block, size));
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        assert!(purgers.into_iter().map(|purger| purger.join().unwrap()).sum::<usize>() > 0);
        for list in shared.iter() {
            list.lock().unwrap().drain(..).for_each(|(block, size)| free(block, size));
        }
        hakmem::purge();
        assert_eq!(hakmem::stats().allocated_bytes, 0);
    });
}

/// From now on this process has no barrier that reaches its other threads: an old kernel, or a filter that
/// has not heard of it.
#[cfg(target_os = "linux")]
fn forbid_barriers() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let nr = libc::SYS_membarrier as u32;
    let mut code = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, nr) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: takes rights away from this process only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_barrier_each_thread_keeps_what_is_its_own() {
    in_own_process("without_a_barrier_each_thread_keeps_what_is_its_own", || {
        forbid_barriers();
        beside(20 * MIB, 200, false, |blocks| {
            blocks.into_iter().for_each(|block| free(block, 200));
            hakmem::purge();
            assert_eq!(hakmem::stats().allocated_bytes, 0);
            assert!(resident() > 20 * MIB);
        });
    });
}
