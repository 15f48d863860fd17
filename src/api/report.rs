//! What the process writes: a record when it starts, and statistics when it ends.

use crate::api::folder;
use crate::base::once::Once;
use crate::base::options::{self, StatsFormat};
use crate::os::file::{self, File, Identity};
use crate::os::message::{self, Text};
use crate::{os, stats};
use core::ffi::CStr;
use core::fmt::Write;

/// Prepares the output of statistics. Called once, when the process starts: many programs close standard
/// error before they exit, and our handler runs after theirs.
pub(super) fn begin() {
    if os::is_confined() {
        return;
    }
    let options = options::get();
    if options.stats != StatsFormat::None {
        // With a file it is only for when that cannot be opened: not worth a descriptor.
        let copy = if options.stats_file.as_c_str().is_none() { os::duplicate(2) } else { 2 };
        STDERR.init(|| Identity::of(2).map(|identity| Stderr { copy, identity }));
    }
    if options.stats_file.as_c_str().is_some_and(|path| !path.to_bytes().starts_with(b"/")) {
        folder::remember();
    }
    announce();
}

/// Writes the start record, if there is a file for it. It shows that the process uses Hakmem, even if it
/// never gets to write statistics. One that has confined itself may not: so its children say nothing.
pub(super) fn announce() {
    let options = options::get();
    if os::is_confined() || options.stats != StatsFormat::Json || options.stats_file.as_c_str().is_none() {
        return;
    }
    let mut text = Text::<128>::new();
    let pid = os::process_id();
    let _ =
        writeln!(text, "{{\"hakmem\":\"{}\",\"event\":\"start\",\"pid\":{pid}}}", env!("CARGO_PKG_VERSION"));
    with_stats_file(|fd| text.send(fd));
}

/// Prints the statistics that were asked for at exit, unless the process may not make the system calls for
/// that: its end is not to become another one.
pub(super) fn print_at_exit() {
    let format = options::get().stats;
    if format != StatsFormat::None && !os::is_confined() {
        let json = format == StatsFormat::Json;
        with_stats_file(|fd| stats::write(json, stats::Event::Exit, &mut |text| _ = file::write(fd, text)));
    }
}

/// Runs `f` with the file for statistics, or standard error, also when the file cannot be opened. Does not
/// run it if standard error has gone: a daemon closes it, and the descriptor may stand for a file of the
/// daemon's own by now.
fn with_stats_file(f: impl FnOnce(i32)) {
    let path = options::get().stats_file.as_c_str();
    if let Some(file) = path.and_then(open) {
        return f(file.fd());
    }
    let Some(Some(stderr)) = STDERR.get() else { return };
    let is_it = |fd: &i32| Identity::of(*fd) == Some(stderr.identity);
    let Some(fd) = [stderr.copy, 2].into_iter().find(is_it) else { return };
    if let Some(path) = path {
        let path = message::Shown(path.to_bytes());
        message::line_to(fd, format_args!("HAKMEM_STATS_FILE: cannot open {path}"));
    }
    f(fd);
}

/// Opens the file for statistics, in the folder in which the process started. Not a part of its caller, so
/// that the path is off the stack while the statistics are written.
#[inline(never)]
fn open(path: &CStr) -> Option<File> {
    if path.to_bytes().starts_with(b"/") {
        return File::append(path);
    }
    let mut whole = Text::<{ folder::LONGEST + 256 + 1 }>::new();
    folder::push(&mut whole);
    whole.push(path.to_bytes_with_nul());
    CStr::from_bytes_until_nul(whole.bytes()).ok().and_then(File::append)
}

/// Standard error as it was when the process started: where statistics go if there is no file for them.
struct Stderr {
    /// A duplicate of standard error, which many programs close before they exit, or that itself.
    copy: i32,
    identity: Identity,
}

/// What it was, if it was open.
static STDERR: Once<Option<Stderr>> = Once::new();
