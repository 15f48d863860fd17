//! Tests of what happens when memory is refused. In children of a fork, because what is held is the
//! process's.

use super::*;
extern crate std;
use crate::large::child;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::RUN;
use crate::superslab::slab::{Block, Slab};
use crate::sync::AtomicUsize;
use crate::tiny::free;
use core::cell::Cell;
use core::ptr;
use std::collections::HashSet;
use std::vec::Vec;

const MIB: usize = 1 << 20;

/// The calling thread's heap, and a large block in use of as many bytes.
fn heap_and_large(len: usize) -> (*mut Heap, *mut u8) {
    crate::front::visitor::inherit();
    let heap = thread::lasting_heap();
    let block = large::alloc(len, 1).ptr;
    assert!(!heap.is_null() && !block.is_null());
    (heap, block)
}

/// A reclaim has just been in vain, as if the clock stood still since.
fn in_vain() {
    FRUITLESS.tried(false, os::now_ms().wrapping_add(200_000));
}

fn nothing_freed_since() {
    if let Some(seen) = seen() {
        seen.set(freed());
    }
}

/// A block of the heap's slab, which another thread has freed, is on its ready list.
fn ready(heap: *mut Heap) {
    // SAFETY: the heap is this thread's, and the block nobody else's.
    unsafe {
        let block = Heap::refill(heap, 5).ptr.cast::<Block>();
        free::push_remote(Slab::of(block.cast()), block, block, 1);
    }
}

/// Counts its calls, and succeeds in the last one of these.
fn attempt<'a>(calls: &'a Cell<usize>, last: usize) -> impl Fn() -> Allocation + 'a {
    move || {
        calls.set(calls.get() + 1);
        let ptr = if calls.get() >= last { ptr::without_provenance_mut(64) } else { ptr::null_mut() };
        Allocation { ptr, zeroed: false }
    }
}

