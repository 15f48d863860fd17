//! Misuse of the C library: one tiny program per mistake, each of which must end in one line that names it
//! and in SIGABRT. And a correct program that looks guilty, which must not be accused.

mod support;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;
use support::{compile, expect_ok, preloaded, run};

const LIMIT: Duration = Duration::from_secs(20);
const SIGABRT: i32 = 6;

fn program(name: &str) -> Command {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(|e| e.into_inner());
    let program = compiled
        .entry(name.into())
        .or_insert_with(|| compile("gcc", &format!("misuse_{name}.c"), &["-pthread", "-ldl"]));
    preloaded(program)
}

/// The lines that the library wrote, and all of stdout.
fn said(output: &Output) -> (Vec<String>, String) {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = stderr.lines().filter(|l| l.starts_with("hakmem:")).map(String::from).collect();
    (lines, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The program must abort after one line `hakmem: <function>(<the address it announced>): <what>`; `function`
/// is empty where the mistake shows later, `what` lists the words of which one must be there.
fn aborts(name: &str, args: &[&str], function: &str, what: &[&str]) {
    let mut command = program(name);
    command.args(args);
    for magazine in ["on", "off"] {
        let output = run(command.env("HAKMEM_MAGAZINE", magazine), LIMIT);
        let (lines, stdout) = said(&output);
        let shown = format!("{name} {args:?}, magazine {magazine}: {}, {lines:?}, {stdout:?}", output.status);
        assert_eq!(output.status.signal(), Some(SIGABRT), "{shown}");
        assert_eq!(lines.len(), 1, "{shown}");
        assert!(!stdout.contains("survived"), "{shown}");
        let address = stdout.lines().last().unwrap_or_default();
        assert!(lines[0].starts_with(&format!("hakmem: {function}")), "{shown}");
        assert!(lines[0].contains(&format!("({address}): ")), "{shown}");
        assert!(what.iter().any(|w| lines[0].contains(w)), "{shown}");
    }
}

const FOREIGN: &[&str] = &["foreign pointer"];
const INTERIOR: &[&str] = &["interior pointer"];
const DOUBLE: &[&str] = &["double free"];
const SIZE: &[&str] = &["size mismatch"];
/// Memory that has gone back to the system is not ours any more.
const GONE: &[&str] = &["double free", "foreign pointer"];

/// Beyond the first 64 KiB of a large block the page map knows nothing of it.
const BEYOND: &[&str] = &["interior pointer", "foreign pointer"];

/// One test for each program of the table: its name, arguments, the function named, the words expected.
macro_rules! misuse {
    ($($name:ident $args:expr, $function:expr, $what:expr;)*) => {
        $(#[test]
        fn $name() {
            aborts(stringify!($name), &$args, $function, $what);
        })*
    };
}

misuse! {
    foreign_stack [], "free(", FOREIGN;
    foreign_static [], "free(", FOREIGN;
    foreign_mapping [], "free(", FOREIGN;
    foreign_argv [], "free(", FOREIGN;
    foreign_realloc [], "realloc(", FOREIGN;
    foreign_realloc_to_zero [], "realloc(", FOREIGN;
    foreign_usable_size [], "malloc_usable_size(", FOREIGN;
    foreign_free_sized [], "free_sized(", FOREIGN;
    interior_small [], "", INTERIOR;
    interior_medium [], "", INTERIOR;
    interior_thread [], "", INTERIOR;
    interior_realloc [], "realloc(", BEYOND;
    interior_usable_size [], "malloc_usable_size(", BEYOND;
    misaligned [], "", INTERIOR;
    misaligned_large [], "free(", INTERIOR;
    double_free [], "", DOUBLE;
    double_free_thread [], "", DOUBLE;
    double_free_between [], "", DOUBLE;
    double_free_home [], "", DOUBLE;
    double_free_medium [], "", DOUBLE;
    double_free_across [], "", DOUBLE;
    double_free_foreign [], "", DOUBLE;
    double_free_run [], "free(", GONE;
    double_free_shelved [], "free(", GONE;
    double_free_direct [], "free(", GONE;
    double_free_direct_trimmed [], "free(", GONE;
    sized_small [], "free_sized(", SIZE;
    sized_large [], "free_sized(", SIZE;
    sized_aligned [], "free_aligned_sized(", SIZE;
}

/// Blocks of another thread, or of one that has ended, freed by a thread whose magazine is full: they are
/// looked at at once.
#[test]
fn beyond_a_full_magazine() {
    for whose in ["own", "other", "orphan"] {
        aborts("beyond", &[whose, "twice"], "free(", DOUBLE);
        aborts("beyond", &[whose, "realloc"], "free(", DOUBLE);
        aborts("beyond", &[whose, "interior"], "free(", INTERIOR);
        aborts("beyond", &[whose, "misaligned"], "free(", INTERIOR);
    }
}

/// Blocks of slabs that have given their free pages back.
#[test]
fn in_purged_memory() {
    for whose in ["own", "other"] {
        aborts("purged", &[whose, "twice"], "free(", DOUBLE);
        aborts("purged", &[whose, "interior"], "free(", INTERIOR);
    }
}

/// Low, odd, at the borders of user memory, non-canonical, and the kernel's.
#[test]
fn foreign_addresses() {
    for address in [
        "8",
        "10",
        "1000",
        "10000",
        "200000",
        "deadbeefdeadbeef",
        "7ffffffffff0",
        "7fffffffffff",
        "800000000000",
        "ffff7fffffffffff",
        "ffff800000000000",
        "fffffffffffffff0",
        "ffffffffffffffff",
    ] {
        aborts("foreign_address", &[address], "free(", FOREIGN);
    }
}

#[test]
fn interior_of_a_run() {
    for offset in ["16", "4096", "65520"] {
        aborts("interior_run", &[offset], "free(", INTERIOR);
    }
    for offset in ["65536", "65552", "131072", "204784"] {
        aborts("interior_run", &[offset], "free(", BEYOND);
    }
}

#[test]
fn interior_of_a_direct_mapping() {
    for offset in ["16", "4096", "65520"] {
        aborts("interior_direct", &[offset], "free(", INTERIOR);
    }
    for offset in ["65536", "65552", "1048576", "2097152", "3145728", "4194288"] {
        aborts("interior_direct", &[offset], "free(", BEYOND);
    }
}

#[test]
fn a_wrong_size_can_be_forgiven() {
    let program = compile("g++", "cxx_sized_base.cpp", &["-Wno-delete-non-virtual-dtor"]);
    let output = run(preloaded(&program).env("HAKMEM_FOREIGN", "warn"), LIMIT);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == "survived\n", "{:?} {out} {error}", output.status);
    assert!(error.contains("size mismatch"), "{error}");
    let output = run(&mut preloaded(&program), LIMIT);
    assert!(!output.status.success());
}

#[test]
fn a_foreign_pointer_can_be_let_go() {
    let output = run(program("foreign_warn").env("HAKMEM_FOREIGN", "warn"), LIMIT);
    let (lines, stdout) = said(&output);
    assert!(output.status.success() && stdout.ends_with("survived\n"), "{output:?}");
    let announced: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, address) in lines.iter().zip(announced) {
        assert!(line.starts_with(&format!("hakmem: free({address}): ")), "{line}");
        assert!(line.contains("foreign pointer"), "{line}");
    }
}

