//! How the child of a fork finds out that it is one.
//!
//! The C library's handlers tell the child of `fork`. Nothing tells the child of `_Fork` or of a bare
//! `clone`, and other handlers of the program may allocate before ours has run. So there is a page that the
//! kernel clears in a child with its own memory (`MADV_WIPEONFORK`; a child of `vfork` shares its parent's
//! memory and sees no change). It is checked where a thread would have to wait for another one, which in a
//! child may not exist.

use crate::os::{generation, mapping, memory, thread};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize};
use core::ptr;

const MADV_WIPEONFORK: libc::c_int = 18;
/// The page's value in a child that nobody has repaired yet.
const UNKNOWN: u32 = 0;
/// The page's value in normal operation.
const KNOWN: u32 = 1;
/// The page's value while a child is being repaired.
const BUSY: u32 = 2;
/// The page's value where a thread that the child has started was the first to notice, and the one that
/// forked has not noticed yet.
const LATE: u32 = 3;

/// Who has noticed a fork.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noticed {
    /// The thread that forked, before any other.
    InTime,
    /// A thread that the child has started.
    ByOther,
    /// The thread that forked, after that.
    Late,
}

/// What is in the page.
struct Page {
    /// Whether this process knows that it is one: see the constants.
    state: AtomicU32,
    /// The number of the process whose memory this is; 0 until it is repaired. Relaxed: the kernel clears it
    /// in a child, whose threads find 0 or their own process here.
    owner: AtomicU32,
}

/// The page; null where the system has no such pages.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
/// What a child runs when it finds out: a `fn(Noticed)`, or null.
static ON_FORK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
// Relaxed for the following, and for the page's value but where `forked` says otherwise: the thread that
// forked writes them in the child while it is alone, or before it stores `KNOWN` with release.

/// The thread that made this process by forking: its only thread at first. 0 in a process that was not
/// forked.
static SURVIVOR: AtomicUsize = AtomicUsize::new(0);

/// From now on a child of a fork runs `f` once: before it waits for another thread, before a thread gets a
/// heap, or when [`forked`] is called. If that was another thread than the one that forked, that one runs it
/// later, too: see [`forked`].
pub(crate) fn on_fork(f: fn(Noticed)) {
    ON_FORK.store(f as *mut (), Relaxed);
    if cfg!(miri) {
        return;
    }
    let len = memory::page_size();
    let page = mapping::map_uncounted(len);
    if page.is_null() {
        return;
    }
    // SAFETY: the page was mapped just above, so it is ours, page-aligned, zeroed, and no other thread has
    // its address yet.
    unsafe {
        if !memory::advise(page, len, MADV_WIPEONFORK) {
            memory::discard_uncounted(page, len);
            return;
        }
        let page = page.cast::<Page>();
        (*page).owner.store(super::process_id(), Relaxed);
        (*page).state.store(KNOWN, Relaxed);
    }
    // Release: pairs with the acquire in `whole_page`, so that whoever sees the page finds `KNOWN` in it.
    PAGE.store(page.cast(), Release);
}

/// Unmaps the page, when this code is about to be unloaded: no other thread may be in the allocator any more.
pub(crate) fn unmap() {
    let page = PAGE.swap(ptr::null_mut(), Relaxed);
    if !page.is_null() {
        // SAFETY: `on_fork` mapped it, and it is not published any more. That no thread still uses what
        // `page` returned before is the duty of the caller, who unloads the library.
        unsafe { memory::discard_uncounted(page.cast(), memory::page_size()) };
    }
}

/// Bytes that the page takes.
pub(crate) fn bytes() -> usize {
    if PAGE.load(Relaxed).is_null() { 0 } else { memory::page_size() }
}

/// The page's state, if the system supports such pages.
fn page() -> Option<&'static AtomicU32> {
    Some(&whole_page()?.state)
}

/// The page, if the system supports such pages.
fn whole_page() -> Option<&'static Page> {
    // Acquire: pairs with the release in `on_fork`.
    // SAFETY: null, or the page that `on_fork` has mapped; it is unmapped only when the library is unloaded.
    unsafe { PAGE.load(Acquire).as_ref() }
}

