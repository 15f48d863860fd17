//! What a thread has of the hardened heap: slabs from which it takes blocks, and freed blocks that may not be
//! handed out yet. It lies in the record of the thread's heap, where without hardened mode magazines are.

use crate::base::misuse::Fault;
use crate::base::options::Hardened;
use crate::base::table::Table;
use crate::hardened::place::Place;
use crate::hardened::slab::{FRESH, Slab};
use crate::hardened::trailer::TRAILER;
use crate::hardened::{fault, lists, parts};
use crate::os;
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::Allocation;
use crate::sync::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use crate::sync::{AtomicUsize, compiler_fence};
use crate::tiny::classes::class_of;
use core::cell::Cell;

/// Blocks of up to so many bytes are looked at before they are handed out for the first time: larger ones may
/// consist of pages that the program never touches.
const SMALL: usize = 1024;
/// So many blocks are handed out in the order of their addresses, on average, before the next is chosen at
/// random. All at random, python3 took half as much time again: it walks through what it has allocated in
/// that order, and the processor's prefetching relies on it.
const RUN: u32 = 8;
/// Blocks that a quarantine has room for.
pub(crate) const MOST_HELD: usize = 8192;

/// What a thread has. All zero is valid, and means nothing.
#[repr(C)]
pub(crate) struct State {
    /// The state of the generator of random numbers; 0 before the first.
    random: Cell<u64>,
    /// Whether the thread is in a function of this file: a signal handler that has interrupted it gets its
    /// blocks elsewhere.
    busy: Cell<bool>,
    sources: Table<Source, KINDS>,
    /// The oldest block in the quarantine, and how many there are.
    first: Cell<usize>,
    count: Cell<usize>,
    /// Bytes of the blocks in the quarantine.
    bytes: Cell<usize>,
    /// Small blocks allocated. For statistics.
    allocations: AtomicUsize,
    ring: Table<Cell<Option<Place<'static>>>, MOST_HELD>,
}

/// Where a thread's blocks of one class come from.
struct Source {
    slab: Cell<Option<&'static Slab>>,
    /// The blocks of the word `word` that the thread has taken the bits of and can hand out.
    bits: Cell<u64>,
    word: Cell<usize>,
    /// The bit from which on they are handed out.
    turn: Cell<u32>,
    /// The bit that is handed out next.
    next: Cell<u32>,
}

impl Source {
    /// Chooses the next of `bits`, which are not 0: mostly the one behind the last, so that what is allocated
    /// together lies together; now and then any.
    #[inline(always)]
    fn choose(&self, bits: u64, random: u32) {
        if random % RUN == 0 {
            self.turn.set(random / RUN % 64);
        }
        let turn = self.turn.get();
        self.next.set(bits.rotate_right(turn).trailing_zeros().wrapping_add(turn) % 64);
    }
}

