//! Memory mapped for the tools themselves, so that the heap under test sees the workload and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// A mapping, as long as it lives.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; who may touch what is decided by those who make references into it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(bytes: usize, protection: i32, flags: i32, fd: i32, offset: u64) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes.max(1), protection, flags, fd, offset as i64) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at 0 unasked");
        Ok(Self { start, bytes: bytes.max(1) })
    }

    /// Zeros, private to the process and all of them resident.
    pub(crate) fn zeros(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// `bytes` of `file` from `offset` on, to be read; all there from the start.
    pub(crate) fn of_file(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map(bytes, libc::PROT_READ, flags, file.as_raw_fd(), offset)
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `count` values of type `T`, `offset` bytes into it.
    ///
    /// # Safety
    ///
    /// Any bytes are a valid `T`, and no one changes them while the slice lives, unless `T` is atomic.
    pub(crate) unsafe fn slice<T>(&self, offset: usize, count: usize) -> &[T] {
        assert!(offset % align_of::<T>() == 0, "aligned");
        let end = count.checked_mul(size_of::<T>()).and_then(|len| len.checked_add(offset));
        assert!(end.is_some_and(|end| end <= self.bytes), "within the mapping");
        // SAFETY: within the mapping (just checked), aligned (pages are, and the offset), valid as the caller
        // promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and all references into it borrow from `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
