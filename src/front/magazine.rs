//! Magazines: a thread's cached blocks of one class, as bounded arrays of pointers.
//!
//! ```text
//!   [ null | block | block |  ...  |       ]
//!            first           ^ top          ^ limit
//! ```
//!
//! The slot below the first is null: a pop that reads null has found the magazine empty. A push at the limit has found
//! it full. A class without a magazine has `top == limit` above a null, so it is empty and full at once, and so is
//! everything in the constant heaps that stand in where a thread has none.

use crate::base::table::Table;
use crate::front::fast_path::{MagazineTops, Slot, missing, shared};
use crate::superslab::pagemap::KINDS;
use crate::tiny::classes::{C_TABLE, CLASSES, bits, stride};
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, compiler_fence};

/// log2 of the slots of the smallest magazine.
const MIN_LOG: u8 = 3;
/// log2 of the slots that every magazine may grow to, and bytes of the blocks that it then holds at most.
const FREE_LOG: u8 = 8;
const FREE_BYTES: usize = 16 << 10;
/// The same for a magazine that has run empty since it last grew: its thread swings by more than it holds. One that only
/// ever overflows, as when a program clears up at its end, would merely withhold memory.
const MAX_LOG: u8 = 10;
const MAX_BYTES: usize = 256 << 10;
/// Bytes of blocks that all of a thread's magazines may hold beyond [`FREE_BYTES`] each.
const MAX_EXTRA: usize = 1 << 20;
/// Slots that every class may have up to 8 KiB.
const FEW: u8 = 2;

/// log2 of the slots of a magazine of `class` with `bytes` bytes of blocks, and at most `1 << most`.
const fn log_for(class: usize, bytes: usize, most: u8) -> u8 {
    let stride = stride(class) as usize;
    let blocks = bytes / stride;
    let log = if blocks == 0 { 0 } else { blocks.ilog2() as u8 };
    if log > most {
        most
    } else if log >= FEW {
        log
    } else if stride <= 8 << 10 {
        FEW
    } else {
        1
    }
}

const fn logs_for(bytes: usize, most: u8) -> Table<u8, KINDS> {
    let mut logs = [0; KINDS];
    let mut class = 1;
    while class <= CLASSES {
        logs[class] = log_for(class, bytes, most);
        class += 1;
    }
    Table(logs)
}

static FREE_LOGS: Table<u8, KINDS> = logs_for(FREE_BYTES, FREE_LOG);
static MAX_LOGS: Table<u8, KINDS> = logs_for(MAX_BYTES, MAX_LOG);
/// Lists of spare arrays: one for each log2 of their slots.
const SPARES: usize = 16;
const _: () = assert!((MAX_LOG as usize) < SPARES);

/// The owner's part of the magazines: their sizes, and the memory they live in. The cells are the owner's alone; what is atomic
/// visitors and statistics read, so there is never an exclusive reference to all of it.
pub(crate) struct Magazines {
    /// By kind: not [`QUIET`] when a free that finds no room has something to do other than take the block home.
    notices: Table<Cell<u8>, KINDS>,
    /// log2 of the slots, by class; 0: no magazine.
    logs: Table<AtomicU8, KINDS>,
    /// The classes that have a magazine, a bit for each.
    present: Cell<u64>,
    enabled: Cell<bool>,
    /// Bytes that may still be held beyond what is every magazine's own.
    extra: Cell<usize>,
    /// Free memory for slots.
    at: Cell<*mut Slot>,
    /// The end of what was ever slots, whoever had the record; read by statistics. Null before there were any.
    most: AtomicPtr<Slot>,
    end: Cell<*mut Slot>,
    /// Magazines that a visitor has taken something out of, a bit for each class. Under the heap's lock.
    drained: AtomicU64,
    /// Arrays that a magazine has grown out of, by log2 of their slots, linked through their first slot.
    spare: Table<Cell<*mut Slot>, SPARES>,
}

/// A full magazine stays as it is.
const QUIET: u8 = 0;
/// It may grow as far as every magazine may; or there is none, because the heap is a placeholder or the kind no class.
const SMALL: u8 = 1;
/// It has run empty since it last grew.
const MISSED: u8 = 2;

