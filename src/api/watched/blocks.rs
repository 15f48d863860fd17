//! Blocks that a tool watches.
//!
//! ```text
//!   whole                    block              block + size        end of the allocator's block
//!   | closed | size, state | the program's bytes | closed           |
//! ```
//!
//! Before the program's bytes are at least 16, the last 16 of which are the [`Header`]; behind them are at
//! least 16. A freed block is closed as a whole and kept: the allocator below gets it back, open, when as
//! many others have been freed after it as are kept. So its code never meets memory that is closed, and need
//! not be kept from being watched itself; and a pointer to a freed block meets a closed one for a while, not
//! the next block of its size.

use super::requests;
use crate::api::{rust, slow_path};
use crate::base::misuse::{self, Fault};
use crate::base::options::Options;
use crate::superslab::pagemap;
use crate::sync::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use core::alloc::Layout;
use core::ptr;

/// What lies before the program's bytes. It is closed but while it is looked at.
#[repr(C)]
struct Header {
    /// The bytes that were asked for.
    size: usize,
    /// Tells a header from anything else.
    check: u32,
    /// log2 of the alignment.
    shift: u8,
    /// Whether the block is in use, or freed.
    state: AtomicU8,
}

const HEADER: usize = size_of::<Header>();
/// The least that is closed behind a block.
const BEHIND: usize = 16;
const MIN_ALIGN: usize = 16;

const USED: u8 = 1;
const FREED: u8 = 2;

/// The value of [`Header::check`] before `block`.
fn check(block: *mut u8) -> u32 {
    (block.addr() >> 4) as u32 ^ 0x5af3_c0de
}

/// Bytes from the allocator's block to the program's.
fn front(align: usize) -> usize {
    align.max(HEADER)
}

/// What is asked of the allocator for `size` bytes. `None` if that is too much for any.
fn layout(size: usize, align: usize) -> Option<Layout> {
    let bytes = size.checked_add(front(align) + BEHIND)?.checked_next_multiple_of(16)?;
    Layout::from_size_align(bytes, align).ok()
}

/// A block as it was found by its header.
struct Found {
    block: *mut u8,
    size: usize,
    align: usize,
}

impl Found {
    /// The allocator's block.
    fn whole(&self) -> *mut u8 {
        self.block.wrapping_sub(front(self.align))
    }

    /// The bytes of the allocator's block.
    fn bytes(&self) -> usize {
        let whole = self.whole();
        slow_path::usable(whole, pagemap::kind(whole), "free")
    }
}

/// Runs `f` with the header of `block` open; of what has none the memory there stays open.
///
/// # Safety
///
/// There is mapped memory before `block`, which is a multiple of 16.
unsafe fn with_header<T>(block: *mut u8, f: impl FnOnce(&Header) -> T) -> T {
    let header = block.wrapping_sub(HEADER);
    requests::open(header, HEADER);
    // SAFETY: mapped, by the caller's clause, and aligned; any bytes are a header.
    let found = unsafe { &*header.cast::<Header>() };
    let (result, is_header) = (f(found), found.check == check(block));
    if is_header {
        requests::close(header, HEADER);
    }
    result
}

/// The block that begins at `block`, whose state becomes `state`. `None` after reporting misuse on behalf of
/// `function`.
///
/// # Safety
///
/// `block` is one of this allocator, perhaps freed.
unsafe fn find(block: *mut u8, state: u8, function: &str) -> Option<Found> {
    let foreign = |block| misuse::report(function, block, Fault::Foreign);
    if block.addr() % MIN_ALIGN != 0 || block.addr() < MIN_ALIGN {
        foreign(block);
        return None;
    }
    // SAFETY: by the caller's clause there is a header before the block.
    let found = unsafe {
        with_header(block, |header| {
            if header.check != check(block) {
                return None;
            }
            // Relaxed: of two frees at once one finds that it is the second.
            let before = header.state.swap(state, Ordering::Relaxed);
            Some((before, Found { block, size: header.size, align: 1 << (header.shift & 63) }))
        })
    };
    match found {
        None => {
            foreign(block);
            None
        }
        Some((USED, found)) => Some(found),
        Some(_) => {
            // Who watches says more about it: where it was freed the first time.
            requests::freed(block);
            let fault = if state == FREED { Fault::DoubleFree } else { Fault::UsedAfterFree };
            misuse::report(function, block, fault);
            None
        }
    }
}

