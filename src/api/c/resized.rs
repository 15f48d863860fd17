//! `realloc`.

use crate::api::c::{MIN_ALIGN, free, free_of_kind, malloc, malloc_growing, malloc_hit, or_enomem};
use crate::api::hardened::{self, Said};
use crate::api::{guard, slow_path};
use crate::os::keep_errno;
use crate::superslab::pagemap::{self, FOREIGN, HARDENED, RUN};
use crate::sync::AtomicBool;
use crate::sync::Ordering::Relaxed;
use crate::tiny::classes::{CLASSES, MAX_SMALL, class_of, stride};
use core::ptr;

/// `realloc`. Frees `block` and returns null when `size` is 0.
///
/// # Safety
///
/// `block` is null or a block of this allocator that only the caller uses. After success the caller uses the
/// result instead.
#[inline(always)]
pub unsafe fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    // Interpreters have one function for all that they do with memory, which is often made of this one.
    if block.is_null() {
        return malloc(size);
    }
    let kind = pagemap::kind_index(block);
    if kind == FOREIGN as usize || kind > CLASSES {
        // SAFETY: the caller's clause is the same; `kind` is the page map's answer, and no class.
        return unsafe { realloc_rest(block, size, kind) };
    }
    let stride = stride(kind) as usize;
    // SAFETY: the caller's clause is the same; `kind` is the page map's answer, and a class of that many
    // bytes.
    unsafe {
        if size > stride {
            return moved(block, size, kind, stride);
        }
        // In place as long as the size uses more than half of the block, or has this class anyway.
        if size > stride / 2 { block } else { shrunk(block, size, kind) }
    }
}

/// [`realloc`] of a small block to a size of which no more than half of it would be used.
///
/// # Safety
///
/// As [`realloc`]; `kind` is the page map's answer for `block`, and a size class.
#[inline(never)]
unsafe extern "C" fn shrunk(block: *mut u8, size: usize, kind: usize) -> *mut u8 {
    // SAFETY: the caller's clause is the same. A block of size 0 is one that it gives up.
    unsafe {
        if size == 0 {
            free_of_kind(block, kind);
            return ptr::null_mut();
        }
        if class_of(size, MIN_ALIGN) as usize == kind {
            return block;
        }
        let new = malloc_hit(size);
        if new.is_null() {
            return shrunk_slow(block, size, kind);
        }
        replace(block, new, kind, size);
        new
    }
}

/// [`shrunk`] when no magazine has a block. If there is no memory, the block stays as it is, since many
/// programs rely on that they can make it smaller all the same.
///
/// # Safety
///
/// As [`shrunk`]; `size` is not 0.
#[cold]
#[inline(never)]
unsafe extern "C" fn shrunk_slow(block: *mut u8, size: usize, kind: usize) -> *mut u8 {
    // SAFETY: the caller's clause is the same.
    let new = keep_errno(|| unsafe { moved(block, size, kind, size) });
    if !new.is_null() {
        return new;
    }
    STAYED.store(true, Relaxed);
    block
}

/// Whether a block has stayed larger than its program thinks: see [`shrunk_slow`]. Relaxed: whoever frees
/// such a block got it after this was set, by the program's own synchronisation.
static STAYED: AtomicBool = AtomicBool::new(false);

/// Whether some small block may be of a larger class than its size needs.
pub(super) fn some_stayed() -> bool {
    STAYED.load(Relaxed)
}

/// Moves the contents of a small block, `bytes` of them, to a new one of `size` bytes. What stays where it is
/// is not told here, so that it needs no stack frame.
///
/// # Safety
///
/// As [`realloc`]; `kind` is the page map's answer for `block`, and a size class. `bytes` is at most `size`,
/// and the block has so many.
#[inline(never)]
unsafe extern "C" fn moved(block: *mut u8, size: usize, kind: usize, bytes: usize) -> *mut u8 {
    let new = if size > MAX_SMALL { malloc_growing(size) } else { malloc(size) };
    if !new.is_null() {
        // SAFETY: the caller's clause; a new block of `size` bytes, which are as many or more.
        unsafe { replace(block, new, kind, bytes) };
    }
    new
}

/// Copies `bytes` bytes to a new block and frees the old one.
///
/// # Safety
///
/// Both blocks have so many bytes and are the caller's, which does not use the old one any more. `kind` is
/// its class.
#[inline(always)]
unsafe fn replace(block: *mut u8, new: *mut u8, kind: usize, bytes: usize) {
    // SAFETY: the caller's clause; they are two blocks.
    unsafe {
        ptr::copy_nonoverlapping(block, new, bytes);
        free_of_kind(block, kind);
    }
}

/// [`realloc`] of a large or foreign block.
///
/// # Safety
///
/// As [`realloc`]; `kind` is the page map's answer for `block`, and no size class.
#[inline(never)]
unsafe extern "C" fn realloc_rest(block: *mut u8, size: usize, kind: usize) -> *mut u8 {
    let kind = kind as u8;
    if kind == HARDENED {
        // SAFETY: a block that the caller gives up, or that only the caller uses.
        return unsafe {
            if size == 0 {
                hardened::free(block, Said::Nothing, "realloc");
                return ptr::null_mut();
            }
            if !hardened::is_on() {
                return or_enomem(guard::realloc(block, size, malloc));
            }
            or_enomem(hardened::realloc(block, None, size, MIN_ALIGN, None))
        };
    }
    let old = slow_path::usable(block, kind, "realloc");
    if old == 0 {
        // Reported as misuse, and the program goes on.
        return or_enomem(ptr::null_mut());
    }
    if size == 0 {
        // SAFETY: a block that the caller gives up, by the clause of `realloc`.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    if kind == RUN && old <= 2 * MAX_SMALL && size <= MAX_SMALL && size > MAX_SMALL / 4 * 3 {
        // The shortest run. A buffer that grows and shrinks at the border to the classes is not copied each
        // time.
        return slow_path::seen_by_profile(block, size, || block);
    }
    // Over the mark, too.
    let size = size.max(MIN_ALIGN);
    // SAFETY: a block that only the caller uses; `usable` has found that it has `old` bytes.
    or_enomem(unsafe { slow_path::reallocate(block, kind, old, MIN_ALIGN, size, true, None) })
}
