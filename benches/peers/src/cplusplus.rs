//! `operator new` and `operator delete` by their mangled names, so that C++ programs need not go through
//! libstdc++'s, which call malloc.
//!
//! Where there is no memory the throwing ones abort, because Rust cannot throw `std::bad_alloc`.

use core::ffi::c_void;

use rusty_alloc::alloc;

struct Abort;

impl alloc::OnOom for Abort {
    fn on_oom(_: usize) -> *mut u8 {
        std::process::abort()
    }
}

#[inline(always)]
fn or_abort(block: *mut u8) -> *mut c_void {
    if block.is_null() { std::process::abort() } else { block.cast() }
}

macro_rules! new {
    ($($name:ident)*) => {$(
        /// `new`.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub extern "C" fn $name(size: usize) -> *mut c_void {
            alloc::malloc_or_with::<Abort>(size).cast()
        }
    )*};
}

macro_rules! new_nothrow {
    ($($name:ident)*) => {$(
        /// `new (std::nothrow)`.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub extern "C" fn $name(size: usize, _: *const c_void) -> *mut c_void {
            alloc::malloc(size).cast()
        }
    )*};
}

macro_rules! new_aligned {
    ($($name:ident)*) => {$(
        /// `new` of an over-aligned type.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub extern "C" fn $name(size: usize, align: usize) -> *mut c_void {
            or_abort(alloc::malloc_aligned(size, align))
        }
    )*};
}

macro_rules! new_aligned_nothrow {
    ($($name:ident)*) => {$(
        /// `new (std::nothrow)` of an over-aligned type.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub extern "C" fn $name(size: usize, align: usize, _: *const c_void) -> *mut c_void {
            alloc::malloc_aligned(size, align).cast()
        }
    )*};
}

/// Each form of `delete` is a `free`; what comes after the block is not needed.
macro_rules! delete {
    ($($name:ident($($ignored:ty),*))*) => {$(
        /// `delete`.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name(block: *mut c_void $(, _: $ignored)*) {
            // SAFETY: null or a live block of ours, by the contract of delete.
            unsafe { alloc::free_inline(block.cast()) }
        }
    )*};
}

new!(_Znwm _Znam);
new_nothrow!(_ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t);
new_aligned!(_ZnwmSt11align_val_t _ZnamSt11align_val_t);
new_aligned_nothrow!(_ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t);
delete! {
    _ZdlPv() _ZdaPv()
    _ZdlPvm(usize) _ZdaPvm(usize)
    _ZdlPvRKSt9nothrow_t(*const c_void) _ZdaPvRKSt9nothrow_t(*const c_void)
    _ZdlPvSt11align_val_t(usize) _ZdaPvSt11align_val_t(usize)
    _ZdlPvmSt11align_val_t(usize, usize) _ZdaPvmSt11align_val_t(usize, usize)
    _ZdlPvSt11align_val_tRKSt9nothrow_t(usize, *const c_void) _ZdaPvSt11align_val_tRKSt9nothrow_t(usize, *const c_void)
}
