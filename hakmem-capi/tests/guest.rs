//! The library is a guest in the process: what is the program's own, and what the system does that it need
//! not.

mod support;

use object::{Object, ObjectSymbol};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use support::{compile, expect_ok, lib, lib_dir, preloaded, run, scratch};

const LIMIT: Duration = Duration::from_secs(120);

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("gcc", "guest.c", &["-pthread"]))
}

#[test]
fn locked_memory_does_not_keep_the_rest() {
    // Nothing goes back for its age.
    print!("{}", expect_ok(preloaded(program()).arg("locked").env("HAKMEM_PURGE_DELAY", "60000"), LIMIT));
    expect_ok(preloaded(program()).arg("limit").env("HAKMEM_PURGE_DELAY", "-1"), LIMIT);
}

#[test]
fn what_is_taken_for_zero_is_zero_where_madvise_lies() {
    expect_ok(preloaded(program()).arg("zeroed"), LIMIT);
    let shim = compile("gcc", "lying_madvise_shim.c", &["-shared", "-fPIC"]);
    let preload = format!("{} {}", shim.display(), lib().display());
    expect_ok(Command::new(program()).arg("zeroed").env("LD_PRELOAD", &preload), LIMIT);
    let mut command = Command::new(program());
    expect_ok(command.arg("zeroed").env("LD_PRELOAD", &preload).env("HAKMEM_PURGE_DELAY", "0"), LIMIT);
}

/// As libfaketime does: its clock must not be asked from within an allocation that it makes itself.
#[test]
fn a_clock_that_another_library_brings_is_the_programs_alone() {
    let shim = compile("gcc", "clock_shim.c", &["-shared", "-fPIC"]);
    let program = compile("gcc", "clock_program.c", &[]);
    for order in [[&lib(), &shim], [&shim, &lib()]] {
        let preload = order.map(|library| library.display().to_string()).join(" ");
        for options in [&[][..], &[("HAKMEM_HARDENED", "on")], &[("HAKMEM_GUARD", "1")]] {
            let mut command = Command::new(&program);
            expect_ok(command.env("LD_PRELOAD", &preload).envs(options.iter().copied()), LIMIT);
        }
    }
}

/// As torsocks does: an allocation must not come to it, which allocates itself.
#[test]
fn a_syscall_that_another_library_brings_is_the_programs_alone() {
    let shim = compile("gcc", "syscall_shim.c", &["-shared", "-fPIC", "-ldl"]);
    let program = compile("gcc", "syscall_program.c", &["-pthread"]);
    let profile = scratch("guest").join("syscall").display().to_string();
    for order in [[&lib(), &shim], [&shim, &lib()]] {
        let preload = order.map(|library| library.display().to_string()).join(" ");
        for options in [
            &[][..],
            &[("HAKMEM_HARDENED", "on")],
            &[("HAKMEM_GUARD", "1")],
            &[("HAKMEM_BACKGROUND", "on"), ("HAKMEM_PURGE_DELAY", "1")],
            &[("HAKMEM_PROFILE", &profile), ("HAKMEM_PROFILE_RATE", "4K"), ("HAKMEM_STATS", "json")],
        ] {
            let mut command = Command::new(&program);
            expect_ok(command.env("LD_PRELOAD", &preload).envs(options.iter().copied()), LIMIT);
        }
    }
}

