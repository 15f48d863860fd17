//! Reports of wrong use of a pointer: one line, then abort.

use crate::base::options::{self, Foreign};
use crate::os::message;
use crate::sync::AtomicPtr;
use crate::sync::Ordering::Relaxed;
use core::mem::transmute;
use core::{fmt, ptr};

/// Kinds of misuse.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The page map does not have the address.
    Foreign,
    /// The address is ours, but not the start of a block.
    Interior,
    /// The block is free already.
    DoubleFree,
    /// The given size does not fit the block.
    Size,
    /// The same, for a size given with a free: the page map knows the right one.
    FreedSize,
    /// Something was written behind the end of the block. This and those below only hardened mode notices.
    Overflow,
    /// Something was written before the block, behind the end of the one before it.
    Underflow,
    /// A free block was written to.
    WrittenAfterFree,
    /// A free block is asked for its size, or resized.
    UsedAfterFree,
}

/// What the program says of a block that it frees, besides its address, where somebody minds: hardened mode,
/// and guard pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing.
    Nothing,
    /// The size that was asked for. A block of no bytes may have been made as one of one.
    Size(usize),
    /// The size class of the layout, 0 for a large one.
    Class(u8),
}

/// Reports that `function` was called with `address`, and aborts.
///
/// Returns in two cases, if the options say so: for a foreign pointer, which the caller then ignores, and for
/// a wrong size given with a free, where the caller then frees the block by its real size.
#[cold]
#[inline(never)]
pub(crate) fn report(function: &str, address: *const u8, fault: Fault) {
    report_about(function, address, fault, &"");
}

/// [`report`], followed by what there is to say `about` the block.
#[cold]
#[inline(never)]
pub(crate) fn report_about(function: &str, address: *const u8, fault: Fault, about: &dyn fmt::Display) {
    say(function, address, fault, about);
    let more = MORE.load(Relaxed);
    if !more.is_null() {
        // SAFETY: what `tell_more` has stored.
        unsafe { transmute::<*mut (), fn(*const u8, bool)>(more)(address, is_start(fault)) };
    }
    end(fault);
}

/// Who can say more about an address than the line does: null, or a `fn(*const u8, bool)`.
static MORE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Has `f` called behind the line of each report, with its address, and whether a block is known to begin
/// there. Before the first heap is made.
pub(crate) fn tell_more(f: fn(*const u8, bool)) {
    // Relaxed: `options::init` publishes it.
    MORE.store(f as *mut (), Relaxed);
}

/// Whether the address that is reported with it is the start of a block.
fn is_start(fault: Fault) -> bool {
    !matches!(fault, Fault::Foreign | Fault::Interior)
}

/// Whether the process ends by this.
pub(crate) fn is_fatal(fault: Fault) -> bool {
    !(matches!(fault, Fault::Foreign | Fault::FreedSize) && options::foreign() == Foreign::Warn)
}

/// The first half of [`report_about`]: the line.
#[cold]
#[inline(never)]
pub(crate) fn say(function: &str, address: *const u8, fault: Fault, about: &dyn fmt::Display) {
    let what = match fault {
        Fault::Foreign => "foreign pointer: not a block of this allocator, or of memory freed before",
        Fault::Interior => "interior pointer: not the start of a block",
        Fault::DoubleFree => "double free: the block is free already",
        Fault::Size => "size mismatch: the block was allocated with another size class",
        Fault::FreedSize => "size mismatch: the block was not allocated with this size",
        Fault::Overflow => "overflow: something was written behind the end of the block",
        Fault::Underflow => "underflow: something was written before the block",
        Fault::WrittenAfterFree => "write after free: the block was changed while it was free",
        Fault::UsedAfterFree => "use after free: the block is free",
    };
    message::line(format_args!("{function}({address:p}): {what}{about}"));
}

/// The second half of [`report_about`]: the end, unless the options say otherwise.
#[cold]
#[inline(never)]
pub(crate) fn end(fault: Fault) {
    if is_fatal(fault) {
        message::abort()
    }
}
