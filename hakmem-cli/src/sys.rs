//! The system calls that neither std nor nix offers, each in a safe dress.

mod family;
pub mod interrupt;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// A signal that arrived, and who sent it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// True when a process sent it (`kill` and its relatives), false when the kernel did (the terminal).
    pub by_process: bool,
    /// The sending process where `by_process`.
    pub sender: i32,
}

/// Waits until a signal of `set`, which must be blocked, arrives. With `poll` returns `None` if none is
/// there.
pub fn next_signal(set: &SigSet, poll: bool) -> Option<Arrived> {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = if poll { &raw const zero } else { std::ptr::null() };
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: all three point at live values of the right types; a null timeout means "no limit".
        let signal = unsafe { libc::sigtimedwait(set.as_ref(), info.as_mut_ptr(), timeout) };
        if signal > 0 {
            // SAFETY: the call succeeded and filled it in; it was zeroed before, so every field has a value.
            let info = unsafe { info.assume_init() };
            // SAFETY: a plain field of the union, valid for signals sent by a process and 0 or junk
            // otherwise.
            let sender = unsafe { info.si_pid() };
            return Some(Arrived { signal, by_process: info.si_code <= 0, sender });
        }
        // EINTR (a signal outside the set, a stop) means try again, EAGAIN that the poll found nothing.
        if poll && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// How a child changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// It called exit, with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// This signal stopped it.
    Stopped(i32),
    /// It goes on after a stop.
    Continued,
}

/// Asks, without waiting, whether child `pid` changed; with its peak resident bytes.
pub fn poll_child(pid: i32) -> io::Result<Option<(Change, u64)>> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    // SAFETY: both out-pointers point at live values of the right types.
    let got = unsafe { libc::wait4(pid, &mut status, flags, usage.as_mut_ptr()) };
    match got {
        -1 => return Err(io::Error::last_os_error()),
        0 => return Ok(None),
        _ => {}
    }
    // SAFETY: rusage is plain numbers, all zero before the call.
    let peak = unsafe { usage.assume_init() }.ru_maxrss as u64 * 1024;
    let change = if libc::WIFEXITED(status) {
        Change::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else {
        Change::Continued
    };
    Ok(Some((change, peak)))
}

/// Sends `signal` to `pid`. Errors are of no use to a forwarder (gone, or not allowed), so there are none.
pub fn send(pid: i32, signal: i32) {
    // SAFETY: takes plain numbers.
    unsafe { libc::kill(pid, signal) };
}

/// Gives `signal` (real-time ones too, which nix cannot name) the default or the ignoring action.
pub fn set_action(signal: i32, ignore: bool) {
    // SAFETY: neither action is a function of ours.
    unsafe { libc::signal(signal, if ignore { libc::SIG_IGN } else { libc::SIG_DFL }) };
}

/// Whether `signal` is ignored.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; the out-pointer points at a live value, of plain numbers, zero if the call fails.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Does something to files as another user would. Only root can be somebody else.
pub fn as_user<T: Send>(user: u32, group: u32, groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    let run = || {
        // SAFETY: past the C library's functions, which would change all threads: these change the calling
        // one alone, which ends after it. The list of groups is as long as it says.
        unsafe {
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
            libc::setfsgid(group);
            libc::setfsuid(user);
        }
        act()
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("the closure does not panic"))
}

