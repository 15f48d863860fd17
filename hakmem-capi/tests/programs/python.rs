//! Python: modules of its own test suite, and a mixed load, all with every object from `malloc`.

use crate::support::skips::is_there;
use crate::twin::{Twin, which};
use std::path::PathBuf;
use std::process::Command;

/// A Python 3 that has its test suite, past any shim on the search path. `None`, which is said, if there is
/// none.
fn python_with_tests() -> Option<PathBuf> {
    // Debian's own is asked too: the first on the path may be one without its tests.
    for candidate in [which("python3"), Some(PathBuf::from("/usr/bin/python3"))].into_iter().flatten() {
        let ask = "import sys, test.test_json, test.test_subprocess; print(sys.executable)";
        let Ok(answer) = Command::new(candidate).args(["-c", ask]).output() else { continue };
        if answer.status.success() {
            return Some(PathBuf::from(String::from_utf8(answer.stdout).unwrap().trim()));
        }
    }
    is_there("python3 with its tests (apt-get install python3 libpython3.11-testsuite)", false);
    None
}

/// Compares how each test of `module` ends on both allocators; at least `passing` of them must pass.
fn own_tests(module: &str, passing: usize) {
    let Some(python) = python_with_tests() else { return };
    Twin::new(&format!("python-{module}"), 200).compare(|side| {
        side.file("outcomes.py", include_str!("outcomes.py"));
        // Without this, Python's own pools would serve nearly everything.
        side.env("PYTHONMALLOC", "malloc").env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONHASHSEED", "0");
        let step = [python.to_str().unwrap(), "outcomes.py", &format!("test.{module}")];
        let output = side.output(&step);
        let outcomes = std::fs::read_to_string(side.dir.join("outcomes.txt")).unwrap();
        let passed = outcomes.lines().filter(|line| line.ends_with("... ok")).count();
        assert!(passed >= passing, "only {passed} tests of {module} pass");
        side.say_with(&format!("how a test of {module} ends"), outcomes.as_bytes(), &output.stderr);
    });
}

#[test]
fn python_test_json() {
    own_tests("test_json", 100);
}

#[test]
fn python_test_re() {
    own_tests("test_re", 100);
}

#[test]
fn python_test_threading() {
    own_tests("test_threading", 100);
}

#[test]
fn python_test_subprocess() {
    own_tests("test_subprocess", 200);
}

#[test]
fn python_test_os() {
    own_tests("test_os", 150);
}

#[test]
fn python_mixed_load() {
    let Some(python) = python_with_tests() else { return };
    Twin::new("python", 100).processes(2).compare(|side| {
        side.file("work.py", include_str!("work.py"));
        side.env("PYTHONHASHSEED", "0");
        for malloc in ["malloc", "pymalloc", "malloc_debug"] {
            side.env("PYTHONMALLOC", malloc);
            side.run(&[python.to_str().unwrap(), "work.py"]);
        }
    });
}
