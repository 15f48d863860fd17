//! Files, by system call: the C library's functions are places where a thread may be cancelled, and none of ours is.

use core::ffi::CStr;

/// A system call that answers a count or a descriptor; negative when it failed. `errno` stays what it is.
fn call(f: impl FnOnce() -> libc::c_long) -> libc::c_long {
    super::keep_errno(f)
}

/// An open file of ours.
pub(crate) struct File(i32);

impl File {
    /// Opens a file for reading.
    pub(crate) fn read_only(path: &CStr) -> Option<File> {
        Self::open(path, libc::O_RDONLY)
    }

    /// Opens a file for appending, making it if need be.
    pub(crate) fn append(path: &CStr) -> Option<File> {
        Self::open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND)
    }

    fn open(path: &CStr, flags: libc::c_int) -> Option<File> {
        let (path, flags) = (path.as_ptr(), flags | libc::O_CLOEXEC);
        // SAFETY: a C string.
        let fd = call(|| unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0o644) });
        (fd >= 0).then_some(File(fd as i32))
    }

    /// Reads some of it: what it put into the buffer, nothing at the end or when it cannot.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8]) -> &'a [u8] {
        // SAFETY: as many writable bytes as said.
        let n = call(|| unsafe { libc::syscall(libc::SYS_read, self.0, buffer.as_mut_ptr(), buffer.len()) });
        buffer.get(..n.max(0) as usize).unwrap_or_default()
    }

    /// Its number.
    pub(crate) fn fd(&self) -> i32 {
        self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again.
        call(|| unsafe { libc::syscall(libc::SYS_close, self.0) });
    }
}

/// Writes all of `rest` to a file descriptor, as far as that works.
pub(crate) fn write(fd: i32, mut rest: &[u8]) {
    while !rest.is_empty() {
        // SAFETY: readable for its length. `errno` is read before anything else can change it, and put back.
        let (n, interrupted) = super::keep_errno(|| unsafe {
            let n = libc::syscall(libc::SYS_write, fd, rest.as_ptr(), rest.len());
            (n, n < 0 && *super::errno_location() == libc::EINTR)
        });
        if n <= 0 && !interrupted {
            return;
        }
        rest = rest.get(n.max(0) as usize..).unwrap_or_default();
    }
}

/// Which file a descriptor stands for, so that it can be told whether it still does; `None` when it is not open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    special: u64,
}

impl Identity {
    /// That of a descriptor.
    pub(crate) fn of(fd: i32) -> Option<Identity> {
        if cfg!(miri) {
            return None;
        }
        // SAFETY: all zeros is a stat.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `stat` is writable.
        let failed = super::keep_errno(|| unsafe { libc::fstat(fd, &mut stat) }) != 0;
        (!failed).then_some(Identity { device: stat.st_dev, inode: stat.st_ino, special: stat.st_rdev })
    }
}
