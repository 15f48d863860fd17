//! The C and C++ programs of `examples/c`, built by their Makefile against the library, and what they print.

mod support;

use std::process::Command;
use std::time::Duration;
use support::{expect_ok, lib_dir, root, run, scratch};

const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn the_makefile_builds_programs_that_run() {
    let out = scratch("examples-c");
    let mut make = Command::new("make");
    make.arg("-C").arg(root().join("examples/c"));
    make.arg(format!("LIB={}", lib_dir().display())).arg(format!("OUT={}", out.display()));
    let output = run(&mut make, LIMIT);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "make: {}\n{errors}", output.status);

    let text = expect_ok(&mut Command::new(out.join("limits")), LIMIT);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], concat!("Hakmem ", env!("CARGO_PKG_VERSION")));
    let blocks: usize = lines[1].split(' ').next().unwrap().parse().unwrap();
    assert!((16..32).contains(&blocks), "{text}");
    assert!(lines[1].ends_with(" blocks of 2 MiB below the hard limit of 64 MiB, then ENOMEM"), "{text}");
    assert_eq!(lines[2..], ["hook calls: 1", "purge gave memory back: yes", "refusals by the hard limit: 1"]);

    let text = expect_ok(&mut Command::new(out.join("new")), LIMIT);
    assert_eq!(text, "more than 10 MB in use: yes\n1 GiB refused: std::bad_alloc\n");
}
