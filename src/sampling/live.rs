//! The sampled blocks that live.

use crate::os;
use crate::sampling::grown::{Grown, Zero};
use crate::sampling::{pages, probes};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU64, reads, wrote};
use core::ptr;

/// A sampled block that lives.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) address: usize,
    /// When it was allocated, in nanoseconds.
    pub(super) born: u64,
    pub(super) site: u32,
    /// The next entry of the same chain, or of those that are free; 0 for none.
    next: u32,
}

/// The site of blocks that nothing is gathered of.
pub(super) const NO_SITE: u32 = u32::MAX;

// SAFETY: it consists of numbers.
unsafe impl Zero for Entry {}

/// All of them, found by their addresses.
pub(super) struct Live {
    /// By hash: the first entry of a chain; 0 for none.
    heads: Grown<u32>,
    /// Entry 0 is none.
    entries: Grown<Entry>,
    free: u32,
    count: usize,
}

/// Of which the upper half is good.
#[inline(always)]
fn hash(address: usize) -> u64 {
    (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Live {
    /// No blocks.
    pub(super) const fn new() -> Self {
        Self { heads: Grown::new(), entries: Grown::new(), free: 0, count: 0 }
    }

    /// Adds a block that was just allocated. False when there is no memory for that.
    #[must_use]
    pub(super) fn insert(&mut self, address: usize, site: u32, born: u64) -> bool {
        if self.count >= self.heads.len() && !self.grow() {
            return false;
        }
        if self.free == 0 {
            if self.entries.is_empty() && !self.entries.extend_to(1) {
                return false;
            }
            let at = self.entries.len();
            if !self.entries.extend_to(at + 1) {
                return false;
            }
            self.free = at as u32;
        }
        if !self.show(address) {
            return false;
        }
        pages::add(address);
        let at = self.free;
        let head = self.head(address);
        let next = self.heads.get(head).copied().unwrap_or(0);
        if let Some(entry) = self.entries.get_mut(at as usize) {
            self.free = entry.next;
            *entry = Entry { address, born, site, next };
        }
        if let Some(first) = self.heads.get_mut(head) {
            *first = at;
        }
        self.count += 1;
        true
    }

    /// Adds a block again that was [lifted](Live::lift). False when there is no memory for that.
    #[must_use]
    pub(super) fn put_back(&mut self, entry: &Entry) -> bool {
        self.insert(entry.address, entry.site, entry.born)
    }

    /// Takes a block out that is freed, and tells tracers.
    pub(super) fn remove(&mut self, address: usize) -> Option<Entry> {
        let entry = self.lift(address)?;
        probes::free(address);
        Some(entry)
    }

    /// Tells tracers that a block is freed that was [lifted](Live::lift), unless another one has its place by
    /// now, of which they know more than that.
    pub(super) fn tell_freed(&self, entry: &Entry) {
        let mut at = self.heads.get(self.head(entry.address)).copied().unwrap_or(0);
        while let Some(other) = self.entries.get(at as usize).filter(|_| at != 0) {
            if other.address == entry.address {
                return;
            }
            at = other.next;
        }
        probes::free(entry.address);
    }

    /// Takes a block out.
    pub(super) fn lift(&mut self, address: usize) -> Option<Entry> {
        let head = self.head(address);
        let (mut before, mut at) = (0, self.heads.get(head).copied().unwrap_or(0));
        while at != 0 {
            let entry = *self.entries.get(at as usize)?;
            if entry.address == address {
                if before == 0 {
                    *self.heads.get_mut(head)? = entry.next;
                } else {
                    self.entries.get_mut(before as usize)?.next = entry.next;
                }
                *self.entries.get_mut(at as usize)? = Entry { address: 0, born: 0, site: 0, next: self.free };
                self.free = at;
                self.count -= 1;
                hide(address);
                pages::remove(address);
                return Some(entry);
            }
            (before, at) = (at, entry.next);
        }
        None
    }

    /// Makes all blocks no site's. They are still found when they are freed.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn disown(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.site = NO_SITE);
    }

    /// Every block.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().copied().filter(|entry| entry.address != 0)
    }

    /// Forgets all, and gives the memory back but for what other threads may be looking at.
    pub(super) fn clear(&mut self) {
        for entry in self.iter() {
            hide(entry.address);
            pages::remove(entry.address);
        }
        self.heads.clear();
        self.entries.clear();
        (self.free, self.count) = (0, 0);
    }

    fn head(&self, address: usize) -> usize {
        (hash(address) >> 36) as usize & self.heads.len().wrapping_sub(1)
    }

    /// Doubles the number of chains.
    fn grow(&mut self) -> bool {
        let mut heads = Grown::new();
        if !heads.extend_to((self.heads.len() * 2).max(256)) {
            return false;
        }
        self.heads.clear();
        self.heads = heads;
        for at in 1..self.entries.len() {
            let Some(&entry) = self.entries.get(at) else { break };
            if entry.address != 0 {
                let head = self.head(entry.address);
                let next = self.heads.get(head).copied().unwrap_or(0);
                self.entries.iter_mut().skip(at).take(1).for_each(|entry| entry.next = next);
                self.heads.iter_mut().skip(head).take(1).for_each(|head| *head = at as u32);
            }
        }
        true
    }

    /// Lets [`may_hold`] find the block.
    fn show(&self, address: usize) -> bool {
        loop {
            let tags = TAGS.load(Relaxed);
            // SAFETY: null, or a table that stays mapped.
            if unsafe { tags.as_ref() }.is_some_and(|tags| self.count < tags.count && tags.add(address)) {
                return true;
            }
            if !self.enlarge(tags) {
                return false;
            }
        }
    }

    /// Makes the table of [`may_hold`] larger. The old one stays: some thread may be looking at it. All of
    /// them together are smaller than the last.
    fn enlarge(&self, old: *const Tags) -> bool {
        // SAFETY: null, or a table that stays mapped.
        let mut count = unsafe { old.as_ref() }.map_or(FEWEST, |tags| tags.count * 2);
        loop {
            if count > MOST {
                return false;
            }
            let bytes = (size_of::<Tags>() + count * size_of::<u64>()).next_multiple_of(os::page_size());
            let new = os::map_uncounted(bytes).cast::<Tags>();
            if new.is_null() {
                return false;
            }
            // SAFETY: mapped just now, large enough, and nobody else has it. All zero is a table without
            // tags, once it knows its words.
            let tags = unsafe {
                (*new).words = new.add(1).cast();
                (*new).count = count;
                (*new).bytes = bytes;
                (*new).older = old;
                wrote(new);
                &*new
            };
            if self.iter().all(|entry| tags.add(entry.address)) {
                // Release: pairs with the acquire in `may_hold`, which then finds the tags in it.
                TAGS.store(new, Release);
                return true;
            }
            // SAFETY: nobody else has it.
            unsafe { os::discard_uncounted(new.cast(), bytes) };
            count *= 2;
        }
    }
}

