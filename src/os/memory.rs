//! Mappings, and what is in them.

use crate::os::{calls, held, left};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU8, AtomicUsize};
use core::ptr;

#[cfg(miri)]
use crate::os::mock::{madvise, mincore, mmap, mremap, munmap};
#[cfg(not(miri))]
use libc::{madvise, mincore, mmap, mremap, munmap};

/// Bytes of address space held from the OS.
pub(crate) static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The highest `MAPPED` has been.
pub(crate) static MAPPED_PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes given back to the OS so far: purged or unmapped.
pub(crate) static PURGED: AtomicUsize = AtomicUsize::new(0);

/// The smallest page size of any system that we support.
pub(crate) const SMALLEST_PAGE: usize = 4096;

static PAGE_SIZE: AtomicUsize = AtomicUsize::new(0);

/// The size of a page, read from the system at run time.
pub(crate) fn page_size() -> usize {
    let known = PAGE_SIZE.load(Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: `sysconf` takes any number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let size = if size > 0 { size as usize } else { SMALLEST_PAGE };
    PAGE_SIZE.store(size, Relaxed);
    size
}

/// Whether both are multiples of the page size. The system requires that of every mapping; an emulator may
/// not check.
pub(super) fn in_pages(address: usize, len: usize) -> bool {
    (address | len) & (page_size() - 1) == 0
}

pub(super) fn count_map(bytes: usize) {
    let now = MAPPED.fetch_add(bytes, Relaxed) + bytes;
    MAPPED_PEAK.fetch_max(now, Relaxed);
}

/// Access to memory that is in use.
pub(super) const ACCESSIBLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

pub(super) fn map_raw(hint: *mut u8, len: usize, access: libc::c_int) -> *mut u8 {
    debug_assert!(in_pages(hint.addr(), len));
    calls::keep_errno(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping without MAP_FIXED never replaces memory that is mapped already.
        let p = unsafe { mmap(hint.cast(), len, access, flags, -1, 0) };
        if p == libc::MAP_FAILED { ptr::null_mut() } else { p.cast() }
    })
}

/// Unmaps all or an end of a mapping. False, and nothing has changed, when the system refuses: the process
/// may be at its limit of mappings.
///
/// # Safety
///
/// The range is page-aligned, lies in a mapping of ours, and nobody uses it any more.
pub(super) unsafe fn trim(p: *mut u8, len: usize) -> bool {
    // SAFETY: this function's contract is the same as `try_unmap`'s.
    let done = unsafe { try_unmap(p, len) };
    if done {
        MAPPED.fetch_sub(len, Relaxed);
    }
    done
}

/// Unmaps a range. False when the system refuses; nothing has changed then. Counts nothing.
///
/// # Safety
///
/// The range is page-aligned, lies in a mapping of ours, and nobody uses it any more.
pub(super) unsafe fn try_unmap(p: *mut u8, len: usize) -> bool {
    debug_assert!(in_pages(p.addr(), len));
    #[cfg(loom)]
    crate::sync::loom::forget(p, len);
    // SAFETY: by this function's contract no reference into the range is left, so unmapping it invalidates
    // nothing.
    calls::keep_errno(|| unsafe { munmap(p.cast(), len) } == 0)
}

/// What became of memory that was to be unmapped. What is not gone has to be kept, or it is lost: see also
/// [`discard`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Unmapped {
    /// It is gone.
    Gone,
    /// The system could not unmap it (a hole needs one mapping more than it allows), but has taken the pages
    /// back.
    Zeroed,
    /// It is still mapped, with its contents.
    Kept,
}

/// Unmaps memory for blocks, or at least gives its pages back.
///
/// # Safety
///
/// The range is page-aligned, lies in a mapping of ours, and nobody uses it any more.
pub(crate) unsafe fn unmap(p: *mut u8, len: usize) -> Unmapped {
    // SAFETY: by this function's contract the range is ours and nobody uses it any more.
    let unmapped = unsafe { unmap_uncounted(p, len) };
    if unmapped == Unmapped::Gone {
        held::release(len);
    }
    unmapped
}

/// Tries once more to [unmap] memory for blocks that the system has refused to unmap. False, and nothing has
/// changed, when it refuses again.
///
/// # Safety
///
/// As [`unmap`].
pub(crate) unsafe fn unmap_again(p: *mut u8, len: usize) -> bool {
    // SAFETY: by this function's contract the range is ours and nobody uses it any more.
    let gone = unsafe { trim(p, len) };
    if gone {
        held::release(len);
    }
    gone
}

/// Like [`unmap`], for memory that no limit counts.
///
/// # Safety
///
/// As [`unmap`].
pub(crate) unsafe fn unmap_uncounted(p: *mut u8, len: usize) -> Unmapped {
    // SAFETY: by this function's contract the range is ours and nobody uses it any more.
    if unsafe { trim(p, len) } {
        return Unmapped::Gone;
    }
    // SAFETY: still mapped, ours and page-aligned; by this function's contract nobody wants its contents.
    if unsafe { purge(p, len) } { Unmapped::Zeroed } else { Unmapped::Kept }
}