#[test]
fn the_library_calls_no_syscall_of_anybodys() {
    let bytes = std::fs::read(lib()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let wanted: Vec<&str> =
        file.dynamic_symbols().filter(|symbol| symbol.is_undefined()).map(|s| s.name().unwrap()).collect();
    assert!(wanted.contains(&"mmap") && !wanted.contains(&"syscall"), "{wanted:?}");
}

#[test]
fn what_can_never_be_had_empties_no_caches() {
    expect_ok(preloaded(program()).arg("hopeless").env("HAKMEM_PURGE_DELAY", "60000"), LIMIT);
}

/// Each time that memory is taken from all threads, a barrier stops them.
#[test]
fn retries_that_do_not_help_are_not_repeated_at_once() {
    let mut command = Command::new("strace");
    command.args(["-f", "-ttt", "-e", "trace=membarrier,write", "-E"]);
    command.arg(format!("LD_PRELOAD={}", lib().display()));
    let output = run(command.arg(program()).arg("retries"), LIMIT);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let barriers = |from: &str, to: &str| {
        let (_, rest) = text.split_once(from).unwrap();
        rest.split_once(to).unwrap().0.matches("membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED").count()
    };
    let (first, others) =
        (barriers("\"the first\\n\"", "\"the others\\n\""), barriers("\"the others\\n\"", "\"done\\n\""));
    // The time before the call: strace has it as seconds, with a point, and behind the thread's number.
    let at = |what: &str| {
        let line = text.lines().find(|line| line.contains(what)).unwrap();
        let time = line.split_whitespace().find(|word| word.contains('.') && word.parse::<f64>().is_ok());
        time.unwrap().parse::<f64>().unwrap()
    };
    let seconds = at("\"done\\n\"") - at("\"the others\\n\"");
    println!("an allocation that fails: {first} barriers, 199 more: {others}, in {seconds} s");
    // All is tried again after 16 ms, and after twice as long each time, up to 128: whatever the machine does
    // meanwhile. Twice that, since others may cost more barriers than the first.
    let tries = 5.0 + seconds / 0.128;
    assert!(first > 0 && (others as f64) < 2.0 * tries * first as f64, "{tries} tries: {text}");
}

#[test]
fn statistics_do_not_go_into_a_file_of_the_programs() {
    let file = scratch("guest").join("precious.db");
    // Also when the file for them cannot be opened.
    for stats_file in ["", "/nonexistent/folder/figures.json"] {
        for stats in ["json", "table"] {
            let mut command = preloaded(program());
            command.arg("daemon").arg(&file).env("HAKMEM_STATS", stats).env("HAKMEM_STATS_FILE", stats_file);
            expect_ok(&mut command, LIMIT);
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "DATA", "{stats} {stats_file:?}");
        }
    }
}

#[test]
fn nobody_is_cancelled_in_the_allocator() {
    expect_ok(preloaded(program()).arg("stats"), LIMIT);
    let archive = lib_dir().join("libhakmem.a").display().to_string();
    let args = ["-pthread", "-static", "-Wl,--whole-archive", &archive, "-Wl,--no-whole-archive"];
    let fixed = compile("gcc", "guest.c", &args);
    // Options that it has something to say about.
    let mut command = Command::new(fixed);
    command.arg("first").env("HAKMEM_THP", "perhaps").env("HAKMEM_STATS", "json");
    let output = run(&mut command, LIMIT);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got it\n", "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("HAKMEM_THP"), "{output:?}");
}

/// Under a filter that ends the process at a system call that it may not make.
#[test]
fn confined_processes_go_on() {
    let program = compile("gcc", "confined.c", &["-pthread"]);
    let hardened = [("HAKMEM_HARDENED", "on")];
    for options in [
        &[][..],
        &[("HAKMEM_PURGE_DELAY", "0")],
        &[("HAKMEM_THP", "always")],
        &[("HAKMEM_BACKGROUND", "on")],
        &hardened,
        &[("HAKMEM_HARDENED", "light")],
    ] {
        for mode in ["self", "later"] {
            expect_ok(preloaded(&program).arg(mode).envs(options.iter().copied()), LIMIT);
        }
    }
    let file = scratch("confined").join("x").display().to_string();
    for options in [
        &[][..],
        &hardened,
        &[("HAKMEM_BACKGROUND", "on")],
        &[("HAKMEM_PROFILE", &file)],
        &[("HAKMEM_PROFILE_SIGNAL", "USR2")],
        &[("HAKMEM_STATS", "table")],
        &[("HAKMEM_STATS", "json"), ("HAKMEM_STATS_FILE", "relative")],
    ] {
        let mut command = preloaded(&program);
        command.arg("under").arg(&program).arg("work").env("HAKMEM_FEW_SYSCALLS", "on");
        expect_ok(command.envs(options.iter().copied()), LIMIT);
    }
    // So that this test can fail: what it would be without.
    let output = run(preloaded(&program).arg("under").arg(&program).arg("work"), LIMIT);
    assert!(!output.status.success(), "the work needs none of the calls: {output:?}");
}