impl Magazines {
    /// None, and none to come.
    pub(crate) const fn none() -> Self {
        Self {
            notices: Table([const { Cell::new(SMALL) }; KINDS]),
            logs: Table([const { AtomicU8::new(0) }; KINDS]),
            present: Cell::new(0),
            enabled: Cell::new(false),
            extra: Cell::new(0),
            at: Cell::new(ptr::null_mut()),
            most: AtomicPtr::new(ptr::null_mut()),
            end: Cell::new(ptr::null_mut()),
            drained: AtomicU64::new(0),
            spare: Table([const { Cell::new(ptr::null_mut()) }; SPARES]),
        }
    }

    /// Whether a block of `kind` that finds no room need only be taken home.
    #[inline(always)]
    pub(crate) fn goes_home(&self, kind: usize) -> bool {
        // SAFETY: callers have a kind, of which there are as many.
        unsafe { self.notices.0.get_unchecked(kind) }.get() == QUIET
    }

    /// No magazines; they will live between `at` and `end`.
    ///
    /// # Safety
    ///
    /// The calling thread alone has the heap that `hot` and these belong to, and these hold nothing.
    pub(crate) unsafe fn reset(&self, tops: *mut MagazineTops, enabled: bool, at: *mut u8, end: *mut u8) {
        for kind in 0..KINDS {
            // SAFETY: the caller's own heap.
            unsafe {
                (&(*tops).top)[kind].store(missing(), Relaxed);
                (&(*tops).limit)[kind].store(missing(), Relaxed);
            }
        }
        // SAFETY: as above.
        unsafe { (*tops).classes = C_TABLE };
        for (kind, notice) in self.notices.0.iter().enumerate() {
            notice.set(if !enabled && (1..=CLASSES).contains(&kind) { QUIET } else { SMALL });
        }
        self.present.set(0);
        self.enabled.set(enabled);
        self.logs.0.iter().for_each(|log| log.store(0, Relaxed));
        self.extra.set(if enabled { MAX_EXTRA } else { 0 });
        self.at.set(at.cast());
        self.end.set(end.cast());
        self.drained.store(0, Relaxed);
        self.spare.0.iter().for_each(|spare| spare.set(ptr::null_mut()));
    }

    /// The magazine of `class` has run empty.
    ///
    /// # Safety
    ///
    /// `class` is one.
    #[inline(always)]
    pub(crate) unsafe fn on_miss(&self, class: usize) {
        // SAFETY: passed on.
        unsafe { self.notices.0.get_unchecked(class) }.set(MISSED);
    }

    /// The classes that have a magazine.
    pub(crate) fn present(&self) -> impl Iterator<Item = usize> {
        bits(self.present.get())
    }

    /// Doubles the magazine of `class`. False when it is as large as it may be.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that `hot` and these belong to.
    pub(crate) unsafe fn grow(&self, tops: *mut MagazineTops, class: usize) -> bool {
        let notice = self.notices[class].replace(QUIET);
        if notice == QUIET || !self.enabled.get() {
            return false;
        }
        // SAFETY: passed on.
        unsafe {
            if self.gather(tops, class)
                && (&(*tops).top)[class].load(Relaxed) != (&(*tops).limit)[class].load(Relaxed)
            {
                self.notices[class].set(notice);
                return true;
            }
        }
        let before = self.logs[class].load(Relaxed);
        let most = if notice == MISSED { MAX_LOGS[class] } else { FREE_LOGS[class] };
        let log = (before + 1).max(MIN_LOG).min(most);
        let own = FREE_LOGS[class];
        let more = ((1usize << log.max(own)) - (1 << before.max(own))) * stride(class) as usize;
        let array = if before < most && more <= self.extra.get() { self.take(log) } else { ptr::null_mut() };
        if array.is_null() {
            return false;
        }
        self.extra.set(self.extra.get() - more);
        self.present.set(self.present.get() | 1 << class);
        // SAFETY: passed on; both arrays are ours and have the slots that their logs say.
        unsafe {
            shared(array).store(ptr::null_mut(), Relaxed);
            if before != 0 {
                let old = (&(*tops).limit)[class].load(Relaxed).sub(1 << before);
                let count = (&(*tops).top)[class].load(Relaxed).offset_from(old.add(1)) as usize;
                // Statistics may look on, here and below.
                for i in 1..=count {
                    shared(array.add(i)).store(shared(old.add(i)).load(Relaxed), Relaxed);
                }
                // A fork between any two of these must leave its child a magazine that ends in a null.
                compiler_fence(Release);
                (&(*tops).top)[class].store(array.add(1 + count), Relaxed);
                (&(*tops).limit)[class].store(array.add(1 << log), Relaxed);
                compiler_fence(Release);
                shared(old).store(self.spare[before as usize].replace(old).cast(), Relaxed);
            } else {
                compiler_fence(Release);
                (&(*tops).top)[class].store(array.add(1), Relaxed);
                (&(*tops).limit)[class].store(array.add(1 << log), Relaxed);
            }
        }
        self.logs[class].store(log, Relaxed);
        // Beyond that it grows by one step for every time it runs empty.
        self.notices[class].set(if log < FREE_LOGS[class] { SMALL } else { QUIET });
        true
    }

