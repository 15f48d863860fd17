//! Slabs of the hardened heap: blocks of one size class, and a record that lies elsewhere.
//!
//! No free block holds a link or anything else that is relied on. Which blocks can be handed out is a bit for
//! each; what has become of a block is a byte for each.

use crate::base::list::{Linked, Links};
use crate::hardened::parts;
use crate::hardened::records::{self, Header};
use crate::hardened::spans::{self, Region};
use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, FOREIGN};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};
use crate::tiny::classes;
use core::ptr;

/// A block that was never handed out. It is zero, its trailer too.
pub(super) const FRESH: u8 = 0;
/// A block that was used before and can be handed out.
pub(super) const FREE: u8 = 1;
/// A block that the program has.
pub(super) const USED: u8 = 2;
/// A block that was freed and cannot be handed out yet.
pub(super) const HELD: u8 = 3;

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
/// All records that were ever made, linked by `all_next`.
static ALL: AtomicPtr<Slab> = AtomicPtr::new(ptr::null_mut());

/// The record of a slab. Behind it lie the words of bits, then a byte for each block.
#[repr(C)]
pub(super) struct Slab {
    header: Header,
    /// The first block. Constant while the slab has memory, as is everything up to `place`.
    pub(super) base: *mut u8,
    /// Bytes from block to block.
    pub(super) stride: usize,
    /// `ceil(2^64 / stride)`.
    pub(super) inverse: u64,
    pub(super) secret: usize,
    region: *mut Region,
    /// The byte of the first block.
    states: *const AtomicU8,
    blocks: u32,
    /// See [`Slab::enough`].
    enough: i32,
    slices: u8,
    class: u8,
    /// One of the five above.
    pub(super) place: AtomicU8,
    /// Blocks whose bits are set. May be too low for a moment, while somebody frees.
    pub(super) free: AtomicI32,
    /// The thread whose current slab it is or was last, for reports.
    pub(super) thread: AtomicUsize,
    /// Whether it is counted as empty. Used under the lock of its list.
    pub(super) counted: AtomicBool,
    links: Links<Slab>,
    all_next: AtomicPtr<Slab>,
}

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
    pub(crate) fresh: usize,
    pub(crate) free: usize,
    pub(crate) used: usize,
    pub(crate) held: usize,
}

/// Slices of a slab of this class.
fn slices(class: usize) -> usize {
    classes::slices(class as u8)
}

/// Bytes behind the blocks of a slab that are not used: a page, which can become a guard. None where a page
/// is as large as a slice.
pub(super) fn guard_bytes() -> usize {
    let page = os::page_size();
    if page < SLICE { page } else { 0 }
}

impl Slab {
    /// A new slab of `class`, for the calling thread alone. `None` if there is no memory.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn make(class: usize) -> Option<&'static Slab> {
        let (stride, slices) = (classes::stride(class) as usize, slices(class));
        let bytes = slices * SLICE;
        let blocks = (bytes - guard_bytes()) / stride;
        let words = blocks.div_ceil(64);
        let (base, region) = spans::take(slices, bytes - guard_bytes())?;
        let length = size_of::<Slab>() + words * size_of::<u64>() + blocks;
        let (record, fresh) = records::take(class, length);
        let slab = record.cast::<Slab>();
        // SAFETY: the span is ours, and so is the record, if there is one: nobody refers to it but by stale
        // pointers, and those look at atomics only. It has room for all bits and bytes.
        unsafe {
            if slab.is_null() {
                spans::give(base, slices, region);
                return None;
            }
            (*slab).base = base;
            (*slab).stride = stride;
            (*slab).inverse = (u64::MAX / stride as u64) + 1;
            (*slab).secret = parts::secret(MADE.fetch_add(1, Relaxed));
            (*slab).region = region;
            (*slab).blocks = blocks as u32;
            (*slab).enough = (blocks as i32 / 8).max(1);
            (*slab).states = slab.wrapping_add(1).cast::<u8>().wrapping_add(words * size_of::<u64>()).cast();
            (*slab).slices = slices as u8;
            (*slab).class = class as u8;
            let slab = &*slab;
            for index in 0..blocks {
                slab.state(index).store(FRESH, Relaxed);
            }
            for word in 0..words {
                let rest = blocks - word * 64;
                slab.word(word).store(if rest >= 64 { u64::MAX } else { (1 << rest) - 1 }, Relaxed);
            }
            slab.free.store(blocks as i32, Relaxed);
            slab.thread.store(os::thread::id(), Relaxed);
            slab.place.store(CURRENT, Release);
            pagemap::set_hardened(base, slices, ptr::from_ref(slab).cast());
            if fresh {
                slab.enlist();
            }
            Some(slab)
        }
    }

    /// Puts a new record into the list of all.
    #[unsafe(link_section = "hakmem_rare")]
    fn enlist(&self) {
        let this = ptr::from_ref(self).cast_mut();
        let mut head = ALL.load(Relaxed);
        loop {
            self.all_next.store(head, Relaxed);
            // Release: pairs with the acquire in `each`.
            match ALL.compare_exchange_weak(head, this, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Gives the memory of a slab back in which no block is in use.
    ///
    /// # Safety
    ///
    /// The slab is `DEAD`, and the caller has made it so. All its blocks are free.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn release(&self) {
        pagemap::set(self.base, self.slices as usize, FOREIGN);
        // SAFETY: by the caller's clause nobody uses the span any more, and the record is the caller's.
        unsafe {
            spans::give(self.base, self.slices as usize, self.region);
            records::give(ptr::from_ref(&self.header).cast_mut());
        }
    }

    /// Where the words of bits are.
    fn tail(&self) -> *const u8 {
        ptr::from_ref(self).cast::<u8>().wrapping_add(size_of::<Slab>())
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

    /// Bytes from block to block.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.stride
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
        unsafe { &*self.tail().cast::<AtomicU64>().wrapping_add(word) }
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
        for index in 0..self.blocks() {
            if let Some(count) = counts.get_mut(self.state(index).load(Relaxed) as usize) {
                *count += 1;
            }
        }
        let [fresh, free, used, held] = counts;
        Figures {
            class: self.class(),
            bytes: self.slices() * SLICE,
            stride: self.stride,
            fresh,
            free,
            used,
            held,
        }
    }

    /// Calls `f` with every slab that has memory. For figures: others may be at work there.
    pub(super) fn each(mut f: impl FnMut(&Slab)) {
        // Acquire: pairs with the release in `enlist`.
        let mut slab = ALL.load(Acquire);
        while !slab.is_null() {
            // SAFETY: records stay mapped, and what is referred to here are atomics and values that were
            // written before the slab was listed. A record that is being made anew may show old ones.
            let at = unsafe { &*slab };
            if at.place.load(Acquire) != DEAD {
                f(at);
            }
            slab = at.all_next.load(Relaxed);
        }
    }
}
