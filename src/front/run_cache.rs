//! Run caches: freed runs that a thread keeps for itself, so that a large block that comes and goes costs no
//! lock.
//!
//! A run cache has few places and holds few slices in all. To make room, the run that has been there longest
//! goes back to the pool. So does one that has been there longer than the purge delay, the next time that the
//! thread uses its run cache or refills a magazine. The page map says that a cached run is foreign, so a
//! second `free` of it is reported.

use crate::base::counters::Counter;
use crate::base::options;
use crate::base::table::CellTable;
use crate::os::returning::Returning;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap;
use crate::superslab::pagemap::RUN;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU32, compiler_fence};
use crate::{large, os};
use core::cell::Cell;
use core::ptr;

const PLACES: usize = 8;
/// Slices that a run cache holds at most: 1 MiB.
const MOST: usize = 16;
/// Slices that the run caches of all threads together hold, about: 32 MiB. Nobody else uses what an idle
/// thread has, and of hundreds of threads most are idle. So the more threads there are when one starts, the
/// less it gets.
const ALL: usize = 512;
/// Frees between two looks at the clock.
const LOOK: u64 = 8;
/// A one in each place's byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The run cache of a heap. The cells belong to whoever is in the heap, its owner or a visitor. Others read
/// the atomics, so nobody makes an exclusive reference to the whole. Everything changes under the heap's
/// lock, which orders the accesses of the owner and of visitors: so all of them are relaxed.
pub(crate) struct RunCache {
    /// The runs; null where a place is free. Read by the owner without the heap's lock, too.
    runs: CellTable<AtomicPtr<u8>, PLACES>,
    /// A byte for each place: the slices of the run there, or 0. Read by the owner without the heap's lock,
    /// too.
    sizes: Counter,
    /// When each run was put there, in milliseconds.
    since: CellTable<Cell<u32>, PLACES>,
    /// When the ages were last looked at, in milliseconds.
    looked: Cell<u32>,
    /// Slices for which there is room in all. Read by the owner without the heap's lock, too.
    most: AtomicU32,
    /// Blocks that this has served. The pool does not know of them.
    pub(crate) allocs: Counter,
    /// Blocks that were freed to this. The pool does not know of them.
    pub(crate) frees: Counter,
    /// Bytes of the runs here.
    pub(crate) held: Counter,
}

/// The places whose byte in `sizes` is `slices`: the top bit of each such byte.
fn matching(sizes: u64, slices: usize) -> u64 {
    let different = sizes ^ (ONES * slices as u64);
    // Adding 0x7f to the lower seven bits of a byte sets its top bit if they are not all zero, and never
    // carries over.
    !((different & !(ONES << 7)).wrapping_add(!(ONES << 7)) | different) & (ONES << 7)
}

impl RunCache {
    /// A run cache that can hold nothing.
    pub(crate) const fn none() -> Self {
        Self {
            runs: CellTable::new([const { AtomicPtr::new(ptr::null_mut()) }; PLACES]),
            sizes: Counter::new(),
            since: CellTable::new([const { Cell::new(0) }; PLACES]),
            looked: Cell::new(0),
            most: AtomicU32::new(0),
            allocs: Counter::new(),
            frees: Counter::new(),
            held: Counter::new(),
        }
    }

    /// Sets the room for a new owner, when there are about `threads` threads. The run cache is empty: new, or
    /// flushed by the last owner.
    pub(crate) fn reset(&self, threads: usize) {
        let options = options::get();
        let most = (ALL / threads.max(1)).min(MOST);
        let is_used = options.magazine && options.purge_delay != 0;
        self.most.store(if is_used { most as u32 } else { 0 }, Relaxed);
    }

    /// Gives everything back, and holds nothing until the next [`RunCache::reset`]: so every run is allocated
    /// and freed where it is seen. Under the heap's lock.
    pub(crate) fn close(&self) {
        // SAFETY: by this function's contract the caller is in the heap.
        unsafe { self.flush() };
        self.most.store(0, Relaxed);
    }

    /// Whether it can hold nothing: it was [closed](RunCache::close), or the options allow none.
    pub(crate) fn is_closed(&self) -> bool {
        self.most.load(Relaxed) == 0
    }

