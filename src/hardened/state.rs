//! What a thread has of the hardened heap: slabs from which it takes blocks, and freed blocks that may not be
//! handed out yet. It lies in the record of the thread's heap, where without hardened mode magazines are.

use crate::base::misuse::Fault;
use crate::base::options::Hardened;
use crate::base::prefetch::prefetch;
use crate::base::table::CellTable;
use crate::hardened::pace::Pace;
use crate::hardened::parts::{MOST_HELD, Parts};
use crate::hardened::place::Place;
use crate::hardened::quarantined::Held;
use crate::hardened::slab::{Cursor, FRESH};
use crate::hardened::source::Source;
use crate::hardened::trailer::class_with_trailer;
use crate::hardened::{aged, fault, lists, parts, shared};
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::Allocation;
use crate::sync::Ordering::{Relaxed, Release, SeqCst};
use crate::sync::{AtomicUsize, compiler_fence};
use core::cell::Cell;
use core::mem::offset_of;
use core::ops::Range;
use core::ptr;

/// Blocks of up to so many bytes are looked at before they are handed out for the first time: larger ones may
/// consist of pages that the program never touches.
const SMALL: usize = 1024;
/// What a thread has. All zero is valid, and means nothing.
#[repr(C)]
pub(crate) struct State {
    /// The state of the generator of random numbers; 0 before the first.
    random: Cell<u64>,
    /// Whether the thread is in a function of this file: a signal handler that has interrupted it gets its
    /// blocks elsewhere.
    busy: Cell<bool>,
    sources: CellTable<Source, KINDS>,
    /// How often it takes blocks of the classes that [`shared`] serves.
    pub(super) paces: CellTable<Pace, KINDS>,
    /// See [`State::set`]: one more than that; 0 before it is known.
    pub(super) set: Cell<usize>,
    /// The places in `ring` of the oldest block in the quarantine, and of the next one: of so many blocks
    /// that ever came there. All places count from 0 on, beyond the length of `ring`. The owner's; that the
    /// second can be read by others is for statistics.
    first: Cell<usize>,
    next: AtomicUsize,
    /// What `next` was when the memory of `ring` last went back.
    emptied: AtomicUsize,
    /// Bytes of the blocks in the quarantine.
    bytes: Cell<usize>,
    /// For [`lists::take_or_make`].
    cursor: Cursor,
    /// Small blocks allocated. For statistics.
    allocations: AtomicUsize,
    /// For who samples blocks: all zero at first, and where the second is, the first is drawn anew.
    pub(crate) sampler: [Cell<u64>; 2],
    ring: CellTable<Cell<Held>, MOST_HELD>,
}

/// A thread is in a function of this file until this is dropped. A signal handler of the thread sees what was
/// done before, by the fences.
struct Busy<'a>(&'a State);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        compiler_fence(Release);
        self.0.busy.set(false);
    }
}

