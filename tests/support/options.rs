//! Tests in processes of their own, with options in the environment.
#![allow(dead_code)]

use std::process::{Command, Output};

/// Says which test's process this is.
const CASE: &str = "TEST_WITH_OPTIONS";

/// Runs the test `name` in a process with these options, where it does `f`. Returns how that has ended;
/// `None` in that process.
pub fn process(name: &str, options: &[(&str, &str)], f: impl FnOnce()) -> Option<Output> {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        f();
        return None;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .envs(options.iter().copied())
        .env(CASE, name)
        .output();
    Some(output.unwrap())
}

/// [`process`], which has to succeed.
pub fn succeeds(name: &str, options: &[(&str, &str)], f: impl FnOnce()) {
    if let Some(output) = process(name, options, f) {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{options:?}: {output:?}");
    }
}
