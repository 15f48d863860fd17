//! The records that the process writes: when it starts, and the statistics at its end.

use crate::base::options::{self, StatsFormat};
use crate::os::file::{File, Identity};
use crate::os::message::Text;
use crate::{os, stats};
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};

/// Once, when the process begins: where statistics are to go. Many programs close standard error before they exit, and our handler
/// runs after theirs.
pub(super) fn begin() {
    let file = options::get().stats_file.as_c_str();
    match options::get().stats {
        StatsFormat::None => {}
        _ if file.is_none() => STDERR.init(),
        StatsFormat::Json => announce(),
        StatsFormat::Table => {}
    }
}

/// In the child of a fork.
pub(super) fn begin_child() {
    if options::get().stats == StatsFormat::Json && options::get().stats_file.as_c_str().is_some() {
        announce();
    }
}

/// Writes the start record: the process is on Hakmem, whatever becomes of it.
fn announce() {
    let mut text = Text::<128>::new();
    let pid = os::process_id();
    let _ =
        writeln!(text, "{{\"hakmem\":\"{}\",\"event\":\"start\",\"pid\":{pid}}}", env!("CARGO_PKG_VERSION"));
    with_stats_file(|fd| text.send(fd));
}

/// Prints the statistics that were asked for at exit.
pub(super) fn print_at_exit() {
    let format = options::get().stats;
    if format != StatsFormat::None {
        with_stats_file(|fd| stats::write(fd, format == StatsFormat::Json));
    }
}

/// Runs `f` with the file for statistics, or standard error. Not at all where that is not to be had any more: a daemon has closed
/// what it did not open itself, and the number may stand for a file of its own by now.
fn with_stats_file(f: impl FnOnce(i32)) {
    if let Some(path) = options::get().stats_file.as_c_str() {
        match File::append(path) {
            Some(file) => f(file.fd()),
            None => {
                let path = os::message::Shown(path.to_bytes());
                os::message::line(format_args!("HAKMEM_STATS_FILE: cannot open {path}"));
                f(2);
            }
        }
        return;
    }
    let Some(stderr) = STDERR.get() else { return };
    let is_it = |fd: &i32| Identity::of(*fd) == Some(stderr.identity);
    if let Some(fd) = [stderr.copy, 2].into_iter().find(is_it) {
        f(fd);
    }
}

/// Where statistics go when they do not go to a file.
#[derive(Clone, Copy)]
struct Stderr {
    /// A duplicate of standard error, which many programs close before they exit.
    copy: i32,
    identity: Identity,
}

/// [`Stderr`], written once by the thread that hooks the process.
struct StderrCell(UnsafeCell<Option<Stderr>>, AtomicBool);

// SAFETY: written once, before the flag is set, and read after that only.
unsafe impl Sync for StderrCell {}

static STDERR: StderrCell = StderrCell(UnsafeCell::new(None), AtomicBool::new(false));

impl StderrCell {
    /// Looks at what standard error is now.
    fn init(&self) {
        let stderr = Identity::of(2).map(|identity| Stderr { copy: os::duplicate(2), identity });
        // SAFETY: only `remember_stderr` calls this, which runs once.
        unsafe { *self.0.get() = stderr };
        // Release: pairs with the acquire in `get`.
        self.1.store(true, Ordering::Release);
    }

    fn get(&self) -> Option<Stderr> {
        // Acquire: pairs with the release in `init`.
        // SAFETY: written before, and not again.
        self.1.load(Ordering::Acquire).then(|| unsafe { *self.0.get() }).flatten()
    }
}
