//! For tests: the child of a fork, in which no other thread runs.

/// How many children are asked. The threads of other tests may have been anywhere when one was made, so that
/// what they were at is torn there; in the next one it hardly is.
const TRIES: usize = 3;

/// Whether `f` says so in a child.
pub(crate) fn is_so(f: impl FnOnce() -> bool) -> bool {
    for _ in 0..TRIES {
        // SAFETY: the child does what `f` does, in memory of its own, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                // Another thread may have had what a panic needs here: the child would wait for that for
                // ever.
                libc::alarm(60);
                // A panic would end it as if all were well.
                let is_so = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
                libc::_exit(if is_so.unwrap_or(false) { 0 } else { 1 });
            }
            let mut status = -1;
            if libc::waitpid(child, &raw mut status, 0) == child && status == 0 {
                return true;
            }
        }
    }
    false
}
