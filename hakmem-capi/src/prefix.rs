//! The same under names of their own, for programs that want Hakmem's by name whatever `malloc` is, and what
//! only Hakmem has.
//! `include/hakmem.h` is made from this file and `prefix_stats.rs` by cbindgen.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use hakmem_core::__c as core_c;

/// Allocates `size` bytes, at least 16, at a multiple of 16. NULL and ENOMEM when there is no memory.
/// cbindgen:postfix=HAK_NEW HAK_SIZE(1)
#[unsafe(no_mangle)]
pub extern "C" fn hak_malloc(size: usize) -> *mut c_void {
    crate::malloc(size)
}

/// Frees a block. NULL is fine; `errno` is left alone.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_free(ptr: *mut c_void) {
    // SAFETY: passed on.
    unsafe { crate::free(ptr) }
}

/// Allocates `count` times `size` bytes, all zero. NULL and ENOMEM when that overflows or there is no memory.
/// cbindgen:postfix=HAK_NEW HAK_SIZES(1, 2)
#[unsafe(no_mangle)]
pub extern "C" fn hak_calloc(count: usize, size: usize) -> *mut c_void {
    crate::calloc(count, size)
}

/// Resizes a block; it may move. With size 0 it is freed and NULL returned. If `ptr` is NULL a block is
/// allocated, whatever the size. NULL and ENOMEM when there is no memory; then the block stays as it is.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
/// cbindgen:postfix=HAK_USED HAK_SIZE(2)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { crate::realloc(ptr, size) }
}

/// Resizes a block to `count` times `size` bytes, as `hak_realloc` does. NULL and ENOMEM when that overflows.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
/// cbindgen:postfix=HAK_USED HAK_SIZES(2, 3)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { crate::realloc(ptr, bytes) },
        None => crate::or_enomem(core::ptr::null_mut()),
    }
}

/// Allocates `size` bytes at a multiple of `align`. 0, EINVAL or ENOMEM; ENOMEM is in `errno`, too.
///
/// # Safety
///
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: passed on.
    unsafe { crate::posix_memalign(out, align, size) }
}

/// Allocates `size` bytes at a multiple of `align`, a power of two. NULL and EINVAL or ENOMEM otherwise.
/// cbindgen:postfix=HAK_NEW HAK_ALIGN(1) HAK_SIZE(2)
#[unsafe(no_mangle)]
pub extern "C" fn hak_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    crate::aligned_alloc(align, size)
}

/// The bytes that a block has: at least what was asked for. 0 for NULL. What lies beyond that, compilers may
/// take to be no part of the block (`_FORTIFY_SOURCE`): who wants to use it asks for `hak_good_size` bytes.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_usable_size(ptr: *mut c_void) -> usize {
    // SAFETY: passed on.
    unsafe { core_c::usable_size(ptr.cast(), "hak_usable_size") }
}

/// How many bytes `hak_malloc(size)` really gives, at least `size`: who asks for that many instead wastes
/// nothing. It is `size` itself where that is more than can be allocated, and in hardened mode, whose blocks
/// have what was asked for, as all with sampled guard pages have. A block above 960 KiB may get more;
/// `hak_usable_size` says what a block has got.
#[unsafe(no_mangle)]
pub extern "C" fn hak_good_size(size: usize) -> usize {
    core_c::good_size(size)
}

/// Frees a block of `size` bytes, as asked for. A size that it cannot have ends the process (with
/// HAKMEM_FOREIGN=warn it is reported, and the block freed): more than its usable size, or for a small block
/// at most half of that and of another size class.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_free_sized(ptr: *mut c_void, size: usize) {
    // SAFETY: passed on.
    unsafe { core_c::free_sized(ptr.cast(), size, "hak_free_sized") }
}

/// Frees a block of `size` bytes that was allocated at a multiple of `align`. As with `hak_free_sized` a size
/// above its usable size ends the process.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_free_aligned_sized(ptr: *mut c_void, align: usize, size: usize) {
    let _ = align;
    // SAFETY: passed on.
    unsafe { core_c::free_aligned_sized(ptr.cast(), size, "hak_free_aligned_sized") }
}

/// Gives back to the system what can be given back, whichever thread has it, cached blocks included. The
/// bytes that came back.
#[unsafe(no_mangle)]
pub extern "C" fn hak_purge() -> usize {
    core_c::purge()
}

/// Says that the process is about to confine itself to some system calls, with a seccomp filter that ends it
/// when it makes others: from now on the allocator makes none but mmap, munmap, mremap, madvise and futex,
/// write where it reports a misuse, and getpid once in the child of a fork, and leaves undone what needs
/// others. Statistics need others: do not ask for them. prctl(PR_SET_NO_NEW_PRIVS) and prctl(PR_SET_SECCOMP)
/// say so, too, where this library is preloaded or linked, and so does HAKMEM_FEW_SYSCALLS=on, from the
/// start.
#[unsafe(no_mangle)]
pub extern "C" fn hak_few_syscalls() {
    core_c::few_syscalls();
}

