//! Slabs of the hardened heap: blocks of one size class, and a record that lies elsewhere.
//!
//! No free block holds a link or anything else that is relied on. Which blocks can be handed out is a bit for
//! each; what has become of a block is a byte for each.

mod all;

use crate::base::list::{Linked, Links};
use crate::hardened::records::{self, Header};
use crate::hardened::regions::{Region, guard_bytes};
use crate::hardened::spans::{self, BIG};
use crate::hardened::trailer::Secret;
use crate::hardened::{growth, parts};
use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, FOREIGN};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};
use crate::tiny::classes;
use core::cell::Cell;
use core::ptr;

#[cfg(all(test, loom))]
pub(super) use all::ALL;
pub(super) use all::Cursor;

/// A block that was never handed out. It is zero, its trailer too.
pub(super) const FRESH: u8 = 0;
/// A block that was used before and can be handed out.
pub(super) const FREE: u8 = 1;
/// A block that the program has.
pub(super) const USED: u8 = 2;
/// A block that was freed and cannot be handed out yet.
pub(super) const HELD: u8 = 3;

/// What `Slab::filled` is once [`growth::filled`] has counted the slab; less is how often it was used up.
const COUNTED: u8 = u8::MAX;

/// Who may take blocks from a slab: the thread whose current slab it is.
pub(super) const CURRENT: u8 = 0;
/// Nobody: it had no block left. Who frees enough of its blocks lists it.
pub(super) const FULL: u8 = 1;
/// Nobody yet: somebody is about to list it.
pub(super) const LISTING: u8 = 2;
/// Nobody: it is in its class's list, for any thread to take.
pub(super) const LISTED: u8 = 3;
/// It has no memory.
pub(super) const DEAD: u8 = 4;

/// Records that were ever made, for the secrets of their slabs.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// The record of a slab. Behind it lie the words of bits, the last one first, then a byte for each block.
/// Cells are written when the record has a slab anew; all else up to `place` is constant. So figures, which
/// may look at the record meanwhile, have no reference to what is written.
#[repr(C)]
pub(super) struct Slab {
    header: Header,
    /// The first block.
    base: Cell<*mut u8>,
    /// `ceil(2^64 / stride)`.
    pub(super) inverse: u64,
    secret: Cell<Secret>,
    /// The byte of the first block. The words are reached by this, too: a reference ends with the record.
    states: *const AtomicU8,
    /// Bytes from block to block.
    stride: u32,
    // To here a line of the cache, if these are 64 bytes: what allocations and frees look at.
    blocks: u32,
    /// See [`Slab::enough`].
    enough: i32,
    /// Null for a big slab, which has memory of its own.
    region: Cell<*mut Region>,
    slices: u8,
    class: u8,
    big: bool,
    /// One of the five above.
    pub(super) place: AtomicU8,
    /// Blocks whose bits are set. May be too low for a moment, while somebody frees.
    pub(super) free: AtomicI32,
    /// The thread whose current slab it is or was last, for reports.
    pub(super) thread: AtomicUsize,
    /// Whether it is counted as empty. Used under the lock of its list.
    pub(super) counted: AtomicBool,
    /// [`COUNTED`], or less. Used by who has it.
    filled: AtomicU8,
    links: Links<Slab>,
    /// See [`all`].
    next: AtomicPtr<Slab>,
}

/// What the hit paths need of a record is one line.
const _: () = assert!(core::mem::offset_of!(Slab, enough) <= 64);

// SAFETY: always the same field, which serves only the list of the class.
unsafe impl Linked for Slab {
    unsafe fn links<'a>(slab: *mut Self) -> &'a Links<Self> {
        // SAFETY: by the trait's contract the record is valid.
        unsafe { &(*slab).links }
    }
}

/// The figures of a slab: bytes, and blocks of each kind.
pub(crate) struct Figures {
    pub(crate) class: usize,
    pub(crate) bytes: usize,
    pub(crate) stride: usize,
    /// Bytes of the pages of blocks that were ever handed out; where pages are huge, all.
    pub(crate) touched: usize,
    pub(crate) fresh: usize,
    pub(crate) free: usize,
    pub(crate) used: usize,
    pub(crate) held: usize,
}

/// Slices of a slab of this class.
fn slices(class: usize) -> usize {
    classes::slices(class as u8)
}

