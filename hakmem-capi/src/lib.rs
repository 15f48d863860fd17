//! `libhakmem.so` and `libhakmem.a`: the C and C++ allocation interfaces on Hakmem.
//!
//! An exported function *is* the fast path: it inlines the gate of the core. Semantics and `errno` are those
//! of POSIX, glibc and C23; what each function does is documented where those document it.
//!
//! Built as it ships, with `panic = "abort"`, it is without std: a fifth of the size, and no thread-local
//! storage but the core's one word. Test builds unwind and so need std, but only to exist: the tests load the
//! release build.
#![allow(non_snake_case)]
#![cfg_attr(panic = "abort", no_std)]

mod cxx;
mod glibc;
mod prefix;
mod prefix_stats;
#[cfg(target_env = "gnu")]
mod second_names;
mod wrapped;

use core::ffi::{c_int, c_void};
use hakmem_core::__c as core_c;

#[cfg(panic = "abort")]
#[panic_handler]
fn panicked(info: &core::panic::PanicInfo<'_>) -> ! {
    core_c::internal_error(info)
}

// Rust's libraries refer to the function that says what an exception means to a Rust frame. Ours mean nothing
// to any: 8 is "go on unwinding". Weak, so that a Rust program that links the archive keeps its own.
#[cfg(panic = "abort")]
mod personality {
    macro_rules! go_on {
        ($answer:literal) => {
            core::arch::global_asm!(
                ".pushsection .text.rust_eh_personality,\"ax\",@progbits",
                ".weak rust_eh_personality",
                ".hidden rust_eh_personality",
                ".type rust_eh_personality, @function",
                "rust_eh_personality:",
                $answer,
                "ret",
                ".size rust_eh_personality, . - rust_eh_personality",
                ".popsection",
            );
        };
    }
    #[cfg(target_arch = "x86_64")]
    go_on!("mov eax, 8");
    #[cfg(target_arch = "aarch64")]
    go_on!("mov w0, #8");
}

extern "C" fn on_load() {
    core_c::on_load();
    wrapped::on_load();
    cxx::on_load();
}

// SAFETY: the section holds pointers to functions that the loader calls once; they may take no arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// C's `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    core_c::malloc(size).cast()
}

/// C's `free`.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: passed on.
    unsafe { core_c::free(block.cast()) }
}

/// C's `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    core_c::calloc(count, size).cast()
}

/// C's `realloc`; with size 0 it frees, as glibc's does.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { core_c::realloc(block.cast(), size).cast() }
}

/// POSIX's `reallocarray`. Of the program's own `realloc`, if it has one: so is the C library's.
///
/// # Safety
///
/// As `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { wrapped::seen_realloc(block, bytes) },
        None => or_enomem(core::ptr::null_mut()),
    }
}

fn set_errno(value: c_int) {
    // SAFETY: the location is valid for the life of the thread.
    unsafe { *libc::__errno_location() = value };
}

fn or_enomem(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

/// POSIX's `posix_memalign`.
///
/// # Safety
///
/// As POSIX says: `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align % size_of::<*mut c_void>() != 0 {
        return libc::EINVAL;
    }
    let block = core_c::aligned(align, size);
    if block.is_null() {
        return no_memory();
    }
    // SAFETY: passed on.
    unsafe { *out = block.cast() };
    0
}

/// POSIX leaves `errno` open when `posix_memalign` fails. glibc sets it for a lack of memory, and not for a
/// wrong alignment, and there are programs that read it.
#[cold]
#[inline(never)]
fn no_memory() -> c_int {
    set_errno(libc::ENOMEM);
    libc::ENOMEM
}

/// C's `aligned_alloc`: the alignment is a power of two, the size need not be a multiple of it.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    }
    or_enomem(core_c::aligned(align, size))
}

/// The old `memalign`: rounds the alignment up to a power of two, as glibc's does.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.max(1).checked_next_power_of_two() {
        Some(align) => or_enomem(core_c::aligned(align, size)),
        None => {
            set_errno(libc::EINVAL);
            core::ptr::null_mut()
        }
    }
}

fn page_size() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The old `valloc`: at a multiple of the page size.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    or_enomem(core_c::aligned(page_size(), size))
}

/// The old `pvalloc`: whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = page_size();
    match size.max(1).checked_next_multiple_of(page) {
        Some(size) => or_enomem(core_c::aligned(page, size)),
        None => or_enomem(core::ptr::null_mut()),
    }
}

/// glibc's `malloc_usable_size`: the bytes that the block has.
///
/// # Safety
///
/// `block` is null or a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    // SAFETY: passed on.
    unsafe { core_c::usable_size(block.cast(), "malloc_usable_size") }
}

/// C23's `free_sized`. A size larger than the block's class ends the process.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, size: usize) {
    // SAFETY: passed on.
    unsafe { core_c::free_sized(block.cast(), size, "free_sized") }
}

/// C23's `free_aligned_sized`.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, align: usize, size: usize) {
    let _ = align;
    // SAFETY: passed on.
    unsafe { core_c::free_aligned_sized(block.cast(), size, "free_aligned_sized") }
}

/// The old `cfree`.
///
/// # Safety
///
/// As `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: passed on.
    unsafe { free(block) }
}
