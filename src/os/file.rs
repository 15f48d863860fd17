//! Files, by raw system calls: the C library's functions are cancellation points, and no function of ours may
//! be one.

use crate::os::{calls, raw, refused};
use crate::sync::AtomicU32;
use crate::sync::Ordering::Relaxed;
use core::ffi::CStr;

/// An open file, closed on drop.
pub(crate) struct File(i32);

impl File {
    /// Opens a file for reading.
    pub(crate) fn read_only(path: &CStr) -> Option<File> {
        Self::open(path, libc::O_RDONLY)
    }

    /// Opens a file for appending, creating it if need be. Does not wait: a named pipe that nobody reads
    /// cannot be opened.
    pub(crate) fn append(path: &CStr) -> Option<File> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
        let file = Self::open(path, flags | libc::O_NONBLOCK)?;
        // One that somebody reads gets everything, even if it has not room for it at once.
        // SAFETY: touches no memory.
        calls::keep_errno(|| unsafe { libc::fcntl(file.0, libc::F_SETFL, libc::O_APPEND) });
        Some(file)
    }

    /// Opens a file that exists for appending. Neither follows a link nor waits: what is there may be
    /// somebody else's by now.
    pub(crate) fn append_existing(path: &CStr) -> Option<File> {
        Self::open(path, libc::O_WRONLY | libc::O_APPEND | libc::O_NOFOLLOW | libc::O_NONBLOCK)
    }

    /// Opens what is no file (see [`write_to`]) for writing from its beginning.
    fn create(path: &CStr) -> Option<File> {
        Self::open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)
    }

    /// Makes an empty file. None that is there already is opened, nor what a link of that name stands for:
    /// who has made that may be somebody else. But it may be of a process of this number that was killed.
    fn create_new(path: &CStr) -> Option<File> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        Self::open(path, flags).or_else(|| {
            // SAFETY: `path` is a C string that outlives the call.
            let _ = unsafe { raw::call!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
            Self::open(path, flags)
        })
    }

    fn open(path: &CStr, flags: libc::c_int) -> Option<File> {
        // A terminal does not become the process's own.
        let (path, flags) = (path.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOCTTY);
        // SAFETY: `path` is a C string that outlives the call.
        let fd = unsafe { raw::call!(SYS_openat, libc::AT_FDCWD, path, flags, 0o644) };
        let file = File(fd.ok()? as i32);
        if file.0 > libc::STDERR_FILENO {
            return Some(file);
        }
        // That one was closed, and what the program writes to it all the same is not meant for this file.
        // SAFETY: touches no memory.
        let other = unsafe { raw::call!(SYS_fcntl, file.0, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
        Some(other.map_or(file, |fd| File(fd as i32)))
    }

    /// Reads some bytes into the buffer and returns them; none at the end of the file or on an error.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8]) -> &'a [u8] {
        // SAFETY: `buffer` is writable for its length.
        let n = unsafe { raw::call!(SYS_read, self.0, buffer.as_mut_ptr(), buffer.len()) };
        buffer.get(..n.unwrap_or(0)).unwrap_or_default()
    }

    /// The file descriptor.
    pub(crate) fn fd(&self) -> i32 {
        self.0
    }

    /// Which file it is, and how long.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn state(&self) -> State {
        stat_of(self.0).map_or(State { identity: None, length: None }, |stat| State {
            identity: Some(Identity::from(&stat)),
            length: (stat.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(stat.st_size as u64),
        })
    }

    /// Cuts off what is behind so many bytes. Whether that could be done.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) fn cut(&self, length: u64) -> bool {
        // SAFETY: touches no memory.
        unsafe { raw::call!(SYS_ftruncate, self.0, length) }.is_ok()
    }
}

/// Which file it is, and how long, if that can be told. What has no end, as a pipe, has no length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    identity: Option<Identity>,
    pub(crate) length: Option<u64>,
}

impl State {
    /// The same file after so many bytes were added to it.
    pub(crate) fn and(self, more: usize) -> State {
        State { length: self.length.map(|length| length + more as u64), ..self }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: this `File` owns the descriptor, and nobody uses it after the drop.
        let _ = unsafe { raw::call!(SYS_close, self.0) };
    }
}

/// Bytes of the longest path that [`replace`] takes: one of the profile's own file.
pub(crate) const LONGEST: usize = 1312;
/// What the name of a file that is not whole yet ends with.
const ENDING: [u8; 15] = *b".0000000000.new";
/// Bytes of a name to which that can be added on any file system.
const SHORT: usize = 64;

/// Writes these bytes to a file, as far as that has room for them. How it is then; `None` if it has not.
#[unsafe(link_section = "hakmem_rare")]
fn filled(file: &File, bytes: &[u8]) -> Option<State> {
    (fits(file, bytes.len()) && write(file.fd(), bytes)).then(|| file.state())
}

