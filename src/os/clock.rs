//! The clocks.

/// Milliseconds of a monotonic clock with the resolution of the system tick. Wraps after 49 days.
pub(crate) fn now_ms() -> u32 {
    // SAFETY: all zeros is a valid timespec.
    let mut t: libc::timespec = unsafe { core::mem::zeroed() };
    // This call cannot fail, so it leaves `errno` alone.
    // SAFETY: `t` is a local variable that the call writes to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut t) };
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
    // SAFETY: all zeros is a valid timespec.
    let mut t: libc::timespec = unsafe { core::mem::zeroed() };
    // This call cannot fail, so it leaves `errno` alone.
    // SAFETY: `t` is a local variable that the call writes to.
    unsafe { libc::clock_gettime(clock, &mut t) };
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// Milliseconds from one reading of [`now_ms`] to another. Zero when `since` is the later one: two threads
/// read the clock, and the one that proceeds first may have read last.
pub(crate) fn elapsed(since: u32, now: u32) -> u32 {
    const AHEAD: u32 = 3_600_000;
    let elapsed = now.wrapping_sub(since);
    if elapsed > u32::MAX - AHEAD { 0 } else { elapsed }
}
