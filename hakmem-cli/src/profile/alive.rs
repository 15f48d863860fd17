//! Shows that a long run is alive, without a character among what the program prints: in the terminal's
//! title.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
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
            let (mut shown, mut held) = (false, Held::default());
            while receiver.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if !ours() {
                    continue;
                }
                // The title there was is kept on the terminal's stack.
                let save = if shown { "" } else { "\x1b[22;0t" };
                shown = true;
                let held = match held.at_last(&files(), |pid| Path::new(&format!("/proc/{pid}")).exists()) {
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

/// What all processes hold that still run.
#[derive(Default)]
struct Held {
    /// The files of those that have ended, and their lengths: they are not read again. Another program of the
    /// same process begins the file anew.
    ended: HashMap<PathBuf, u64>,
    /// How long all files were at the last look.
    lengths: HashMap<PathBuf, u64>,
}

impl Held {
    /// Bytes held at their last snapshots. `None` if one of them has none that can be read, or none runs.
    fn at_last(&mut self, files: &[PathBuf], runs: impl Fn(u32) -> bool) -> Option<f64> {
        let mut sum = None;
        for path in files {
            let length = path.metadata().ok()?.len();
            if self.ended.get(path) == Some(&length) {
                continue;
            }
            let raw = file::read(&std::fs::read(path).ok().filter(|_| length <= LARGEST)?).ok()?;
            // In another namespace it has another number. There it counts as long as it writes.
            let is_silent = self.lengths.insert(path.clone(), length) == Some(length);
            if raw.end.is_some() || is_silent && !runs(raw.process.pid) {
                self.ended.insert(path.clone(), length);
                continue;
            }
            sum = Some(sum.unwrap_or(0.0) + raw.snapshots.last()?.totals.live as f64);
        }
        sum
    }
}

fn write(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Says that it begins, to somebody who is watching.
pub fn begin(name: &str, folder: &Path) {
    if std::io::stderr().is_terminal() {
        report::say(&format!(
            "hakmem: profiling {name}; tables come at its end, files in {}",
            folder.display()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hakmem_profile::file::{Process, Totals, Why, Writer};

    #[test]
    fn only_processes_that_run_hold_memory() {
        let folder = tempfile::tempdir().unwrap();
        let write = |pid: u32, live: u64, ends: bool| {
            let mut writer =
                Writer::new(&Process { pid, rate: 1 << 19, page_size: 4096, ..Process::default() });
            writer.snapshot(0, Why::Timer, &Totals { live, ..Totals::default() }, &[]);
            if ends {
                writer.end(Why::End);
            }
            let path = folder.path().join(pid.to_string());
            std::fs::write(&path, writer.bytes()).unwrap();
            path
        };
        let files = [write(1, 100, false), write(2, 20, true), write(3, 3, false)];
        let mut held = Held::default();
        assert_eq!(held.at_last(&files, |pid| pid != 3), Some(103.0), "it may have written just now");
        assert_eq!(held.at_last(&files, |pid| pid != 3), Some(100.0));
        assert_eq!(held.ended.len(), 2);
        assert_eq!(held.at_last(&[], |_| true), None);
        // Process 2 has become another program, which begins the file anew.
        write(2, 7, false);
        assert_eq!(held.at_last(&files, |pid| pid != 3), Some(107.0));
        assert_eq!(held.at_last(&files, |_| false), None, "nobody has written since");
    }
}