    /// The slices of the run in a place; 0 if that is free.
    fn slices(&self, place: usize) -> usize {
        (self.sizes.get() >> (8 * place)) as u8 as usize
    }

    /// Takes the run out of a place, in which there is one.
    fn remove(&self, place: usize) -> *mut u8 {
        let run = self.runs[place].load(Relaxed);
        let slices = self.slices(place);
        self.runs[place].store(ptr::null_mut(), Relaxed);
        // Before anything is done with the run: the child of a fork must not find it in two places.
        compiler_fence(Release);
        self.sizes.set(self.sizes.get() & !(0xff << (8 * place)));
        self.held.set(self.held.get().wrapping_sub((slices * SLICE) as u64));
        run
    }

    /// Takes a run of exactly `slices` slices; null when there is none. Under the heap's lock.
    pub(crate) fn take_run(&self, slices: usize) -> *mut u8 {
        let places = matching(self.sizes.get(), slices);
        if places == 0 {
            return ptr::null_mut();
        }
        self.allocs.add(1);
        self.remove((63 - places.leading_zeros() as usize) / 8)
    }

    /// Takes the longest run, if it has more than `slices` slices; otherwise null. Under the heap's lock.
    pub(crate) fn take_longest(&self, slices: usize) -> *mut u8 {
        match (0..PLACES).max_by_key(|&place| self.slices(place)) {
            Some(place) if self.slices(place) > slices => {
                self.allocs.add(1);
                self.remove(place)
            }
            _ => ptr::null_mut(),
        }
    }

    /// Puts a run that nobody uses into a free place. There is a place, and room.
    fn put(&self, run: *mut u8, slices: usize, now: u32) {
        let place = matching(self.sizes.get(), 0).trailing_zeros() as usize / 8;
        self.since[place].set(now);
        self.sizes.add((slices as u64) << (8 * place));
        self.held.add((slices * SLICE) as u64);
        self.runs[place].store(run, Relaxed);
    }

    /// The place of the run that has been here longest. There is one.
    fn oldest(&self, now: u32) -> usize {
        let taken = (0..PLACES).filter(|&place| self.slices(place) != 0);
        taken.max_by_key(|&i| os::elapsed(self.since[i].get(), now)).unwrap_or(0)
    }

    /// Gives back the runs that have been here longer than the purge delay.
    #[cold]
    fn age(&self, now: u32) {
        let delay = options::get().purge_delay;
        self.looked.set(now);
        for place in 0..PLACES {
            let old = os::elapsed(self.since[place].get(), now) as i64 >= delay;
            if delay >= 0 && old && self.slices(place) != 0 {
                // SAFETY: a run that is taken out of the run cache is the caller's alone.
                unsafe { large::give_run(self.remove(place)) };
            }
        }
    }

    /// Gives everything back to the pool.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that this is part of and has entered it, or visits it, or alone
    /// stands in for an owner that no longer exists.
    pub(crate) unsafe fn flush(&self) {
        // What is on its way counts as in use, and here no more.
        let _returning = (self.sizes.get() != 0).then(Returning::begin);
        // First: the child of a fork that has stopped a visitor here does not look for runs that are gone.
        self.sizes.set(0);
        self.held.set(0);
        compiler_fence(Release);
        for place in 0..PLACES {
            // Relies on the places only: a fork may have stopped the owner anywhere.
            let run = self.runs[place].load(Relaxed);
            if !run.is_null() {
                self.runs[place].store(ptr::null_mut(), Relaxed);
                // SAFETY: by the caller's clause nobody else takes runs out of here, so this one is ours
                // alone.
                unsafe { large::give_run(run) };
            }
        }
    }

