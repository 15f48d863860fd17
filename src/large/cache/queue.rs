//! Memory that the system refused to unmap when all places of the cache were taken: in a list linked through
//! the memory itself. What came first is looked at first, and is asked for first again.

use crate::large::huge::Mapping;
use crate::sync::Ordering::Release;
use crate::sync::compiler_fence;
use core::ptr;

/// How many mappings a search looks at.
const DEEP: usize = 1024;

/// The list. In the child of a fork it is whole, except that a mapping that was being put in or taken out may
/// be missing; and that [`inherit`](Queue::inherit) has to find the last one and to count.
pub(super) struct Queue {
    first: *mut Queued,
    last: *mut Queued,
    len: usize,
}

/// Stands at the start of each mapping.
struct Queued {
    next: *mut Queued,
    len: usize,
    huge: bool,
}

impl Queue {
    /// An empty one.
    pub(super) const fn new() -> Self {
        Self { first: ptr::null_mut(), last: ptr::null_mut(), len: 0 }
    }

    /// How many mappings are in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts a mapping behind all others. From then on it belongs to the list.
    pub(super) fn push(&mut self, kept: Mapping) {
        let queued = kept.block.cast::<Queued>();
        // SAFETY: memory of ours, still mapped and of at least 64 KiB, that nobody uses until it is taken out
        // again.
        unsafe { queued.write(Queued { next: ptr::null_mut(), len: kept.len, huge: kept.huge }) };
        compiler_fence(Release);
        self.set_next(self.last, queued);
        self.last = queued;
        self.len += 1;
    }

    /// Makes `next` what follows `at`, or the first one where that is null.
    fn set_next(&mut self, at: *mut Queued, next: *mut Queued) {
        if at.is_null() {
            self.first = next;
        } else {
            // SAFETY: the start of a mapping in the list, which `push` has written.
            unsafe { (*at).next = next };
        }
    }

    /// Takes out the first mapping that `fits` accepts, of the first [`DEEP`].
    pub(super) fn take(&mut self, fits: impl Fn(&Mapping) -> bool) -> Option<Mapping> {
        let (mut before, mut at) = (ptr::null_mut(), self.first);
        for _ in 0..DEEP {
            // SAFETY: null, or the start of a mapping in the list, which `push` has written.
            let &Queued { next, len, huge } = unsafe { at.as_ref() }?;
            let kept = Mapping { block: at.cast(), len, huge, clean: false };
            if fits(&kept) {
                self.set_next(before, next);
                if next.is_null() {
                    self.last = before;
                }
                self.len -= 1;
                compiler_fence(Release);
                return Some(kept);
            }
            (before, at) = (at, next);
        }
        None
    }

