//! Models of slabs that nobody has: while their thread gives them up others free their blocks, list them,
//! take them and give them back. None is lost that has enough free blocks, and none is anybody's twice.

use super::*;
use crate::hardened::slab::HELD;
use crate::hardened::source::Source;
use crate::sync::loom::{aside, beside, model_of_statics as model, second};
use crate::sync::wrote;
use loom::thread::JoinHandle;
use std::cell::Cell;

/// Blocks of 2 KiB: one word of bits is enough for a slab.
const CLASS: usize = 36;

/// The current slab of this thread, with so many blocks free, less than 0 for fewer than all, and all others
/// in use or held.
fn slab(free: i32) -> &'static Slab {
    std::thread_local! {
        static SLAB: Cell<Option<&'static Slab>> = const { Cell::new(None) };
    }
    let slab = aside(|| {
        // One that the last execution has given back is no more than a record now.
        if SLAB.get().is_none_or(|slab| slab.place.load(Relaxed) == DEAD) {
            SLAB.set(Slab::make_usual(CLASS));
        }
        let slab = SLAB.get().unwrap();
        assert!(slab.words() == 1 && 2 < slab.enough() && slab.enough() < slab.blocks() as i32 / 2);
        LISTS[CLASS].lock().0 = List::new();
        // Once, so not while a model runs.
        slab.note_filled();
        slab.word(0).store(0, Relaxed);
        (0..slab.blocks()).for_each(|index| slab.state(index).store(HELD, Relaxed));
        slab.place.store(CURRENT, Relaxed);
        slab.counted.store(false, Relaxed);
        slab.free.store(0, Relaxed);
        REGRETTED.store(os::now_ms(), Relaxed);
        slab
    });
    slab.count(if free < 0 { slab.blocks() as i32 + free } else { free });
    slab
}

/// Lets go of a block that was freed.
fn free(slab: &'static Slab, index: usize) {
    let place = slab.nth(index);
    wrote(place.block);
    freed(slab, place.let_go());
}

/// A thread that does so.
fn freer(slab: &'static Slab, index: usize) -> JoinHandle<()> {
    beside(move || free(slab, index))
}

/// What belongs to whoever has the slab. In it lies nothing but atomics: this stands for what else a thread
/// has done as long as it had the slab.
fn had(slab: &Slab) {
    wrote(&raw const slab.thread);
}

/// In the end: the slab is listed, once.
fn is_listed(slab: &Slab) -> bool {
    let found = take(CLASS).is_some_and(|found| core::ptr::eq(found, slab));
    found && take(CLASS).is_none()
}

/// Gives a slab back as `emptied` does; then its memory is somebody else's.
fn give_back(slab: &'static Slab, block: usize) -> usize {
    let block = slab.nth(block).block;
    let bytes = emptied(slab, true);
    if bytes != 0 {
        wrote(block);
    }
    bytes
}

/// A thread has used its slab up while another one frees the block with which there are enough.
#[test]
fn a_slab_that_is_used_up_beside_a_free_is_its_threads_or_listed() {
    model(None, || {
        let slab = slab(0);
        slab.count(slab.enough() - 1);
        let other = freer(slab, 0);
        had(slab);
        let is_given_up = drop_used_up(slab);
        if !is_given_up {
            had(slab);
        }
        other.join().unwrap();
        if is_given_up {
            assert!(is_listed(slab), "lost");
            had(slab);
        } else {
            assert!(slab.place.load(Relaxed) == CURRENT && take(CLASS).is_none(), "it has one already");
        }
    });
}

/// The same where the thread ends.
#[test]
fn a_slab_that_is_given_up_beside_a_free_is_listed() {
    model(None, || {
        let slab = slab(0);
        slab.count(slab.enough() - 1);
        let other = freer(slab, 0);
        had(slab);
        drop_current(slab);
        other.join().unwrap();
        assert!(is_listed(slab), "lost");
        had(slab);
    });
}

/// One with few free blocks is given up while another thread, which cannot get another slab, looks for such.
#[test]
fn a_slab_with_few_free_blocks_is_taken_after_it_was_given_up() {
    model(None, || {
        let slab = slab(1);
        // Not those of other models.
        aside(|| {
            Slab::each_while(|other| {
                if !core::ptr::eq(other, slab) {
                    other.place.store(DEAD, Relaxed);
                }
                true
            })
        });
        let giver = beside(move || {
            had(slab);
            drop_current(slab);
        });
        let taken =
            second(move || take_unlisted(CLASS, &Cursor::default()).inspect(|slab| had(slab)).is_some());
        giver.join().unwrap();
        assert_eq!(slab.place.load(Relaxed), if taken { CURRENT } else { FULL });
        assert_eq!(take_unlisted(CLASS, &Cursor::default()).is_some(), !taken);
    });
}