impl State {
    /// Says that the thread is busy here; `None` if it was already.
    #[inline(always)]
    fn enter(&self) -> Option<Busy<'_>> {
        let was = self.busy.replace(true);
        compiler_fence(SeqCst);
        (!was).then(|| Busy(self))
    }

    /// A random number.
    #[inline(always)]
    fn random(&self) -> u64 {
        let mut x = self.random.get();
        if x == 0 {
            x = parts::seed();
        }
        // xorshift64*, by Vigna.
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// A small block that the thread has ready. Null if it has none, or a signal handler has interrupted it
    /// here, or the size is a large block's: then [`State::hit_shared`] may have one, and else
    /// [`State::alloc`] knows what to do.
    #[inline(always)]
    pub(crate) fn hit(&self, size: usize, align: usize) -> *mut u8 {
        self.hit_of(size, align, class_with_trailer(size, align))
    }

    /// [`State::hit`], for who knows the class with the trailer.
    #[inline(always)]
    pub(crate) fn hit_of(&self, size: usize, align: usize, class: usize) -> *mut u8 {
        // First: what a signal handler might change is read behind this.
        let Some(_busy) = self.enter() else { return ptr::null_mut() };
        // There is no slab of class 0.
        let source = &self.sources[class];
        let bits = source.bits.get();
        let Some(slab) = source.slab.get().filter(|_| bits != 0) else { return ptr::null_mut() };
        let parts = parts::now();
        let place = source.next(slab, bits);
        let bits = bits & (bits - 1);
        source.bits.set(bits);
        if bits != 0 {
            let mut bits = bits;
            if parts.has(Hardened::RANDOM) && source.is_run_over() {
                source.turn(bits, self.random() as u32);
                bits = source.bits.get();
            }
            // Fetched while the program uses this one.
            let next = source.next(slab, bits).block;
            prefetch(next);
            prefetch(next.wrapping_add(place.room()));
        }
        self.hand_out(place, size, align, parts);
        place.block
    }

    /// Makes a block the program's, which the thread has taken the bit of.
    #[inline(always)]
    fn hand_out(&self, place: Place<'_>, size: usize, align: usize, parts: Parts) {
        let mix = place.mix();
        let is_fresh = place.state().load(Relaxed) == FRESH;
        if is_fresh {
            // Written first: the system would map a page of zeros for what is only read, and another later.
            if place.swap_free(mix) != 0 && parts.has(Hardened::CANARY) {
                fault::small("malloc", Fault::WrittenAfterFree, place);
            }
        } else if parts.has(Hardened::CANARY) && !place.is_sealed_free(mix) {
            fault::small("malloc", Fault::WrittenAfterFree, place);
        }
        // SAFETY: the thread has taken the block's bit, so it is ours; by its class it has room.
        unsafe {
            let is_looked_at = if is_fresh { place.room() <= SMALL } else { parts.has(Hardened::ZERO) };
            if is_looked_at && !place.is_zero() {
                fault::small("malloc", Fault::WrittenAfterFree, place);
            }
            place.seal(mix, size, align.trailing_zeros(), parts.has(Hardened::CANARY));
        }
        place.take();
        self.allocations.store(self.allocations.load(Relaxed) + 1, Relaxed);
    }

    /// A small block. `None` if there has to be a large one: because of its size, or since a signal handler
    /// has interrupted the thread here.
    #[inline(always)]
    pub(super) fn alloc(&self, size: usize, align: usize) -> Option<Allocation> {
        let class = class_with_trailer(size, align);
        if class == 0 {
            return None;
        }
        loop {
            let mut block = self.hit(size, align);
            if block.is_null() {
                block = self.hit_shared(size, align);
            }
            if !block.is_null() {
                // Fresh blocks are, too, but then it is known only here.
                return Some(Allocation { ptr: block, zeroed: parts::has(Hardened::ZERO) });
            }
            let _busy = self.enter()?;
            let source = &self.sources[class];
            // A signal handler of the thread may have been here.
            if source.bits.get() == 0 && !self.refill(source, class) {
                return Some(Allocation::NONE);
            }
        }
    }

    /// A block of a slab that threads share, if the class's are. Null also if the thread takes so many that
    /// it is to have a slab of its own, if another thread is there, or if there is no memory.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn hit_shared(&self, size: usize, align: usize) -> *mut u8 {
        let class = class_with_trailer(size, align);
        let Some(_busy) = self.enter().filter(|_| shared::serves(class)) else { return ptr::null_mut() };
        let source = &self.sources[class];
        // A signal handler of the thread may have been here.
        if source.bits.get() != 0 || self.paces[class].is_fast(source.slab.get().is_some()) {
            return ptr::null_mut();
        }
        let Some(place) = shared::take(self.set(), class, || self.chance(), &self.cursor) else {
            return ptr::null_mut();
        };
        // It had one of its own when others were there.
        if let Some(slab) = source.slab.take() {
            source.settle(slab);
            lists::drop_current(slab);
        }
        self.hand_out(place, size, align, parts::now());
        place.block
    }

    /// Which of the sets of [`shared`] the thread shares.
    fn set(&self) -> usize {
        if self.set.get() == 0 {
            self.set.set(1 + shared::next_set());
        }
        self.set.get() - 1
    }

    /// A random number, where blocks are chosen at random.
    fn chance(&self) -> Option<u64> {
        parts::has(Hardened::RANDOM).then(|| self.random())
    }

    /// Takes a word of bits from the current slab of a class, or from another one, which becomes current.
    /// False if there is no memory.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    fn refill(&self, source: &Source, class: usize) -> bool {
        loop {
            let Some(slab) = source.slab.get() else {
                let Some(slab) = lists::take_or_make(class, &self.cursor) else { return false };
                source.begin(slab, self.chance());
                continue;
            };
            if source.take_word(slab, || self.chance()) {
                if shared::serves(class) {
                    self.paces[class].begin(source.bits.get().count_ones());
                }
                // Now that it has what it needs: not what it would have taken.
                aged::tick();
                return true;
            }
            source.settle(slab);
            if lists::drop_used_up(slab) {
                source.slab.set(None);
            }
        }
    }

    /// Keeps a held block from being handed out, and lets go of older ones instead.
    #[inline(always)]
    pub(super) fn hold(&self, place: Place<'static>) {
        let Some(_busy) = self.enter() else { return lists::freed(place.slab, place.let_go()) };
        let (most_bytes, most_blocks) = parts::quarantine();
        if most_blocks == 0 {
            // As if it had been there.
            let next = self.next.load(Relaxed) + 1;
            self.next.store(next, Relaxed);
            self.first.set(next);
            return self.let_go(place);
        }
        let (next, stride) = (self.next.load(Relaxed), place.slab.stride());
        // This one stays, however large it is.
        while next != self.first.get()
            && (self.bytes.get() + stride > most_bytes || next - self.first.get() >= most_blocks)
        {
            self.let_go_oldest();
        }
        self.ring[next].set(Held::new(place));
        self.next.store(next + 1, Relaxed);
        self.bytes.set(self.bytes.get() + stride);
    }

    /// Lets go of the oldest block in the quarantine.
    #[inline(always)]
    fn let_go_oldest(&self) {
        let first = self.first.get();
        // What letting go of the next one will write to: it was touched long ago.
        if let Some(next) = self.ring[first + 1].get().place() {
            next.prefetch_marks();
        }
        self.first.set(first + 1);
        let Some(place) = self.ring[first].get().place() else { return };
        self.bytes.set(self.bytes.get().wrapping_sub(place.slab.stride()));
        self.let_go(place);
    }

    /// Lets a held block be handed out again.
    #[inline(always)]
    fn let_go(&self, place: Place<'static>) {
        let source = &self.sources[place.slab.class()];
        if source.slab.get().is_some_and(|slab| ptr::eq(slab, place.slab)) {
            place.give();
            source.uncounted.set(source.uncounted.get() + 1);
        } else {
            lists::freed(place.slab, place.let_go());
        }
    }

    /// What is handed out at random from now on is not what a parent or a child of this process does, nor are
    /// the same allocations sampled.
    pub(crate) fn reseed(&self) {
        self.random.set(0);
        self.sampler[1].set(0);
    }

    /// For the next thread that has the record. The last one may have left in the middle of something: by a
    /// jump out of a signal handler, which has ended it.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn begin(&self) {
        if self.busy.get() {
            self.forget();
        }
        // A fork may have come since: then parent and child have the record.
        self.reseed();
    }

    /// Gives the current slabs up, and lets go of what is in quarantine: for a thread that ends, since nobody
    /// else would, and each block keeps its slab; and where memory is to go back.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn retire(&self) {
        let Some(_busy) = self.enter() else { return };
        for source in self.sources.iter() {
            if let Some(slab) = source.slab.take() {
                source.put_back(slab);
                lists::drop_current(slab);
            }
        }
        while self.first.get() != self.next.load(Relaxed) {
            self.let_go_oldest();
        }
        shared::retire();
    }

    /// How many blocks ever came into quarantine, or would have if there were one. The owner's.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn quarantined(&self) -> usize {
        self.next.load(Relaxed)
    }

    /// Whether there are blocks in quarantine. The owner's.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn keeps_any(&self) -> bool {
        self.first.get() != self.next.load(Relaxed)
    }

    /// Forgets everything, in the child of a fork that has stopped the thread anywhere: its slabs and what it
    /// had in quarantine are lost.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn forget(&self) {
        self.first.set(self.next.load(Relaxed));
        self.bytes.set(0);
        self.sources.iter().for_each(Source::forget);
        self.busy.set(false);
    }

    /// How many blocks ever came into quarantine since its memory last went back, as far as it has room.
    fn listed(&self) -> usize {
        if parts::quarantine().1 == 0 {
            return 0;
        }
        self.next.load(Relaxed).wrapping_sub(self.emptied.load(Relaxed)).min(MOST_HELD)
    }

    /// Bytes that were ever written since the memory of the quarantine last went back, as if they all lay at
    /// the beginning. For statistics: the owner may be at work.
    pub(crate) fn written(&self) -> usize {
        offset_of!(State, ring) + self.listed() * size_of::<Held>()
    }

    /// Where the memory of the quarantine is, if no block is there and some of it was written. It is the last
    /// thing here. Whoever gives its pages back says so by [`State::purged`].
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn idle(&self) -> Option<Range<usize>> {
        let begin = offset_of!(State, ring);
        (!self.keeps_any() && self.listed() != 0).then_some(begin..size_of::<State>())
    }

    /// Notes that the memory of the quarantine has gone back.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn purged(&self) {
        self.emptied.store(self.next.load(Relaxed), Relaxed);
    }

    /// Small blocks allocated, by this thread and those that had the record before.
    pub(crate) fn allocations(&self) -> usize {
        self.allocations.load(Relaxed)
    }
}

const _: () = assert!(offset_of!(State, ring) + MOST_HELD * size_of::<Held>() == size_of::<State>());
const _: () = assert!(size_of::<State>() <= 256 << 10, "it has room in the record of a heap");

#[cfg(test)]
mod tests;
