use super::*;
use crate::os::SMALLEST_PAGE;
use crate::superslab::slab::{Block, LONG};
use crate::tiny::bins::tests::with_slab;
use core::ptr;

#[test]
fn a_current_slab_is_used_up_only_after_what_was_freed_and_purged_in_it() {
    with_slab(8, 1, false, |bins, slab, counters| {
        // SAFETY: bins, slab and blocks are this thread's alone.
        unsafe {
            while !Bins::alloc(bins, 8, counters).ptr.is_null() {}
            let (start, all) = ((*slab).start, Slab::in_use(slab));
            let last = start.wrapping_add((*slab).last as usize);
            (*slab).remote.push(last.cast::<Block>(), last.cast::<Block>(), 1);
            assert_eq!((*bins).refill(8, counters, || false).ptr, last);
            // As if all that lies in the first page, or more, had been purged.
            let _ = Slab::count(slab, -1);
            (*slab).purged.store(1, Relaxed);
            assert_eq!((*bins).refill(8, counters, || false).ptr, start);
            assert!((*slab).list == Listed::Current && Slab::in_use(slab) == all);
            assert_eq!(((*slab).purged.load(Relaxed), counters.refill_span.get()), (0, 0));
        }
    });
}

#[test]
fn what_others_have_freed_of_long_blocks_comes_before_untouched_memory() {
    let long = (1..).find(|&class| classes::stride(class) > LONG).unwrap();
    for (class, aside) in [(long - 1, false), (long, false), (long, true)] {
        with_slab(class, classes::slices(class as u8), false, |bins, slab, counters| {
            // SAFETY: bins, slab and blocks are this thread's alone.
            unsafe {
                let [first, second, third] = [(); 3].map(|()| Bins::alloc(bins, class, counters).ptr);
                assert!(first < second && second < third);
                (*slab).remote.push(second.cast::<Block>(), second.cast::<Block>(), 1);
                if aside {
                    // One that becomes the current slab later has it, too.
                    Bins::set_aside(bins, class);
                }
                let next = Bins::alloc(bins, class, counters).ptr;
                assert_eq!(next.is_null(), class == long);
                if class == long {
                    assert_eq!((*bins).refill(class as u8, counters, || false).ptr, second);
                    assert!(Bins::alloc(bins, class, counters).ptr > third);
                }
            }
        });
    }
}

#[test]
fn what_others_have_freed_of_short_blocks_comes_before_an_untouched_page() {
    const STRIDE: usize = 384;
    let class = (1..).find(|&class| classes::stride(class) as usize == STRIDE).unwrap();
    let page = |block: *mut u8| block.addr() / SMALLEST_PAGE;
    for (freed_first, pages) in [(false, 0), (true, 0), (true, 1), (true, 2)] {
        with_slab(class, classes::slices(class as u8), false, |bins, slab, counters| {
            // SAFETY: bins, slab and blocks are this thread's alone.
            unsafe {
                (*slab).rest |= if freed_first { FREED_FIRST | BY_PAGE } else { 0 };
                let freed = Bins::alloc(bins, class, counters).ptr;
                let push = || (*slab).remote.push(freed.cast::<Block>(), freed.cast::<Block>(), 1);
                // Up to the block that reaches into the next page, or begins there.
                while page((*slab).bump) < page(freed) + pages || !Slab::begins_page(slab) {
                    assert!(!Bins::alloc(bins, class, counters).ptr.is_null());
                }
                let next = (*slab).bump;
                assert_ne!(page(next.wrapping_sub(1)), page(next.wrapping_add(STRIDE - 1)));
                push();
                let block = Bins::alloc(bins, class, counters).ptr;
                assert_eq!(block, if freed_first { ptr::null_mut() } else { next });
                if freed_first {
                    assert_eq!((*bins).refill(class as u8, counters, || false).ptr, freed);
                    assert_eq!(Bins::alloc(bins, class, counters).ptr, next);
                    push();
                    assert!(!Slab::begins_page(slab));
                    assert_eq!(Bins::alloc(bins, class, counters).ptr, next.wrapping_add(STRIDE));
                }
            }
        });
    }
}

#[test]
fn a_current_slab_that_is_set_aside_is_listed_by_how_much_of_it_is_in_use() {
    for list in [Listed::Sparse, Listed::Partial, Listed::Full] {
        with_slab(8, 1, false, |bins, slab, counters| {
            // SAFETY: bins, slab and blocks are this thread's alone.
            unsafe {
                let few = Slab::few(slab);
                let enough = || match list {
                    Listed::Sparse => few,
                    Listed::Partial => few + 1,
                    _ => u32::MAX,
                };
                while Slab::in_use(slab) < enough() && !Bins::alloc(bins, 8, counters).ptr.is_null() {}
                Bins::set_all_aside(bins);
                assert!((*slab).list == list && Bins::current(bins, 8).load(Relaxed) == no_slab());
                assert_eq!((*slab).filled, list == Listed::Full);
                Bins::unlink(bins, slab);
            }
        });
    }
}