/// The last block of a slab is freed while its thread gives it up: it is counted as empty, once.
#[test]
fn a_slab_that_is_given_up_beside_its_last_free_is_counted() {
    model(Some(3), || {
        let slab = slab(-1);
        let other = freer(slab, 0);
        drop_current(slab);
        other.join().unwrap();
        assert!(slab.counted.load(Relaxed) && EMPTY.load(Relaxed) == slab.slices(), "not noticed");
        assert!(is_listed(slab));
        assert!(!slab.counted.load(Relaxed) && EMPTY.load(Relaxed) == 0);
    });
}

/// The last two blocks are freed by two threads.
#[test]
fn a_slab_that_is_given_up_beside_its_last_frees_is_counted() {
    model(Some(2), || {
        let slab = slab(-2);
        let others = [freer(slab, 0), freer(slab, 1)];
        drop_current(slab);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(slab.counted.load(Relaxed) && EMPTY.load(Relaxed) == slab.slices(), "not noticed");
        assert!(is_listed(slab) && EMPTY.load(Relaxed) == 0);
    });
}

/// A thread takes a slab from its list while the last block is freed: the count is right all the same.
#[test]
fn a_slab_is_taken_beside_its_last_free() {
    model(None, || {
        let slab = slab(-1);
        drop_current(slab);
        let other = freer(slab, 0);
        let taken = take(CLASS);
        other.join().unwrap();
        let is_counted = slab.counted.load(Relaxed);
        assert_eq!(EMPTY.load(Relaxed), if is_counted { slab.slices() } else { 0 });
        assert_eq!(slab.place.load(Relaxed), if taken.is_some() { CURRENT } else { LISTED });
        assert!(!(is_counted && taken.is_some()));
        assert_eq!(is_listed(slab), taken.is_none());
    });
}

/// A slab is given back while its last block is freed, by one of the two threads that may do so, and after
/// what the other one has done with the block.
#[test]
fn a_slab_is_given_back_once_after_its_last_free() {
    model(Some(3), || {
        let slab = slab(-1);
        drop_current(slab);
        EMPTY.store(FEW, Relaxed);
        let other = freer(slab, 0);
        let bytes = second(move || give_back(slab, 0));
        other.join().unwrap();
        let whole = slab.slices() * SLICE;
        assert!(bytes == 0 || bytes == whole && slab.place.load(Relaxed) == DEAD);
        // Who freed it may not have had the lock, while the other one found a block in use. Then it waits.
        assert!(slab.place.load(Relaxed) == DEAD || give_back(slab, 0) == whole);
        assert!(take(CLASS).is_none() && EMPTY.load(Relaxed) == FEW);
    });
}

/// A slab is freed into, listed, taken and used up again while the thread that had it before looks whether it
/// still has it. There is one thread at a time that has it.
#[test]
fn a_slab_goes_round_and_is_one_threads() {
    model(Some(3), || {
        let slab = slab(0);
        slab.count(slab.enough() - 1);
        let other = beside(move || {
            free(slab, 0);
            let Some(taken) = take(CLASS) else { return false };
            had(taken);
            let source = Source::new();
            source.begin(taken, None);
            while source.take_word(taken, || None) {}
            source.settle(taken);
            // As if it had found all that was counted.
            taken.count(1 - taken.enough());
            !drop_used_up(taken)
        });
        had(slab);
        let is_ours = !drop_used_up(slab);
        if is_ours {
            had(slab);
        }
        let is_theirs = other.join().unwrap();
        assert!(!(is_ours && is_theirs));
        let place = slab.place.load(Relaxed);
        assert_eq!(place == CURRENT, is_ours || is_theirs);
    });
}

/// Who cannot have the lock of the list in time leaves the slab to the next free.
#[test]
fn a_slab_that_cannot_be_listed_is_by_the_next_free() {
    model(Some(3), || {
        let slab = slab(0);
        slab.count(slab.enough() - 1);
        let other = freer(slab, 0);
        let late = beside(move || {
            let before = take(CLASS).is_some();
            free(slab, 1);
            let is_theirs = before || take(CLASS).is_some();
            if is_theirs {
                had(slab);
            }
            is_theirs
        });
        had(slab);
        let is_ours = !drop_used_up(slab);
        if is_ours {
            had(slab);
        }
        other.join().unwrap();
        let is_theirs = late.join().unwrap();
        assert!(!(is_ours && is_theirs));
        if !(is_ours || is_theirs) {
            free(slab, 2);
            assert!(is_listed(slab), "lost");
        }
    });
}
