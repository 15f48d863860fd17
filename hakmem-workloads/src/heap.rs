//! What a workload allocates from.

use core::alloc::{GlobalAlloc, Layout};

use crate::trim;

/// An allocator as the workloads see it: sizes and alignments are passed on every call, as Rust does.
///
/// # Safety
///
/// `allocate`, `allocate_zeroed` and `reallocate` return null or a block of at least the wanted size and
/// alignment that overlaps no other live block.
pub unsafe trait Heap: Sync {
    /// Whether a child of a process with threads may use it.
    const FORKS: bool = true;

    /// A block of `size` bytes (not 0), aligned to `align`, a power of two; null when there is no memory.
    fn allocate(&self, size: usize, align: usize) -> *mut u8;

    /// The same, filled with zeros.
    fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8;

    /// Frees `block`.
    ///
    /// # Safety
    ///
    /// `block` is live, of this heap, and was allocated with this size and alignment.
    unsafe fn free(&self, block: *mut u8, size: usize, align: usize);

    /// Gives `block` a new size; null, with `block` still live, when there is no memory.
    ///
    /// # Safety
    ///
    /// As for `free`; `new_size` is not 0.
    unsafe fn reallocate(&self, block: *mut u8, size: usize, align: usize, new_size: usize) -> *mut u8;

    /// Asks for all that can be given back to the system, as a program can. Does nothing where there is no
    /// call for that.
    fn trim(&self) {}
}

/// `malloc` and `free` of this process: whatever LD_PRELOAD put there. Alignments above 16 go to
/// `aligned_alloc`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Malloc;

/// What `malloc` aligns to on every 64-bit target of this project.
const MALLOC_ALIGN: usize = 16;

/// `size` as `aligned_alloc` wants it; `usize::MAX`, which fails, where that overflows.
fn multiple(size: usize, align: usize) -> usize {
    size.checked_next_multiple_of(align).unwrap_or(usize::MAX)
}

// SAFETY: C's malloc family makes the same promises.
unsafe impl Heap for Malloc {
    #[inline(always)]
    fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: both take any numbers; the alignment is a power of two and the size a multiple of it.
        unsafe {
            if align <= MALLOC_ALIGN {
                libc::malloc(size).cast()
            } else {
                libc::aligned_alloc(align, multiple(size, align)).cast()
            }
        }
    }

    #[inline(always)]
    fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        if align <= MALLOC_ALIGN {
            // SAFETY: takes any numbers.
            return unsafe { libc::calloc(size, 1).cast() };
        }
        let block = self.allocate(size, align);
        if !block.is_null() {
            // SAFETY: a fresh block of at least `size` bytes.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8, _size: usize, _align: usize) {
        // SAFETY: a live block of this process's malloc, the caller promises.
        unsafe { libc::free(block.cast()) };
    }

    #[inline(always)]
    unsafe fn reallocate(&self, block: *mut u8, size: usize, align: usize, new_size: usize) -> *mut u8 {
        if align <= MALLOC_ALIGN {
            // SAFETY: a live block of this process's malloc, the caller promises.
            return unsafe { libc::realloc(block.cast(), new_size).cast() };
        }
        let fresh = self.allocate(new_size, align);
        if !fresh.is_null() {
            // SAFETY: both blocks are live, different, and at least as long as what is copied; the caller
            // gives the old one up.
            unsafe {
                fresh.copy_from_nonoverlapping(block, size.min(new_size));
                self.free(block, size, align);
            }
        }
        fresh
    }

    fn trim(&self) {
        trim::all();
    }
}

/// A Rust allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global<A>(pub A);

#[inline(always)]
fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).expect("a valid layout")
}

// SAFETY: GlobalAlloc makes the same promises.
unsafe impl<A: GlobalAlloc + Sync> Heap for Global<A> {
    #[inline(always)]
    fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the size is not 0 by this trait's rules.
        unsafe { self.0.alloc(layout(size, align)) }
    }

    #[inline(always)]
    fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the size is not 0 by this trait's rules.
        unsafe { self.0.alloc_zeroed(layout(size, align)) }
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8, size: usize, align: usize) {
        // SAFETY: live and of this layout, the caller promises.
        unsafe { self.0.dealloc(block, layout(size, align)) };
    }

    #[inline(always)]
    unsafe fn reallocate(&self, block: *mut u8, size: usize, align: usize, new_size: usize) -> *mut u8 {
        // SAFETY: live and of this layout, the caller promises; the new size is not 0.
        unsafe { self.0.realloc(block, layout(size, align), new_size) }
    }
}
