//! Run caches: freed runs that a thread keeps for itself, so that a large block that comes and goes costs no lock.
//!
//! A run cache has few places and few pages in all; to make room the run that has lain longest goes back to the pool, and so
//! does one that has lain longer than the purge delay, when the thread next does anything with its run cache or refills a
//! magazine. In the page map a cached run is foreign, so a second `free` is told.

use crate::base::counters::Counter;
use crate::base::options;
use crate::base::table::Table;
use crate::superslab::layout::PAGE;
use crate::superslab::pagemap;
use crate::superslab::pagemap::RUN;
use crate::{large, os};
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicPtr, compiler_fence};

const PLACES: usize = 8;
/// Pages that a run cache holds at most: 1 MiB.
const MOST: usize = 16;
/// Pages that the run caches of all threads hold together, about: 32 MiB. What an idle thread has nobody else uses, and hundreds of
/// threads are not all at work: so the more there are when one begins, the less it gets.
const ALL: usize = 512;
/// The clock is looked at with every so manieth free.
const LOOK: u64 = 8;
/// A byte 1 for each place.
const ONES: u64 = 0x0101_0101_0101_0101;

/// A thread's cache. The cells are the owner's, or a visitor's, alone; what is atomic others read, so there is never an exclusive
/// reference to all of it.
pub(crate) struct RunCache {
    /// The runs; null where there is none. Atomic only because the child of a fork reads other threads' run caches.
    runs: Table<AtomicPtr<u8>, PLACES>,
    /// A byte for each place: the pages of the run there, or 0. Read by the owner without the heap's lock, under which all
    /// changes here are.
    sizes: Counter,
    /// When each was put there.
    since: Table<Cell<u32>, PLACES>,
    /// When the ages were last looked at.
    looked: Cell<u32>,
    /// Pages that can be put there yet.
    room: Cell<u32>,
    /// Blocks that a run cache served, and blocks that were freed to one. The pool has not seen these.
    pub(crate) allocs: Counter,
    /// See `allocs`.
    pub(crate) frees: Counter,
    /// Bytes held.
    pub(crate) held: Counter,
}

/// The places whose byte in `sizes` is `pages`, as the top bits of their bytes.
fn matching(sizes: u64, pages: usize) -> u64 {
    let different = sizes ^ (ONES * pages as u64);
    // The sum has the top bit of each byte that is not zero in its lower bits, and carries nothing to the next.
    !((different & !(ONES << 7)).wrapping_add(!(ONES << 7)) | different) & (ONES << 7)
}

impl RunCache {
    /// A run cache that can hold nothing.
    pub(crate) const fn none() -> Self {
        Self {
            runs: Table([const { AtomicPtr::new(ptr::null_mut()) }; PLACES]),
            sizes: Counter::new(),
            since: Table([const { Cell::new(0) }; PLACES]),
            looked: Cell::new(0),
            room: Cell::new(0),
            allocs: Counter::new(),
            frees: Counter::new(),
            held: Counter::new(),
        }
    }

    /// Makes it ready for a thread, of about so many in all. It is empty: new, or flushed by the thread that had it.
    pub(crate) fn reset(&self, threads: usize) {
        let options = options::get();
        let room = (ALL / threads.max(1)).min(MOST);
        self.room.set(if options.magazine && options.purge_delay != 0 { room as u32 } else { 0 });
    }

    /// Takes the run out of a place.
    fn remove(&self, place: usize) -> *mut u8 {
        let run = self.runs[place].load(Relaxed);
        let pages = (self.sizes.get() >> (8 * place)) as u8;
        self.runs[place].store(ptr::null_mut(), Relaxed);
        // In the child of a fork the run is in no two places: so out of here before anything is done with it.
        compiler_fence(Release);
        self.sizes.set(self.sizes.get() & !(0xff << (8 * place)));
        self.room.set(self.room.get() + pages as u32);
        self.held.set(self.held.get().wrapping_sub((pages as usize * PAGE) as u64));
        run
    }

    /// The run of `pages` pages that was put here last, or null.
    pub(crate) fn take_run(&self, pages: usize) -> *mut u8 {
        let places = matching(self.sizes.get(), pages);
        if places == 0 {
            return ptr::null_mut();
        }
        self.allocs.add(1);
        self.remove((63 - places.leading_zeros() as usize) / 8)
    }

    /// The longest run, if it has more than `pages` pages, or null.
    pub(crate) fn take_longest(&self, pages: usize) -> *mut u8 {
        let size = |place: usize| (self.sizes.get() >> (8 * place)) as u8;
        match (0..PLACES).max_by_key(|&place| size(place)) {
            Some(place) if size(place) as usize > pages => {
                self.allocs.add(1);
                self.remove(place)
            }
            _ => ptr::null_mut(),
        }
    }

    /// Puts a run, which is nobody's any more, into a free place. There is room.
    fn put(&self, run: *mut u8, pages: usize, now: u32) {
        let place = matching(self.sizes.get(), 0).trailing_zeros() as usize / 8;
        self.since[place].set(now);
        self.sizes.add((pages as u64) << (8 * place));
        self.room.set(self.room.get() - pages as u32);
        self.held.add((pages * PAGE) as u64);
        self.runs[place].store(run, Relaxed);
    }

