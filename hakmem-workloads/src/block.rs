//! Blocks as the workloads use them: written when they are made, checked when they are given up.

use crate::heap::Heap;
use crate::latency::Probe;

/// What the workloads ask for: enough for a pointer, which is what Rust asks for most.
pub const ALIGN: usize = 8;
/// One word is written in each of these.
const PAGE: usize = 4096;

/// Writes what `check` wants to find: the size, in the first word (or byte) and in one word of every page.
///
/// # Safety
///
/// `block` is a live block of `size` bytes, aligned to 8.
#[inline(always)]
unsafe fn mark(block: *mut u8, size: usize) {
    // SAFETY: inside the block, the caller promises; aligned, as `block` and the steps are.
    unsafe {
        if size < 8 {
            block.write_volatile(size as u8);
            return;
        }
        let mut at = 0;
        while at + 8 <= size {
            block.add(at).cast::<usize>().write_volatile(size);
            at += PAGE;
        }
    }
}

/// Allocates and writes. Ends the program when there is no memory: a figure would mean nothing then.
#[inline(always)]
pub fn make<H: Heap>(heap: &H, size: usize) -> *mut u8 {
    let block = heap.allocate(size, ALIGN);
    if block.is_null() {
        no_memory(size);
    }
    // SAFETY: just allocated, of this size and alignment.
    unsafe { mark(block, size) };
    block
}

/// `make`, of which only the allocator's part is measured.
#[inline(always)]
pub fn make_in<H: Heap>(probe: &mut impl Probe, heap: &H, size: usize) -> *mut u8 {
    let block = probe.malloc(|| heap.allocate(size, ALIGN));
    if block.is_null() {
        no_memory(size);
    }
    // SAFETY: just allocated, of this size and alignment.
    unsafe { mark(block, size) };
    block
}

/// `drop`, of which only the allocator's part is measured.
///
/// # Safety
///
/// As for `drop`.
#[inline(always)]
pub unsafe fn drop_in<H: Heap>(probe: &mut impl Probe, heap: &H, block: *mut u8, size: usize) {
    // SAFETY: the caller promises what both ask for.
    unsafe { check(block, size) };
    // SAFETY: as above.
    probe.free(|| unsafe { heap.free(block, size, ALIGN) });
}

/// The same, zeroed, which is checked.
#[inline(always)]
pub fn make_zeroed<H: Heap>(heap: &H, size: usize) -> *mut u8 {
    let block = heap.allocate_zeroed(size, ALIGN);
    if block.is_null() {
        no_memory(size);
    }
    // SAFETY: just allocated, of this size and alignment, and zeroed.
    unsafe {
        if size >= 8 && block.add(size / 16 * 8).cast::<usize>().read_volatile() != 0 {
            damaged(block, size);
        }
        mark(block, size);
    }
    block
}

/// The same where only the first `front` bytes are used, of which one word is written in each `step`, a
/// multiple of 8.
pub fn make_part<H: Heap>(heap: &H, size: usize, front: usize, step: usize, zeroed: bool) -> *mut u8 {
    let block = if zeroed { heap.allocate_zeroed(size, ALIGN) } else { heap.allocate(size, ALIGN) };
    if block.is_null() {
        no_memory(size);
    }
    for at in (0..front.min(size) & !7).step_by(step) {
        // SAFETY: just allocated, of this size and alignment; inside, since what is left there is no shorter
        // than a word.
        unsafe { block.add(at).cast::<usize>().write_volatile(size) };
    }
    block
}

/// Checks that nobody else wrote into the block.
///
/// # Safety
///
/// `block` is live, from `make` or `resize`, of this size.
#[inline(always)]
unsafe fn check(block: *mut u8, size: usize) {
    // SAFETY: inside the block, the caller promises.
    let found = unsafe {
        if size < 8 { usize::from(block.read_volatile()) } else { block.cast::<usize>().read_volatile() }
    };
    if found != size {
        damaged(block, size);
    }
}

/// Checks and frees.
///
/// # Safety
///
/// `block` is live, from `make` or `resize` of this heap, of this size.
#[inline(always)]
pub unsafe fn drop<H: Heap>(heap: &H, block: *mut u8, size: usize) {
    // SAFETY: the caller promises what both ask for.
    unsafe {
        check(block, size);
        heap.free(block, size, ALIGN);
    }
}

/// Checks, gives the block a new size, and writes.
///
/// # Safety
///
/// As for `drop`; the old address is not to be used again.
#[inline(always)]
pub unsafe fn resize<H: Heap>(heap: &H, block: *mut u8, size: usize, new_size: usize) -> *mut u8 {
    // SAFETY: the caller promises what all of them ask for; the new block keeps the first word.
    unsafe {
        check(block, size);
        let block = heap.reallocate(block, size, ALIGN, new_size);
        if block.is_null() {
            no_memory(new_size);
        }
        check(block, size);
        // What was there before is written already.
        let mut at = if size < 8 { 0 } else { size.next_multiple_of(PAGE) };
        while at + 8 <= new_size {
            block.add(at).cast::<usize>().write_volatile(new_size);
            at += PAGE;
        }
        if new_size < 8 {
            block.write_volatile(new_size as u8);
        } else {
            block.cast::<usize>().write_volatile(new_size);
        }
        block
    }
}

#[cold]
#[inline(never)]
fn no_memory(size: usize) -> ! {
    panic!("no memory: {size} bytes were refused")
}

#[cold]
#[inline(never)]
fn damaged(block: *mut u8, size: usize) -> ! {
    panic!("the block of {size} bytes at {block:p} does not hold what was written into it")
}