/// Allocates a block of any size and alignment, zero if `zeroed`.
pub(super) fn alloc(size: usize, align: usize, zeroed: bool, options: Option<&Options>) -> *mut u8 {
    let align = align.max(MIN_ALIGN);
    let Some(layout) = layout(size, align) else { return ptr::null_mut() };
    let mut whole = allocate(layout, zeroed, options);
    if whole.is_null() {
        release_all();
        whole = allocate(layout, zeroed, options);
        if whole.is_null() {
            return whole;
        }
    }
    let block = whole.wrapping_add(front(align));
    let found = Found { block, size, align };
    // SAFETY: inside of the block that was just allocated.
    unsafe {
        block.cast::<Header>().wrapping_sub(1).write(Header {
            size,
            check: check(block),
            shift: align.trailing_zeros() as u8,
            state: AtomicU8::new(USED),
        });
    }
    requests::close(whole, front(align));
    requests::close(block.wrapping_add(size), found.bytes() - front(align) - size);
    requests::allocated(block, size, zeroed);
    block
}

fn allocate(layout: Layout, zeroed: bool, options: Option<&Options>) -> *mut u8 {
    let (size, align) = (layout.size(), layout.align());
    if zeroed {
        // SAFETY: just allocated for that many bytes, or null.
        unsafe { slow_path::cleared(slow_path::alloc_to_clear(size, align, options), size) }
    } else {
        slow_path::alloc(size, align, options).ptr
    }
}

/// Frees a block, of which the program says that it had `said` bytes.
///
/// # Safety
///
/// `block` is one of this allocator, perhaps freed, and nobody uses it any more.
pub(super) unsafe fn free(block: *mut u8, said: Option<usize>, function: &str) {
    // SAFETY: the caller's clause is the same.
    let Some(found) = (unsafe { find(block, FREED, function) }) else { return };
    if said.is_some_and(|said| said != found.size) {
        misuse::report(function, block, Fault::FreedSize);
    }
    let bytes = found.bytes();
    requests::freed(block);
    requests::close(found.whole(), bytes);
    keep(block, bytes);
}

/// The bytes that were asked for; 0 after reporting misuse on behalf of `function`.
///
/// # Safety
///
/// `block` is one of this allocator, perhaps freed.
pub(super) unsafe fn size(block: *mut u8, function: &str) -> usize {
    // SAFETY: the caller's clause is the same.
    unsafe { find(block, USED, function) }.map_or(0, |found| found.size)
}

/// Resizes a block, of which the program says that it had `said` bytes: always by moving it, so that pointers
/// to where it was are noticed. Null, and nothing changed, when there is no memory.
///
/// # Safety
///
/// As [`free`]; after success the caller uses the result instead.
pub(super) unsafe fn realloc(
    block: *mut u8,
    said: Option<usize>,
    align: usize,
    size: usize,
    options: Option<&Options>,
    function: &str,
) -> *mut u8 {
    // SAFETY: the caller's clause is the same.
    let Some(found) = (unsafe { find(block, USED, function) }) else { return ptr::null_mut() };
    let new = alloc(size, align, false, options);
    if !new.is_null() {
        // SAFETY: two blocks with at least that many bytes. Nobody uses the old one after the copy.
        unsafe {
            ptr::copy_nonoverlapping(block, new, found.size.min(size));
            free(block, said, function);
        }
    }
    new
}

/// Freed blocks that are kept: a ring, in which each takes the place of the oldest.
struct Kept {
    blocks: &'static [AtomicPtr<u8>],
    next: AtomicUsize,
    /// The allocator's blocks here are not larger.
    most: usize,
}