/// What [`may_hold`] looks at, without a lock: a word for each hash, and in it a byte for each sampled block
/// with this hash, its *tag*.
static TAGS: AtomicPtr<Tags> = AtomicPtr::new(ptr::null_mut());

/// Words of the first table.
const FEWEST: usize = 256;
/// The most words that a hash tells apart.
const MOST: usize = 1 << 24;
/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The head of a table. The words lie behind it.
#[repr(C)]
struct Tags {
    /// Not found from a reference to the head, by which nothing behind it may be reached.
    words: *const AtomicU64,
    /// Of the words; a power of two.
    count: usize,
    bytes: usize,
    older: *const Tags,
}

/// The tag of a hash: not 0.
fn tag(hash: u64) -> u64 {
    (hash >> 32 & 0xff).max(1)
}

/// The bytes of `word` that are zero: the top bit of each such byte; and perhaps others, above one of them.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

impl Tags {
    #[inline(always)]
    fn word(&self, hash: u64) -> &AtomicU64 {
        let at = (hash >> 40) as usize & (self.count - 1);
        // SAFETY: `count` words lie behind the head, in the same mapping.
        unsafe { &*self.words.add(at) }
    }

    /// Puts the tag of `new` in the place of `old`, where 0 is none. For the holder of the store. False when
    /// there is none.
    fn replace(&self, hash: u64, old: u64, new: u64) -> bool {
        let word = self.word(hash);
        // Relaxed: the store's lock orders the changes, and only who was given a block looks for it, which
        // happens later.
        let before = word.load(Relaxed);
        let found = zeros(before ^ (ONES * old));
        if found == 0 {
            return false;
        }
        let shift = found.trailing_zeros() & !7;
        word.store(before & !(0xff << shift) | new << shift, Relaxed);
        true
    }

