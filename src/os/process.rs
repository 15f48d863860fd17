//! Which process this is: how the child of a fork finds out that it is one.
//!
//! The C library's handlers tell the child of `fork`. Nobody tells the child of `_Fork` or of a bare `clone`, and other handlers of
//! the program may allocate before ours has run. So there is a page that the kernel clears in a child that gets memory of its
//! own (`MADV_WIPEONFORK`; a child of `vfork` shares its parent's and sees no change). It is looked at where a thread would have
//! to wait for another one, which in a child may not exist.

use super::thread;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

const MADV_WIPEONFORK: libc::c_int = 18;
/// What the page holds in the process that knows itself.
const KNOWN: u32 = 1;

/// The page; null where the system has no such pages.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// What a child runs when it finds out: a `fn()`, or null.
static ON_FORK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// Forks between the first process that used this allocator and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The thread that made this process by forking, or 0.
static SURVIVOR: AtomicUsize = AtomicUsize::new(0);

/// From now on a child of a fork runs `f`, once, before it waits for anybody, or when [`forked`] is called.
pub(crate) fn on_fork(f: fn()) {
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
    PAGE.store(page.cast(), Relaxed);
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

/// Whether this is a child of a fork that has not been looked after yet.
fn is_unknown() -> bool {
    let page = PAGE.load(Relaxed);
    // SAFETY: the page is never unmapped.
    !page.is_null() && unsafe { (*page).load(Relaxed) } != KNOWN
}

/// Looks after a child that nobody has told that it is one. Returns whether this was one.
pub(crate) fn look() -> bool {
    let unknown = is_unknown();
    if unknown {
        forked();
    }
    unknown
}

/// In the child of a fork, called by the thread that survived it. Does nothing the second time.
pub(crate) fn forked() {
    let page = PAGE.load(Relaxed);
    if !page.is_null() {
        // SAFETY: the page is never unmapped.
        if unsafe { (*page).swap(KNOWN, Relaxed) } == KNOWN {
            return;
        }
    }
    GENERATION.fetch_add(1, Relaxed);
    SURVIVOR.store(thread::id(), Relaxed);
    let f = ON_FORK.load(Relaxed);
    if !f.is_null() {
        // SAFETY: stored by `on_fork`.
        unsafe { core::mem::transmute::<*mut (), fn()>(f)() };
    }
}

/// A number that differs from the one of the process that this one was forked from.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// The thread that forked, in the child: the only one whose work the fork has not cut off. 0 in a process that was not forked.
pub(crate) fn survivor() -> usize {
    SURVIVOR.load(Relaxed)
}