/// Sets limits on the bytes held from the system, in place of HAKMEM_SOFT_LIMIT and HAKMEM_HARD_LIMIT or of
/// what was set before; 0 is none. `bytes_held` of `hak_stats` is what counts. Beyond the soft limit memory
/// is given back before there may be more of it; beyond the hard limit allocations fail with ENOMEM. A limit
/// below what is held only stops growth. Returns 0, or EINVAL, and changes nothing, if there are both and the
/// soft limit is above the hard one. `errno` is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn hak_set_limits(soft: usize, hard: usize) -> c_int {
    if core_c::set_limits(soft, hard) { 0 } else { libc::EINVAL }
}

/// Stores the limits as they are, from the options or as set since, in `soft` and `hard`, unless these are
/// NULL; 0 is none. `errno` is left alone.
///
/// # Safety
///
/// Each is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_get_limits(soft: *mut usize, hard: *mut usize) {
    let limits = core_c::limits();
    // SAFETY: by this function's contract.
    unsafe {
        if !soft.is_null() {
            soft.write(limits.0);
        }
        if !hard.is_null() {
            hard.write(limits.1);
        }
    }
}

/// Sets what is called when more than the soft limit is held in spite of giving memory back, in place of what
/// was set before; NULL for nothing. It gets the bytes held, the limit, and `arg`, and is called once for
/// each crossing: again only after the bytes held have fallen below the limit by an eighth. It runs on the
/// thread that allocates, within the allocation, by one thread at a time. It may allocate and free; it must
/// return, and must not wait for a lock that a thread may hold while it allocates.
#[unsafe(no_mangle)]
pub extern "C" fn hak_on_soft_limit(
    hook: Option<unsafe extern "C" fn(held: usize, limit: usize, arg: *mut c_void)>,
    arg: *mut c_void,
) {
    core_c::on_soft_limit(hook, arg);
}

/// Starts the background thread, if there is none: it gives back what the program has let go of for as long
/// as the purge delay says, without anybody calling. 0, or the number of an error, as of pthread_create;
/// EPERM after `hak_few_syscalls`. The child of fork starts one of its own, the next time that it
/// allocates; one made without the handlers of the C library (_Fork) when this is called there.
#[unsafe(no_mangle)]
pub extern "C" fn hak_background_start() -> c_int {
    core_c::start_background()
}

/// Ends the background thread, if there is one, and waits until it is gone. No cancellation point.
#[unsafe(no_mangle)]
pub extern "C" fn hak_background_stop() {
    core_c::stop_background();
}

/// Where `hakmem profile --pid` finds what it writes to. Not for programs.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub static __hak_control: &core_c::Control = &core_c::CONTROL;

/// Starts a heap profile: who holds the memory, by call stack, with one sample in `rate` bytes on average
/// (524288 is a good rate). Blocks that were allocated before are unknown to it. 0, or EINVAL (the rate is
/// 0), EALREADY (there is one), ENOMEM (also after `hak_few_syscalls`). `errno` is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn hak_profile_start(rate: usize) -> c_int {
    core_c::profile_start(rate)
}

/// Stops the profile. What it has gathered stays, as of now, for `hak_profile_write`.
#[unsafe(no_mangle)]
pub extern "C" fn hak_profile_stop() {
    core_c::profile_stop();
}

/// Writes what has been gathered to a new file, which takes the place of one that is there when it is whole.
/// `hakmem profile` shows it. 0, or ESRCH (there has been no profile), ENAMETOOLONG (the path has not 1 to
/// 1312 bytes), ENOMEM (after `hak_few_syscalls`), EIO. `errno` is left alone.
///
/// # Safety
///
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_profile_write(path: *const c_char) -> c_int {
    // SAFETY: a string, by this function's contract.
    core_c::profile_write(unsafe { CStr::from_ptr(path) })
}

/// Charges what the calling thread allocates to `tag`, up to 255 bytes, until `hak_scope_end` is called with
/// what this returns. Scopes may be nested; in one whose tag is null nothing is charged. Tags are remembered
/// as long as the process lives: use few different ones.
///
/// # Safety
///
/// `tag` is a string, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_scope_begin(tag: *const c_char) -> c_uint {
    // SAFETY: a string, by this function's contract.
    core_c::scope_begin((!tag.is_null()).then(|| unsafe { CStr::from_ptr(tag) }))
}

/// Ends a scope: `before` is what `hak_scope_begin` has returned.
#[unsafe(no_mangle)]
pub extern "C" fn hak_scope_end(before: c_uint) {
    core_c::scope_end(before);
}

/// The library's version, as `1.2.3`.
#[unsafe(no_mangle)]
pub extern "C" fn hak_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
