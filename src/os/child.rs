//! For tests: the child of a fork, in which no other thread runs.

use std::cell::Cell;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::string::String;

std::thread_local! {
    /// Whether this test has passed in a process of its own.
    static HAS_PASSED: Cell<bool> = const { Cell::new(false) };
}

/// Set in such a process.
const ALONE: &str = "TEST_ALONE";

/// No test takes as many seconds alone, unless it hangs.
const LIMIT: libc::c_uint = 900;

/// Says that the calling test leaves something out, past the harness's capture, and in the file that
/// `TEST_SKIPS` names, if it does. As `tests/support/skips.rs` does for other tests.
pub(crate) fn skip(reason: &str) {
    let line = std::format!("SKIPPED: {}: {reason}\n", std::thread::current().name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("TEST_SKIPS") {
        let file = std::fs::File::options().create(true).append(true).open(path);
        // If that fails it has been said all the same.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Whether the calling test runs in a process of its own, where no other test is at anything. Elsewhere it
/// runs this test in one, from its beginning, and fails if it does not pass there: the caller is done then.
pub(crate) fn is_alone() -> bool {
    if std::env::args().any(|arg| arg == "--test-threads=1") {
        if std::env::var_os(ALONE).is_some() {
            // SAFETY: takes a number. The signal ends the process.
            unsafe { libc::alarm(LIMIT) };
        }
        return true;
    }
    if !HAS_PASSED.get() {
        assert!(passes_alone());
        HAS_PASSED.set(true);
    }
    false
}

/// Whether `f` says so in a child. The threads of other tests may be anywhere when one is made, so that what
/// they are at is torn there: so it is made by a process that runs the calling test alone.
pub(crate) fn is_so(f: impl FnOnce() -> bool) -> bool {
    !is_alone() || is_so_here(f)
}

fn passes_alone() -> bool {
    let thread = std::thread::current();
    // The harness calls a test's thread by the test's name.
    let name = thread.name().expect("the thread of a test");
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--include-ignored", "--test-threads=1", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let error = String::from_utf8_lossy(&out.stderr);
    let passes = out.status.success() && text.contains("1 passed");
    for line in error.lines().filter(|line| line.starts_with("SKIPPED: ")) {
        let _ = std::io::stderr().write_all(std::format!("{line}\n").as_bytes());
    }
    if !passes {
        std::eprintln!("{name}, alone: {}\n{text}{error}", out.status);
    }
    passes
}

fn is_so_here(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does what `f` does, in memory of its own, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            // Another thread may have had what a panic needs here: the child would wait for that for ever.
            libc::alarm(60);
            // A panic would end it as if all were well.
            let is_so = catch_unwind(AssertUnwindSafe(f));
            libc::_exit(if is_so.unwrap_or(false) { 0 } else { 1 });
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0) == child && status == 0
    }
}