/// Unmaps memory for blocks. Where the system refuses, it is kept for whoever maps memory next.
///
/// # Safety
///
/// As [`unmap`]. All of it can be touched.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn discard(p: *mut u8, len: usize) {
    // SAFETY: this function's contract is the same.
    unsafe { discard_uncounted(p, len) };
    held::release(len);
}

/// Like [`discard`], for memory that no limit counts.
///
/// # Safety
///
/// As [`discard`].
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn discard_uncounted(p: *mut u8, len: usize) {
    // SAFETY: by this function's contract the range is ours, can be touched, and nobody uses it any more.
    unsafe {
        match unmap_uncounted(p, len) {
            Unmapped::Gone => return,
            Unmapped::Zeroed => {}
            Unmapped::Kept => p.write_bytes(0, len),
        }
    }
    left::put(p, len, true);
}

/// Like [`discard`], for memory that cannot be touched. If the system does not even take back what pages
/// there are, it is lost: it may not be zero.
///
/// # Safety
///
/// As [`unmap`].
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn discard_reserved(p: *mut u8, len: usize) {
    // SAFETY: this function's contract is the same.
    if unsafe { unmap_uncounted(p, len) } == Unmapped::Zeroed {
        left::put(p, len, false);
    }
    held::release(len);
}

/// Unmaps what the system has refused to unmap before, as far as it does now.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn give_back_left() {
    // SAFETY: ours alone, in whole pages, and nobody uses it.
    left::each(|range| unsafe { trim(range.base, range.len) });
}

/// Whether memory at both addresses is one piece if it is adjacent. To the system it always is, not to Miri.
#[cfg(not(miri))]
pub(crate) fn is_one_piece(_: *mut u8, _: *mut u8) -> bool {
    true
}

/// Why a mapping has not been resized in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotResized {
    /// There is no room behind it, or no memory. Moving it may work.
    NoRoom,
    /// Another reason, which may prevent moving it, too: a limit; or the range consists of several mappings
    /// by now, because the program has given advice or protection to part of it; or it is locked in memory.
    Refused,
}

/// Grows or shrinks a mapping in place. On an error nothing has changed.
///
/// # Safety
///
/// `p` is a whole mapping of ours of `old` bytes; both sizes are multiples of the page size. When it shrinks,
/// nobody uses the part that goes.
pub(crate) unsafe fn remap(p: *mut u8, old: usize, new: usize) -> Result<(), NotResized> {
    debug_assert!(in_pages(p.addr(), old | new));
    if !held::reserve_growth(old, new) {
        return Err(NotResized::Refused);
    }
    calls::keep_errno(|| {
        // SAFETY: by this function's contract the range is ours, and what a smaller size cuts off is unused.
        // Without MREMAP_MAYMOVE the rest keeps its address.
        if unsafe { mremap(p.cast(), old, new, 0, ptr::null_mut::<u8>()) } == libc::MAP_FAILED {
            held::release_excess(new, old);
            let no_room = calls::errno() == libc::ENOMEM;
            return Err(if no_room { NotResized::NoRoom } else { NotResized::Refused });
        }
        held::release_excess(old, new);
        if new > old {
            count_map(new - old);
        } else {
            MAPPED.fetch_sub(old - new, Relaxed);
            PURGED.fetch_add(old - new, Relaxed);
        }
        Ok(())
    })
}

/// Whether the system has all of a range in one mapping, and so may move it.
///
/// # Safety
///
/// The range and the page behind it are mapped, ours and page-aligned.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn is_one_mapping(p: *mut u8, len: usize) -> bool {
    debug_assert!(in_pages(p.addr(), len));
    calls::keep_errno(|| {
        // It cannot grow: what is behind it is mapped. What is not one mapping fails otherwise, and so does
        // what may not grow or move.
        // SAFETY: by this function's contract; without MREMAP_MAYMOVE nothing moves.
        let q = unsafe { mremap(p.cast(), len, len + page_size(), 0, ptr::null_mut::<u8>()) };
        q == libc::MAP_FAILED && calls::errno() == libc::ENOMEM
    })
}

/// Moves pages onto another range of `new` bytes, all of which have the access that the pages had. Where they
/// were nothing is mapped then. False when the system refuses, as it does if the source is not one mapping
/// to it: the source is unchanged, but the target must not be used or unmapped any more, because several
/// versions of the kernel unmap it before they check the source, and another thread may have mapped something
/// there since. The caller accounts for the bytes held.
///
/// # Safety
///
/// `p` and `target` are mapped and ours, `old` and `new` bytes from there on, and nobody uses the target's
/// contents. After success only the target may be used, after a failure only the source.
pub(crate) unsafe fn remap_to(p: *mut u8, old: usize, new: usize, target: *mut u8) -> bool {
    debug_assert!(in_pages(p.addr() | target.addr(), old | new));
    calls::keep_errno(|| {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: by this function's contract the target may be replaced, and after success nobody uses the
        // source.
        let q = unsafe { mremap(p.cast(), old, new, flags, target) };
        let moved = q != libc::MAP_FAILED;
        MAPPED.fetch_sub(if moved { old } else { new }, Relaxed);
        moved
    })
}

