//! `hakmem run` with the real library: HAKMEM_LIB if that is set, else built here.

mod support;

use std::process::Command;

use support::{Ended, clean, compile, hakmem, real, run};

/// `hakmem run` with these arguments.
fn real_run(args: &[&str]) -> Ended {
    run(hakmem().env("HAKMEM_LIB", real()).arg("run").args(args))
}

/// What the line says after "hakmem VERSION served NAME: ".
#[track_caller]
fn served<'a>(ended: &'a Ended, name: &str) -> &'a str {
    let start = format!("hakmem {} served {name}: ", env!("CARGO_PKG_VERSION"));
    ended.line().strip_prefix(&start).unwrap_or_else(|| panic!("{}", ended.line()))
}

#[test]
fn real_programs_are_served() {
    let ended = real_run(&["perl", "-e", "print 6 * 7"]);
    assert!(
        served(&ended, "perl").contains(" blocks from slabs and large memory (magazine hits not counted")
    );
    assert_eq!((ended.stdout(), ended.code()), ("42", Some(0)));

    let ended = real_run(&["--exact", "bash", "-c", "exit 9"]);
    let count: u64 = served(&ended, "bash").split(' ').next().unwrap().parse().unwrap();
    assert!(count > 100, "{}", ended.line());
    assert!(ended.line().ends_with(" MiB peak resident, 1 process"), "{}", ended.line());
    assert_eq!(ended.code(), Some(9));
}

#[test]
fn exact_counts_each_one() {
    let program = compile("count.c", "count", &["-O0", "-fno-builtin"]);
    let count = |n: &str| -> u64 {
        let ended = real_run(&["--exact", program.to_str().unwrap(), n]);
        served(&ended, "count").split(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(count("30001") - count("1"), 30000);
    // A magazine hit is not counted otherwise.
    let ended = real_run(&[program.to_str().unwrap(), "30000"]);
    let blocks: u64 = served(&ended, "count").split(' ').next().unwrap().parse().unwrap();
    assert!(blocks < 3000, "{}", ended.line());
}

#[test]
fn the_table_has_the_documented_members() {
    let ended = real_run(&["--stats", "env"]);
    for member in ["allocations", "magazine_misses", "refill_bump", "superslabs_mapped", "bytes_mapped_peak"]
    {
        assert!(ended.stderr.contains(&format!(" {member} ")), "{member} is missing:\n{}", ended.stderr);
    }
    for table in ["│ memory ", "│ = resident ", "│ class "] {
        assert!(ended.stderr.contains(table), "{table} is missing:\n{}", ended.stderr);
    }
    assert!(ended.stderr.lines().last().unwrap().contains(" served env: "), "{}", ended.stderr);
}

#[test]
fn several_processes() {
    let ended = real_run(&["perl", "-e", "`env` for 1..2"]);
    let text = served(&ended, "perl");
    assert!(
        text.contains(" in the main process, ") && text.ends_with(" in the largest process, 3 processes"),
        "{text}"
    );
}

#[test]
fn killed_without_a_report() {
    let ended = real_run(&["perl", "-e", "kill 9, $$"]);
    let start = format!(
        "hakmem {} served perl, which left without a report (killed by SIGKILL)",
        env!("CARGO_PKG_VERSION")
    );
    assert!(ended.line().starts_with(&start), "{}", ended.line());
}

#[test]
fn a_program_that_never_allocates_is_not_said_to_be_served() {
    let program = compile("count.c", "count", &["-O0", "-fno-builtin"]);
    let ended = real_run(&[program.to_str().unwrap(), "0"]);
    let served = ended.line().contains("served count: 0 blocks from slabs");
    assert!(
        served || ended.line().contains("was NOT served by Hakmem: no word came from"),
        "{}",
        ended.line()
    );
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn set_reaches_the_library() {
    let ended = real_run(&["-q", "--set", "THP=sometimes", "env"]);
    assert!(ended.stderr.contains("hakmem: HAKMEM_THP=sometimes: expected"), "{}", ended.stderr);
}

#[test]
fn lib_is_for_scripts() {
    let script = format!("LD_PRELOAD=$('{}' lib) perl -e 'print 1'", env!("CARGO_BIN_EXE_hakmem"));
    let mut sh = clean(Command::new("sh"));
    let ended = run(sh.args(["-c", &script]).env("HAKMEM_LIB", real()).env("HAKMEM_STATS", "json"));
    assert_eq!(ended.stdout(), "1");
    assert!(ended.stderr.contains("\"event\":\"exit\""), "{}", ended.stderr);
}

#[test]
fn without_any_hint_cargo_builds_it() {
    let built = run(hakmem().arg("lib"));
    assert_eq!(built.code(), Some(0), "{}", built.stderr);
    assert!(built.stdout().ends_with("/release/libhakmem.so\n"), "{}", built.stdout());
    // And the second time there is nothing to say about it, but that another cargo has the lock, if one has.
    let mut again = run(hakmem().args(["run", "env"]));
    while again.stderr.trim_start().starts_with("Blocking ") {
        again.stderr = again.stderr.split_once('\n').unwrap().1.to_string();
    }
    assert!(served(&again, "env").contains(" peak resident"));
}
