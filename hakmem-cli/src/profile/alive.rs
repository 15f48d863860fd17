//! Shows that a long run is alive, without a character among what the program prints: in the terminal's
//! title.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hakmem_profile::file;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::termios::{self, LocalFlags};

use super::units::{bytes, time};
use crate::report;

/// How often the title changes. Shorter runs need none.
const EVERY: Duration = Duration::from_secs(5);

/// Files that are larger are not read while the program runs.
const LARGEST: u64 = 32 << 20;

/// Changes the title as long as it exists.
pub struct Alive(Option<(Sender<()>, JoinHandle<()>)>);

impl Alive {
    /// For a run of `name`; `files` finds the profiles that it is writing. Nothing happens where stderr is no
    /// terminal.
    pub fn new(name: String, files: impl Fn() -> Vec<PathBuf> + Send + 'static) -> Self {
        if !std::io::stderr().is_terminal() || std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
            return Self(None);
        }
        let (sender, receiver) = mpsc::channel();
        // Signals are for the thread that passes them on to the program.
        let Ok(before) = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return Self(None) };
        let show = move || {
            let start = Instant::now();
            let mut shown = false;
            while receiver.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if !ours() {
                    continue;
                }
                // The title there was is kept on the terminal's stack.
                let save = if shown { "" } else { "\x1b[22;0t" };
                shown = true;
                let held = match held(&files()) {
                    Some(held) => format!(", {} held", bytes(held)),
                    None => String::new(),
                };
                let elapsed = time(start.elapsed().as_nanos() as f64);
                write(&format!("{save}\x1b]0;hakmem profile: {name}, {elapsed}{held}\x07"));
            }
            if shown {
                write("\x1b[23;0t");
            }
        };
        let thread = std::thread::Builder::new().spawn(show);
        let _ = before.thread_set_mask();
        Self(thread.ok().map(|thread| (sender, thread)))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// Whether the terminal is ours to write to: we are in the foreground, and no program has taken it over as a
/// whole screen.
fn ours() -> bool {
    let terminal = std::io::stderr();
    nix::unistd::tcgetpgrp(&terminal).is_ok_and(|group| group == nix::unistd::getpgrp())
        && termios::tcgetattr(&terminal).is_ok_and(|set| set.local_flags.contains(LocalFlags::ICANON))
}

/// Bytes held by all processes at their last snapshots.
fn held(files: &[PathBuf]) -> Option<f64> {
    let last = |path: &PathBuf| {
        let small = path.metadata().is_ok_and(|meta| meta.len() <= LARGEST);
        let raw = file::read(&std::fs::read(path).ok().filter(|_| small)?).ok()?;
        Some(raw.snapshots.last()?.totals.live as f64)
    };
    let all: Option<Vec<f64>> = files.iter().map(last).collect();
    all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

fn write(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Says that it begins, to somebody who is watching.
pub fn begin(name: &str, folder: &std::path::Path) {
    if std::io::stderr().is_terminal() {
        report::say(&format!(
            "hakmem: profiling {name}; tables come at its end, files in {}",
            folder.display()
        ));
    }
}