    /// The place of the run that has lain longest. There is one.
    fn oldest(&self, now: u32) -> usize {
        let taken = (0..PLACES).filter(|&i| self.sizes.get() >> (8 * i) & 0xff != 0);
        taken.max_by_key(|&i| os::elapsed(self.since[i].get(), now)).unwrap_or(0)
    }

    /// Gives back what has lain longer than the purge delay.
    #[cold]
    fn age(&self, now: u32) {
        let delay = options::get().purge_delay;
        self.looked.set(now);
        for place in 0..PLACES {
            let old = os::elapsed(self.since[place].get(), now) as i64 >= delay;
            if delay >= 0 && old && self.sizes.get() >> (8 * place) & 0xff != 0 {
                // SAFETY: a run of the run cache is nobody else's.
                unsafe { large::give_run(self.remove(place)) };
            }
        }
    }

    /// Gives everything back to the pool.
    ///
    /// # Safety
    ///
    /// The calling thread has entered the heap that this is part of, or visits it, or its thread no longer exists.
    pub(crate) unsafe fn flush(&self) {
        for place in 0..PLACES {
            // Only the places are relied on: the owner may have been stopped anywhere by a fork.
            let run = self.runs[place].load(Relaxed);
            if !run.is_null() {
                self.runs[place].store(ptr::null_mut(), Relaxed);
                // SAFETY: as above.
                unsafe { large::give_run(run) };
            }
        }
        self.room.set(self.room.get() + (self.held.get() as usize / PAGE) as u32);
        self.sizes.set(0);
        self.held.set(0);
    }

    /// Puts a run on the self. False, and nothing done, when it does not fit or is not the caller's to free.
    ///
    /// # Safety
    ///
    /// The page map says that `block` lies in a run, and nobody uses that any more.
    pub(crate) unsafe fn put_freed(&self, block: *mut u8) -> bool {
        // Not the start of a run, or without a run cache: the long way tells.
        if block.addr() & (PAGE - 1) != 0 {
            return false;
        }
        // SAFETY: the page map said that it is a run's.
        let pages = unsafe { large::pages_of_run(block) };
        let whole = self.room.get() as usize + self.held.get() as usize / PAGE;
        if pages > whole || !pagemap::claim(block, RUN) {
            return false;
        }
        self.frees.add(1);
        // Looking at the clock would be a good part of the work. A run that seems older than it is goes back too soon.
        let look = self.frees.get() % LOOK == 0;
        let now = if look { os::now_ms() } else { self.looked.get() };
        while (self.room.get() as usize) < pages || matching(self.sizes.get(), 0) == 0 {
            let place = self.oldest(now);
            // SAFETY: a run of the run cache is nobody else's.
            unsafe { large::give_run(self.remove(place)) };
        }
        self.put(block, pages, now);
        if now != self.looked.get() {
            self.age(now);
            large::tick_at(now);
        }
        true
    }

    /// Whether it holds a run of `pages` pages.
    #[inline(always)]
    pub(crate) fn has(&self, pages: usize) -> bool {
        matching(self.sizes.get(), pages) != 0
    }

    /// Whether `block` lies here.
    pub(crate) fn holds(&self, block: *mut u8) -> bool {
        !block.is_null() && self.runs.0.iter().any(|run| run.load(Relaxed) == block)
    }

    /// A look at the ages, for when the thread does something else that is rare.
    pub(crate) fn tick(&self) {
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
        ptr::without_provenance_mut(n * PAGE)
    }

    #[test]
    fn exactly_the_equal_bytes_match() {
        for sizes in [0u64, 0x0100_0001_0201_0001, 0x1010_0810_0f11_0710, u64::MAX, 0x80ff_7f01_0081_8000] {
            for pages in 0..=MOST {
                let expected = (0..PLACES)
                    .filter(|i| (sizes >> (8 * i)) as u8 as usize == pages)
                    .fold(0u64, |bits, i| bits | 0x80 << (8 * i));
                assert_eq!(matching(sizes, pages), expected, "{sizes:x} {pages}");
            }
        }
    }

    #[test]
    fn last_in_first_out_by_size() {
        let cache = RunCache::none();
        cache.room.set(MOST as u32);
        for (n, pages) in [(1, 2), (2, 3), (3, 2), (4, 3)] {
            cache.put(run(n), pages, n as u32);
        }
        assert_eq!((cache.room.get(), cache.held.get()), (6, 10 * PAGE as u64));
        assert_eq!(cache.take_run(4), ptr::null_mut());
        assert_eq!((cache.take_run(2), cache.oldest(9)), (run(3), 0));
        assert_eq!((cache.take_run(2), cache.oldest(9)), (run(1), 1));
        assert_eq!(cache.take_run(2), ptr::null_mut());
        cache.put(run(5), 1, 5);
        assert_eq!(
            (cache.oldest(9), cache.take_run(3), cache.take_run(3), cache.take_run(1)),
            (1, run(4), run(2), run(5))
        );
        assert_eq!((cache.sizes.get(), cache.room.get(), cache.held.get()), (0, MOST as u32, 0));
        cache.put(run(6), 3, 6);
        assert!(cache.holds(run(6)) && !cache.holds(run(5)) && !cache.holds(ptr::null_mut()));
        assert_eq!((cache.take_longest(3), cache.take_longest(2)), (ptr::null_mut(), run(6)));
        assert_eq!((cache.allocs.get(), cache.frees.get()), (6, 0));
    }
}