macro_rules! kept {
    ($count:literal, $most:expr) => {
        Kept {
            blocks: {
                static BLOCKS: [AtomicPtr<u8>; $count] = [const { AtomicPtr::new(ptr::null_mut()) }; $count];
                &BLOCKS
            },
            next: AtomicUsize::new(0),
            most: $most,
        }
    };
}

/// Some 80 MiB at most, and one block that is larger than all of these.
static KEPT: [Kept; 4] =
    [kept!(16384, 1 << 10), kept!(512, 64 << 10), kept!(8, 4 << 20), kept!(1, usize::MAX)];

/// Keeps a freed block, and lets the oldest one go.
fn keep(block: *mut u8, bytes: usize) {
    let Some(kept) = KEPT.iter().find(|kept| bytes <= kept.most) else { return };
    // Relaxed: only counts. AcqRel: pairs with itself, so that who takes a block out sees it closed.
    let index = kept.next.fetch_add(1, Ordering::Relaxed) % kept.blocks.len();
    release(kept.blocks[index].swap(block, Ordering::AcqRel));
}

/// Lets all kept blocks go: there is no memory for another one.
fn release_all() {
    for place in KEPT.iter().flat_map(|kept| kept.blocks) {
        // AcqRel: as in `keep`.
        release(place.swap(ptr::null_mut(), Ordering::AcqRel));
    }
}

/// Gives a block that was kept to the allocator; null is none.
fn release(block: *mut u8) {
    if block.is_null() {
        return;
    }
    // SAFETY: a block that `free` has found, which nobody else has. What is freed was allocated with that
    // layout.
    unsafe {
        let (size, align) = with_header(block, |header| (header.size, 1 << header.shift));
        let found = Found { block, size, align };
        requests::open(found.whole(), found.bytes());
        if let Some(layout) = layout(size, align) {
            rust::dealloc(found.whole(), layout);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_freed_block_is_not_handed_out_until_others_were_freed() {
        for (size, kept) in [(100, 16384), (2000, 512)] {
            let block = alloc(size, 1, false, None);
            // SAFETY: ours, and not used afterwards.
            unsafe { free(block, Some(size), "free") };
            // Who else tests at the same time frees blocks, too.
            let mut again = 0;
            for _ in 0..2 * kept {
                let other = alloc(size, 1, false, None);
                again += (other == block) as usize;
                // SAFETY: ours, and not used afterwards.
                unsafe { free(other, Some(size), "free") };
            }
            assert!(again <= 2, "size {size}: handed out {again} times");
        }
    }

    #[test]
    fn sizes_and_alignments() {
        for shift in 0..=22 {
            // The longest by a few alignments only: looking at each byte takes long.
            let longest = if shift % 11 == 0 { 3 << 20 } else { 70_000 };
            for size in [0, 1, 15, 16, 17, 100, 1000, 1024, 5000, longest] {
                let align = 1 << shift;
                let block = alloc(size, align, true, None);
                assert!(!block.is_null() && block.addr() % align == 0, "{size} {align}");
                // SAFETY: ours, with that many bytes.
                unsafe {
                    assert!((0..size).all(|i| block.add(i).read() == 0), "{size} {align}");
                    block.write_bytes(0x5a, size);
                    assert_eq!(super::size(block, "size"), size);
                    let moved = realloc(block, Some(size), align, size / 2 + 3, None, "realloc");
                    assert!(moved != block && moved.addr() % align == 0);
                    assert!((0..size.min(size / 2 + 3)).all(|i| moved.add(i).read() == 0x5a));
                    free(moved, Some(size / 2 + 3), "free");
                }
            }
        }
        assert!(alloc(usize::MAX, 1, false, None).is_null());
        assert!(alloc(isize::MAX as usize, 1, false, None).is_null());
        assert!(alloc(1, 1 << 63, false, None).is_null());
    }
}