    /// Frees a block by keeping its run here. False, and nothing done, when the run does not fit, or `block`
    /// is not the start of one, or another thread has just freed it.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that this is part of, and has entered it. The page map says that
    /// `block` lies in the first slice of a run, and nobody uses that any more.
    pub(crate) unsafe fn put_freed(&self, block: *mut u8) -> bool {
        // Not the start of a run: the slow path reports it.
        if block.addr() & (SLICE - 1) != 0 {
            return false;
        }
        // SAFETY: the start of a run in use, by the caller's clause.
        let slices = unsafe { large::slices_of_run(block) };
        let most = self.most.load(Relaxed) as usize;
        if slices > most || !pagemap::claim(block, RUN) {
            return false;
        }
        self.frees.add(1);
        // Reading the clock would be a good part of the work here. With an old time a run seems to have been
        // here longer than it has, and goes back too soon.
        let look = self.frees.get() % LOOK == 0;
        let now = if look { os::now_ms() } else { self.looked.get() };
        while most * SLICE < self.held.get() as usize + slices * SLICE || matching(self.sizes.get(), 0) == 0 {
            let place = self.oldest(now);
            // SAFETY: a run that is taken out of the run cache is the caller's alone.
            unsafe { large::give_run(self.remove(place)) };
        }
        self.put(block, slices, now);
        if now != self.looked.get() {
            self.age(now);
            large::tick_at(now);
        }
        true
    }

    /// Whether there is a run of exactly `slices` slices. Needs no lock.
    #[inline(always)]
    pub(crate) fn has(&self, slices: usize) -> bool {
        matching(self.sizes.get(), slices) != 0
    }

    /// Whether `block` is the start of a run here. Needs no lock.
    pub(crate) fn holds(&self, block: *mut u8) -> bool {
        !block.is_null() && self.runs.iter().any(|run| run.load(Relaxed) == block)
    }

