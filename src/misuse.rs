//! What a program did wrong with a pointer: one line, then abort.

use crate::options::{self, Foreign};
use crate::os::message;

/// Kinds of misuse.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The page map does not know the address.
    Foreign,
    /// The address is ours but not the start of a block.
    Interior,
    /// The block is free already.
    DoubleFree,
    /// The size does not fit the block.
    Size,
}

/// Complains that `function` was called with `address`. Returns only for a foreign pointer, and only if the options say
/// so; the caller then leaves the pointer alone.
#[cold]
#[inline(never)]
pub(crate) fn report(function: &str, address: *const u8, fault: Fault) {
    let what = match fault {
        Fault::Foreign => "foreign pointer: not a block of this allocator, or of memory freed before",
        Fault::Interior => "interior pointer: not the start of a block",
        Fault::DoubleFree => "double free: the block is free already",
        Fault::Size => "size mismatch: the block was allocated with another size class",
    };
    message::line(format_args!("{function}({address:p}): {what}"));
    if fault == Fault::Foreign && options::get().foreign == Foreign::Warn {
        return;
    }
    message::abort()
}