#[test]
fn no_process_has_more_addresses_than_48_bits() {
    assert!(!is_beyond_addresses(0) && !is_beyond_addresses((1 << 48) - 1));
    assert!(is_beyond_addresses(1 << 48) && is_beyond_addresses(isize::MAX as usize));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_could_never_be_had_is_refused_without_a_search() {
    assert!(child::is_so(|| {
        let before = cached_runs();
        let (heap, run) = heap_and_large(3 * SLICE);
        let large = large::alloc(3 * MIB, 1).ptr;
        assert!(!is_hopeless(64 * MIB, 1) && is_hopeless(1 << 50, 1), "the system decides");
        assert!(is_hopeless(64, 1 << 62) && is_hopeless(64, 1 << 47) && !is_hopeless(64, 64 * MIB));

        // A run in a thread's cache counts as in use, and goes back.
        // SAFETY: a block in use, which nobody uses after this; the heap is this thread's, and entered.
        unsafe {
            let _entered = Heap::enter(heap);
            assert!((*heap).run_cache.put_freed(run));
        }
        assert_eq!(cached_runs(), before + 3 * SLICE);
        let in_use = counters::LARGE_IN_USE.load(Relaxed) - cached_runs();
        assert!(in_use >= 3 * MIB && held::bytes() > in_use);
        held::set(0, in_use + 2 * MIB);
        assert!(!is_hopeless(2 * MIB, 1) && is_hopeless(2 * MIB + 1, 1));
        // Small blocks may find room in what others cache, whatever is in use.
        held::set(0, MIB / 2);
        assert!(!is_hopeless(MIB / 2, 1) && is_hopeless(MIB / 2 + 1, 1));

        // After a reclaim there is only what has been freed since.
        let held = held::bytes() - spare();
        held::set(0, held + 2 * MIB);
        in_vain();
        nothing_freed_since();
        assert!(!is_hopeless(2 * MIB, 1) && is_hopeless(2 * MIB + 1, 1));
        let returning = returning::Returning::begin();
        assert!(!is_hopeless(2 * MIB + 1, 1), "more may be on its way");
        drop(returning);
        assert!(is_hopeless(2 * MIB + 1, 1) && !has_ready() && !has_freed());
        // SAFETY: the heap is this thread's, and so is the block, which nobody uses after its free.
        unsafe { Heap::free(heap, Heap::refill(heap, 5).ptr, 5) };
        assert!(has_freed() && !is_hopeless(2 * MIB + 1, 1), "it may have freed something itself");
        // The refill has given back a run.
        held::set(0, held::bytes() - spare() + 2 * MIB);
        assert!(!is_hopeless(2 * MIB + 1, 1));
        nothing_freed_since();
        assert!(is_hopeless(2 * MIB + 1, 1));
        ready(heap);
        nothing_freed_since();
        assert!(has_ready() && !is_hopeless(2 * MIB + 1, 1), "others have freed something");
        held::set(0, 0);
        // SAFETY: a block in use, which nobody uses after this.
        unsafe { large::free(large, DIRECT, "free") };
        let kept = large::kept();
        kept >= 3 * MIB && spare() == kept + pool::free_bytes() && pool::free_bytes() > 0
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_is_freed_changes_the_number() {
    assert!(child::is_so(|| {
        assert!(!has_ready(), "no heap");
        let (heap, run) = heap_and_large(3 * SLICE);
        let mut seen = HashSet::from([freed()]);
        assert!(!seen.insert(freed()));
        // SAFETY: the heap is this thread's, and so are the blocks, which nobody uses after their free.
        unsafe {
            let blocks: Vec<_> = (0..64).map(|_| Heap::refill(heap, 5).ptr).collect();
            for block in blocks {
                seen.insert(freed());
                Heap::free(heap, block, 5);
                assert!(seen.insert(freed()), "a small block");
            }
            for _ in 0..32 {
                counters::LARGE_FREES.fetch_add(1, Relaxed);
                assert!(seen.insert(freed()), "a large block of another thread");
            }
            large::free(run, RUN, "free");
        }
        seen.insert(freed())
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_reclaim_in_vain_is_not_repeated_until_something_is_freed() {
    assert!(child::is_so(|| {
        let (heap, _) = heap_and_large(SLICE);
        let calls = Cell::new(0);
        let tried = |last| {
            calls.set(0);
            let done = !reclaimed(&attempt(&calls, last)).ptr.is_null();
            (done, calls.get())
        };
        assert_eq!(tried(1), (true, 1));
        assert!(!FRUITLESS.was_refused());
        assert_eq!(tried(9), (false, 1), "even if nothing went back: others' caches were emptied");
        assert!(FRUITLESS.was_refused());
        in_vain();
        assert_eq!(tried(1), (false, 0), "nothing has been freed");
        // Something that goes back: a run.
        // SAFETY: a block in use, which nobody uses after this.
        unsafe { large::free(large::alloc(2 * MIB, 1).ptr, DIRECT, "free") };
        assert_eq!(tried(1), (true, 1));
        assert!(!FRUITLESS.was_refused());
        tried(9);
        in_vain();
        ready(heap);
        // Taken in, and the magazines are this thread's own: nothing need go back.
        tried(9);
        in_vain();
        tried(9) == (false, 0)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_other_threads_give_back_is_tried_for() {
    assert!(child::is_so(|| {
        let calls = Cell::new(0);
        let tried = |seen, last| {
            calls.set(0);
            let done = !when_returned(seen, &attempt(&calls, last)).ptr.is_null();
            (done, calls.get())
        };
        let now = returning::returned();
        assert_eq!(tried(now, 1), (false, 0), "nobody has");
        in_vain();
        assert_eq!(tried(now.wrapping_sub(1), 2), (false, 1), "once");
        assert!(FRUITLESS.was_refused());
        assert_eq!(tried(now.wrapping_sub(1), 1), (true, 1));
        assert!(!FRUITLESS.was_refused());
        // Not for ever.
        let _returning = returning::Returning::begin();
        tried(now, 1) == (false, 0)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn the_hard_limit_is_counted_when_it_has_refused() {
    assert!(child::is_so(|| {
        let (_, block) = heap_and_large(2 * MIB);
        let hits = || held::HARD_HITS.load(Relaxed);
        let calls = Cell::new(0);
        assert_eq!((or_reclaim(8, 1, attempt(&calls, 1)).ptr.is_null(), calls.get(), hits()), (false, 1, 0));
        calls.set(0);
        let _ = or_reclaim(8, 1, attempt(&calls, 99));
        // Nothing has been freed since, so a shorter span is all that is left to try.
        for (need, tries) in [(8, 2), (MAX_SMALL, 2), (MAX_SMALL + 1, 1)] {
            in_vain();
            calls.set(0);
            assert!(or_reclaim(need, 1, attempt(&calls, 99)).ptr.is_null());
            assert_eq!((calls.get(), hits()), (tries, 0), "{need}");
        }
        held::set(0, MIB);
        calls.set(0);
        assert!(or_reclaim(2 * MIB, 1, attempt(&calls, 2)).ptr.is_null());
        assert_eq!((calls.get(), hits()), (1, 1), "hopeless");
        held::set(0, held::bytes() + 16 * MIB);
        calls.set(0);
        assert!(!or_reclaim(2 * MIB, 1, attempt(&calls, 2)).ptr.is_null());
        assert_eq!(hits(), 1);
        // A mapping that cannot grow in place, and is not tried again without hope.
        held::set(0, held::bytes());
        // SAFETY: a block in use of this thread.
        unsafe {
            assert!(resize(block, DIRECT, 64 * MIB, 1).is_null());
            assert_eq!(resize(block, DIRECT, MIB + MIB / 2, 1), block);
        }
        true
    }));
}

/// Also where what crosses it was had late.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn the_hook_hears_of_each_way_beyond_the_soft_limit() {
    static CROSSED: AtomicUsize = AtomicUsize::new(0);
    assert!(child::is_so(|| {
        let (_, block) = heap_and_large(2 * MIB);
        limits::on_soft_limit(Some(|_, _| _ = CROSSED.fetch_add(1, Relaxed)));
        let crossed = || CROSSED.swap(0, Relaxed);
        let get = || large::alloc(4 * MIB, 1);
        held::set(held::bytes() + MIB, 0);
        assert!(!when_returned(returning::returned().wrapping_sub(1), &get).ptr.is_null());
        assert_eq!(crossed(), 1);
        held::set(0, 0);
        held::set(held::bytes() + MIB, 0);
        // SAFETY: a block in use of this thread.
        assert!(!unsafe { resize_at_last(block, DIRECT, 8 * MIB, 1) }.is_null());
        assert_eq!(crossed(), 1);
        true
    }));
}
