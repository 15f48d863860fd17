//! Tests in processes of their own, with options in the environment.
#![allow(dead_code)]

use std::process::{Command, Output};

// Some tests have these by `mod.rs`, too.
#[allow(clippy::duplicate_mod)]
#[path = "limited.rs"]
mod limited;
#[allow(clippy::duplicate_mod)]
#[path = "skips.rs"]
pub mod skips;

/// Says which test's process this is.
const CASE: &str = "TEST_WITH_OPTIONS";

/// Runs the test `name` in a process with these options, where it does `f`. Returns how that has ended;
/// `None` in that process.
pub fn process(name: &str, options: &[(&str, &str)], f: impl FnOnce()) -> Option<Output> {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        f();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    Some(limited::output(command.envs(options.iter().copied()).env(CASE, name)))
}

/// [`process`], which has to succeed.
pub fn succeeds(name: &str, options: &[(&str, &str)], f: impl FnOnce()) {
    if let Some(output) = process(name, options, f) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{options:?}: {output:?}");
        skips::pass_on(&output.stderr);
    }
}
