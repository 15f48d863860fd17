//! What a test leaves out because the machine lacks something: said where it is seen. For all packages.
#![allow(dead_code)]

use std::fmt::Display;
use std::io::Write as _;
use std::process::Command;

/// Whether every program that a test uses has to be there. CI sets it to 1.
pub fn required() -> bool {
    std::env::var_os("HAKMEM_REQUIRE_PROGRAMS").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Says that the calling test leaves something out, past the harness's capture, and in the file that
/// `TEST_SKIPS` names, if it does. For what the system does not allow; for programs there is [`is_there`].
pub fn skip(reason: impl Display) {
    let (file, thread) = (std::env::current_exe().unwrap(), std::thread::current());
    let (file, test) = (file.file_stem().unwrap().to_string_lossy(), thread.name().unwrap_or("a test"));
    // cargo adds a number to the file's name.
    let file = file.rsplit_once('-').map_or(&*file, |(file, _)| file);
    let line = format!("SKIPPED: {file}, {test}: {reason}\n");
    // As a whole, among what other tests print. `eprint` would be captured.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("TEST_SKIPS") {
        let file = std::fs::File::options().create(true).append(true).open(path);
        // If that fails it has been said all the same.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Whether a program is there, as `found` says. If not that is said, or fails where it is [`required`].
pub fn is_there(program: impl Display, found: bool) -> bool {
    if !found {
        assert!(!required(), "{program} is missing, and HAKMEM_REQUIRE_PROGRAMS is set");
        skip(format_args!("{program} is missing"));
    }
    found
}

/// Whether `program --version` works; see [`is_there`].
pub fn has(program: &str) -> bool {
    let answers = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    is_there(program, answers)
}

/// Passes on what a test in a process of its own has skipped, which is on its standard error.
pub fn pass_on(stderr: &[u8]) {
    for line in String::from_utf8_lossy(stderr).lines().filter(|line| line.starts_with("SKIPPED: ")) {
        let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
    }
}

/// Says what a program of a test's has left out, as its output says.
pub fn skipped_in(output: &[u8]) {
    for line in String::from_utf8_lossy(output).lines() {
        if let Some((_, reason)) = line.split_once("skipped: ") {
            skip(reason);
        }
    }
}
