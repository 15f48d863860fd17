//! The functions of C and C++ under test: the core's, which `libhakmem.so` exports through thin covers, or
//! those of a library itself.

use hakmem::__c as core_c;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;

/// An `operator delete` that is told the size and the alignment.
type DeleteSizedAligned = unsafe extern "C" fn(*mut u8, usize, usize);
/// A `realloc` of an array.
type ReallocArray = unsafe extern "C" fn(*mut u8, usize, usize) -> *mut u8;

/// C++'s operators.
#[derive(Clone, Copy)]
pub struct Cxx {
    /// `new T`, `new T[]`: none of these fails here, because no block is asked for that cannot be had.
    pub new: [unsafe extern "C" fn(usize) -> *mut u8; 2],
    /// `new (std::nothrow)`, of one and of many.
    pub new_nothrow: [unsafe extern "C" fn(usize, *const c_void) -> *mut u8; 2],
    /// With an alignment.
    pub new_aligned: [unsafe extern "C" fn(usize, usize) -> *mut u8; 2],
    /// `delete`.
    pub delete: [unsafe extern "C" fn(*mut u8); 2],
    /// `delete` that is told the size.
    pub delete_sized: [unsafe extern "C" fn(*mut u8, usize); 2],
    /// `delete` that is told the alignment.
    pub delete_aligned: [unsafe extern "C" fn(*mut u8, usize); 2],
    /// And both.
    pub delete_sized_aligned: [DeleteSizedAligned; 2],
}

/// What is under test.
#[derive(Clone, Copy)]
#[allow(missing_docs)] // Each is what its name says.
pub struct Functions {
    pub malloc: unsafe extern "C" fn(usize) -> *mut u8,
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut u8,
    pub realloc: unsafe extern "C" fn(*mut u8, usize) -> *mut u8,
    pub reallocarray: ReallocArray,
    pub posix_memalign: unsafe extern "C" fn(*mut *mut u8, usize, usize) -> i32,
    pub aligned_alloc: unsafe extern "C" fn(usize, usize) -> *mut u8,
    pub memalign: unsafe extern "C" fn(usize, usize) -> *mut u8,
    pub valloc: unsafe extern "C" fn(usize) -> *mut u8,
    pub pvalloc: unsafe extern "C" fn(usize) -> *mut u8,
    pub usable_size: unsafe extern "C" fn(*mut u8) -> usize,
    pub free: unsafe extern "C" fn(*mut u8),
    pub free_sized: unsafe extern "C" fn(*mut u8, usize),
    pub free_aligned_sized: unsafe extern "C" fn(*mut u8, usize, usize),
    pub purge: unsafe extern "C" fn() -> usize,
    pub set_limits: unsafe extern "C" fn(usize, usize) -> i32,
    pub background_start: unsafe extern "C" fn() -> i32,
    pub background_stop: unsafe extern "C" fn(),
    pub profile_start: unsafe extern "C" fn(usize) -> i32,
    pub profile_stop: unsafe extern "C" fn(),
    pub profile_write: unsafe extern "C" fn(*const c_char) -> i32,
    pub scope_begin: unsafe extern "C" fn(*const c_char) -> u32,
    pub scope_end: unsafe extern "C" fn(u32),
    /// Not of the core, which knows no C++.
    pub cxx: Option<Cxx>,
}

impl Functions {
    /// Whether these are the core's, so that its `GlobalAlloc` and its figures belong to the same heaps.
    pub fn are_the_core(&self) -> bool {
        self.cxx.is_none()
    }

    /// The core's.
    pub const CORE: Functions = Functions {
        malloc: core_malloc,
        calloc: core_calloc,
        realloc: core_realloc,
        reallocarray: core_reallocarray,
        posix_memalign: core_posix_memalign,
        aligned_alloc: core_aligned,
        memalign: core_aligned,
        valloc: core_valloc,
        pvalloc: core_pvalloc,
        usable_size: core_usable_size,
        free: core_free,
        free_sized: core_free_sized,
        free_aligned_sized: core_free_aligned_sized,
        purge: core_purge,
        set_limits: core_set_limits,
        background_start: core_background_start,
        background_stop: core_background_stop,
        profile_start: core_profile_start,
        profile_stop: core_profile_stop,
        profile_write: core_profile_write,
        scope_begin: core_scope_begin,
        scope_end: core_scope_end,
        cxx: None,
    };