/// Fetches a line for writing.
#[inline(always)]
fn prefetch(line: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch does not fault, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
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
            x = os::random() as u64 | 1;
        }
        // xorshift64*, by Vigna.
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// A small block. `None` if there has to be a large one: because of its size, or since a signal handler
    /// has interrupted the thread here.
    #[inline(always)]
    pub(super) fn alloc(&self, size: usize, align: usize) -> Option<Allocation> {
        let class = class_of(size + TRAILER, align) as usize;
        if class == 0 {
            return None;
        }
        let parts = parts::now();
        let _busy = self.enter()?;
        let source = &self.sources[class];
        if source.bits.get() == 0 && !self.refill(source, class) {
            return Some(Allocation::NONE);
        }
        let slab = source.slab.get()?;
        let bit = source.next.get();
        let bits = source.bits.get() & !(1 << bit);
        source.bits.set(bits);
        let place = slab.nth(source.word.get() * 64 + bit as usize);
        if bits != 0 {
            // The next one is chosen now, so that it can be fetched meanwhile.
            let random = if parts.has(Hardened::RANDOM) { self.random() as u32 } else { 1 };
            source.choose(bits, random);
            let next = slab.nth(source.word.get() * 64 + source.next.get() as usize);
            prefetch(next.block);
            prefetch(next.block.wrapping_add(next.room()));
        }
        let mix = place.mix();
        let is_fresh = place.state().load(Relaxed) == FRESH;
        let zero = parts.has(Hardened::ZERO) || is_fresh;
        if is_fresh {
            // Written first: the system would map a page of zeros for what is only read, and another later.
            place.seal_free(mix);
        } else if parts.has(Hardened::CANARY) && !place.is_sealed_free(mix) {
            fault::small("malloc", place.block, Fault::WrittenAfterFree, place);
        }
        // SAFETY: the thread has taken the block's bit, so it is ours; by its class it has room.
        unsafe {
            let is_looked_at = zero && !(is_fresh && place.room() > SMALL);
            if is_looked_at && !place.is_zero() {
                fault::small("malloc", place.block, Fault::WrittenAfterFree, place);
            }
            place.seal(mix, size, align.trailing_zeros(), parts.has(Hardened::CANARY));
        }
        place.take();
        self.allocations.store(self.allocations.load(Relaxed) + 1, Relaxed);
        Some(Allocation { ptr: place.block, zeroed: zero })
    }

    /// Takes a word of bits from the current slab of a class, or from another one, which becomes current.
    /// False if there is no memory.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    fn refill(&self, source: &Source, class: usize) -> bool {
        loop {
            let Some(slab) = source.slab.get() else {
                let Some(slab) =
                    lists::take(class).or_else(|| Slab::make(class).inspect(|slab| lists::made(slab)))
                else {
                    return false;
                };
                source.slab.set(Some(slab));
                continue;
            };
            let words = slab.words();
            let from = if parts::has(Hardened::RANDOM) { self.random() as usize % words } else { 0 };
            for word in (from..words).chain(0..from) {
                if slab.word(word).load(Relaxed) == 0 {
                    continue;
                }
                // Acquire: pairs with the release in `Place::let_go`.
                let bits = slab.word(word).swap(0, AcqRel);
                if bits != 0 {
                    slab.free.fetch_sub(bits.count_ones() as i32, AcqRel);
                    source.word.set(word);
                    source.bits.set(bits);
                    source.turn.set(0);
                    source.choose(
                        bits,
                        if parts::has(Hardened::RANDOM) { self.random() as u32 & !(RUN - 1) } else { 1 },
                    );
                    return true;
                }
            }
            if lists::drop_used_up(slab) {
                source.slab.set(None);
            }
        }
    }

    /// Keeps a held block from being handed out, and lets go of older ones instead.
    #[inline(always)]
    pub(super) fn hold(&self, place: Place<'static>) {
        let (most_bytes, most_blocks) = parts::quarantine();
        let Some(_busy) = self.enter().filter(|_| most_blocks != 0) else {
            return let_go(place);
        };
        let most_blocks = most_blocks.min(MOST_HELD);
        while self.count.get() >= most_blocks {
            self.let_go_oldest();
        }
        self.ring[self.first.get() + self.count.get()].set(Some(place));
        self.count.set(self.count.get() + 1);
        let bytes = self.bytes.get() + place.slab.stride();
        self.bytes.set(bytes);
        // One stays, however large it is.
        while self.bytes.get() > most_bytes && self.count.get() > 1 {
            self.let_go_oldest();
        }
    }

    /// Lets go of the oldest block in the quarantine.
    #[inline(always)]
    fn let_go_oldest(&self) {
        let first = self.first.get();
        self.first.set(first.wrapping_add(1));
        self.count.set(self.count.get() - 1);
        if let Some(place) = self.ring[first].get() {
            self.bytes.set(self.bytes.get().saturating_sub(place.slab.stride()));
            let_go(place);
        }
    }

    /// Gives the current slabs up, for a thread that ends.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn retire(&self) {
        let Some(_busy) = self.enter() else { return };
        // What is in quarantine stays there, for the next thread that gets the record.
        for source in &self.sources.0 {
            if let Some(slab) = source.slab.take() {
                let bits = source.bits.take();
                slab.word(source.word.get()).fetch_or(bits, AcqRel);
                slab.free.fetch_add(bits.count_ones() as i32, AcqRel);
                lists::drop_current(slab);
            }
        }
    }

    /// Forgets everything, in the child of a fork that has stopped the thread anywhere: its slabs and what it
    /// had in quarantine are lost.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn forget(&self) {
        self.count.set(0);
        self.bytes.set(0);
        for source in &self.sources.0 {
            source.slab.set(None);
            source.bits.set(0);
        }
        self.busy.set(false);
    }

    /// Small blocks allocated, by this thread and those that had the record before.
    pub(crate) fn allocations(&self) -> usize {
        self.allocations.load(Relaxed)
    }
}

/// Lets a held block be handed out again.
#[inline(always)]
fn let_go(place: Place<'static>) {
    let free = place.let_go();
    lists::freed(place.slab, free);
}

const _: () = assert!(size_of::<State>() <= 256 << 10, "it has room in the record of a heap");
