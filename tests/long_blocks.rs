//! Blocks of more than 4 KiB between threads: how many magazines keep of another thread's, and what becomes
//! of those that go home.

#[path = "support/slabs.rs"]
#[expect(dead_code, reason = "what only the tests of slabs use")]
mod support;

use std::sync::mpsc::channel;
use std::thread;
use support::*;

/// Two threads that hold much, so that their magazines may, too, send each other blocks. For those, magazines
/// grow as ever, but for long ones by half a MiB and the last step.
#[test]
fn long_blocks_of_another_thread_go_home() {
    const EACH: usize = 40;
    const ROUNDS: usize = 20;
    const LARGE: usize = 60 * KIB;
    alone(|| {
        for (size, lent) in [(4 * KIB, EACH), (20 * KIB, 31), (40 * KIB, 15)] {
            let (to, from_here) = channel::<Vec<usize>>();
            let (back, from_there) = channel::<Vec<usize>>();
            thread::scope(|scope| {
                let other = scope.spawn(move || {
                    let much = take_many(LARGE, 200);
                    for blocks in from_here {
                        let mine = take_many(size, EACH);
                        give_many(blocks, size);
                        back.send(mine).unwrap();
                    }
                    give_many(much, LARGE);
                });
                let much = take_many(LARGE, 200);
                let exchange = |rounds| {
                    for _ in 0..rounds {
                        to.send(take_many(size, EACH)).unwrap();
                        give_many(from_there.recv().unwrap(), size);
                    }
                };
                exchange(10);
                let home = added(|s| s.home_foreign, || exchange(ROUNDS)).0 as usize;
                assert_eq!(home, 2 * ROUNDS * (EACH - lent), "size {size}");
                drop(to);
                // To the end of its thread, not only of this function.
                other.join().unwrap();
                give_many(much, LARGE);
            });
        }
    });
}

/// Of long ones, what another thread has freed comes before untouched memory.
#[test]
fn long_blocks_that_came_home_are_used_again_first() {
    alone(|| {
        for (size, first) in [(4 * KIB, false), (5 * KIB, true), (64 * KIB, true)] {
            let mut blocks = take_many(size, 3);
            let last = blocks[2];
            apart(|| give_many(blocks.drain(..2), size));
            blocks.extend(take_many(size, 2));
            assert_eq!(blocks[1..].iter().all(|&block| block < last), first, "size {size}");
            give_many(blocks, size);
        }
    });
}