    /// The first slot of the magazine of `class`, if there is one.
    ///
    /// # Safety
    ///
    /// Both are parts of one heap's record; the calling thread has entered the heap or visits it.
    pub(crate) unsafe fn first(
        magazines: *const Magazines,
        tops: *const MagazineTops,
        class: usize,
    ) -> Option<*mut Slot> {
        // SAFETY: passed on; these fields are atomic.
        unsafe {
            let log = (&(*magazines).logs)[class].load(Relaxed);
            let limit = (&(*tops).limit)[class].load(Relaxed);
            (log != 0).then(|| limit.wrapping_sub(1 << log).wrapping_add(1))
        }
    }

    /// Pulls together what a visitor has left of the magazine of `class`. True when it had taken something.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`].
    #[inline]
    pub(crate) unsafe fn gather(&self, tops: *mut MagazineTops, class: usize) -> bool {
        // Asked of every class of every thread that ends.
        // SAFETY: passed on.
        self.drained.load(Relaxed) & (1 << class) != 0 && unsafe { self.gather_robbed(tops, class) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn gather_robbed(&self, tops: *mut MagazineTops, class: usize) -> bool {
        // SAFETY: passed on; between the first slot and the top all are initialised.
        unsafe {
            let top = &(&(*tops).top)[class];
            let Some(first) = Magazines::first(self, tops, class) else { return false };
            self.drained.store(self.drained.load(Relaxed) & !(1 << class), Relaxed);
            // One after the other out of the magazine and to the bottom, so that the child of a fork finds none twice.
            let mut put = first;
            while top.load(Relaxed) > put {
                let at = top.load(Relaxed).sub(1);
                let block = at.read();
                top.store(at, Relaxed);
                compiler_fence(Release);
                if !block.is_null() {
                    while put < at && !put.read().is_null() {
                        put = put.add(1);
                    }
                    if put >= at {
                        top.store(at.add(1), Relaxed);
                        break;
                    }
                    shared(put).store(block, Relaxed);
                    put = put.add(1);
                }
            }
            true
        }
    }

    /// Whether the magazine of `class` has more than the least.
    pub(crate) fn may_shrink(&self, class: usize) -> bool {
        self.logs[class].load(Relaxed) > MIN_LOG
    }

    /// Halves the magazine of `class`, which is empty.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`]; the magazine holds nothing, and [`Magazines::may_shrink`].
    pub(crate) unsafe fn shrink(&self, tops: *mut MagazineTops, class: usize) {
        let before = self.logs[class].load(Relaxed);
        let log = before - 1;
        let array = self.take(log);
        if array.is_null() {
            return;
        }
        // SAFETY: passed on; both arrays are ours and have the slots that their logs say.
        unsafe {
            let old = (&(*tops).limit)[class].load(Relaxed).sub(1 << before);
            debug_assert!((&(*tops).top)[class].load(Relaxed) == old.add(1));
            shared(array).store(ptr::null_mut(), Relaxed);
            // As in `grow`.
            compiler_fence(Release);
            (&(*tops).top)[class].store(array.add(1), Relaxed);
            (&(*tops).limit)[class].store(array.add(1 << log), Relaxed);
            compiler_fence(Release);
            shared(old).store(self.spare[before as usize].replace(old).cast(), Relaxed);
        }
        let own = FREE_LOGS[class];
        let less = ((1usize << before.max(own)) - (1 << log.max(own))) * stride(class) as usize;
        self.extra.set(self.extra.get() + less);
        self.logs[class].store(log, Relaxed);
        self.notices[class].set(QUIET);
    }

    fn take(&self, log: u8) -> *mut Slot {
        let spare = self.spare[log as usize].get();
        if !spare.is_null() {
            // SAFETY: a spare array's first slot links the next.
            self.spare[log as usize].set(unsafe { spare.read() }.cast());
            return spare;
        }
        let array = self.at.get();
        let next = array.wrapping_add(1 << log);
        if next > self.end.get() {
            return ptr::null_mut();
        }
        self.at.set(next);
        if next > self.most.load(Relaxed) {
            self.most.store(next, Relaxed);
        }
        array
    }

    /// See `most`.
    ///
    /// # Safety
    ///
    /// Part of a heap's record, which is never unmapped.
    pub(crate) unsafe fn most(magazines: *const Magazines) -> *mut u8 {
        // SAFETY: passed on; the field is atomic.
        unsafe { &(*magazines).most }.load(Relaxed).cast()
    }

    /// How many blocks the magazine of `class` holds: exact for the owner, a glimpse for others.
    ///
    /// # Safety
    ///
    /// Both are parts of one heap's record, which is never unmapped.
    pub(crate) unsafe fn held(magazines: *const Magazines, tops: *const MagazineTops, class: usize) -> usize {
        // SAFETY: passed on; these fields are atomic.
        let log = unsafe { &(&(*magazines).logs)[class] }.load(Relaxed);
        if log == 0 {
            return 0;
        }
        // SAFETY: as above.
        let (top, limit) =
            unsafe { ((&(*tops).top)[class].load(Relaxed), (&(*tops).limit)[class].load(Relaxed)) };
        let free = (limit.addr().wrapping_sub(top.addr())) / size_of::<Slot>();
        let held = ((1usize << log) - 1).saturating_sub(free);
        // SAFETY: as above.
        if unsafe { (*magazines).drained.load(Relaxed) } & (1 << class) == 0 {
            return held;
        }
        let first = limit.wrapping_sub((1 << log) - 1);
        // SAFETY: slots of a magazine, or what was one a moment ago: in the record either way.
        (0..held).filter(|&i| !unsafe { shared(first.wrapping_add(i)) }.load(Relaxed).is_null()).count()
    }

    /// Says that a visitor has taken something out of the magazine of `class`.
    ///
    /// # Safety
    ///
    /// The caller visits the heap that these belong to.
    pub(crate) unsafe fn set_drained(magazines: *const Magazines, class: usize) {
        // SAFETY: passed on.
        unsafe { (*magazines).drained.fetch_or(1 << class, Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::boxed::Box;
    use std::vec;

    #[test]
    fn all_magazines_fit_at_the_size_that_is_their_own() {
        let slots: usize = (1..=CLASSES).map(|c| 1usize << FREE_LOGS[c]).sum();
        // Arrays grown out of are at most as much again.
        assert!(2 * slots * 8 + size_of::<super::super::heap::Heap>() <= super::super::heap::RECORD / 2);
        assert!(
            FREE_LOGS.0[1..=CLASSES]
                .iter()
                .zip(&MAX_LOGS.0[1..])
                .all(|(&free, &max)| 1 <= free && free <= max)
        );
    }

    /// A heap's hot part and magazines over `slots` slots, for `f`.
    fn with_magazines(slots: usize, f: impl FnOnce(*mut MagazineTops, &Magazines)) {
        let mut tops = Box::new(MagazineTops::without());
        let mut memory = vec![ptr::null_mut::<u8>(); slots];
        let m = Magazines::none();
        let range = memory.as_mut_ptr_range();
        // SAFETY: this thread's.
        unsafe { m.reset(&raw mut *tops, true, range.start.cast(), range.end.cast()) };
        f(&raw mut *tops, &m);
    }

    /// Pushes until the magazine of `class` is full and does not grow; how many blocks it holds then.
    fn fill(tops: *mut MagazineTops, m: &Magazines, class: usize) -> usize {
        // SAFETY: this thread's.
        let now = |m: &Magazines| unsafe { Magazines::held(m, tops, class) };
        let mut held = now(m);
        loop {
            let block = ptr::without_provenance_mut((held + 1) * 8);
            // SAFETY: `hot` is this thread's; the blocks are only numbers.
            unsafe {
                if !(MagazineTops::push(tops, class, block)
                    || m.grow(tops, class) && MagazineTops::push(tops, class, block))
                {
                    assert!(m.goes_home(class));
                    return held;
                }
            }
            held += 1;
            assert_eq!(now(m), held);
        }
    }

    #[test]
    fn last_in_first_out_and_growing_keeps_everything() {
        with_magazines(2000, |tops, m| {
            for class in [1usize, 8, 30, CLASSES] {
                // SAFETY: as above.
                unsafe {
                    assert!(MagazineTops::pop(tops, class).is_null());
                    let capacity = fill(tops, m, class);
                    assert_eq!(capacity, (1 << FREE_LOGS[class]) - 1);
                    for i in (1..=capacity).rev() {
                        assert_eq!(MagazineTops::pop(tops, class).addr(), i * 8);
                    }
                    assert!(MagazineTops::pop(tops, class).is_null());
                }
            }
        });
    }

    #[test]
    fn what_runs_empty_grows_by_one_step_for_every_miss_and_within_bounds() {
        with_magazines(20_000, |tops, m| {
            let class = 8;
            let mut capacity = fill(tops, m, class);
            assert_eq!(capacity, (1 << FREE_LOGS[class]) - 1);
            for log in FREE_LOGS[class] + 1..=MAX_LOGS[class] {
                // SAFETY: a class.
                unsafe { m.on_miss(class) };
                assert!(!m.goes_home(class));
                capacity = fill(tops, m, class);
                assert_eq!(capacity, (1 << log) - 1);
            }
            // SAFETY: a class.
            unsafe { m.on_miss(class) };
            assert_eq!(fill(tops, m, class), capacity);
            // All classes together: beyond their own share no more than the extra bytes.
            for class in 1..=CLASSES {
                for _ in 0..MAX_LOG {
                    // SAFETY: a class.
                    unsafe { m.on_miss(class) };
                    fill(tops, m, class);
                }
            }
            // SAFETY: as above.
            let held = |c| unsafe { Magazines::held(m, tops, c) };
            let beyond: usize = (1..=CLASSES)
                .map(|c| (held(c) + 1).saturating_sub(1 << FREE_LOGS[c]) * stride(c) as usize)
                .sum();
            assert!(beyond <= MAX_EXTRA && beyond + m.extra.get() == MAX_EXTRA);
        });
    }

    #[test]
    fn what_shrinks_gives_back_its_room_and_grows_again() {
        with_magazines(4096, |tops, m| {
            let class = 8;
            for _ in 0..3 {
                for _ in FREE_LOGS[class]..MAX_LOGS[class] {
                    fill(tops, m, class);
                    // SAFETY: a class.
                    unsafe { m.on_miss(class) };
                }
                assert_eq!(fill(tops, m, class), (1 << MAX_LOGS[class]) - 1);
                for log in (MIN_LOG..MAX_LOGS[class]).rev() {
                    assert!(m.may_shrink(class));
                    // SAFETY: as above; the magazine is empty.
                    unsafe {
                        while !MagazineTops::pop(tops, class).is_null() {}
                        m.shrink(tops, class);
                        assert!(MagazineTops::pop(tops, class).is_null());
                    }
                    // It does not grow of its own accord.
                    assert_eq!(fill(tops, m, class), (1 << log) - 1);
                }
                assert!(!m.may_shrink(class));
                assert_eq!(m.extra.get(), MAX_EXTRA);
                // SAFETY: a class.
                unsafe { m.on_miss(class) };
            }
        });
    }

    #[test]
    fn a_miss_before_the_first_free_gives_no_magazine_more_than_its_own() {
        with_magazines(2000, |tops, m| {
            // What first only allocates and then only frees.
            // SAFETY: a class.
            unsafe { m.on_miss(8) };
            assert_eq!(fill(tops, m, 8), (1 << FREE_LOGS[8]) - 1);
        });
    }
}
