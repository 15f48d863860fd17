//! Slabs that many threads share: what one has left serves the next.

#[path = "support/among.rs"]
mod among;
#[path = "support/slabs.rs"]
#[expect(dead_code, reason = "what only the tests of slabs use")]
mod support;

use among::among;
use std::thread;
use support::*;

/// Of many threads none keeps a slab into which others free: what one has left serves the next.
#[test]
fn among_many_threads_slabs_into_which_others_free_are_shared() {
    let cases = [
        (9, 16 * KIB, true),
        (9, 2 * KIB, true),
        (9, 512, true),
        (9, 448, false),
        (5, 16 * KIB, false),
        (5, 512, false),
    ];
    for (threads, size, is_shared) in cases {
        alone(|| {
            among(threads, || {
                // More than a page of them: only before an untouched one it is asked what others have freed.
                let count = 4 * KIB / size + 3;
                let mut blocks = take_many(size, count);
                thread::scope(|scope| {
                    scope.spawn(|| give_many(blocks.drain(1..), size)).join().unwrap();
                });
                blocks.extend(take_many(size, count));
                let (adopted, block) = added(|s| s.refill_orphan, || apart(|| take(size)));
                assert_eq!(adopted, u64::from(is_shared), "{threads} threads, size {size}");
                give(block, size);
                give_many(blocks, size);
            });
        });
    }
}
