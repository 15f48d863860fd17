//! Sampled guard pages: each kind of misuse of a block that has them ends in one report, with the stacks of
//! the allocation and of the free, and what is no misuse goes on as without them.

mod support;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};
use std::sync::OnceLock;
use std::time::Duration;
use support::{compile, expect_ok, preloaded, run};

const LIMIT: Duration = Duration::from_secs(60);
const SIGABRT: i32 = 6;
const SIGSEGV: i32 = 11;

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("gcc", "guard.c", &["-pthread", "-Wno-all"]))
}

/// The program, every allocation of which is to have guard pages.
fn guarded(args: &[&str]) -> Command {
    let mut command = preloaded(program());
    command.args(args).env("HAKMEM_GUARD", "1");
    command
}

/// What the library wrote, and what the program printed.
fn said(output: &Output) -> (Vec<String>, String) {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = stderr.lines().filter_map(|line| line.strip_prefix("hakmem: ")).map(String::from).collect();
    (lines, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The functions of the program in the stack behind the line that begins so, by `addr2line`.
fn functions(lines: &[String], heading: &str) -> BTreeSet<String> {
    let behind = lines.iter().skip_while(|line| !line.trim_start().starts_with(heading)).skip(1);
    let stack = behind.take_while(|line| line.starts_with("    "));
    let places = stack.filter_map(|line| line.trim().rsplit_once('+'));
    let ours = places.filter(|(path, _)| path.ends_with(program().file_name().unwrap().to_str().unwrap()));
    let addresses: Vec<_> = ours.map(|(_, offset)| offset.to_owned()).collect();
    if addresses.is_empty() {
        return BTreeSet::new();
    }
    let names = expect_ok(Command::new("addr2line").arg("-fe").arg(program()).args(addresses), LIMIT);
    names.lines().step_by(2).map(String::from).collect()
}

/// The threads in the line that begins so.
fn thread(lines: &[String], heading: &str) -> Option<u32> {
    let line = lines.iter().find_map(|line| line.trim_start().strip_prefix(heading))?;
    line.split_whitespace().find_map(|word| word.trim_end_matches(';').parse().ok())
}

/// The program must end by one of the signals after one report, which begins with one of `what`; it `freed`
/// the block or did not. Returns the report.
fn reports(args: &[&str], signals: &[i32], what: &[&str], freed: bool) -> Vec<String> {
    let output = run(&mut guarded(args), LIMIT);
    let (lines, stdout) = said(&output);
    let shown = format!("{args:?}: {}, {lines:#?}, {stdout:?}", output.status);
    assert!(signals.contains(&output.status.signal().unwrap_or(0)), "{shown}");
    assert!(!stdout.contains("survived"), "{shown}");
    let headings: Vec<_> = lines.iter().filter(|line| !line.starts_with("  ")).collect();
    assert_eq!(headings.len(), 1, "{shown}");
    let block = stdout.lines().next().unwrap();
    assert!(what.iter().any(|what| headings[0].contains(what)), "{shown}");
    assert!(headings[0].contains(&format!("block {block} of ")), "{shown}");
    assert!(functions(&lines, "allocated by thread").contains("maker"), "{shown}");
    assert_eq!(functions(&lines, "freed by thread").contains("dropper"), freed, "{shown}");
    lines
}

#[test]
fn each_kind_of_misuse_is_reported() {
    const HERE: &[i32] = &[SIGSEGV];
    const FREE: &[i32] = &[SIGABRT];
    const BOTH: &[i32] = &[SIGSEGV, SIGABRT];
    let stale = "guard page: use after free: a ";
    // What a program does, by which signal it ends, what is said, and whether the block was freed.
    let kinds: [(&str, &[i32], String, bool); 13] = [
        ("over", HERE, "guard page: overflow: a write at ".into(), false),
        ("under", HERE, "guard page: underflow: a read at ".into(), false),
        ("over-one", BOTH, ": overflow".into(), false),
        ("under-one", BOTH, ": underflow".into(), false),
        ("stale-read", HERE, format!("{stale}read at "), true),
        ("stale-write", HERE, format!("{stale}write at "), true),
        ("late", HERE, format!("{stale}read at "), true),
        ("stale-realloc", FREE, "): use after free".into(), true),
        ("stale-size", FREE, "): use after free".into(), true),
        ("twice", FREE, "): double free".into(), true),
        ("inside", FREE, "): interior pointer".into(), false),
        ("sized", FREE, "free_sized(".into(), false),
        ("child", HERE, format!("{stale}read at "), true),
    ];
    for (kind, signals, what, freed) in &kinds {
        for size in ["24", "40000"] {
            reports(&[kind, size], signals, &[what], *freed);
        }
    }
}

/// By how far, whichever side of its page the block is at, and what it was asked for.
#[test]
fn a_report_says_where() {
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let lines = reports(&["over-one", "48"], &[SIGSEGV, SIGABRT], &["the byte behind its end"], false);
        assert!(lines[0].contains(" of 48 bytes, in use"), "{lines:?}");
        seen.insert(lines[0].starts_with("guard page"));
        if seen.len() == 2 {
            return;
        }
    }
    panic!("always at the same side: {seen:?}");
}

#[test]
fn a_report_names_all_threads() {
    let lines = reports(&["threads"], &[SIGSEGV], &["use after free: a write"], true);
    let threads: BTreeSet<_> =
        ["touched by thread", "allocated by thread", "freed by thread"].map(|who| thread(&lines, who)).into();
    assert!(threads.len() == 3 && !threads.contains(&None), "{lines:#?}");
}

#[test]
fn the_handler_gets_along_with_those_of_the_program() {
    let ended = |kind: &str| {
        let output = run(&mut guarded(&[kind]), LIMIT);
        let (lines, stdout) = said(&output);
        (output.status, lines, stdout)
    };
    // Set before ours: called for what is the program's, and for what is ours after the report.
    let (status, lines, stdout) = ended("handled");
    assert_eq!(status.code(), Some(42), "{lines:?} {stdout}");
    assert!(stdout.contains("recovered") && lines[0].starts_with("guard page: use after free"), "{lines:?}");
    // Set later: the fault is the program's.
    let (status, lines, _) = ended("replaced");
    assert_eq!((status.code(), lines.len()), (Some(42), 0), "{lines:?}");
    // None.
    for kind in ["null", "sent"] {
        let (status, lines, _) = ended(kind);
        assert_eq!((status.signal(), lines.len()), (Some(SIGSEGV), 0), "{kind}: {lines:?}");
    }
    // A stack of its own, not much larger than the system asks for.
    reports(&["alternate"], &[SIGSEGV], &["use after free"], true);
}

/// `guard_signals.c`, every allocation of which is to have guard pages: how it ended, what the library wrote,
/// and what the program printed.
fn signals(kind: &str) -> (ExitStatus, Vec<String>, String) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("gcc", "guard_signals.c", &["-pthread", "-Wno-all"]));
    let output = run(preloaded(program).arg(kind).env("HAKMEM_GUARD", "1"), LIMIT);
    let (lines, stdout) = said(&output);
    (output.status, lines, stdout)
}