/// Gives the pages of a range back to the system; they read as zero afterwards. False when the system did not
/// do it.
///
/// # Safety
///
/// The range is mapped, ours and page-aligned, and nobody needs its contents.
pub(crate) unsafe fn purge(p: *mut u8, len: usize) -> bool {
    debug_assert!(in_pages(p.addr(), len), "{p:?}, {len} bytes");
    // SAFETY: by this function's contract the range is ours and nobody needs its contents.
    let done = unsafe { advise(p, len, libc::MADV_DONTNEED) };
    // Found out only after that: where all memory is locked it would be tried each time.
    let is_gone = done && (ADVICE.load(Relaxed) == TAKEN || is_advice_taken());
    if is_gone {
        PURGED.fetch_add(len, Relaxed);
    }
    is_gone
}

/// Advises the system about a range. False when it refuses.
///
/// # Safety
///
/// The range is mapped, ours and page-aligned, and the advice takes no contents from it that somebody needs.
pub(super) unsafe fn advise(p: *mut u8, len: usize, advice: libc::c_int) -> bool {
    // SAFETY: the range is ours, and by this function's contract nobody needs what the advice takes from it.
    calls::keep_errno(|| unsafe { madvise(p.cast(), len, advice) } == 0)
}

/// Whether pages are really gone when the system says that it has taken them back: one of the three below.
static ADVICE: AtomicU8 = AtomicU8::new(UNKNOWN);

const UNKNOWN: u8 = 0;

const TAKEN: u8 = 1;

const IGNORED: u8 = 2;

/// Finds out with a page of its own. Emulators (qemu before 7.1) treat all advice as a hint: they report
/// success and do nothing, so what we would take for zero still holds its old contents. False only where that
/// is so.
#[cold]
fn is_advice_taken() -> bool {
    if ADVICE.load(Relaxed) == UNKNOWN {
        let page = map_raw(ptr::null_mut(), page_size(), ACCESSIBLE);
        if page.is_null() {
            return true;
        }
        // SAFETY: a page mapped here, which no other code knows. Volatile, because the compiler does not know
        // what the system call does to it.
        unsafe {
            page.write_volatile(1);
            // The system refuses where all memory is locked, and will refuse for every other range that is.
            if advise(page, page_size(), libc::MADV_DONTNEED) {
                ADVICE.store(if page.read_volatile() == 0 { TAKEN } else { IGNORED }, Relaxed);
            }
            if !try_unmap(page, page_size()) {
                page.write_volatile(0);
                count_map(page_size());
                left::put(page, page_size(), true);
            }
        }
    }
    ADVICE.load(Relaxed) != IGNORED
}

/// Advises for or against huge pages.
///
/// # Safety
///
/// The range is mapped, ours and page-aligned.
pub(crate) unsafe fn advise_huge(p: *mut u8, len: usize, yes: bool) {
    debug_assert!(in_pages(p.addr(), len));
    let advice = if yes { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: the range is ours, and this advice does not change its contents.
    unsafe { advise(p, len, advice) };
}

/// Splits the huge page, if there is one, that holds the page at `p`, without changing what it holds. Else it
/// stays whole when a part of it is given back: the system unmaps that part, and can use none of its memory
/// before it is short of memory and looks for such pages. From Linux 5.4 on.
///
/// # Safety
///
/// The page is mapped, ours and page-aligned.
pub(crate) unsafe fn split_huge_page(p: *mut u8) {
    /// It says that a page is not used; a huge page of which this is said in part is split.
    const MADV_COLD: libc::c_int = 20;
    // SAFETY: the page is ours, and this advice does not change its contents.
    unsafe { advise(p, page_size(), MADV_COLD) };
}

/// How many pages of a range of at most 2 MiB are resident; `None` when the system does not say.
///
/// # Safety
///
/// `p` is page-aligned and `len` at most 2 MiB. The range need not be ours, nor mapped: then there is no
/// answer.
pub(crate) unsafe fn resident_pages(p: *mut u8, len: usize) -> Option<usize> {
    // One byte per page; there are most pages where they are smallest.
    let mut answer = [0u8; (2 << 20) / SMALLEST_PAGE];
    debug_assert!(in_pages(p.addr(), 0) && len.div_ceil(page_size()) <= answer.len());
    if calls::is_confined() {
        return None;
    }
    // SAFETY: `mincore` writes one byte per page. By this function's contract `len` is at most 2 MiB, so they
    // fit into `answer`.
    let result = calls::keep_errno(|| unsafe { mincore(p.cast(), len, answer.as_mut_ptr()) });
    let pages = answer.iter().take(len.div_ceil(page_size()));
    (result == 0).then(|| pages.filter(|&&page| page & 1 != 0).count())
}
