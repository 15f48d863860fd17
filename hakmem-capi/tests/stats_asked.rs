//! Statistics that are asked for from outside: what the figures say of the memory that the answer takes.

#[path = "support/link.rs"]
#[allow(dead_code)]
mod link;
mod support;

use link::{LIMIT, Link, build, command};
use std::process::Command;
use support::{expect_ok, run};

/// They hold to the byte while it is kept, in the child of a fork, which does not keep it, and after it.
#[test]
fn the_answer_is_in_the_figures() {
    for link in [Link::Shared, Link::Archive, Link::Static] {
        let program = build("stats_asked.c", link, &[]);
        let ask = || command(&program, link);
        assert_eq!(expect_ok(&mut ask(), LIMIT), "asked\n", "{link:?}");
        assert_eq!(expect_ok(ask().env("HAKMEM_HARDENED", "on"), LIMIT), "asked\n", "{link:?}");
    }
}

/// They would be read from files.
#[test]
fn who_makes_few_system_calls_refuses() {
    let program = build("stats_asked.c", Link::Shared, &[]);
    let ended = run(Command::new(&program).arg("confined"), LIMIT);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}