/// Nor does the end of one that may open no file any more, or of its child, become another one because of
/// statistics.
#[test]
fn confined_processes_end_as_they_would() {
    let program = compile("gcc", "confined.c", &["-pthread"]);
    let file = scratch("ends").join("stats");
    for stats in ["json", "table"] {
        let mut command = preloaded(&program);
        command.arg("ends").env("HAKMEM_STATS", stats).env("HAKMEM_STATS_FILE", &file);
        expect_ok(&mut command, LIMIT);
    }
    // Before it was confined it could.
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"start\""));
    expect_ok(preloaded(&program).arg("ends").env("HAKMEM_STATS", "json"), LIMIT);
}

/// And what one has done wrong is reported to the end.
#[test]
fn confined_processes_are_told_what_they_have_done() {
    use std::os::unix::process::ExitStatusExt;
    let program = compile("gcc", "confined.c", &["-pthread"]);
    let output = run(preloaded(&program).arg("again").env("HAKMEM_GUARD", "1"), LIMIT);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
    let allocated = text.split("  allocated by thread ").nth(1).and_then(|rest| rest.lines().nth(1));
    assert!(allocated.is_some_and(|line| line.starts_with("hakmem:     0x")), "{text}");
    assert!(text.contains("  freed by a thread that is not known\n"), "{text}");
}

/// A filter for all threads meets none of ours that is just starting.
#[test]
fn confined_processes_may_have_just_started_the_background_thread() {
    let program = compile("gcc", "confined.c", &["-pthread"]);
    expect_ok(preloaded(&program).arg("starting"), LIMIT);
}

/// Blocks that had guard pages before a process was confined are let go of by what it may still call.
#[test]
fn confined_processes_free_blocks_between_guard_pages() {
    let program = compile("gcc", "confined.c", &["-pthread"]);
    for options in [&[][..], &[("HAKMEM_HARDENED", "on")], &[("HAKMEM_HARDENED", "light")]] {
        let mut command = preloaded(&program);
        expect_ok(command.arg("guarded").env("HAKMEM_GUARD", "1").envs(options.iter().copied()), LIMIT);
    }
}

/// Programs ask by a call that fails whether the system has filters: that confines nobody.
#[test]
fn who_asks_for_filters_is_not_confined() {
    expect_ok(preloaded(program()).arg("probe"), LIMIT);
}

/// A child of `vfork` confines itself before it calls `exec`, and is in its parent's memory until then.
#[test]
fn children_that_confine_themselves_do_not_confine_their_parents() {
    expect_ok(preloaded(program()).arg("confined"), LIMIT);
}

/// The C library may hold a lock that the allocator would need to be told of forks and of the end.
#[test]
fn the_first_call_comes_from_within_the_c_library() {
    let archive = lib_dir().join("libhakmem.a").display().to_string();
    let shared = compile("gcc", "first_call.c", &["-pthread"]);
    let fixed = compile("gcc", "first_call.c", &["-pthread", "-static", &archive]);
    for mode in ["atexit", "atfork"] {
        // Without any option: one of ours would make the library allocate when it is loaded.
        let mut command = preloaded(&shared);
        assert_eq!(expect_ok(command.arg(mode).env_remove("HAKMEM_LIB"), LIMIT), "fine\n");
        assert_eq!(expect_ok(Command::new(&fixed).arg(mode), LIMIT), "fine\n");
    }
    for args in [&[][..], &["-static-libstdc++"]] {
        expect_ok(preloaded(compile("g++", "cxx_globals.cpp", args)).env_remove("HAKMEM_LIB"), LIMIT);
    }
}
