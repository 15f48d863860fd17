//! The soft and the hard limit as C and C++ programs meet them: set by the program, and by the environment.

#[path = "support/link.rs"]
mod link;
mod support;

use link::{LIMIT, Link, build, command};
use std::path::Path;
use std::process::{Command, Output};
use support::{compile, expect_ok, preloaded, run};

const WAYS: [Link; 4] = [Link::Preload, Link::Shared, Link::Archive, Link::Static];

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A figure of the exit record.
fn figure(output: &Output, name: &str) -> u64 {
    let text = stderr(output);
    let (_, rest) = text.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name}: {text}"));
    rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
}

fn limited(program: &Path, link: Link, hard: &str) -> Command {
    let mut command = command(program, link);
    command.env("HAKMEM_HARD_LIMIT", hard);
    command
}

/// Every function refuses with ENOMEM, the hook is called, children inherit.
#[test]
fn set_by_the_program() {
    for how in [Link::Shared, Link::Archive, Link::Static] {
        let program = build("limits.c", how, &[]);
        assert_eq!(expect_ok(&mut command(&program, how), LIMIT), "limits ok\n", "{how:?}");
    }
}

#[test]
fn the_hard_limit_of_the_environment() {
    for how in WAYS {
        let program = build("limits_env.c", how, &[]);
        let output = run(limited(&program, how, "64M").env("HAKMEM_STATS", "json"), LIMIT);
        assert!(output.status.success(), "{how:?}: {}", stderr(&output));
        // Per round the fill and the growth; the growth that succeeds takes what was freed.
        assert_eq!(figure(&output, "hard_limit_hits"), 6, "{how:?}: {}", stderr(&output));
        assert_eq!(figure(&output, "soft_limit_hits"), 0);
        assert!((1..=64 << 20).contains(&figure(&output, "bytes_held")));
        expect_ok(limited(&program, how, "0").arg("none"), LIMIT);
        // The start-up code of a static program needs some memory itself, and crashes without.
        if how != Link::Static {
            expect_ok(limited(&program, how, "1M").arg("tiny"), LIMIT);
        }
    }
}

#[test]
fn the_soft_limit_of_the_environment() {
    let program = build("limits_env.c", Link::Preload, &[]);
    let run_with = |soft: &str| {
        let mut command = command(&program, Link::Preload);
        run(command.arg("none").env("HAKMEM_SOFT_LIMIT", soft).env("HAKMEM_STATS", "json"), LIMIT)
    };
    let output = run_with("32M");
    assert!(output.status.success(), "{}", stderr(&output));
    // 128 MiB are taken: 96 beyond the limit, in steps of 2 MiB.
    let hits = figure(&output, "soft_limit_hits");
    assert!((24..=50).contains(&hits), "{hits}");
    assert_eq!(figure(&run_with("1G"), "soft_limit_hits"), 0);
}

#[test]
fn operator_new() {
    for how in WAYS {
        let program = build("cxx_limits.cpp", how, &[]);
        assert_eq!(expect_ok(&mut limited(&program, how, "64M"), LIMIT), "limits ok\n", "{how:?}");
    }
}

/// One line, and the hard limit alone.
#[test]
fn a_soft_limit_above_the_hard_one() {
    let program = build("limits_env.c", Link::Preload, &[]);
    let output = run(limited(&program, Link::Preload, "64M").env("HAKMEM_SOFT_LIMIT", "1G"), LIMIT);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        "hakmem: HAKMEM_SOFT_LIMIT: 1073741824 is above the hard limit of 67108864; using the hard limit only\n"
    );
}

/// In hardened mode a block that was aligned would lie elsewhere now, if there were room.
#[test]
fn realloc_needs_no_memory_for_what_is_not_longer() {
    let program = compile("gcc", "realloc_refused.c", &[]);
    for hardened in ["off", "on", "light", "checks"] {
        let mut command = preloaded(&program);
        expect_ok(command.env("HAKMEM_HARD_LIMIT", "100M").env("HAKMEM_HARDENED", hardened), LIMIT);
    }
}
