//! A hint to the processor.

/// Fetches a line of the cache for writing. The address may be any.
#[inline(always)]
pub(crate) fn prefetch<T>(line: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch does not fault, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}