    fn add(&self, address: usize) -> bool {
        let hash = hash(address);
        self.replace(hash, 0, tag(hash))
    }
}

/// Whether a block may be sampled; never wrongly false. For the thread that has it, so the answer is not
/// stale.
#[inline(always)]
pub(crate) fn may_hold(block: *mut u8) -> bool {
    // Acquire: pairs with the release in `enlarge`.
    // SAFETY: null, or a table that stays mapped.
    let Some(tags) = (unsafe { TAGS.load(Acquire).as_ref() }) else { return false };
    reads(tags);
    let hash = hash(block.addr());
    let word = tags.word(hash).load(Relaxed);
    // Mostly none has this hash.
    word != 0 && zeros(word ^ (ONES * tag(hash))) != 0
}

/// Models of [`may_hold`]: the store is another thread's, and its table grows.
#[cfg(all(test, loom))]
pub(super) mod model {
    use super::*;

    /// Makes a second table while the caller asks for a block, which is sampled all the time.
    pub(crate) fn table_grows_beside(holds: fn(*mut u8) -> bool) {
        let block: *mut u8 = ptr::without_provenance_mut(0x1234_5670_0040);
        let live = crate::sync::loom::aside(|| {
            forget();
            let mut live = Live::new();
            assert!(live.insert(block.addr(), 1, 0));
            live
        });
        let other = ::loom::thread::spawn(move || {
            assert!(live.enlarge(TAGS.load(Relaxed)));
            live
        });
        crate::sync::loom::second(move || assert!(holds(block)));
        let mut live = other.join().unwrap();
        crate::sync::loom::aside(|| {
            live.clear();
            unmap();
        });
    }
}

/// Takes a block out of the table that [`may_hold`] looks at.
fn hide(address: usize) {
    // SAFETY: null, or a table that stays mapped.
    if let Some(tags) = unsafe { TAGS.load(Relaxed).as_ref() } {
        let hash = hash(address);
        tags.replace(hash, tag(hash), 0);
    }
}

/// Forgets all tables, without a look at what is in them: in the child of a fork, by its only thread.
pub(super) fn forget() {
    TAGS.store(ptr::null_mut(), Relaxed);
    pages::clear();
}

/// Unmaps all tables, when no other thread can be looking at one.
pub(super) fn unmap() {
    let mut tags = TAGS.swap(ptr::null_mut(), Relaxed).cast_const();
    while !tags.is_null() {
        // SAFETY: a table that nobody looks at any more.
        unsafe {
            let (bytes, older) = ((*tags).bytes, (*tags).older);
            os::discard_uncounted(tags.cast_mut().cast(), bytes);
            tags = older;
        }
    }
}

/// Bytes of all tables.
pub(super) fn bytes() -> usize {
    // SAFETY: null, or a table that stays mapped.
    let mut tags = unsafe { TAGS.load(Relaxed).as_ref() };
    let mut bytes = 0;
    while let Some(table) = tags {
        bytes += table.bytes;
        // SAFETY: null, or a table that stays mapped, as all older ones do.
        tags = unsafe { table.older.as_ref() };
    }
    bytes
}

#[cfg(test)]
mod tests;
