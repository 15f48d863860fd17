//! Asking the process's allocator for all that it can give back.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

/// The address of a function that the program or one of its libraries has; null where none has.
fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Calls what the allocators of this process have for it: `malloc_trim` (glibc, Hakmem), mimalloc's
/// `mi_collect`, jemalloc's `arena.<all>.purge`, tcmalloc's `MallocExtension_ReleaseFreeMemory`. snmalloc and
/// rusty_alloc have none.
pub fn all() {
    let found = |name| Some(function(name)).filter(|address| !address.is_null());
    // SAFETY: nobody else gives functions these names, whose types are those of the allocators' own headers.
    unsafe {
        if let Some(address) = found(c"malloc_trim") {
            let trim: extern "C" fn(usize) -> c_int = transmute(address);
            trim(0);
        }
        if let Some(address) = found(c"mi_collect") {
            let collect: extern "C" fn(bool) = transmute(address);
            collect(true);
        }
        if let Some(address) = found(c"mallctl") {
            type Mallctl =
                unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
            let mallctl: Mallctl = transmute(address);
            // 4096 stands for all arenas.
            mallctl(c"arena.4096.purge".as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
        }
        if let Some(address) = found(c"MallocExtension_ReleaseFreeMemory") {
            let release: extern "C" fn() = transmute(address);
            release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_own_is_found_and_called() {
        assert!(!function(c"malloc").is_null());
        assert!(function(c"no_such_function_anywhere").is_null());
        all();
    }
}