    /// In the child of a fork: finds the last mapping and counts. Returns the bytes of all.
    pub(super) fn inherit(&mut self) -> usize {
        let (mut bytes, mut at) = (0, self.first);
        (self.last, self.len) = (ptr::null_mut(), 0);
        // SAFETY: the links lead through memory that the list owns, each start of which `push` has written.
        while let Some(queued) = unsafe { at.as_ref() } {
            bytes += queued.len;
            self.len += 1;
            (self.last, at) = (at, queued.next);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::large::cache::Cache;
    use crate::large::cache::tests::sums_are_made_anew;
    use crate::superslab::layout::{SLICE, SUPERSLAB};

    /// Four slices of memory, each by its number.
    fn slices() -> impl Fn(usize) -> *mut u8 {
        #[repr(align(65536))]
        struct Memory([u8; 4 * SLICE]);
        let memory = Box::leak(Box::new(Memory([1; 4 * SLICE])));
        let start = (&raw mut memory.0).cast::<u8>();
        move |i| start.wrapping_add(i * SLICE)
    }

    #[test]
    fn what_the_system_would_not_unmap_is_kept_though_there_is_no_place() {
        let (mut cache, block) = (Cache::new(), slices());
        for (i, slices) in [(0, 1), (1, 1), (2, 2)] {
            cache.push(Mapping { block: block(i), len: slices * SLICE, huge: i == 1, clean: false });
        }
        assert_eq!((cache.bytes, cache.refused), (4 * SLICE, 4 * SLICE));
        sums_are_made_anew(&mut cache);
        let one = cache.pop(|kept| kept.huge).unwrap();
        assert!((one.block, one.len, one.huge) == (block(1), SLICE, true));
        let two = cache.pop(|kept| kept.len > SLICE).unwrap();
        assert!((two.block, two.len, two.huge) == (block(2), 2 * SLICE, false));
        assert!(cache.pop(|kept| kept.len > SLICE).is_none());
        assert!(cache.queue.len() == 1 && cache.pop(|_| true).is_some_and(|kept| kept.block == block(0)));
        assert_eq!(cache.queue.len(), 0);
        assert_eq!((cache.bytes, cache.refused), (0, 0));
    }

    #[test]
    fn who_comes_first_is_taken_first_and_none_is_lost_at_the_end() {
        let (mut queue, block) = (Queue::new(), slices());
        let push = |queue: &mut Queue, i| {
            queue.push(Mapping { block: block(i), len: SLICE, huge: false, clean: false });
        };
        let take = |queue: &mut Queue| queue.take(|_| true).map(|kept| kept.block);
        for round in 0..3 {
            for i in 0..3 {
                push(&mut queue, i);
            }
            // The last one, so that the one before it becomes the last.
            assert_eq!(queue.take(|kept| kept.block == block(2)).map(|kept| kept.block), Some(block(2)));
            if round != 0 {
                // As a fork may leave it.
                (queue.last, queue.len) = (ptr::null_mut(), 0);
                assert_eq!(queue.inherit(), 2 * SLICE);
            }
            assert_eq!(queue.len(), 2);
            push(&mut queue, 3);
            assert_eq!(
                [(); 4].map(|()| take(&mut queue)),
                [Some(block(0)), Some(block(1)), Some(block(3)), None]
            );
            assert_eq!(queue.len(), 0);
        }
    }

    #[repr(align(2097152))]
    struct Long([u8; 4 * SUPERSLAB]);

    #[test]
    fn a_superslab_is_cut_out_of_what_is_in_the_queue() {
        let mut cache = Cache::new();
        // SAFETY: bytes of zero are one.
        let memory = Box::leak(unsafe { Box::<Long>::new_zeroed().assume_init() });
        let start = (&raw mut memory.0).cast::<u8>();
        let mapping =
            |from: usize, len| Mapping { block: start.wrapping_add(from), len, huge: true, clean: false };
        let whole = |at| at * SUPERSLAB;
        // Too short where it lies; with both ends; without.
        let (front, behind) = (whole(1) - SLICE, whole(2) + 2 * SLICE);
        cache.push(mapping(SLICE, SUPERSLAB));
        cache.push(mapping(front, behind - front));
        cache.push(mapping(whole(3), SUPERSLAB));
        for at in [1, 3] {
            let taken = cache.take_refused_superslab(5).unwrap();
            assert_eq!((taken.block, taken.len, taken.huge), (mapping(whole(at), 0).block, SUPERSLAB, true));
        }
        assert!(cache.take_refused_superslab(5).is_none());
        let rest = SUPERSLAB + 3 * SLICE;
        assert_eq!((cache.queue.len(), cache.bytes, cache.refused), (1, rest, rest));
        assert_eq!(cache.pop(|_| true).unwrap().block, mapping(SLICE, 0).block);
        let ends: Vec<_> = cache.used().map(|(_, e)| (e.block, e.len(), e.refused)).collect();
        let end = |from, len| (mapping(from, 0).block, len, true);
        assert_eq!(ends, [end(front, SLICE), end(whole(2), 2 * SLICE)]);
    }
}
