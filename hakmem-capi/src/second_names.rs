//! The names that glibc's functions have besides the usual ones, which programs call that define the usual
//! ones themselves: the two must not be two allocators. musl has functions of these names too, for itself
//! alone.

use crate::glibc::{Mallinfo, mallinfo, mallopt};
use crate::{calloc, free, malloc, memalign, pvalloc, realloc, valloc};
use core::ffi::{c_int, c_void};

macro_rules! second_names {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $function:ident;)*) => {
        $(
            #[doc = concat!("glibc's second name for `", stringify!($function), "`.")]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $type),*) -> $result {
                $function($($argument),*)
            }
        )*
    };
}

second_names! {
    fn __libc_malloc(size: usize) -> *mut c_void = malloc;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void = calloc;
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void = memalign;
    fn __libc_valloc(size: usize) -> *mut c_void = valloc;
    fn __libc_pvalloc(size: usize) -> *mut c_void = pvalloc;
    fn __libc_mallopt(parameter: c_int, value: c_int) -> c_int = mallopt;
    fn __libc_mallinfo() -> Mallinfo = mallinfo;
}

/// glibc's second name for `realloc`.
///
/// # Safety
///
/// As `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { realloc(block, size) }
}

/// glibc's second name for `free`.
///
/// # Safety
///
/// As `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_free(block: *mut c_void) {
    // SAFETY: passed on.
    unsafe { free(block) }
}
