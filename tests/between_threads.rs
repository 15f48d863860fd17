//! Blocks between threads: how many magazines keep of another thread's, and what becomes of those that go
//! home.

#[path = "support/among.rs"]
mod among;
#[path = "support/slabs.rs"]
#[expect(dead_code, reason = "what only the tests of slabs use")]
mod support;

use among::among;
use std::sync::Once;
use std::sync::mpsc::channel;
use std::thread;
use support::*;

/// Threads that share slabs take blocks in advance: without, the figures are exact.
fn without_shared_slabs() {
    static ONCE: Once = Once::new();
    // SAFETY: before the first allocation, and no other thread reads the environment meanwhile.
    ONCE.call_once(|| unsafe { std::env::set_var("HAKMEM_ORPHANS", "off") });
}

/// Blocks that two threads exchange at a time.
const EACH: usize = 40;
/// How often they do while it is counted what goes home.
const ROUNDS: usize = 20;

/// Among so many threads, two that hold much, so that their magazines may, too, send each other blocks of the
/// sizes, one after another. Returns how many blocks of the last size each has room for.
fn exchanged(threads: usize, sizes: &[usize]) -> usize {
    const LARGE: usize = 60 * KIB;
    let mut room = 0;
    among(threads - 1, || {
        let (to, from_here) = channel::<(Vec<usize>, usize)>();
        let (back, from_there) = channel::<Vec<usize>>();
        thread::scope(|scope| {
            let other = scope.spawn(move || {
                let much = take_many(LARGE, 200);
                for (blocks, size) in from_here {
                    let mine = take_many(size, EACH);
                    give_many(blocks, size);
                    back.send(mine).unwrap();
                }
                give_many(much, LARGE);
            });
            let much = take_many(LARGE, 200);
            let exchange = |rounds, size| {
                for _ in 0..rounds {
                    to.send((take_many(size, EACH), size)).unwrap();
                    give_many(from_there.recv().unwrap(), size);
                }
            };
            for &size in sizes {
                exchange(10, size);
                let home = added(|s| s.home_foreign, || exchange(ROUNDS, size)).0 as usize;
                room = EACH - home / 2 / ROUNDS;
                assert_eq!(home, 2 * ROUNDS * (EACH - room), "{threads} threads, size {size}");
            }
            drop(to);
            // To the end of its thread, not only of this function.
            other.join().unwrap();
            give_many(much, LARGE);
        });
    });
    room
}

/// For blocks of others, magazines grow up to their shares, and further by half a MiB and the last step;
/// among many threads by less.
#[test]
fn magazines_grow_for_blocks_of_other_threads_the_less_the_more_there_are() {
    without_shared_slabs();
    // The test's other threads may have heaps, too, but not so many that it matters.
    for (threads, lent) in [(2, [EACH, EACH, 31, 15]), (16, [EACH, EACH, 15, 7]), (64, [EACH, 15, 3, 3])] {
        for (size, lent) in [256, 4 * KIB, 20 * KIB, 40 * KIB].into_iter().zip(lent) {
            alone(|| assert_eq!(exchanged(threads, &[size]), lent, "{threads} threads, size {size}"));
        }
        // What others have used up leaves each its share: 16 KiB.
        alone(|| assert_eq!(exchanged(threads, &[40 * KIB, 20 * KIB, 256]), EACH, "{threads} threads"));
    }
}

/// What another thread has freed of long ones comes before untouched memory; among many threads, of all.
#[test]
fn what_came_home_is_used_again_before_untouched_pages() {
    without_shared_slabs();
    for (threads, size, used_again) in [
        (5, 4 * KIB, 0),
        (9, 4 * KIB, 2),
        // The first lies in the page in which the last one does.
        (9, 2 * KIB, 1),
        (9, 256, 0),
        (1, 5 * KIB, 2),
        (1, 64 * KIB, 2),
    ] {
        alone(|| {
            among(threads, || {
                let mut blocks = take_many(size, 3);
                let last = blocks[2];
                thread::scope(|scope| {
                    // One thread more, but by now the slab is there.
                    scope.spawn(|| give_many(blocks.drain(..2), size)).join().unwrap();
                });
                blocks.extend(take_many(size, 2));
                let again = blocks[1..].iter().filter(|&&block| block < last).count();
                assert_eq!(again, used_again, "{threads} threads, size {size}");
                give_many(blocks, size);
            });
        });
    }
}