/// An alternate stack may be too small for a handler that does not ask for it.
#[test]
fn a_handler_runs_on_the_stack_that_it_asked_for() {
    for kind in ["ordinary", "alternate"] {
        let (status, lines, stdout) = signals(kind);
        assert!(status.success() && lines.is_empty(), "{kind}: {status} {lines:?}");
        assert_eq!(stdout, format!("{kind}\nsurvived\n"));
    }
}

/// What a thread does in the handler of the program goes on while another thread faults.
#[test]
fn a_second_fault_does_not_disturb_the_handler_of_the_first() {
    let (status, lines, stdout) = signals("crowd");
    assert_eq!((status.code(), stdout.as_str()), (Some(42), "dumped\n"), "{status} {lines:?}");
    let headings: Vec<_> = lines.iter().filter(|line| !line.starts_with("  ")).collect();
    assert!(headings.len() == 1 && headings[0].contains("use after free: a "), "{lines:?}");
}

/// Where a handler that was set later calls ours, the fault comes back. It is reported once, and ends the
/// process.
#[test]
fn a_handler_may_pass_the_fault_on() {
    let (status, lines, stdout) = signals("passed-on");
    assert_eq!((status.signal(), stdout.as_str()), (Some(SIGSEGV), "passed on\npassed on\n"), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.contains("use after free: a ")).count(), 1, "{lines:?}");
}

/// A child that shares the memory has signal handlers of its own. Where it has the first sample, and where it
/// ends by a fault.
#[test]
fn a_child_of_vfork_leaves_the_handler_to_its_parent() {
    for (kind, reports) in [("vfork", 1), ("vfork-faults", 2)] {
        let (status, lines, stdout) = signals(kind);
        assert_eq!((status.signal(), stdout.as_str()), (Some(SIGSEGV), ""), "{kind}: {lines:?}");
        let found = lines.iter().filter(|line| line.contains("use after free: a ")).count();
        assert_eq!(found, reports, "{kind}: {lines:?}");
    }
}

