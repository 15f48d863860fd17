//! Functions of the C library that the allocator must know of: those by which a program would get a second
//! allocator, confines itself, or wants what the allocator has taken. Each does what the C library's does.

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use hakmem_core::__c as core_c;

/// Linux's `prctl`. Before a program confines itself to some system calls, it says here that it, or gets no
/// more privileges.
///
/// # Safety
///
/// As Linux says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    // Not one that asks whether the system has filters: it gives none, and fails.
    let confines = match option {
        libc::PR_SET_NO_NEW_PRIVS => a == 1,
        libc::PR_SET_SECCOMP => a != libc::SECCOMP_MODE_FILTER.into() || b != 0,
        _ => false,
    };
    if confines {
        core_c::confines_itself();
    }
    // SAFETY: passed on. Callers leave out arguments that the option has not: registers hold something all
    // the same.
    unsafe { core_c::prctl(option, [a, b, c, d].map(|word| word as usize)) }
}

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The C library's function of that name, or null.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The function that the program calls by that name, or null.
pub(crate) fn seen(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Whether the program's calls of allocation functions come to this library. Told by two that hardly any
/// program has of its own, and none both. Not so in one that has loaded the library by `dlopen`, and a static
/// program has no names to look up: what is linked into that belongs together.
pub(crate) fn is_seen() -> bool {
    let array: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void = crate::reallocarray;
    let pages: extern "C" fn(usize) -> *mut c_void = crate::pvalloc;
    seen(c"reallocarray") == array as *mut c_void || seen(c"pvalloc") == pages as *mut c_void
}

/// The C library's own `dlopen`. A static program has none.
pub(crate) fn libcs_dlopen() -> Option<Dlopen> {
    let real = next(c"dlopen");
    // SAFETY: a function of that type, or null.
    unsafe { core::mem::transmute::<*mut c_void, Option<Dlopen>>(real) }
}

type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
/// The `realloc` that the program calls, which is its own if it has one. Relaxed: code publishes nothing.
static REALLOC: AtomicPtr<c_void> = AtomicPtr::new(first_realloc as *mut c_void);

/// For the library's constructor: looks for the program's `realloc`. Not when it is needed: `dlsym` takes a
/// lock of the loader's, which the constructor of a plugin may hold that waits for the thread that needs it.
pub(crate) fn on_load() {
    let seen = if is_seen() { seen(c"realloc") } else { crate::realloc as *mut c_void };
    REALLOC.store(seen, Ordering::Relaxed);
}

/// For the constructors of libraries that come before this one.
unsafe extern "C" fn first_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    on_load();
    // SAFETY: passed on.
    unsafe { seen_realloc(block, size) }
}

/// `realloc` as the program sees it. The C library's `reallocarray` calls that one, too.
///
/// # Safety
///
/// As `realloc`.
pub(crate) unsafe fn seen_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let realloc = REALLOC.load(Ordering::Relaxed);
    // SAFETY: a function of that type; the rest is passed on.
    unsafe { core::mem::transmute::<*mut c_void, Realloc>(realloc)(block, size) }
}

/// Those of which musl has no need (it knows neither `RTLD_DEEPBIND` nor `dlmopen`), or for which it has no
/// name of its own.
#[cfg(target_env = "gnu")]
mod glibc {
    use super::*;
    use core::arch::global_asm;
    use core::ffi::c_long;
    use core::ptr;
    use core::sync::atomic::AtomicI32;

    type Dlmopen = unsafe extern "C" fn(c_long, *const c_char, c_int) -> *mut c_void;

    unsafe extern "C" {
        /// glibc's own name for its `pthread_key_create`.
        fn __pthread_key_create(
            key: *mut libc::pthread_key_t,
            destructor: Option<unsafe extern "C" fn(*mut c_void)>,
        ) -> c_int;
    }

    /// POSIX's `pthread_key_create`. One of the keys is the allocator's: the program gets that, too, when it
    /// wants them all.
    ///
    /// # Safety
    ///
    /// As POSIX says.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn pthread_key_create(
        key: *mut libc::pthread_key_t,
        destructor: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> c_int {
        // SAFETY: passed on.
        let error = unsafe { __pthread_key_create(key, destructor) };
        if error != libc::EAGAIN || !core_c::give_up_key() {
            return error;
        }
        // SAFETY: passed on.
        unsafe { __pthread_key_create(key, destructor) }
    }

    // A weak reference: what a static program has, where our `dlopen` is the only one.
    global_asm!(
        ".pushsection .data.rel.ro.__hakmem_v0_dlopen,\"aw\",@progbits",
        ".weak __libc_dlopen_mode",
        ".p2align 3",
        ".globl __hakmem_v0_dlopen",
        ".hidden __hakmem_v0_dlopen",
        "__hakmem_v0_dlopen:",
        ".quad __libc_dlopen_mode",
        ".popsection",
    );

    unsafe extern "C" {
        static __hakmem_v0_dlopen: Option<Dlopen>;
    }

    // Release and acquire: each pointer is stored after `FLAGS`.
    static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(first_dlopen as *mut c_void);
    static DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(first_dlmopen as *mut c_void);
    /// The flags that are passed on.
    static FLAGS: AtomicI32 = AtomicI32::new(!0);

    fn flags() -> c_int {
        let flags = if core_c::keeps_deepbind() { !0 } else { !libc::RTLD_DEEPBIND };
        FLAGS.store(flags, Ordering::Relaxed);
        flags
    }

    unsafe extern "C" fn first_dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
        let mode = mode & flags();
        // SAFETY: as the section above has it.
        let Some(real) = libcs_dlopen().or(unsafe { __hakmem_v0_dlopen }) else { return ptr::null_mut() };
        DLOPEN.store(real as *mut c_void, Ordering::Release);
        // SAFETY: passed on.
        unsafe { real(file, mode) }
    }

    unsafe extern "C" fn first_dlmopen(namespace: c_long, file: *const c_char, mode: c_int) -> *mut c_void {
        let mode = mode & flags();
        let real = next(c"dlmopen");
        if real.is_null() {
            return real;
        }
        DLMOPEN.store(real, Ordering::Release);
        // SAFETY: the C library's, of that type.
        unsafe { core::mem::transmute::<*mut c_void, Dlmopen>(real)(namespace, file, mode) }
    }

    /// The C library's `dlopen`, jumped to, so that it knows its caller, but without `RTLD_DEEPBIND`: a
    /// library that looks for its symbols first in the libraries that it needs itself finds libc's `malloc`
    /// and `free` there, and frees blocks of ours with those. `HAKMEM_DEEPBIND=keep` leaves the flag alone.
    ///
    /// # Safety
    ///
    /// As POSIX says.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
        let real = DLOPEN.load(Ordering::Acquire);
        // SAFETY: a function of that type. Called last, with the arguments where they are: the compiler makes
        // that a jump.
        unsafe {
            core::mem::transmute::<*mut c_void, Dlopen>(real)(file, mode & FLAGS.load(Ordering::Relaxed))
        }
    }

    /// glibc's `dlmopen`: as [`dlopen`].
    ///
    /// # Safety
    ///
    /// As glibc says.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dlmopen(namespace: c_long, file: *const c_char, mode: c_int) -> *mut c_void {
        let real = DLMOPEN.load(Ordering::Acquire);
        // SAFETY: as in `dlopen`.
        unsafe {
            let real = core::mem::transmute::<*mut c_void, Dlmopen>(real);
            real(namespace, file, mode & FLAGS.load(Ordering::Relaxed))
        }
    }
}