    /// Those that a shared library exports, which serves nobody else in this process.
    pub fn of_library(path: &Path) -> Functions {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a path; the library is never closed.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        let library = Library(library);
        // SAFETY: each name is that of a function with the type of its field.
        unsafe {
            Functions {
                malloc: library.get("malloc"),
                calloc: library.get("calloc"),
                realloc: library.get("realloc"),
                reallocarray: library.get("reallocarray"),
                posix_memalign: library.get("posix_memalign"),
                aligned_alloc: library.get("aligned_alloc"),
                memalign: library.get("memalign"),
                valloc: library.get("valloc"),
                pvalloc: library.get("pvalloc"),
                usable_size: library.get("malloc_usable_size"),
                free: library.get("free"),
                free_sized: library.get("free_sized"),
                free_aligned_sized: library.get("free_aligned_sized"),
                purge: library.get("hak_purge"),
                set_limits: library.get("hak_set_limits"),
                background_start: library.get("hak_background_start"),
                background_stop: library.get("hak_background_stop"),
                profile_start: library.get("hak_profile_start"),
                profile_stop: library.get("hak_profile_stop"),
                profile_write: library.get("hak_profile_write"),
                scope_begin: library.get("hak_scope_begin"),
                scope_end: library.get("hak_scope_end"),
                cxx: Some(Cxx {
                    new: [library.get("_Znwm"), library.get("_Znam")],
                    new_nothrow: [library.get("_ZnwmRKSt9nothrow_t"), library.get("_ZnamRKSt9nothrow_t")],
                    new_aligned: [library.get("_ZnwmSt11align_val_t"), library.get("_ZnamSt11align_val_t")],
                    delete: [library.get("_ZdlPv"), library.get("_ZdaPv")],
                    delete_sized: [library.get("_ZdlPvm"), library.get("_ZdaPvm")],
                    delete_aligned: [
                        library.get("_ZdlPvSt11align_val_t"),
                        library.get("_ZdaPvSt11align_val_t"),
                    ],
                    delete_sized_aligned: [
                        library.get("_ZdlPvmSt11align_val_t"),
                        library.get("_ZdaPvmSt11align_val_t"),
                    ],
                }),
            }
        }
    }
}

struct Library(*mut c_void);

impl Library {
    /// The function of that name.
    ///
    /// # Safety
    ///
    /// `T` is the type of a pointer to it.
    unsafe fn get<T: Copy>(&self, name: &str) -> T {
        assert_eq!(size_of::<T>(), size_of::<*mut c_void>());
        let name = CString::new(name).unwrap();
        // SAFETY: a library that was loaded, and a name.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "there is no {name:?}");
        // SAFETY: as large as a pointer, and by this function's contract a pointer to that function.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

fn page_size() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn enomem(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    block
}

unsafe extern "C" fn core_malloc(size: usize) -> *mut u8 {
    core_c::malloc(size)
}
unsafe extern "C" fn core_calloc(count: usize, size: usize) -> *mut u8 {
    core_c::calloc(count, size)
}
unsafe extern "C" fn core_reallocarray(block: *mut u8, count: usize, size: usize) -> *mut u8 {
    match count.checked_mul(size) {
        // SAFETY: the clauses are the same.
        Some(bytes) => unsafe { core_c::realloc(block, bytes) },
        None => enomem(std::ptr::null_mut()),
    }
}
unsafe extern "C" fn core_posix_memalign(out: *mut *mut u8, align: usize, size: usize) -> i32 {
    let block = core_c::aligned(align, size);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: as POSIX says.
    unsafe { *out = block };
    0
}
unsafe extern "C" fn core_valloc(size: usize) -> *mut u8 {
    core_c::aligned(page_size(), size)
}
unsafe extern "C" fn core_pvalloc(size: usize) -> *mut u8 {
    let whole = size.max(1).checked_next_multiple_of(page_size());
    whole.map_or(std::ptr::null_mut(), |size| core_c::aligned(page_size(), size))
}
unsafe extern "C" fn core_usable_size(block: *mut u8) -> usize {
    // SAFETY: the clauses are the same.
    unsafe { core_c::usable_size(block, "malloc_usable_size") }
}
extern "C" fn core_aligned(align: usize, size: usize) -> *mut u8 {
    core_c::aligned(align, size)
}
unsafe extern "C" fn core_realloc(block: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the clauses are the same.
    unsafe { core_c::realloc(block, size) }
}
unsafe extern "C" fn core_free(block: *mut u8) {
    // SAFETY: the clauses are the same.
    unsafe { core_c::free(block) }
}
unsafe extern "C" fn core_free_sized(block: *mut u8, size: usize) {
    // SAFETY: the clauses are the same.
    unsafe { core_c::free_sized(block, size, "free_sized") }
}
unsafe extern "C" fn core_free_aligned_sized(block: *mut u8, _: usize, size: usize) {
    // SAFETY: the clauses are the same.
    unsafe { core_c::free_aligned_sized(block, size, "free_aligned_sized") }
}
unsafe extern "C" fn core_purge() -> usize {
    hakmem::purge()
}
unsafe extern "C" fn core_set_limits(soft: usize, hard: usize) -> i32 {
    if core_c::set_limits(soft, hard) { 0 } else { libc::EINVAL }
}
unsafe extern "C" fn core_background_start() -> i32 {
    i32::from(!hakmem::start_background())
}
unsafe extern "C" fn core_background_stop() {
    hakmem::stop_background();
}
unsafe extern "C" fn core_profile_start(rate: usize) -> i32 {
    core_c::profile_start(rate)
}
unsafe extern "C" fn core_profile_stop() {
    core_c::profile_stop();
}
unsafe extern "C" fn core_profile_write(path: *const c_char) -> i32 {
    // SAFETY: a C string.
    core_c::profile_write(unsafe { CStr::from_ptr(path) })
}
unsafe extern "C" fn core_scope_begin(tag: *const c_char) -> u32 {
    // SAFETY: a C string, or null.
    core_c::scope_begin((!tag.is_null()).then(|| unsafe { CStr::from_ptr(tag) }))
}
unsafe extern "C" fn core_scope_end(before: u32) {
    core_c::scope_end(before);
}
