//! Running the program so that nobody notices that it has a parent in between.
//!
//! The program stays in our process group, as in a pipeline of the shell: whatever the terminal generates
//! reaches it directly, and we take no part. Only what somebody sent to *us* is passed on. A `kill` of the
//! whole group cannot be told from one of us alone, so there the program may see the signal twice.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::report::printable;
use crate::sys::{self, Arrived, Change};

/// What is passed on. SIGKILL and SIGSTOP cannot be.
const FORWARDED: [Signal; 9] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

/// A program that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Its process id.
    pub pid: i32,
    /// How it ended.
    pub status: Status,
    /// The kernel's figure: the largest resident size of any one process among it and those it waited for.
    pub peak_resident: u64,
}

/// Starts `command` and stays with it to its end. An error means that it was not started.
pub fn run(command: &mut Command) -> io::Result<Outcome> {
    run_and(command, || ())
}

/// The same, and at the program's end `tidy` before a signal can end this process again.
pub fn run_and(command: &mut Command, tidy: impl FnOnce()) -> io::Result<Outcome> {
    let mut watched: SigSet = FORWARDED.into_iter().collect();
    watched.add(Signal::SIGCHLD);
    // Blocked before the start, so that nothing is lost; sigtimedwait takes them one by one.
    let before = watched.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // SAFETY: the closure calls only sigprocmask, signal and close, which are allowed between fork and exec.
    // (Having one also makes std fork instead of vfork, whose child would inherit our own peak resident
    // size.)
    unsafe {
        command.pre_exec(move || {
            sys::set_action(libc::SIGPIPE, sys::INHERITED.sigpipe_ignored.load(Ordering::Relaxed));
            sys::set_action(libc::SIGCHLD, sys::INHERITED.sigchld_ignored.load(Ordering::Relaxed));
            sys::close_what_was_closed();
            before.thread_set_mask().map_err(io::Error::from)
        });
    }
    let spawned = command.spawn();
    if spawned.is_err() {
        before.thread_set_mask()?;
    }
    let mut program = Program { pid: spawned?.id() as i32, stopped: None, told_to_stop: false };
    loop {
        // About to stop: first see whether something else, such as SIGCONT, has arrived already.
        let stop = program.we_should_stop();
        match sys::next_signal(&watched, stop) {
            Some(Arrived { signal: libc::SIGCHLD, .. }) => {
                if let Some(outcome) = program.observe()? {
                    // What was still meant for the program came too late; from here on it is meant for us.
                    while sys::next_signal(&watched, true).is_some() {}
                    tidy();
                    before.thread_set_mask()?;
                    return Ok(outcome);
                }
            }
            Some(arrived) => program.receive(arrived),
            None => program.stop_us(),
        }
    }
}

/// Why the program did not start, in words, and the exit status that a shell would give.
pub fn not_started(program: &OsStr, error: &io::Error) -> (String, u8) {
    let exists = program.as_encoded_bytes().contains(&b'/') && Path::new(program).exists();
    let (what, code) = match error.kind() {
        io::ErrorKind::NotFound if exists => ("the interpreter it asks for is missing".to_string(), 127),
        io::ErrorKind::NotFound => ("program not found".to_string(), 127),
        io::ErrorKind::PermissionDenied => ("program not executable (permission denied)".to_string(), 126),
        _ => (format!("cannot be executed: {error}"), 126),
    };
    (format!("{}: {what}", printable(program)), code)
}

/// The running program.
struct Program {
    pid: i32,
    /// The signal that stopped it, until we have followed.
    stopped: Option<i32>,
    /// We were told to stop ourselves, and will as soon as the program does.
    told_to_stop: bool,
}

impl Program {
    /// Takes note of every change of the program; `Some` at its end.
    fn observe(&mut self) -> io::Result<Option<Outcome>> {
        while let Some((change, peak_resident)) = sys::poll_child(self.pid)? {
            let status = match change {
                Change::Exited(code) => Status::Exited(code),
                Change::Killed(signal) => Status::Killed(signal),
                Change::Stopped(signal) => {
                    self.stopped = Some(signal);
                    continue;
                }
                Change::Continued => {
                    self.stopped = None;
                    continue;
                }
            };
            return Ok(Some(Outcome { pid: self.pid, status, peak_resident }));
        }
        Ok(None)
    }

    /// Passes a signal on, unless the program has it already.
    fn receive(&mut self, arrived: Arrived) {
        match arrived.signal {
            libc::SIGTSTP => self.told_to_stop = true,
            // Whatever stop there was, it is over, though the kernel may not have reported that yet.
            libc::SIGCONT => (self.told_to_stop, self.stopped) = (false, None),
            _ => {}
        }
        // From the terminal: the program got it too. From the program: it meant its group, or its parent.
        if arrived.by_process && arrived.sender != self.pid {
            sys::send(self.pid, arrived.signal);
        }
    }

    /// Whether we must follow the program into a stop: the shell waits for *us* to stop before it takes the
    /// terminal back. Elsewhere a program that is stopped for a while (by a debugger, say) is no business of
    /// ours, and nobody would wake us up.
    fn we_should_stop(&self) -> bool {
        self.stopped.is_some_and(|signal| {
            self.told_to_stop || matches!(signal, libc::SIGTTIN | libc::SIGTTOU) || in_foreground()
        })
    }

    /// Stops this process until somebody sends SIGCONT.
    fn stop_us(&mut self) {
        self.stopped = None;
        self.told_to_stop = false;
        sys::send(std::process::id() as i32, libc::SIGSTOP);
    }
}

/// Whether our process group has the terminal.
fn in_foreground() -> bool {
    let Ok(terminal) = std::fs::File::open("/dev/tty") else { return false };
    nix::unistd::tcgetpgrp(&terminal).is_ok_and(|group| group == nix::unistd::getpgrp())
}

impl Status {
    /// Leaves this process the way the program left: the same code, or by the same signal.
    pub fn leave(self) -> ! {
        let signal = match self {
            Status::Exited(code) => std::process::exit(code),
            Status::Killed(signal) => signal,
        };
        // The program has left its core; ours would only be in the way. The limit does not hold for a core
        // that goes to a pipe, the other does.
        let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
        let _ = nix::sys::prctl::set_dumpable(false);
        if signal != libc::SIGKILL {
            sys::set_action(signal, false);
        }
        sys::unblock(signal);
        sys::send(std::process::id() as i32, signal);
        std::process::exit(128 + signal)
    }

    /// How it ended, in words, where that explains a missing report.
    pub fn in_words(self) -> String {
        match self {
            Status::Exited(_) => {
                "it left by _exit, became another program by exec, or had confined itself to few system calls"
                    .to_string()
            }
            Status::Killed(number) => match Signal::try_from(number) {
                Ok(signal) => format!("killed by {signal}"),
                Err(_) => format!("killed by signal {number}"),
            },
        }
    }
}