#[test]
fn correct_programs_are_not_accused() {
    let innocent = compile("gcc", "misuse_innocent.c", &["-pthread"]);
    for (option, value, rounds) in [
        ("HAKMEM_FOREIGN", "abort", "400000"),
        ("HAKMEM_MAGAZINE", "off", "150000"),
        ("HAKMEM_OUTBOX", "off", "150000"),
        ("HAKMEM_ORPHANS", "off", "150000"),
        ("HAKMEM_PURGE_DELAY", "0", "150000"),
    ] {
        let mut command = preloaded(&innocent);
        let output = run(command.arg(rounds).env(option, value), Duration::from_secs(60));
        let (lines, _) = said(&output);
        assert!(output.status.success() && lines.is_empty(), "{option}={value}: {output:?}");
    }
}

#[test]
fn the_innocent_program_is_right_under_glibc_too() {
    let innocent = compile("gcc", "misuse_innocent.c", &["-pthread"]);
    expect_ok(Command::new(innocent).arg("50000"), LIMIT);
}

/// While the run lies on the thread's shelf, the message names the mistake.
#[test]
fn double_free_of_a_shelved_run_is_called_that() {
    for size in ["100000", "900000"] {
        let output = run(program("double_free_shelved").arg(size).env("HAKMEM_MAGAZINE", "on"), LIMIT);
        let (lines, stdout) = said(&output);
        assert_eq!(output.status.signal(), Some(SIGABRT), "{lines:?} {stdout:?}");
        assert!(lines.len() == 1 && lines[0].contains("double free"), "{lines:?}");
    }
}