#[test]
fn a_wrong_size_can_be_forgiven() {
    let output = run(guarded(&["sized"]).env("HAKMEM_FOREIGN", "warn"), LIMIT);
    let (lines, stdout) = said(&output);
    assert!(output.status.success() && stdout.contains("survived"), "{lines:?}");
    assert!(
        lines[0].contains("size mismatch") && functions(&lines, "allocated").contains("maker"),
        "{lines:?}"
    );
}

/// A correct program of several threads and a child, with as many samples as there can be.
#[test]
fn the_innocent_go_on() {
    for slots in ["1", "40", "1000"] {
        let mut command = guarded(&["innocent"]);
        let output = run(command.env("HAKMEM_GUARD_SLOTS", slots).env("HAKMEM_STATS", "json"), LIMIT);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{slots}: {} {stderr}", output.status);
        let samples = stderr.split_once("\"guard_samples\":").unwrap_or_else(|| panic!("{stderr}")).1;
        let samples: u32 = samples.split(',').next().unwrap().parse().unwrap();
        assert!(samples > 100 || slots == "1", "{samples} in {slots}");
    }
}

#[test]
fn without_the_option_there_are_none() {
    for value in ["off", "0"] {
        let output =
            run(guarded(&["innocent"]).env("HAKMEM_STATS", "json").env("HAKMEM_GUARD", value), LIMIT);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains("\"guard_samples\":0,"), "{value}: {stderr}");
    }
}

/// In hardened mode no block has guard pages, and what is said of a sampled one has the stacks.
#[test]
fn hardened_mode_keeps_the_stacks() {
    let kinds = [
        ("over-one", "): overflow", &["24", "40000"][..], true),
        ("twice", "): double free", &["24", "40000", "200000"], true),
        ("stale-realloc", "): use after free", &["24", "40000", "200000"], true),
        ("stale-size", "): use after free", &["24", "40000", "200000"], true),
        ("inside", "): interior pointer", &["24", "40000", "200000"], false),
        ("sized", "): size mismatch", &["24", "40000", "200000"], false),
    ];
    for (kind, what, sizes, freed) in kinds {
        for size in sizes {
            let output = run(guarded(&[kind, size]).env("HAKMEM_HARDENED", "on"), LIMIT);
            let (lines, stdout) = said(&output);
            let shown = format!("{kind} {size}: {}, {lines:#?}, {stdout:?}", output.status);
            assert_eq!(output.status.signal(), Some(SIGABRT), "{shown}");
            assert!(lines[0].contains(what), "{shown}");
            assert!(functions(&lines, "allocated by thread").contains("maker"), "{shown}");
            assert_eq!(functions(&lines, "freed by thread").contains("dropper"), freed, "{shown}");
        }
    }
}

/// What is known of a large block is not said of a small one that lies where it was. Which of the two were
/// found first depended on chance.
#[test]
fn hardened_mode_tells_blocks_apart_that_lay_at_the_same_place() {
    for _ in 0..8 {
        let mut command = guarded(&["in-large", "48"]);
        let output = run(command.env("HAKMEM_HARDENED", "on").env("HAKMEM_GUARD_SLOTS", "4096"), LIMIT);
        let (lines, stdout) = said(&output);
        assert!(lines[0].contains("): overflow") && !stdout.contains("survived"), "{lines:#?} {stdout}");
        let makers = functions(&lines, "allocated by thread");
        assert!(makers.contains("maker") && !makers.contains("large_maker"), "{lines:#?}");
        assert!(!functions(&lines, "freed by thread").contains("large_dropper"), "{lines:#?}");
    }
}

/// The innocent in hardened mode: as many samples as there are allocations, and none with guard pages.
#[test]
fn hardened_mode_samples_all_allocations() {
    // Who finds another thread writing in the few records that there are samples nothing.
    for (slots, least) in [("1", 100), ("4096", 16_000)] {
        let mut command = guarded(&["innocent"]);
        command.env("HAKMEM_HARDENED", "on").env("HAKMEM_GUARD_SLOTS", slots).env("HAKMEM_STATS", "json");
        let output = run(&mut command, LIMIT);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{slots}: {} {stderr}", output.status);
        let figure = |name: &str| -> u64 {
            let text = stderr.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{stderr}")).1;
            text.split([',', '}']).next().unwrap().parse().unwrap()
        };
        assert!(figure("guard_samples") > least && figure("guard_blocks") == 0, "{slots}: {stderr}");
    }
}