    /// Gives back what is too old, while the owner does something else that is rare. Under the heap's lock.
    pub(crate) fn give_back_old(&self) {
        if self.sizes.get() != 0 {
            let now = os::now_ms();
            if now != self.looked.get() {
                self.age(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: usize) -> *mut u8 {
        ptr::without_provenance_mut(n * SLICE)
    }

    #[test]
    fn exactly_the_equal_bytes_match() {
        for sizes in [0u64, 0x0100_0001_0201_0001, 0x1010_0810_0f11_0710, u64::MAX, 0x80ff_7f01_0081_8000] {
            for slices in 0..=MOST {
                let expected = (0..PLACES)
                    .filter(|i| (sizes >> (8 * i)) as u8 as usize == slices)
                    .fold(0u64, |bits, i| bits | 0x80 << (8 * i));
                assert_eq!(matching(sizes, slices), expected, "{sizes:x} {slices}");
            }
        }
    }

    #[test]
    fn last_in_first_out_by_size() {
        let cache = RunCache::none();
        cache.most.store(MOST as u32, Relaxed);
        for (n, slices) in [(1, 2), (2, 3), (3, 2), (4, 3)] {
            cache.put(run(n), slices, n as u32);
        }
        assert_eq!(cache.held.get(), 10 * SLICE as u64);
        assert_eq!(cache.take_run(4), ptr::null_mut());
        assert_eq!((cache.take_run(2), cache.oldest(9)), (run(3), 0));
        assert_eq!((cache.take_run(2), cache.oldest(9)), (run(1), 1));
        assert_eq!(cache.take_run(2), ptr::null_mut());
        cache.put(run(5), 1, 5);
        assert_eq!(
            (cache.oldest(9), cache.take_run(3), cache.take_run(3), cache.take_run(1)),
            (1, run(4), run(2), run(5))
        );
        assert_eq!((cache.sizes.get(), cache.held.get()), (0, 0));
        cache.put(run(6), 3, 6);
        assert!(cache.holds(run(6)) && !cache.holds(run(5)) && !cache.holds(ptr::null_mut()));
        assert_eq!((cache.take_longest(3), cache.take_longest(2)), (ptr::null_mut(), run(6)));
        assert_eq!((cache.allocs.get(), cache.frees.get()), (6, 0));
    }

    #[test]
    fn the_more_threads_there_are_the_less_a_new_one_gets() {
        let cache = RunCache::none();
        assert!(cache.is_closed());
        for (threads, most) in [(0, 16), (1, 16), (32, 16), (64, 8), (512, 1), (513, 0)] {
            cache.reset(threads);
            assert_eq!((cache.most.load(Relaxed), cache.is_closed()), (most, most == 0), "{threads}");
        }
    }

    /// A run in use of so many slices.
    #[cfg(not(loom))]
    fn used(slices: usize) -> *mut u8 {
        let block = large::alloc(slices * SLICE, 1).ptr;
        assert_eq!((block.is_null(), large::run_slices(slices * SLICE, 1)), (false, Some(slices)));
        block
    }

    /// A run that nobody uses any more, on its way into a run cache.
    #[cfg(not(loom))]
    fn freed(slices: usize) -> *mut u8 {
        let run = used(slices);
        assert!(pagemap::claim(run, RUN));
        run
    }

    /// In the child of a fork, because other tests free runs, too.
    #[test]
    #[cfg(not(loom))]
    #[cfg_attr(miri, ignore = "forks")]
    fn freed_runs_are_kept_while_there_is_room_the_oldest_go_first() {
        use crate::base::counters::LARGE_IN_USE;
        use crate::superslab::pagemap::FOREIGN;
        assert!(large::child::is_so(|| {
            let (cache, in_use) = (RunCache::none(), || LARGE_IN_USE.load(Relaxed) / SLICE);
            let before = in_use();
            // SAFETY: starts of runs that nobody uses, and an address in one; the cache is this thread's.
            let free = |block| unsafe { cache.put_freed(block) };
            cache.most.store(4, Relaxed);
            let runs = [2, 2, 1, 4, 5].map(used);
            assert_eq!(in_use(), before + 14);
            assert!(!free(runs[0].wrapping_add(16)) && !free(runs[4]), "no start; too long");
            assert_eq!((pagemap::kind(runs[0]), cache.has(2)), (RUN, false));
            assert!(free(runs[0]) && !free(runs[0]), "the second free is misuse");
            assert_eq!((pagemap::kind(runs[0]), cache.has(2), cache.has(1)), (FOREIGN, true, false));
            cache.looked.set(1);
            assert!(free(runs[1]));
            assert_eq!((cache.held.get(), cache.frees.get()), (4 * SLICE as u64, 2), "just full");
            assert!(free(runs[2]) && !cache.holds(runs[0]) && cache.holds(runs[1]));
            assert!(free(runs[3]) && cache.holds(runs[3]), "as long as all there is room for");
            assert_eq!((cache.held.get(), in_use()), (4 * SLICE as u64, before + 4 + 5));
            cache.close();
            assert!(cache.is_closed() && !cache.has(4) && !cache.holds(runs[3]));
            assert_eq!((cache.held.get(), in_use()), (0, before + 5));

            // No more runs than places.
            cache.reset(1);
            let runs = [1; PLACES + 1].map(used);
            for (at, &run) in runs.iter().enumerate() {
                cache.frees.set(0);
                cache.looked.set(at as u32);
                assert!(free(run));
            }
            assert!(!cache.holds(runs[0]) && runs[1..].iter().all(|&run| cache.holds(run)));
            cache.held.get() == (PLACES * SLICE) as u64
        }));
    }

    /// As above.
    #[test]
    #[cfg(not(loom))]
    #[cfg_attr(miri, ignore = "forks")]
    fn runs_go_back_when_the_purge_delay_has_passed() {
        assert!(large::child::is_so(|| {
            let delay = options::get().purge_delay as u32;
            let cache = RunCache::none();
            cache.reset(1);
            let [first, second] = [2, 3].map(freed);
            cache.put(first, 2, 1000);
            cache.put(second, 3, 1001);
            cache.age(1000 + delay - 1);
            assert!(cache.holds(first) && cache.holds(second));
            cache.age(1000 + delay);
            assert!(!cache.holds(first) && cache.holds(second) && cache.held.get() == 3 * SLICE as u64);
            assert_eq!(cache.looked.get(), 1000 + delay);

            // The clock is looked at with each eighth free.
            let long_ago = || os::now_ms().wrapping_sub(1 << 30);
            cache.looked.set(long_ago());
            let old = freed(2);
            cache.put(old, 2, long_ago());
            cache.frees.set(LOOK);
            for left in (0..LOOK).rev() {
                // SAFETY: the start of a run that nobody uses; the cache is this thread's.
                assert!(unsafe { cache.put_freed(used(1)) });
                assert_eq!(cache.holds(old), left != 0, "{left}");
            }
            // And whenever a magazine is refilled.
            let old = freed(2);
            cache.put(old, 2, long_ago());
            cache.looked.set(long_ago());
            cache.give_back_old();
            !cache.holds(old)
        }));
    }
}
