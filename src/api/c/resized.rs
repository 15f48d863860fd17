//! `realloc`.

use crate::api::c::{MIN_ALIGN, free, free_of_kind, malloc, malloc_growing, or_enomem};
use crate::api::hardened::{self, Said};
use crate::api::{guard, slow_path};
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
        if class_of(size, MIN_ALIGN) as usize == kind { block } else { moved(block, size, kind, size) }
    }
}

/// Whether a block has stayed larger than its program thinks: see [`moved`]. Relaxed: whoever frees such a
/// block got it after this was set, by the program's own synchronisation.
static STAYED: AtomicBool = AtomicBool::new(false);

/// Whether some small block may be of a larger class than its size needs.
pub(super) fn some_stayed() -> bool {
    STAYED.load(Relaxed)
}

/// Moves the contents of a small block, `bytes` of them, to a new one of `size` bytes. What stays where it is
/// is not told here, so that it needs no stack frame. If there is no memory, a block that shrinks stays: many
/// programs rely on that.
///
/// # Safety
///
/// As [`realloc`]; `kind` is the page map's answer for `block`, and a size class. `bytes` is at most `size`,
/// and the block has so many.
#[inline(never)]
unsafe extern "C" fn moved(block: *mut u8, size: usize, kind: usize, bytes: usize) -> *mut u8 {
    let new = if size > MAX_SMALL { malloc_growing(size) } else { malloc(size) };
    if new.is_null() {
        if bytes == size {
            STAYED.store(true, Relaxed);
            return block;
        }
    } else {
        // SAFETY: both blocks have so many bytes and are the caller's; nobody uses the old one after the
        // copy.
        unsafe {
            ptr::copy_nonoverlapping(block, new, bytes);
            free_of_kind(block, kind);
        }
    }
    new
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
        return block;
    }
    // Over the mark, too.
    let size = size.max(MIN_ALIGN);
    // SAFETY: a block that only the caller uses; `usable` has found that it has `old` bytes.
    or_enomem(unsafe { slow_path::reallocate(block, kind, old, MIN_ALIGN, size, true, None) })
}
