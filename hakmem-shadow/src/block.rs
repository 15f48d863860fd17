//! Blocks that know what is in them, and the map of all that are live.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// By which functions a block was allocated, and so by which it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `GlobalAlloc`.
    Rust,
    /// `malloc`, `calloc`, `realloc`: of no special alignment.
    C,
    /// `posix_memalign` and the like.
    CAligned,
    /// `operator new`.
    Cxx,
    /// `operator new` with an alignment.
    CxxAligned,
}

/// A live block. Nobody else has its address.
#[derive(Debug)]
pub struct Block {
    /// Where it is.
    pub at: *mut u8,
    /// The size that was asked for, and the alignment: of the layout, or what the function promises.
    pub layout: Layout,
    /// Who allocated it.
    pub family: Family,
    identity: u64,
}

// SAFETY: a block belongs to whoever has this value; the allocator's blocks may go from thread to thread.
unsafe impl Send for Block {}

/// All live blocks of all threads, by address: overlap shows at once.
static MAP: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
static IDENTITIES: AtomicU64 = AtomicU64::new(1);

/// How many blocks the map has.
pub fn live() -> usize {
    MAP.lock().unwrap().len()
}

/// Set in the child of a fork, where another thread may have held the map's lock: it does without the map.
static WITHOUT_MAP: AtomicBool = AtomicBool::new(false);

/// From now on there is no map, only the blocks' contents.
pub fn forget_map() {
    WITHOUT_MAP.store(true, Relaxed);
}

/// Whether there is none.
pub fn has_no_map() -> bool {
    WITHOUT_MAP.load(Relaxed)
}

fn enter(address: usize, size: usize) {
    if WITHOUT_MAP.load(Relaxed) {
        return;
    }
    // Blocks of no bytes have addresses of their own, too.
    let size = size.max(1);
    let mut map = MAP.lock().unwrap();
    if let Some((&below, &len)) = map.range(..=address).next_back() {
        assert!(below + len <= address, "{address:#x} lies in the block at {below:#x}");
    }
    if let Some((&above, _)) = map.range(address + 1..).next() {
        assert!(address + size <= above, "{address:#x}+{size} runs into the block at {above:#x}");
    }
    assert!(map.insert(address, size).is_none());
}

fn leave(address: usize) {
    assert!(WITHOUT_MAP.load(Relaxed) || MAP.lock().unwrap().remove(&address).is_some());
}

/// Large blocks are looked at in steps and at their end, or the test would measure memset. Under Miri all
/// are.
fn positions(size: usize) -> impl Iterator<Item = usize> {
    let step = if size <= 4096 && !cfg!(miri) { 1 } else { (size / 512).max(509) };
    let end = if cfg!(miri) { 2 } else { 16 };
    (0..size).step_by(step).chain(size.saturating_sub(end)..size)
}

/// An identity that no other block of this process has, spread over the word.
fn identity() -> u64 {
    IDENTITIES.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The byte that belongs at a position of the block of that identity.
fn pattern(identity: u64, position: usize) -> u8 {
    (identity >> (position % 8 * 8)) as u8 ^ (position >> 3) as u8
}

impl Block {
    /// A block that was just allocated: it is where it should be, and overlaps no other. Fills it.
    pub fn new(at: *mut u8, layout: Layout, family: Family) -> Self {
        let address = at.addr();
        assert!(address != 0 && address % layout.align() == 0, "{family:?} {layout:?} at {address:#x}");
        enter(address, layout.size());
        let block = Self { at, layout, family, identity: identity() };
        block.fill();
        block
    }

    /// Checks that a block that was just allocated is zero, before it is filled.
    ///
    /// # Safety
    ///
    /// The block has `size` bytes, and nobody else uses it.
    pub unsafe fn expect_zero(at: *const u8, size: usize) {
        for i in positions(size) {
            // SAFETY: in the block, by this function's contract.
            let found = unsafe { at.add(i).read() };
            assert_eq!(found, 0, "byte {i} of {size} at {at:p} is not zero");
        }
    }

    /// Writes the pattern.
    pub fn fill(&self) {
        for i in positions(self.layout.size()) {
            // SAFETY: in our block.
            unsafe { self.at.add(i).write(pattern(self.identity, i)) };
        }
    }

    /// Checks the pattern.
    pub fn check(&self) {
        self.check_below(self.at, self.layout.size(), self.layout.size());
    }

    /// Checks at `at` what was written below `most` while the block had `size` bytes.
    fn check_below(&self, at: *mut u8, size: usize, most: usize) {
        for i in positions(size).filter(|&i| i < most) {
            // SAFETY: in our block, of which the callers know that it has `most` bytes.
            let found = unsafe { at.add(i).read() };
            assert_eq!(found, pattern(self.identity, i), "byte {i} of {most} (once {size}) at {at:p}");
        }
    }

    /// Checks the block, takes it off the map, and returns where it is: the caller frees it.
    pub fn release(self) -> *mut u8 {
        self.check();
        leave(self.at.addr());
        self.at
    }

    /// Resizes the block by `f`, which gets its address and returns the new one, or null, and then the block
    /// must be as it was. False in the latter case.
    pub fn resize(&mut self, size: usize, align: usize, f: impl FnOnce(*mut u8) -> *mut u8) -> bool {
        leave(self.at.addr());
        let moved = f(self.at);
        let before = self.layout.size();
        if moved.is_null() {
            enter(self.at.addr(), before);
            self.check();
            return false;
        }
        assert_eq!(moved.addr() % align, 0, "realloc of {:?} to {size}: {moved:p}", self.layout);
        enter(moved.addr(), size);
        self.check_below(moved, before, size.min(before));
        self.at = moved;
        self.layout = Layout::from_size_align(size, align).unwrap();
        self.fill();
        true
    }
}
