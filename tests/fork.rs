//! Forks in a Rust program that has Hakmem as its allocator.

#[path = "support/child.rs"]
mod child;
mod support;

use child::child;
use hakmem::Hakmem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use support::{in_own_process, in_own_processes, resident};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

const MIB: usize = 1 << 20;

/// Runs `f` beside threads that allocate and free blocks of all sizes, their own and each other's.
fn under_load(threads: usize, f: impl FnOnce()) {
    let stop = Arc::new(AtomicBool::new(false));
    let (give, take) = std::sync::mpsc::channel::<Vec<u8>>();
    let hammers: Vec<_> = (0..threads)
        .map(|n| {
            let (stop, give) = (stop.clone(), give.clone());
            thread::spawn(move || {
                let mut x = n as u64 * 77 + 1;
                let mut kept: Vec<Vec<u8>> = Vec::new();
                while !stop.load(Relaxed) {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let r = (x >> 33) as usize;
                    let len = if r % 64 == 0 { r % 2_000_000 } else { r % 3000 };
                    kept.push(vec![r as u8; len]);
                    if kept.len() > 200 {
                        let block = kept.swap_remove(r % 200);
                        if r % 4 == 0 {
                            let _ = give.send(block);
                        }
                    }
                }
            })
        })
        .collect();
    drop(give);
    let freer = thread::spawn(move || take.into_iter().for_each(drop));
    f();
    stop.store(true, Relaxed);
    hammers.into_iter().for_each(|thread| thread.join().unwrap());
    freer.join().unwrap();
}

/// What a child does with its heap.
fn use_the_heap(seed: usize) {
    let mut blocks: Vec<Vec<usize>> = (0..300).map(|i| vec![seed ^ i; 1 + (i * seed) % 5000]).collect();
    assert!(blocks.iter().enumerate().all(|(i, block)| block.iter().all(|&word| word == seed ^ i)));
    blocks.truncate(seed % 300);
    let thread = thread::spawn(move || (0..200).map(|i| format!("{i}")).collect::<String>().len());
    assert_eq!(thread.join().unwrap(), 490);
    if seed % 8 == 0 {
        hakmem::purge();
    }
}

#[test]
fn children_of_a_busy_process_can_allocate() {
    in_own_process("children_of_a_busy_process_can_allocate", || {
        under_load(3, || {
            for seed in 1..300 {
                assert_eq!(child(|| use_the_heap(seed)), 0, "child {seed}");
            }
        });
    });
}

#[test]
fn children_of_children() {
    in_own_process("children_of_children", || {
        under_load(2, || {
            for seed in 1..60 {
                let nested = || {
                    let grandchild = thread::spawn(move || child(|| use_the_heap(seed)));
                    use_the_heap(seed + 1);
                    assert_eq!(grandchild.join().unwrap(), 0);
                };
                assert_eq!(child(nested), 0, "child {seed}");
            }
        });
    });
}

/// A signal handler forks while the thread that it has interrupted is in the middle of an allocation,
/// whatever it holds.
#[test]
fn a_signal_handler_forks() {
    static FORKS: AtomicUsize = AtomicUsize::new(0);
    static IN_CHILD: AtomicBool = AtomicBool::new(false);
    /// The thread is at work. Before that the C library's own allocator may be in the middle of starting it.
    static BEGUN: AtomicBool = AtomicBool::new(false);
    extern "C" fn on_signal(_: libc::c_int) {
        // SAFETY: calls that a handler may make; the child goes on where the parent was interrupted.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::alarm(60);
                IN_CHILD.store(true, Relaxed);
                return;
            }
            let mut status = 1;
            while libc::waitpid(pid, &mut status, 0) != pid {}
            if status != 0 {
                libc::_exit(9);
            }
        }
        FORKS.fetch_add(1, Relaxed);
    }
    in_own_process("a_signal_handler_forks", || {
        under_load(2, || {
            let interrupted = thread::spawn(|| {
                let mut blocks: Vec<Vec<u8>> = (0..16).map(|_| Vec::new()).collect();
                let mut x = 1usize;
                let mut after = 0;
                BEGUN.store(true, Relaxed);
                while FORKS.load(Relaxed) < 200 {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    blocks[x >> 60] = Vec::with_capacity((x >> 33) % 1_500_000);
                    if IN_CHILD.load(Relaxed) {
                        after += 1;
                        if after == 200 {
                            // SAFETY: ends the child.
                            unsafe { libc::_exit(0) };
                        }
                    }
                }
            });
            let handler = on_signal as extern "C" fn(libc::c_int);
            // SAFETY: a handler of that type.
            unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
            use std::os::unix::thread::JoinHandleExt;
            let thread = interrupted.as_pthread_t();
            while !BEGUN.load(Relaxed) {
                thread::yield_now();
            }
            while !interrupted.is_finished() {
                let before = FORKS.load(Relaxed);
                // SAFETY: it has not been joined.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                while FORKS.load(Relaxed) == before && !interrupted.is_finished() {
                    thread::sleep(Duration::from_micros(100));
                }
            }
            interrupted.join().unwrap();
        });
    });
}

