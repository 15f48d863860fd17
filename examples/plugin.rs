//! A library for `dlopen` that has Hakmem as its allocator, whatever its host has.

use std::collections::HashMap;
use std::ffi::c_void;

#[global_allocator]
static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();

/// Counts how often each byte comes up in so many generated words; the count of the most frequent one.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_work(words: usize) -> usize {
    let words: Vec<String> = (0..words).map(|i| format!("word {i}")).collect();
    let mut counts: HashMap<u8, usize> = HashMap::new();
    words.iter().flat_map(|word| word.bytes()).for_each(|byte| *counts.entry(byte).or_default() += 1);
    counts.into_values().max().unwrap_or(0)
}

/// Takes a profile of `words` words of [`plugin_work`], of which every block is sampled.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_profile(words: usize) -> usize {
    hakmem::profile::start(1).map_or(0, |()| plugin_work(words))
}

/// A string that the host keeps until it gives it to [`plugin_release`].
#[unsafe(no_mangle)]
pub extern "C" fn plugin_keep() -> *mut std::ffi::c_char {
    std::ffi::CString::from(c"kept by the host").into_raw()
}

/// Frees what [`plugin_keep`] has made.
///
/// # Safety
///
/// It comes from there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_release(text: *mut std::ffi::c_char) {
    // SAFETY: passed on.
    drop(unsafe { std::ffi::CString::from_raw(text) });
}

unsafe extern "C" {
    static __dso_handle: u8;
    fn __cxa_atexit(f: extern "C" fn(*mut c_void), argument: *mut c_void, library: *const u8) -> i32;
}

/// Has the plugin allocate when it is unloaded: after the allocator's own end, if this is called before the
/// plugin's first allocation. Then the byte at `done` is 1.
///
/// # Safety
///
/// The byte is writable until the plugin is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_works_at_its_end(done: *mut c_void) {
    extern "C" fn work(done: *mut c_void) {
        let sum = plugin_work(3000);
        // SAFETY: the host's byte.
        unsafe { done.cast::<u8>().write((sum >= 3000).into()) };
    }
    // SAFETY: called before the plugin goes.
    unsafe { __cxa_atexit(work, done, &raw const __dso_handle) };
}

/// Bytes of memory that the plugin's allocator has mapped.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_mapped() -> u64 {
    hakmem::stats().bytes_mapped
}
