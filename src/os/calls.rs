//! What system calls here observe: a process that has given up system calls makes few, and the [error
//! number](super::errno) belongs to the program. And the clocks, which need none.

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) use crate::os::errno::address;
pub(super) use crate::os::errno::errno;
pub(crate) use crate::os::errno::keep_errno;
pub use crate::os::errno::set_errno;
use crate::os::vdso;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicBool, AtomicI32};

/// Set when the process may be restricted to few system calls: see [`confine`].
static CONFINED: AtomicBool = AtomicBool::new(false);

/// From now on the only system calls are those that any allocator makes: mmap, munmap, mremap, madvise and
/// futex.
pub(crate) fn confine() {
    // SeqCst: pairs with `is_confined_by_now`.
    CONFINED.swap(true, SeqCst);
}

/// [`is_confined`], for who has just changed something, by an exchange that is SeqCst, at which the thread
/// looks that has called [`confine`].
pub(crate) fn is_confined_by_now() -> bool {
    CONFINED.load(SeqCst)
}

/// Whether [`confine`] has been called.
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

/// Threads that have changed their signal masks, or are about to, and have not put them back. SeqCst: either
/// who changes one sees that the process is confined by now, or who confines it waits for that. Below 0 in a
/// child that was made meanwhile. Models leave it out.
static CHANGED: AtomicI32 = AtomicI32::new(0);

/// The calling thread is about to change its mask: [`ended`] must follow. False if it must not, and then that
/// must not follow either.
pub(super) fn began() -> bool {
    if cfg!(loom) {
        return true;
    }
    CHANGED.fetch_add(1, SeqCst);
    let may = !is_confined_by_now();
    if !may {
        ended();
    }
    may
}

/// It has put it back, or could not change it.
pub(super) fn ended() {
    if !cfg!(loom) {
        CHANGED.fetch_sub(1, SeqCst);
    }
}

/// Whether no thread is about to put its mask back.
pub(crate) fn are_settled() -> bool {
    CHANGED.load(SeqCst) <= 0
}

/// In the child of a fork: other threads' masks are gone with them.
pub(crate) fn inherit() {
    if !cfg!(loom) {
        CHANGED.store(0, SeqCst);
    }
}

/// Milliseconds of a monotonic clock with the resolution of the system tick. Wraps after 49 days.
pub(crate) fn now_ms() -> u32 {
    if cfg!(all(test, loom)) {
        // In models time stands still: each execution has to go as the one before up to where they part, also
        // if the machine stops in between.
        return 1 << 24;
    }
    let t = vdso::read(libc::CLOCK_MONOTONIC_COARSE);
    (t.tv_sec as u64).wrapping_mul(1000).wrapping_add(t.tv_nsec as u64 / 1_000_000) as u32
}

/// Nanoseconds of a monotonic clock.
pub(crate) fn now_ns() -> u64 {
    ns_of(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub(crate) fn real_ns() -> u64 {
    ns_of(libc::CLOCK_REALTIME)
}

fn ns_of(clock: libc::clockid_t) -> u64 {
    let t = vdso::read(clock);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// Milliseconds from one reading of [`now_ms`] to another. Zero when `since` is the later one: two threads
/// read the clock, and the one that proceeds first may have read last. What has never been, at 0, is long
/// ago, but for the last minutes before the clock begins anew.
pub(crate) fn elapsed(since: u32, now: u32) -> u32 {
    const AHEAD: u32 = 5 * 60_000;
    let elapsed = now.wrapping_sub(since);
    if elapsed > u32::MAX - AHEAD { 0 } else { elapsed }
}

#[cfg(test)]
mod tests {
    use super::elapsed;

    #[test]
    fn what_was_read_later_is_not_long_ago_and_what_never_was_is() {
        assert_eq!([elapsed(5, 7), elapsed(7, 5), elapsed(u32::MAX, 1)], [2, 0, 2]);
        assert_eq!(elapsed(200_000, 0), 0);
        // But for minutes in 49 days.
        assert_eq!(elapsed(0, u32::MAX - 1_800_000), u32::MAX - 1_800_000);
    }
}
