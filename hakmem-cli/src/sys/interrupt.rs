//! What is not to outlive this command when a signal ends it: programs that it has started, and folders that
//! it has made for temporary files.
//!
//! A signal's handler may do next to nothing, so it only wakes a thread that does it all. That takes the lock
//! for good: who would start or make something else, or say that all is done, waits for the end.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use tempfile::TempDir;

use super::family::Family;

/// What there is to be ended and removed.
struct Held {
    /// The process group of the program that runs, 0 for none.
    group: i32,
    /// Whether [`watch`] was called.
    watched: bool,
    /// What the programs have started, once there was one.
    family: Option<Family>,
    folders: Vec<PathBuf>,
}

static HELD: Mutex<Held> = Mutex::new(Held { group: 0, watched: false, family: None, folders: Vec::new() });

/// Where the handler writes to, and whose it is: a child has it until it executes another program.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicI32 = AtomicI32::new(0);

/// How often this process went on after it had been stopped.
static PAUSES: AtomicU32 = AtomicU32::new(0);

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on a signal that ends this command ends the programs, too, and removes the folders.
pub fn watch() -> io::Result<()> {
    let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    // The thread is not to be interrupted itself.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let thread = std::thread::Builder::new().spawn(move || wait(File::from(reader)));
    before.thread_set_mask()?;
    thread?;
    held().watched = true;
    PIPE.store(writer.into_raw_fd(), Ordering::SeqCst);
    OWNER.store(std::process::id() as i32, Ordering::SeqCst);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // Ignored, as under nohup: stays so.
        if !super::is_ignored(signal) {
            let handler = arrived as extern "C" fn(i32) as libc::sighandler_t;
            // SAFETY: the handler calls only getpid, write, signal and raise, which are allowed in one.
            unsafe { libc::signal(signal, handler) };
        }
    }
    let handler = continued as extern "C" fn(i32) as libc::sighandler_t;
    // SAFETY: the handler only adds to a number.
    unsafe { libc::signal(libc::SIGCONT, handler) };
    Ok(())
}

/// How often this process was stopped, by Ctrl-Z or otherwise, and went on again since [`watch`].
pub fn pauses() -> u32 {
    PAUSES.load(Ordering::SeqCst)
}

extern "C" fn continued(_: i32) {
    PAUSES.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn arrived(signal: i32) {
    // SAFETY: a plain system call.
    let own = unsafe { libc::getpid() };
    if own == OWNER.load(Ordering::SeqCst) {
        let byte = signal as u8;
        // SAFETY: one live byte; the place of errno is this thread's, which the interrupted code may be about
        // to read.
        unsafe {
            let errno = *libc::__errno_location();
            libc::write(PIPE.load(Ordering::SeqCst), (&raw const byte).cast(), 1);
            *libc::__errno_location() = errno;
        }
    } else {
        super::set_action(signal, false);
        // SAFETY: takes a number; delivered when this handler returns, with the default action.
        unsafe { libc::raise(signal) };
    }
}

/// Waits for a signal, ends and removes everything, and then this process by that signal.
fn wait(mut pipe: File) {
    let mut signal = [0];
    if pipe.read_exact(&mut signal).is_err() {
        return;
    }
    let signal = i32::from(signal[0]);
    let held = held();
    if held.group > 0 {
        super::send(-held.group, libc::SIGKILL);
    }
    // Who waits for the program reaps it.
    held.family.iter().for_each(|family| family.kill(false));
    held.folders.iter().for_each(|folder| remove(folder));
    super::set_action(signal, false);
    super::unblock(signal);
    super::send(std::process::id() as i32, signal);
    std::process::exit(128 + signal)
}

/// What was killed may still make a file meanwhile.
fn remove(folder: &Path) {
    for _ in 0..10 {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                std::thread::sleep(Duration::from_millis(5))
            }
            _ => return,
        }
    }
}

/// Before the first program is started: from here on all that is started is ended with it. Not what was
/// before, such as a daemon of the compiler's, where the library had to be built.
pub fn begin() {
    let mut held = held();
    if held.watched && held.family.is_none() {
        held.family = Some(Family::new());
    }
}

/// The program that runs, while this lives.
pub struct Program {
    pid: i32,
    /// Whether it has been waited for, which makes its number free.
    over: bool,
}

impl Program {
    /// It leads this process group; there is one such at a time.
    pub fn of_group(group: i32) -> Self {
        held().group = group;
        Self { pid: group, over: false }
    }

    /// Sends SIGKILL to it, its group and all that it has started: it may have left the group.
    pub fn strike(&self) {
        [-self.pid, self.pid].into_iter().for_each(|one| super::send(one, libc::SIGKILL));
        held().family.iter().for_each(|family| drop(family.strike()));
    }

    /// Reaps what it has started and nobody waits for.
    pub fn reap_orphans(&self) {
        held().family.iter().for_each(|family| family.reap_besides(self.pid));
    }

    /// Whether something that it has started goes on when it has ended itself. What notices that, and ends
    /// within a second, does not.
    pub fn leaves_something(&self) -> bool {
        let lives = || held().family.as_ref().is_some_and(|family| family.lives_besides(self.pid));
        !(0..50).any(|_| {
            let over = !lives();
            if !over {
                std::thread::sleep(Duration::from_millis(20));
            }
            over
        })
    }

    /// Ends what it has left behind in other groups. It must have been waited for.
    pub fn end_family(mut self) {
        self.over = true;
        let mut held = held();
        // It was reaped, so another group may get the number.
        held.group = 0;
        held.family.iter().for_each(Family::end);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It could not be watched to its end: others may be measured all the same.
        if !self.over {
            self.strike();
        }
        held().group = 0;
    }
}

/// A folder for temporary files.
#[derive(Debug)]
pub struct Folder(Option<TempDir>);

impl Folder {
    /// The one that `make` makes.
    pub fn new(make: impl FnOnce() -> io::Result<TempDir>) -> io::Result<Self> {
        // Locked while it is made: else it might be made after all others were removed.
        let mut held = held();
        let folder = make()?;
        held.folders.push(folder.path().into());
        Ok(Self(Some(folder)))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.as_ref().expect("there until it is dropped").path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mut held = held();
        held.folders.retain(|folder| folder != self.path());
        drop(self.0.take());
    }
}