/// What the kernel says of a process in one of its files, with a replacement for what is no character: it
/// cuts a name after 15 bytes wherever that is, and paths have any bytes.
pub fn proc_text(pid: i32, file: &str) -> io::Result<String> {
    std::fs::read(format!("/proc/{pid}/{file}")).map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// Lets `signal` through to this thread.
pub fn unblock(signal: i32) {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a live value, filled in by sigemptyset before anything reads it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Whether `path` carries file capabilities, which make the loader ignore LD_PRELOAD.
pub fn has_capabilities(path: &std::path::Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: two C strings; size 0 asks only for the length and writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// How it was when this process was started: which of the signals that it sets otherwise itself were ignored,
/// and which standard descriptors were closed.
pub struct Inherited {
    /// Rust's start-up code ignores it before `main`.
    pub sigpipe_ignored: AtomicBool,
    /// Ignored, it would make `wait4` fail.
    pub sigchld_ignored: AtomicBool,
    /// Rust's start-up code opens /dev/null in their place.
    closed: [AtomicBool; 3],
}

/// Filled in by `remember`.
pub static INHERITED: Inherited = Inherited {
    sigpipe_ignored: AtomicBool::new(false),
    sigchld_ignored: AtomicBool::new(false),
    closed: [const { AtomicBool::new(false) }; 3],
};

impl Inherited {
    /// Whether a standard descriptor was closed.
    pub fn is_closed(&self, descriptor: i32) -> bool {
        self.closed[descriptor as usize].load(Ordering::Relaxed)
    }
}

/// Between fork and exec: closes the standard descriptors that were closed when this process was started.
pub fn close_what_was_closed() {
    for descriptor in (0..3).filter(|&descriptor| INHERITED.is_closed(descriptor)) {
        // SAFETY: takes a plain number, of a descriptor that nothing here owns.
        unsafe { libc::close(descriptor) };
    }
}

/// Runs before Rust's start-up code, so that a program started later gets what we got.
extern "C" fn remember() {
    INHERITED.sigpipe_ignored.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    INHERITED.sigchld_ignored.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
    set_action(libc::SIGCHLD, false);
    for (descriptor, closed) in (0..).zip(&INHERITED.closed) {
        // SAFETY: only asks, for a plain number.
        closed.store(unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1, Ordering::Relaxed);
    }
}

// SAFETY: the loader calls each pointer in this section once, before `main`; `remember` needs no runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

/// What a process and the children it waited for have used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// Seconds of processor time in user mode.
    pub user: f64,
    /// Seconds of processor time in the kernel.
    pub system: f64,
    /// The largest resident size of any one of them, bytes.
    pub peak: u64,
    /// Page faults served without reading from a disk.
    pub minor: u64,
    /// Page faults that had to.
    pub major: u64,
}

/// A child that has ended and was not waited for, if there is one. nix has this call, too, but fails where
/// the child was ended by a real-time signal.
pub fn ended_child() -> Option<i32> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the out-pointer points at a live value of the right type, all zero, which is valid for it; the
    // call leaves it so or fills it in as for a SIGCHLD.
    let pid = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) == -1 {
            return None;
        }
        info.assume_init().si_pid()
    };
    (pid != 0).then_some(pid)
}

/// Waits for the end of child `pid`.
pub fn reap(pid: i32) -> io::Result<(Change, Used)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both out-pointers point at live values of the right types.
        if unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) } != -1 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: rusage is plain numbers, all zero before the call.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    let used = Used {
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
        peak: usage.ru_maxrss as u64 * 1024,
        minor: usage.ru_minflt as u64,
        major: usage.ru_majflt as u64,
    };
    let change = if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else {
        Change::Exited(libc::WEXITSTATUS(status))
    };
    Ok((change, used))
}

/// The columns of the terminal that `file` is, if it is one.
pub fn columns(file: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: this request writes one such struct.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_col > 0).then_some(size.ws_col.into())
}

/// Gives back what this process has freed: a fork copies it, which hides the peaks of small programs.
pub fn trim() {
    // SAFETY: gives back free memory only.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The least peak that the kernel reports for a child of this process: what a fork copies, before any exec.
pub fn forked_peak() -> io::Result<u64> {
    // SAFETY: the child does nothing but exit, which is allowed after a fork whatever other threads hold.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: ends the child.
        0 => unsafe { libc::_exit(0) },
        pid => Ok(reap(pid)?.1.peak),
    }
}

/// A process that can be waited for with a time limit, without reaping it.
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Of child `pid`.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: takes plain numbers and returns a new descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Whether it has ended; waits up to `limit` for that.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        match unsafe { libc::poll(&mut poll, 1, limit.as_millis().min(i32::MAX as u128) as i32) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(false),
            -1 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }
}

/// Between fork and exec: the new process is killed when this one dies.
pub fn die_with_parent() -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
}
