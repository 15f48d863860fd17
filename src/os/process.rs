//! Which process this is: how the child of a fork finds out that it is one.
//!
//! The C library's handlers tell the child of `fork`. Nobody tells the child of `_Fork` or of a bare `clone`, and other handlers of
//! the program may allocate before ours has run. So there is a page that the kernel clears in a child that gets memory of its
//! own (`MADV_WIPEONFORK`; a child of `vfork` shares its parent's and sees no change). It is looked at where a thread would have
//! to wait for another one, which in a child may not exist.

use crate::os::thread;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

const MADV_WIPEONFORK: libc::c_int = 18;
/// What the page holds in a child that nobody has looked after yet.
const UNKNOWN: u32 = 0;
/// In the process that knows itself.
const KNOWN: u32 = 1;
/// While a child is being looked after.
const BUSY: u32 = 2;

/// The page; null where the system has no such pages.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// What a child runs when it finds out: a `fn(bool)`, or null.
static ON_FORK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// Forks between the first process that used this allocator and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The thread that made this process by forking, or 0.
static SURVIVOR: AtomicUsize = AtomicUsize::new(0);

/// From now on a child of a fork runs `f`, once, before it waits for anybody, before a thread gets a heap, or when [`forked`] is
/// called. What `f` gets is whether the calling thread is the one that has survived: see [`forked`].
pub(crate) fn on_fork(f: fn(bool)) {
    ON_FORK.store(f as *mut (), Relaxed);
    if cfg!(miri) {
        return;
    }
    let len = super::page_size();
    let page = super::map_uncounted(len);
    if page.is_null() {
        return;
    }
    // SAFETY: just mapped, and ours alone.
    unsafe {
        if super::keep_errno(|| libc::madvise(page.cast(), len, MADV_WIPEONFORK)) != 0 {
            super::unmap_uncounted(page, len);
            return;
        }
        (*page.cast::<AtomicU32>()).store(KNOWN, Relaxed);
    }
    // Release: pairs with the acquire in `page`, so that nobody sees it before it says that this process is known.
    PAGE.store(page.cast(), Release);
}

/// Gives the page back, when nobody asks any more.
pub(crate) fn unmap() {
    let page = PAGE.swap(ptr::null_mut(), Relaxed);
    if !page.is_null() {
        // SAFETY: mapped by `on_fork`.
        unsafe { super::unmap_uncounted(page.cast(), super::page_size()) };
    }
}

/// Bytes of memory that this takes.
pub(crate) fn bytes() -> usize {
    if PAGE.load(Relaxed).is_null() { 0 } else { super::page_size() }
}

/// The page, where the system has such pages.
fn page() -> Option<&'static AtomicU32> {
    // Acquire: pairs with the release in `on_fork`.
    // SAFETY: the page is never unmapped while anybody asks.
    unsafe { PAGE.load(Acquire).as_ref() }
}

/// Looks after a child that nobody has told that it is one. Returns whether this was one.
pub(crate) fn look() -> bool {
    let Some(page) = page() else { return false };
    page.load(Relaxed) == UNKNOWN && forked()
}

/// Like [`look`], for a thread that is about to have a heap: whether the thread that survived is still at it. Afterwards no heap is
/// taken for one that the fork has left behind.
pub(crate) fn look_before_heap() -> bool {
    let Some(page) = page() else { return false };
    if page.load(Relaxed) == KNOWN {
        return false;
    }
    look();
    // A signal handler may have interrupted this very thread there: then there is no use in waiting.
    // Acquire: pairs with the release in `forked`.
    page.load(Acquire) == BUSY && !thread::is_first()
}

/// Looks after the child of a fork, and returns whether that was still to be done.
///
/// If the program has started a thread here before anybody looked, and that is the caller, everything stays what it is: the
/// thread that survived goes on meanwhile, with its heap and with what it holds, and cannot be told from the others. If the parent had
/// no other threads, there is nothing to bring in order; if it had, their memory is lost to the child, and what they held is done
/// without.
pub(crate) fn forked() -> bool {
    let first = thread::is_first();
    if let Some(page) = page() {
        let next = if first { BUSY } else { KNOWN };
        if page.compare_exchange(UNKNOWN, next, Relaxed, Relaxed).is_err() {
            return false;
        }
    }
    if first {
        GENERATION.fetch_add(1, Relaxed);
        SURVIVOR.store(thread::id(), Relaxed);
    }
    let f = ON_FORK.load(Relaxed);
    if !f.is_null() {
        // SAFETY: stored by `on_fork`.
        unsafe { core::mem::transmute::<*mut (), fn(bool)>(f)(first) };
    }
    if let Some(page) = page() {
        // Release: pairs with the acquire in `look_before_heap`.
        page.store(KNOWN, Release);
    }
    true
}

/// A number that differs from the one of the process that this one was forked from.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// The thread that forked, in the child: the only one whose work the fork has not cut off. 0 in a process that was not forked.
pub(crate) fn survivor() -> usize {
    SURVIVOR.load(Relaxed)
}
