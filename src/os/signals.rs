//! Blocking signals in a thread for a short time, and handlers of signals that the user has named.

use crate::os::calls;
use core::mem::MaybeUninit;
use core::ptr;

/// Signals that stay unblocked: a thread raises them itself and cannot go on without their handlers.
const OWN: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Has `f` called when the process gets the signal, which the user has named. System calls that it interrupts
/// go on. False if that is no signal that can be handled.
pub(crate) fn handle(signal: libc::c_int, f: extern "C" fn(libc::c_int)) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid action, with an empty mask. The handler never unwinds, and does nothing
    // that a signal must not interrupt.
    calls::keep_errno(|| unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = f as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, action, ptr::null_mut()) == 0
    })
}

/// Takes `f` back as the handler of the signal, which is ignored then, unless the program has set another one
/// since.
pub(crate) fn unhandle(signal: libc::c_int, f: extern "C" fn(libc::c_int)) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid action. The first call writes to it, or fails and
    // leaves it as it is.
    calls::keep_errno(|| unsafe {
        let action = action.assume_init_mut();
        libc::sigaction(signal, ptr::null(), action);
        if action.sa_sigaction == f as *const () as usize {
            // Not the default, which would end the process.
            action.sa_sigaction = libc::SIG_IGN;
            libc::sigaction(signal, action, ptr::null_mut());
        }
    })
}

/// While this lives, no signal handler interrupts the calling thread, except for signals that the thread
/// raises itself.
pub(crate) struct Blocked {
    before: Option<libc::sigset_t>,
}

impl Blocked {
    /// Blocks all signals but those that a thread raises itself. Does nothing where the system call may be
    /// forbidden: there are no visits there either.
    pub(crate) fn all() -> Self {
        if cfg!(miri) || calls::is_confined() {
            return Self { before: None };
        }
        Self::except(&OWN).unwrap_or(Self { before: None })
    }

    /// Blocks all signals but these. The error is an `errno` value.
    pub(super) fn except(these: &[libc::c_int]) -> Result<Self, i32> {
        let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        if !calls::began() {
            return Err(libc::EPERM);
        }
        // SAFETY: both sets are local variables. `sigfillset` initialises the first; `pthread_sigmask`
        // initialises the second when it succeeds, and only then is it read.
        calls::keep_errno(|| unsafe {
            libc::sigfillset(set.as_mut_ptr());
            these.iter().for_each(|&signal| {
                libc::sigdelset(set.as_mut_ptr(), signal);
            });
            match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) {
                0 => Ok(Self { before: Some(before.assume_init()) }),
                error => {
                    calls::ended();
                    Err(error)
                }
            }
        })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: `before` is a signal mask that `pthread_sigmask` has returned.
            calls::keep_errno(|| unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut())
            });
            calls::ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::child;

    fn is_blocked(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: without a new mask the first call only writes the current one to `now`, which the second
        // then reads.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    /// Whoever confines the process waits for that.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_mask_that_is_still_to_be_put_back_is_known() {
        assert!(child::is_so(|| {
            let before = Blocked::all();
            assert!(!calls::are_settled());
            calls::confine();
            assert!(!calls::are_settled() && is_blocked(libc::SIGUSR1));
            let after = Blocked::all();
            drop(before);
            assert!(calls::are_settled() && !is_blocked(libc::SIGUSR1));
            drop(after);
            calls::are_settled()
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn signals_are_blocked_for_a_while() {
        assert!(!is_blocked(libc::SIGUSR1));
        let outer = Blocked::all();
        let inner = Blocked::all();
        assert!(is_blocked(libc::SIGUSR1) && is_blocked(libc::SIGTERM) && !is_blocked(libc::SIGSEGV));
        drop(inner);
        assert!(is_blocked(libc::SIGUSR1));
        drop(outer);
        assert!(!is_blocked(libc::SIGUSR1));
    }
}
