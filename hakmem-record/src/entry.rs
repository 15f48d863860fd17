//! The interposed functions. What each does is glibc's business; what is refused (alignments) is refused as
//! glibc does.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::raw::Kind;

use crate::write;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
}

/// C's `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: takes any number.
    let block = unsafe { __libc_malloc(size) };
    write::allocated(Kind::Allocate, 0, block.cast(), size);
    block
}

/// C's `free`.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    write::freeing(block.cast());
    // SAFETY: passed on.
    unsafe { __libc_free(block) };
}

/// C's `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: takes any numbers; null if they overflow.
    let block = unsafe { __libc_calloc(count, size) };
    write::allocated(Kind::Zeroed, 0, block.cast(), count.wrapping_mul(size));
    block
}

/// C's `realloc`.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // glibc's frees; said beforehand, as of any free.
        write::freeing(block.cast());
        // SAFETY: passed on.
        return unsafe { __libc_realloc(block, 0) };
    }
    let before = write::now();
    // SAFETY: passed on.
    let new = unsafe { __libc_realloc(block, size) };
    // Where it failed, the old block is still as it was.
    if !new.is_null() {
        write::reallocated(before, block.cast(), new.cast(), size);
    }
    new
}

/// POSIX's `reallocarray`.
///
/// # Safety
///
/// As `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => refuse(libc::ENOMEM),
    }
}

fn refuse(error: c_int) -> *mut c_void {
    // SAFETY: the location is valid for the life of the thread.
    unsafe { *libc::__errno_location() = error };
    core::ptr::null_mut()
}

fn aligned(align: usize, size: usize) -> *mut c_void {
    // SAFETY: takes any numbers.
    let block = unsafe { __libc_memalign(align, size) };
    write::allocated(
        Kind::Allocate,
        align.checked_next_power_of_two().map_or(0, usize::ilog2),
        block.cast(),
        size,
    );
    block
}

/// The old `memalign`.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    aligned(align, size)
}

/// C's `aligned_alloc`. glibc before 2.38 took any alignment here and later ones refuse what is no power of
/// two; the file says what was asked for either way.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    aligned(align, size)
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
    // SAFETY: valid for the life of the thread; this function leaves errno alone.
    let errno = unsafe { *libc::__errno_location() };
    let block = aligned(align, size);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: passed on.
    unsafe { *out = block };
    0
}

fn page_size() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The old `valloc`: at a multiple of the page size.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned(page_size(), size)
}

/// The old `pvalloc`: whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(page_size()) {
        Some(size) => aligned(page_size(), size),
        None => refuse(libc::ENOMEM),
    }
}

/// glibc's `malloc_usable_size`. Not recorded, but a program that comes with an allocator of its own would
/// ask that one about a block of glibc's. glibc has no other name for it, so it is looked up.
///
/// # Safety
///
/// `block` is null or a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // Relaxed: the function was there before its address.
    let mut function = FOUND.load(Ordering::Relaxed);
    if function.is_null() {
        // SAFETY: constant strings; the C library is loaded and stays.
        unsafe {
            let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            function = libc::dlsym(library, c"malloc_usable_size".as_ptr());
        }
        FOUND.store(function, Ordering::Relaxed);
    }
    if function.is_null() {
        return 0;
    }
    // SAFETY: the C library's function of this name has this type; the block is passed on.
    unsafe {
        let function: unsafe extern "C" fn(*mut c_void) -> usize = core::mem::transmute(function);
        function(block)
    }
}

/// C23's `free_sized`: a glibc that has it would call its own `free`, unseen.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY: passed on.
    unsafe { free(block) }
}

/// C23's `free_aligned_sized`.
///
/// # Safety
///
/// As C says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: passed on.
    unsafe { free(block) }
}