/// Puts these bytes where the program has said: [replaces](replace) a file, but what is none (a device, a
/// pipe, a link to something) stays and is written to. False when the system refuses.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn write_to(path: &CStr, bytes: &[u8]) -> bool {
    if kind(path).is_some_and(|kind| kind != libc::S_IFREG) {
        return File::create(path).is_some_and(|file| filled(&file, bytes).is_some());
    }
    replace(path, bytes).is_some()
}

/// Replaces what is at `path` by a file with these bytes, at once: nobody ever sees a part of them. Returns
/// what is there now; `None`, with all as it was, when the system refuses. A link is replaced and not
/// followed, and nothing else that is there is opened: who can guess the path may have put it there.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn replace(path: &CStr, bytes: &[u8]) -> Option<State> {
    // Beside it, since a file is renamed within its file system only.
    // Another thread may be writing another one.
    // SAFETY: the call has no preconditions, and cannot fail.
    let mut number = unsafe { raw::call!(SYS_gettid) }.unwrap_or(0) as u32;
    let mut ending = ENDING;
    for digit in ending.iter_mut().skip(1).take(10).rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // At least one zero is left.
    let mut beside = [0u8; LONGEST + ENDING.len() + 1];
    let old = shortened(path.to_bytes());
    let name = beside.get_mut(..old.len() + ending.len()).filter(|_| path.count_bytes() <= LONGEST)?;
    name.iter_mut().zip(old.iter().chain(&ending)).for_each(|(to, from)| *to = *from);
    let beside = CStr::from_bytes_until_nul(&beside).ok()?;
    let file = File::create_new(beside)?;
    let whole = filled(&file, bytes);
    drop(file);
    // SAFETY: both are C strings that outlive the calls.
    unsafe {
        let here = libc::AT_FDCWD;
        let (from, to) = (beside.as_ptr(), path.as_ptr());
        if whole.is_some() && raw::call!(SYS_renameat2, here, from, here, to, 0).is_ok() {
            return whole;
        }
        let _ = raw::call!(SYS_unlinkat, here, from, 0);
    }
    None
}

/// A path to which [`ENDING`] can be added: without the last bytes of a long name, which may be as long as
/// its file system allows. No character is cut in two: some file systems refuse names with parts of one.
#[unsafe(link_section = "hakmem_rare")]
fn shortened(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if name.len() <= SHORT {
        return path;
    }
    let cut = path.len().saturating_sub(ENDING.len());
    let begins = |at: usize| path.get(at).is_some_and(|byte| byte & 0xc0 != 0x80);
    let cut = (cut.saturating_sub(3)..=cut).rev().find(|&at| begins(at)).unwrap_or(cut);
    path.get(..cut).unwrap_or_default()
}

/// What is at `path`. `None` for nothing, or nothing that may be seen.
#[unsafe(link_section = "hakmem_rare")]
fn look(path: &CStr) -> Option<libc::stat> {
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let (path, flags) = (path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: `path` is a C string that outlives the call, which writes to a local variable.
    let there = calls::keep_errno(|| unsafe { libc::fstatat(libc::AT_FDCWD, path, &mut stat, flags) }) == 0;
    there.then_some(stat)
}

/// What is at `path`: the type of file, as `S_IFREG`. `None` for nothing, or nothing that may be seen.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn kind(path: &CStr) -> Option<libc::mode_t> {
    look(path).map(|stat| stat.st_mode & libc::S_IFMT)
}

/// When what is at `path` was last written to, in nanoseconds since 1970; 0 if nothing is there. By the clock
/// of files, which moves on every few milliseconds only.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn changed(path: &CStr) -> u64 {
    let time = |stat: libc::stat| {
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as u64)
    };
    look(path).map_or(0, time)
}

/// Whether the process may make a file so many bytes longer. Trying to raises a signal, SIGXFSZ, that ends a
/// process which does not expect it.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn fits(file: &File, more: usize) -> bool {
    let Some(length) = file.state().length else { return true };
    // SAFETY: all zeros is a valid value.
    let mut limit: libc::rlimit = unsafe { core::mem::zeroed() };
    // SAFETY: the call writes to a local variable.
    let known = calls::keep_errno(|| unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) }) == 0;
    !known || length + more as u64 <= limit.rlim_cur
}

/// Writes bytes to a file descriptor, up to the first error. Returns whether there was none. An error is no
/// signal to the program.
pub(crate) fn write(fd: i32, bytes: &[u8]) -> bool {
    refused::without_signals(|| write_all(fd, bytes))
}

/// For how many milliseconds to wait for who reads what does not wait by itself, and for how many seconds not
/// again after that was in vain.
const PATIENCE: u32 = 1000;
const OFFENDED: u32 = 60;

/// When somebody was last waited for in vain, 0 for never, and at which descriptor. Relaxed: hints.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);
static VAIN_FD: AtomicU32 = AtomicU32::new(0);

