//! What the child of a fork does.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Forks. The child runs `f` and ends, killed by an alarm if it hangs. How it ended: 0 if well.
pub fn child(f: impl FnOnce()) -> i32 {
    // SAFETY: the child calls nothing but what is allowed to a child of many threads, and this allocator.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::alarm(60);
            // A panic would end the test's thread, and so the child, as if all were well: the thread that
            // waits for the test's result is not there.
            let done = catch_unwind(AssertUnwindSafe(f));
            libc::_exit(if done.is_ok() { 0 } else { 101 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}