/// The kernel clears the page.
#[cfg(all(test, loom))]
pub(crate) fn as_in_a_child() {
    let page = whole_page().unwrap();
    page.owner.store(0, Relaxed);
    page.state.store(UNKNOWN, Relaxed);
}

/// Repairs a child of a fork that has not been told that it is one. Returns whether there was something to
/// repair.
pub(crate) fn look() -> bool {
    let Some(page) = page() else { return false };
    match page.load(Relaxed) {
        UNKNOWN => forked(false),
        LATE => late(page),
        _ => false,
    }
}

/// Whether this is the child of a fork, with memory of its own, and has not been repaired as one yet.
pub(crate) fn is_unnoticed() -> bool {
    page().is_some_and(|page| page.load(Relaxed) != KNOWN)
}

/// In a child whose fork another thread has noticed: the part of the thread that forked, if it is the caller.
/// Returns whether that was still to be done.
#[cold]
fn late(page: &AtomicU32) -> bool {
    // Acquire: pairs with the release in `forked`: what the other thread has found out is seen here.
    if !thread::is_first() || page.compare_exchange(LATE, KNOWN, Acquire, Relaxed).is_err() {
        return false;
    }
    run(Noticed::Late);
    true
}

/// Runs what [`on_fork`] has been told.
fn run(noticed: Noticed) {
    let f = ON_FORK.load(Relaxed);
    if !f.is_null() {
        // SAFETY: only `on_fork` stores here, and what it stores is a `fn(Noticed)`.
        unsafe { core::mem::transmute::<*mut (), fn(Noticed)>(f)(noticed) };
    }
}

/// Like [`look`], for a thread that is about to get a heap. Returns whether the thread that forked is still
/// repairing. Once it has finished, no heap of this process is mistaken for one that the fork has left
/// behind.
pub(crate) fn look_before_heap() -> bool {
    let Some(page) = page() else { return false };
    // Acquire: pairs with the release in `forked`: a thread that comes late sees the repair, too.
    if page.load(Acquire) == KNOWN {
        return false;
    }
    look();
    // If this thread is the first one, a signal handler has interrupted its own repair: waiting would be
    // useless.
    // Acquire: pairs with the release in `forked`.
    page.load(Acquire) == BUSY && !thread::is_first()
}

/// Repairs the child of a fork. Returns whether that was still to be done. `told` by the C library, which
/// tells the thread that forked, and before that starts any other.
///
/// If the program started a thread in the child before anybody noticed the fork, and that thread is the
/// caller, nothing is repaired: the thread that forked keeps running, with its heap and whatever it holds,
/// and cannot be told from the others. If the parent had no other threads, there is nothing to repair. If it
/// had, their memory is lost to the child, and it does without the locks that they held. But if one of them
/// was visiting the heap of the thread that forked, that has to leave it, when it notices.
pub(crate) fn forked(told: bool) -> bool {
    // Where the program has restricted its system calls the thread cannot be asked which one it is.
    let first = thread::is_first() && (told || !super::is_confined());
    if let Some(page) = whole_page() {
        if page.state.compare_exchange(UNKNOWN, BUSY, Relaxed, Relaxed).is_err() {
            return false;
        }
        page.owner.store(super::process_id(), Relaxed);
    }
    if first {
        generation::next();
        SURVIVOR.store(thread::id(), Relaxed);
    }
    run(if first { Noticed::InTime } else { Noticed::ByOther });
    if let Some(page) = page() {
        // Release: pairs with the acquires in `look_before_heap`, by which the waiting thread sees the
        // repair, and in `late`.
        page.store(if first { KNOWN } else { LATE }, Release);
    }
    true
}

/// Whether the caller is another process than the one whose memory this is: a child of `vfork`, which runs in
/// its parent's until it calls `exec`. False where that cannot be told.
pub(crate) fn is_guest() -> bool {
    let owner = whole_page().map_or(0, |page| page.owner.load(Relaxed));
    owner != 0 && owner != super::process_id()
}

/// The thread that forked, in the child: the only one that the fork has not stopped. 0 in a process that was
/// not forked.
pub(crate) fn survivor() -> usize {
    SURVIVOR.load(Relaxed)
}
