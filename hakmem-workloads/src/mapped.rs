//! Memory of the workload's own, which must not come from the allocator under test.

use std::ops::{Deref, DerefMut};

/// A slice of zeroed numbers or pointers, mapped from the system and touched, so that it changes neither the
/// allocator's state nor, later on, the resident size.
pub struct Mapped<T: Copy> {
    start: *mut T,
    length: usize,
}

// SAFETY: owns its memory alone, as a Box of a slice does, whose Send asks for no more.
unsafe impl<T: Copy + Send> Send for Mapped<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Copy + Sync> Sync for Mapped<T> {}

/// A type whose all-zero pattern is a value.
///
/// # Safety
///
/// It is.
pub unsafe trait Zero: Copy {}
// SAFETY: zero is a number.
unsafe impl Zero for u8 {}
// SAFETY: zero is a number.
unsafe impl Zero for u32 {}
// SAFETY: zero is a number.
unsafe impl Zero for u64 {}
// SAFETY: zero is a number.
unsafe impl Zero for usize {}

impl<T: Zero> Mapped<T> {
    /// `length` zeros. Panics when there is no memory, which is no allocator's fault.
    pub fn new(length: usize) -> Self {
        let bytes = (length * size_of::<T>()).max(1);
        // SAFETY: a new private mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        assert!(start != libc::MAP_FAILED, "no memory for the workload's own {bytes} bytes");
        Self { start: start.cast(), length }
    }

    /// `length` values, each made from its index.
    pub fn from_fn(length: usize, mut value: impl FnMut(usize) -> T) -> Self {
        let mut mapped = Self::new(length);
        for i in 0..length {
            mapped[i] = value(i);
        }
        mapped
    }
}

impl<T: Copy> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nobody borrows it any more.
        unsafe { libc::munmap(self.start.cast(), (self.length * size_of::<T>()).max(1)) };
    }
}

impl<T: Copy> Deref for Mapped<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `length` values, zero at first (`Zero`) and only ever replaced by others; mapped as long as
        // self lives.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl<T: Copy> DerefMut for Mapped<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_and_values() {
        assert!(Mapped::<u64>::new(10_000).iter().all(|&value| value == 0));
        assert_eq!(*Mapped::from_fn(5, |i| i * 2), [0, 2, 4, 6, 8]);
        assert!(Mapped::<u32>::new(0).is_empty());
    }
}
