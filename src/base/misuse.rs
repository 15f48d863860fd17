//! What a program did wrong with a pointer: one line, then abort.

use crate::base::options;
use crate::base::options::Foreign;
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
    /// The same, told by who frees it, where the page map knows better.
    FreedSize,
}

/// Complains that `function` was called with `address`. Returns only for a foreign pointer, which the caller then leaves alone, and
/// for a size that was told with a block to be freed, which it then frees as what it is; and only if the options say so.
#[cold]
#[inline(never)]
pub(crate) fn report(function: &str, address: *const u8, fault: Fault) {
    let what = match fault {
        Fault::Foreign => "foreign pointer: not a block of this allocator, or of memory freed before",
        Fault::Interior => "interior pointer: not the start of a block",
        Fault::DoubleFree => "double free: the block is free already",
        Fault::Size | Fault::FreedSize => "size mismatch: the block was allocated with another size class",
    };
    message::line(format_args!("{function}({address:p}): {what}"));
    if matches!(fault, Fault::Foreign | Fault::FreedSize) && options::get().foreign == Foreign::Warn {
        return;
    }
    message::abort()
}