/// Waits until a descriptor can be written to, but only for what is left of the time. False without that.
/// That it was in vain is kept in mind, if `nothing` has been written to it since `begun`.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
fn await_room(fd: i32, begun: u32, nothing: bool) -> bool {
    let (now, vain) = (calls::now_ms(), IN_VAIN.load(Relaxed));
    let left = PATIENCE.saturating_sub(calls::elapsed(begun, now));
    let is_vain =
        vain != 0 && VAIN_FD.load(Relaxed) == fd as u32 && calls::elapsed(vain, now) < OFFENDED * 1000;
    if is_vain || calls::is_confined() || cfg!(miri) {
        return false;
    }
    let in_vain = || {
        if nothing {
            VAIN_FD.store(fd as u32, Relaxed);
            IN_VAIN.store(now.max(1), Relaxed);
        }
        false
    };
    if left == 0 {
        return in_vain();
    }
    let mut wanted = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let time = libc::timespec { tv_sec: 0, tv_nsec: (left.min(999) * 1_000_000).into() };
    // SAFETY: both are local variables, and there is one descriptor; no mask of signals.
    let ready = unsafe { raw::call!(SYS_ppoll, &raw mut wanted, 1, &raw const time, 0) };
    match ready {
        Ok(0) => in_vain(),
        // A signal of the program's may have ended it.
        ready => matches!(ready, Ok(_) | Err(libc::EINTR)),
    }
}

/// [`write`], with signals.
fn write_all(fd: i32, mut rest: &[u8]) -> bool {
    let (begun, all) = (calls::now_ms(), rest.len());
    while !rest.is_empty() {
        // Miri does not know the bare call.
        // SAFETY: `rest` is readable for its length.
        #[cfg(miri)]
        let done = raw::result_of(|| unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) } as _);
        // SAFETY: `rest` is readable for its length.
        #[cfg(not(miri))]
        let done = unsafe { raw::call!(SYS_write, fd, rest.as_ptr(), rest.len()) };
        match done {
            Ok(1..) | Err(libc::EINTR) => rest = rest.get(done.unwrap_or(0)..).unwrap_or_default(),
            // A terminal or pipe that the program has set to this.
            Err(libc::EAGAIN) if await_room(fd, begun, rest.len() == all) => {}
            _ => return false,
        }
    }
    true
}

/// The path of the working directory; nothing when it is longer than the buffer, or cannot be named.
pub(crate) fn working_directory(buffer: &mut [u8]) -> &[u8] {
    // Not by the C library's function, which may allocate.
    // SAFETY: `buffer` is writable for its length.
    let len = unsafe { raw::call!(SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    // The zero at the end is counted. One that cannot be reached from the root has no slash in front.
    let path = buffer.get(..len.unwrap_or(0).saturating_sub(1)).unwrap_or_default();
    if path.starts_with(b"/") { path } else { &[] }
}

/// Identifies the file behind a descriptor, to tell later whether the descriptor still stands for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    special: u64,
}

impl Identity {
    /// The identity of a descriptor's file; `None` when it is not open.
    pub(crate) fn of(fd: i32) -> Option<Identity> {
        stat_of(fd).as_ref().map(Identity::from)
    }

    fn from(stat: &libc::stat) -> Identity {
        Identity { device: stat.st_dev, inode: stat.st_ino, special: stat.st_rdev }
    }
}

/// What the system knows of a descriptor's file; `None` when it is not open.
fn stat_of(fd: i32) -> Option<libc::stat> {
    if cfg!(miri) {
        return None;
    }
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is a local variable that the call writes to.
    let failed = calls::keep_errno(|| unsafe { libc::fstat(fd, &mut stat) }) != 0;
    (!failed).then_some(stat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn no_file_is_a_standard_one() {
        assert!(crate::os::child::is_so(|| {
            // SAFETY: in a process of its own, which needs none of them.
            (0..3).for_each(|fd| assert_eq!(unsafe { libc::close(fd) }, 0));
            let file = File::read_only(c"/dev/null").unwrap();
            // SAFETY: only asks.
            let is_closed = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1;
            file.fd() > 2 && (0..3).all(is_closed)
        }));
    }

    #[test]
    fn a_draft_has_room_for_its_ending_and_whole_characters() {
        for letter in ["n", "\u{e9}", "\u{20ac}", "\u{1f980}"] {
            for len in 1..255 / letter.len() {
                for first in ["", "a", "aa", "aaa"] {
                    let name = format!("{first}{}", letter.repeat(len));
                    let path = format!("/folder of some length/{name}");
                    let short = String::from_utf8(shortened(path.as_bytes()).to_vec()).unwrap();
                    assert!(path.starts_with(&short));
                    let draft = short.len() + ENDING.len();
                    let most = if name.len() <= SHORT { path.len() + ENDING.len() } else { path.len() };
                    assert!(draft <= most && draft + 3 >= most, "{path}");
                }
            }
        }
        // What is no text is cut all the same.
        let path = [b'/'; 1].into_iter().chain([0xbf; 255]).collect::<std::vec::Vec<_>>();
        assert_eq!(shortened(&path).len(), 256 - ENDING.len());
    }
}