/// The child of a process that holds much in other threads' heaps writes to nothing of theirs as long as it
/// needs nothing of theirs; and then their memory serves it, and no new memory is mapped.
#[test]
fn a_child_takes_over_what_other_threads_had_when_it_needs_it() {
    let name = "a_child_takes_over_what_other_threads_had_when_it_needs_it";
    in_own_processes(name, &[64usize, 2000], |size| {
        let (give, take) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let owner = thread::spawn(move || {
            let blocks: Vec<Vec<u8>> = (0..100 * MIB / size).map(|_| vec![1; size]).collect();
            // Half of it free, here and there.
            let kept: Vec<_> = blocks.into_iter().enumerate().filter(|(i, _)| i % 2 == 0).collect();
            give.send(()).unwrap();
            let _ = ended.recv();
            kept.len()
        });
        take.recv().unwrap();
        let held = hakmem::stats().bytes_held;
        let status = child(|| {
            let private = || {
                let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
                let line = text.lines().find(|line| line.starts_with("Private_Dirty:")).unwrap();
                line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
            };
            let words: Vec<String> = (0..100).map(|i| format!("{i}")).collect();
            drop(words);
            let few = private();
            assert!(few < MIB, "{few} bytes written to for a few words");
            // 40 MiB of blocks of the same size: there is as much of them.
            let mut mine: Vec<Vec<u8>> = Vec::with_capacity(40 * MIB / size);
            let before = hakmem::stats().bytes_held;
            mine.extend((0..40 * MIB / size).map(|_| vec![2; size]));
            let after = hakmem::stats();
            assert!(
                after.bytes_held <= before + 2 * MIB as u64,
                "{before} bytes held, then {}",
                after.bytes_held
            );
            assert!(after.refill_orphan > 100, "{after:?}");
            assert!(resident() > 0 && mine.iter().all(|block| block.iter().all(|&b| b == 2)));
        });
        assert_eq!(status, 0);
        assert_eq!(hakmem::stats().bytes_held, held);
        end.send(()).unwrap();
        owner.join().unwrap();
    });
}

/// Waits until no other thread runs, in three looks: what is lost by a fork while another thread is in the
/// middle of a call is not the question then.
fn others_sleep() {
    // SAFETY: no preconditions.
    let me = unsafe { libc::gettid() }.to_string();
    let mut looks = 0;
    while looks < 3 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let runs = |task: std::path::PathBuf| {
            let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            // Behind the name, which may have anything in it.
            stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" S")) && !task.ends_with(&me)
        };
        looks = if tasks.into_iter().any(runs) { 0 } else { looks + 1 };
        thread::yield_now();
    }
}

/// What one thread has freed of another's memory, and not sent back when the process forks, is of use to the
/// child, too: with it whole slabs.
#[test]
fn a_child_takes_over_what_was_on_its_way() {
    in_own_process("a_child_takes_over_what_was_on_its_way", || {
        const SIZE: usize = 2000;
        let (give, take) = std::sync::mpsc::channel::<Vec<Vec<u8>>>();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (done, all) = std::sync::mpsc::channel();
        // The heap of the newer thread is looked at first.
        let (end_freer, freer_ended) = std::sync::mpsc::channel::<()>();
        let freer = thread::spawn(move || {
            // The last to be freed is one block of each slab.
            let (last, most): (Vec<_>, Vec<_>) =
                take.recv().unwrap().into_iter().enumerate().partition(|(i, _)| i % 32 == 7);
            drop(most);
            drop(last);
            done.send(()).unwrap();
            let _ = freer_ended.recv();
        });
        let owner = thread::spawn(move || {
            give.send((0..120 * 32).map(|_| vec![1; SIZE]).collect()).unwrap();
            let _ = ended.recv();
        });
        all.recv().unwrap();
        others_sleep();
        let status = child(|| {
            let mut mine: Vec<Vec<u8>> = Vec::with_capacity(1000 * 32);
            let before = hakmem::stats().bytes_held;
            while hakmem::stats().bytes_held == before {
                mine.extend((0..32).map(|_| vec![2; SIZE]));
            }
            let bytes = mine.len() * SIZE;
            // The rest is records, what the process itself has, and slabs of other classes.
            let most = before as usize * 72 / 100;
            assert!(bytes > most, "{bytes} bytes of blocks in {before}");
        });
        assert_eq!(status, 0);
        end.send(()).unwrap();
        end_freer.send(()).unwrap();
        owner.join().unwrap();
        freer.join().unwrap();
    });
}

/// While another thread gives memory back to the system, pages that are on their way belong to nobody; the
/// child has them again.
#[test]
fn pages_that_were_being_given_back_are_not_lost_to_the_child() {
    in_own_process("pages_that_were_being_given_back_are_not_lost_to_the_child", || {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let purger = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let blocks: Vec<Vec<u8>> = (0..20)
                    .map(|_| Vec::<u8>::with_capacity(900_000))
                    .map(|mut b| {
                        b.push(1);
                        b
                    })
                    .collect();
                drop(blocks);
                hakmem::purge();
            }
        });
        for _ in 0..200 {
            let status = child(|| {
                let stats = hakmem::stats();
                // All that is mapped is in use, free, or a record.
                assert!(stats.bytes_held < 80 * MIB as u64, "{stats:?}");
                let blocks: Vec<Vec<u8>> = (0..20)
                    .map(|_| Vec::<u8>::with_capacity(900_000))
                    .map(|mut b| {
                        b.push(1);
                        b
                    })
                    .collect();
                drop(blocks);
                hakmem::purge();
                let left = hakmem::stats();
                // A SuperSlab that was being unmapped may be lost; not a batch of them.
                // What the other thread had in use is in use here.
                let lost = left.dirty_bytes + left.active_bytes - left.allocated_bytes;
                assert!(lost < 12 * MIB as u64, "{left:?}");
            });
            assert_eq!(status, 0);
        }
        stop.store(true, Relaxed);
        purger.join().unwrap();
    });
}
