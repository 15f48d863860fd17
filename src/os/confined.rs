//! Whether the process has given up system calls.

use crate::sync::AtomicBool;
use crate::sync::Ordering::Relaxed;

/// Set when the process may be restricted to few system calls: see [`confine`].
static CONFINED: AtomicBool = AtomicBool::new(false);

/// From now on the only system calls are those that any allocator makes: mmap, munmap, mremap, madvise and
/// futex.
pub(crate) fn confine() {
    CONFINED.store(true, Relaxed);
}

/// Whether [`confine`] has been called.
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}
