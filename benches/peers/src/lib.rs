//! rusty_alloc as a `malloc` to preload, for comparisons.
//!
//! Its core crate has a C-like interface (a `free` that needs no size), which each function here does no more
//! than call: no header, no bookkeeping. It finds its thread's heap by an initial-exec word of thread-local
//! storage of its own, so preloading costs it nothing.

#![allow(clippy::missing_safety_doc, reason = "the C and C++ standards say what each may be given")]

mod cplusplus;

use core::ffi::{c_int, c_void};
use core::ptr;

use rusty_alloc::alloc;

const PAGE: usize = 4096;
const EINVAL: c_int = 22;
const ENOMEM: c_int = 12;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

#[cold]
fn fail(error: c_int) -> *mut c_void {
    // SAFETY: glibc gives the address of this thread's errno.
    unsafe { *__errno_location() = error };
    ptr::null_mut()
}

/// Sets errno where there is no memory.
#[inline(always)]
fn checked(block: *mut u8) -> *mut c_void {
    if block.is_null() { fail(ENOMEM) } else { block.cast() }
}

/// `align` is a power of two.
#[inline(always)]
fn aligned(align: usize, size: usize) -> *mut u8 {
    // SAFETY: a power of two, as the callers have seen to.
    unsafe { alloc::malloc_aligned_pow2(size, align) }
}

/// C's.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    checked(alloc::malloc(size))
}

/// C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: null or a live block of ours, by the contract of free.
    unsafe { alloc::free_inline(block.cast()) }
}

/// C's.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    checked(alloc::calloc(count, size))
}

/// C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: null or a live block of ours, by the contract of realloc.
    checked(unsafe { alloc::realloc(block.cast(), size) })
}

/// glibc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: handed on.
        Some(size) => unsafe { realloc(block, size) },
        None => fail(ENOMEM),
    }
}

/// glibc's, which rounds an alignment up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => checked(aligned(align, size)),
        None => fail(EINVAL),
    }
}

/// C's.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if align.is_power_of_two() { checked(aligned(align, size)) } else { fail(EINVAL) }
}

/// POSIX's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align % size_of::<usize>() != 0 {
        return EINVAL;
    }
    let block = aligned(align, size);
    if block.is_null() {
        return ENOMEM;
    }
    // SAFETY: a place for a pointer, by the contract.
    unsafe { out.write(block.cast()) };
    0
}

/// The BSDs'.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    checked(aligned(PAGE, size))
}

/// glibc's: whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => checked(aligned(PAGE, size)),
        None => fail(ENOMEM),
    }
}

/// Old.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: handed on.
    unsafe { free(block) }
}

/// glibc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    // SAFETY: null or a live block of ours, by the contract.
    unsafe { alloc::usable_size(block.cast()) }
}