impl Slab {
    /// A new slab of `class`, for the calling thread alone. `None` if there is no memory.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn make(class: usize) -> Option<&'static Slab> {
        let big = growth::wants_big(class).then(|| Slab::make_big(class)).flatten();
        big.or_else(|| Slab::make_usual(class))
    }

    /// A new big slab.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn make_big(class: usize) -> Option<&'static Slab> {
        Slab::describe(class, spans::take_big()?, BIG, BIG * SLICE, ptr::null_mut())
    }

    /// A new slab that is not big.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn make_usual(class: usize) -> Option<&'static Slab> {
        let slices = slices(class);
        let bytes = slices * SLICE - guard_bytes();
        let (base, region) = spans::take(slices, bytes)?;
        Slab::describe(class, base, slices, bytes, region)
    }

    /// The slab whose blocks are the first `bytes` bytes of a span of so many slices.
    #[unsafe(link_section = "hakmem_rare")]
    fn describe(
        class: usize,
        base: *mut u8,
        slices: usize,
        bytes: usize,
        region: *mut Region,
    ) -> Option<&'static Slab> {
        // There is none of 0 bytes, which the compiler does not see.
        let stride = (classes::stride(class) as usize).max(1);
        let blocks = bytes / stride;
        let words = blocks.div_ceil(64);
        // The bytes of 64 blocks are a line.
        let head = (size_of::<Slab>() + words * size_of::<u64>()).next_multiple_of(64);
        let list = if region.is_null() { records::BIG + class } else { class };
        let (record, fresh) = records::take(list, head + blocks);
        let slab = record.cast::<Slab>();
        // SAFETY: the span is ours, and so is the record, if there is one: nobody refers to it but by stale
        // pointers, and those look at atomics only. It has room for all bits and bytes.
        unsafe {
            if slab.is_null() {
                spans::give(base, slices, region);
                return None;
            }
            if fresh {
                // All records of the list are alike, so that `figures` can look at one that is made anew.
                (*slab).stride = stride as u32;
                (*slab).inverse = (u64::MAX / stride as u64) + 1;
                (*slab).blocks = blocks as u32;
                (*slab).enough = (blocks as i32 / 8).max(1);
                (*slab).states = slab.cast::<AtomicU8>().wrapping_add(head);
                (*slab).slices = slices as u8;
                (*slab).class = class as u8;
                (*slab).big = region.is_null();
            }
            let number = MADE.fetch_add(1, Relaxed) * 2;
            let slab = &*slab;
            slab.base.set(base);
            slab.secret.set(Secret(parts::secret(number), parts::secret(number + 1) | 1));
            slab.region.set(region);
            // A fresh record is zero, and so `FRESH`.
            for index in 0..if fresh { 0 } else { blocks } {
                slab.state(index).store(FRESH, Relaxed);
            }
            for word in 0..words {
                let rest = blocks - word * 64;
                slab.word(word).store(if rest >= 64 { u64::MAX } else { (1 << rest) - 1 }, Relaxed);
            }
            slab.free.store(blocks as i32, Relaxed);
            slab.filled.store(0, Relaxed);
            slab.thread.store(os::thread::id(), Relaxed);
            slab.place.store(CURRENT, Relaxed);
            pagemap::set_hardened(base, slices, record.cast());
            growth::made(class, slab.is_big());
            if fresh {
                slab.enlist();
            }
            Some(slab)
        }
    }

    /// Gives the memory of a slab back in which no block is in use.
    ///
    /// # Safety
    ///
    /// The slab is `DEAD`, and the caller has made it so. All its blocks are free.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn release(&self) {
        // As it was taken: by `self` the record could not be written to that is made of it next.
        let record = pagemap::hardened(self.base());
        pagemap::set(self.base(), self.slices as usize, FOREIGN);
        growth::released(self.class(), self.slices(), self.is_big(), self.filled.load(Relaxed) == COUNTED);
        // SAFETY: by the caller's clause nobody uses the span any more, and the record is the caller's.
        unsafe {
            spans::give(self.base(), self.slices as usize, self.region.get());
            records::give(record.cast());
        }
    }

    /// The first block.
    #[inline(always)]
    pub(super) fn base(&self) -> *mut u8 {
        self.base.get()
    }

    /// What trailers and canaries of its blocks are made from.
    #[inline(always)]
    pub(super) fn secret(&self) -> Secret {
        self.secret.get()
    }

    /// How many blocks the slab has.
    #[inline(always)]
    pub(super) fn blocks(&self) -> usize {
        self.blocks as usize
    }

    /// The size class.
    #[inline(always)]
    pub(super) fn class(&self) -> usize {
        self.class as usize
    }

    /// Slices of the span.
    pub(super) fn slices(&self) -> usize {
        self.slices as usize
    }

    /// Notes that it has no block left, if its blocks are used as far as what a big one would make resident.
    pub(super) fn note_filled(&self) {
        let before = self.filled.load(Relaxed);
        if before == COUNTED {
            return;
        }
        let times = (before + 1).min(COUNTED - 1);
        // Ever more rarely, and not beyond the 128th time: it may take a system call.
        if times.is_power_of_two() && self.is_dense() {
            self.filled.store(COUNTED, Relaxed);
            growth::filled(self.class(), self.slices(), self.is_big());
        } else {
            self.filled.store(times, Relaxed);
        }
    }

    /// Whether it is resident as a whole, or its blocks are filled.
    fn is_dense(&self) -> bool {
        self.is_big() || growth::are_filled(self.base(), self.blocks(), self.stride())
    }

    /// Whether it has memory of its own, and huge pages if there are any.
    pub(super) fn is_big(&self) -> bool {
        self.big
    }

    /// Bytes from block to block.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.stride as usize
    }

    /// How many words of bits there are.
    #[inline(always)]
    pub(super) fn words(&self) -> usize {
        self.blocks().div_ceil(64)
    }

    /// A word of bits: which of 64 blocks can be handed out. `word` is below [`Slab::words`].
    #[inline(always)]
    pub(super) fn word(&self, word: usize) -> &AtomicU64 {
        debug_assert!(word < self.words());
        // SAFETY: `make` has taken a record with room for these words, and records stay mapped.
        unsafe { &*self.states.cast::<AtomicU64>().wrapping_sub(word + 1) }
    }

    /// Takes all bits of a word: the calling thread has their blocks now.
    #[inline(always)]
    pub(super) fn take_bits(&self, word: usize) -> u64 {
        // Acquire: pairs with the release in `put_bits`.
        self.word(word).swap(0, Acquire)
    }

    /// Puts bits into a word, whose blocks others may take then.
    #[inline(always)]
    pub(super) fn put_bits(&self, word: usize, bits: u64) {
        // Release: pairs with the acquire in `take_bits`: who takes a bit may write to the block.
        self.word(word).fetch_or(bits, Release);
    }

    /// Counts so many blocks more as free, or fewer.
    pub(super) fn count(&self, blocks: i32) {
        // Release: pairs with the acquires of `Place::let_go` and of who looks whether all are free, and then
        // gives the memory back.
        self.free.fetch_add(blocks, Release);
    }

    /// How many blocks are free, for who has just stored `place`. By an exchange, so that each free of a
    /// block comes before it, and is counted, or after it, and then finds what was stored.
    pub(super) fn recount(&self) -> i32 {
        // Release: pairs with the acquire in `Place::let_go`.
        self.free.fetch_add(0, Release)
    }

    /// What has become of a block. `index` is below [`Slab::blocks`].
    #[inline(always)]
    pub(super) fn state(&self, index: usize) -> &AtomicU8 {
        debug_assert!(index < self.blocks());
        // SAFETY: `make` has taken a record with room for these bytes, and records stay mapped.
        unsafe { &*self.states.wrapping_add(index) }
    }

    /// How many free blocks a slab has to have before others may take it: so that a slab does not change
    /// hands for each of its blocks.
    #[inline(always)]
    pub(super) fn enough(&self) -> i32 {
        self.enough
    }

    /// Its figures. Others may be at work there.
    pub(super) fn figures(&self) -> Figures {
        let mut counts = [0usize; 4];
        // Slabs begin at pages. What is counted of these ends at `end`.
        let (page, mut end, mut touched) = (os::page_size(), 0, 0);
        for index in 0..self.blocks() {
            let state = self.state(index).load(Relaxed);
            if let Some(count) = counts.get_mut(state as usize) {
                *count += 1;
            }
            if state != FRESH {
                let first = end.max((index * self.stride()) & !(page - 1));
                end = ((index + 1) * self.stride()).next_multiple_of(page);
                touched += end - first;
            }
        }
        let [fresh, free, used, held] = counts;
        let bytes = self.slices() * SLICE;
        Figures {
            class: self.class(),
            bytes,
            stride: self.stride(),
            touched: if self.is_big() && spans::has_huge_pages() { bytes } else { touched },
            fresh,
            free,
            used,
            held,
        }
    }
}

#[cfg(test)]
mod tests;
