//! `hakmem run`: what passes through untouched, and what the line at the end says.
//!
//! The library is a stand-in with known figures; `real.rs` holds the tests with the real one.

mod support;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use support::{clean, compile, fake, fake_run, finish, run, script};

#[test]
fn one_line_says_what_was_served() {
    let ended = run(&mut fake_run(["env", "true"]));
    let line = ended.line();
    let start = "hakmem 9.8.7 served env: 17 blocks from slabs and large memory (magazine hits not counted; \
                 --exact counts them), ";
    assert!(line.starts_with(start) && line.ends_with(" MiB peak resident, 1 process"), "{line}");
    assert_eq!((ended.code(), ended.stdout()), (Some(0), ""));
}

#[test]
fn exact_counts_every_allocation() {
    for command in [&mut fake_run(["--exact", "true"]), fake_run(["true"]).env("HAKMEM_MAGAZINE", "off")] {
        let ended = run(command);
        assert!(ended.line().starts_with("hakmem 9.8.7 served true: 4242 allocations, "), "{}", ended.line());
    }
    let ended = run(&mut fake_run(["--exact", "--set", "MAGAZINE=on", "true"]));
    assert!(ended.line().contains("contradict"));
    assert_eq!(ended.code(), Some(2));
}

#[test]
fn the_peak_is_the_programs_own() {
    let peak = |command: &mut std::process::Command| -> f64 {
        let ended = run(command);
        let words: Vec<&str> = ended.line().split(' ').collect();
        words[words.iter().position(|w| *w == "MiB").unwrap() - 1].parse().unwrap()
    };
    let perl = |text| peak(&mut fake_run(["perl", "-e", text]));
    let grown = perl("$x = 'x' x (64 << 20)") - perl("0");
    assert!(grown > 60.0 && grown < 200.0, "{grown}");
    // The least that the kernel reports is the size of whoever called exec; that must not be this command's
    // own, which is about 4 MiB.
    let least = peak(&mut fake_run(["true"]));
    assert!(least > 0.5 && least < 3.0, "{least}");
}

#[test]
fn other_processes_are_counted() {
    let ended = run(&mut fake_run(["--exact", "perl", "-e", "system('true'); system('true')"]));
    let line = ended.line();
    assert!(line.starts_with("hakmem 9.8.7 served perl: 4242 allocations in the main process, "), "{line}");
    assert!(line.ends_with(" peak resident in the largest process, 3 processes"), "{line}");
}

#[test]
fn leaving_without_a_report_is_said() {
    let ended = run(&mut fake_run(["perl", "-e", "kill 9, $$"]));
    let start = "hakmem 9.8.7 served perl, which left without a report (killed by SIGKILL): ";
    assert!(ended.line().starts_with(start), "{}", ended.line());
    let ended = run(&mut fake_run(["perl", "-MPOSIX", "-e", "POSIX::_exit(5)"]));
    assert!(ended.line().contains("without a report (it left by _exit"), "{}", ended.line());
    assert_eq!(ended.code(), Some(5));
}

#[test]
fn quiet_drops_the_line() {
    let ended = run(&mut fake_run(["--quiet", "sh", "-c", "echo out; echo err >&2; exit 4"]));
    assert_eq!((ended.code(), ended.stdout(), &*ended.stderr), (Some(4), "out\n", "err\n"));
}

#[test]
fn stats_prints_the_table_before_the_line() {
    let ended = run(&mut fake_run(["--stats", "--exact", "env"]));
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines[0].starts_with("hakmem 9.8.7 statistics of env (process "), "{}", ended.stderr);
    let row = |name: &str| lines.iter().find(|l| l.contains(name)).unwrap_or_else(|| panic!("no {name}"));
    assert!(row("allocations").contains("4242"));
    assert!(row("bytes_mapped").contains("4194304") && row("bytes_mapped").contains("4.0 MiB"));
    // Where the memory is, and the classes in use.
    assert!(
        row(" allocated ").contains(" 1.0 MiB ") && row(" allocated ").contains(" 50.0 % "),
        "{}",
        ended.stderr
    );
    for name in ["= active ", "+ free and dirty ", "= resident ", "+ retained ", "= mapped "] {
        assert!(row(name).contains(" MiB "), "{name}: {}", ended.stderr);
    }
    assert!(row(" 48 ").contains(" 1234 ") && row(" 48 ").contains(" 90.4 % "), "{}", ended.stderr);
    assert!(lines.last().unwrap().starts_with("hakmem 9.8.7 served env: 4242"));
    // Without a report there is nothing to show, and the status says so if the program's own does not.
    let quiet = |program: &[&str]| run(fake_run(["--stats", "--quiet"]).args(program));
    let ended = quiet(&["perl", "-e", "kill 9, $$"]);
    assert_eq!(ended.line(), "hakmem: no statistics of perl: it left without a report");
    assert_eq!(ended.code(), None);
    let ended = quiet(&["perl", "-MPOSIX", "-e", "POSIX::_exit(0)"]);
    assert_eq!(ended.line(), "hakmem: no statistics of perl: it left without a report");
    assert_eq!(ended.code(), Some(1));
    let ended = quiet(&["perl", "-e", "delete $ENV{LD_PRELOAD}; exec 'true'"]);
    assert_eq!(
        (ended.line(), ended.code()),
        ("hakmem: no statistics of perl: it left without a report", Some(1))
    );
    let program = compile("plain.c", "plain", &["-static"]);
    let ended = quiet(&[program.to_str().unwrap()]);
    assert_eq!(ended.line(), "hakmem: no statistics of plain: there is no record of it");
}

/// The table is what the user has asked for. Of the library's own statistics none would say so either.
#[test]
fn statistics_that_cannot_be_printed_are_a_failure() {
    let status = |arguments: &[&str], stderr: Stdio| {
        fake_run(arguments.iter().copied()).stderr(stderr).status().unwrap().code()
    };
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(status(&["--stats", "true"], full()), Some(1));
    assert_eq!(status(&["--stats", "--quiet", "true"], full()), Some(1));
    assert_eq!(status(&["--stats", "sh", "-c", "exit 3"], full()), Some(3), "the program's own says more");
    let mut closed = clean(std::process::Command::new("sh"));
    closed.args(["-c", "exec \"$0\" run --stats true 2>&-", env!("CARGO_BIN_EXE_hakmem")]);
    assert_eq!(closed.env("HAKMEM_LIB", fake()).status().unwrap().code(), Some(1));
    assert_eq!(status(&["--set", "STATS=table", "true"], full()), Some(0));
    assert_eq!(status(&["true"], full()), Some(0));
    // Who has gone has seen enough.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(status(&["--stats", "true"], writer.into()), Some(0));
}

/// As without this command.
#[test]
fn statistics_of_all_processes_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats");
    let script = ["-q", "sh", "-c", "perl -e 1; perl -e 1; kill -9 $$"];
    let with = |format: &str, to: &str| {
        let ended = run(fake_run(script).envs([("HAKMEM_STATS", format), ("HAKMEM_STATS_FILE", to)]));
        assert_eq!(ended.code(), None, "{}", ended.stderr);
        ended.stderr
    };
    let (lines, tables) = (with("json", ""), with("table", ""));
    assert_eq!(lines.matches("\"event\":\"exit\"").count(), 2, "{lines}");
    assert_eq!((lines.lines().count(), tables.matches("hakmem 9.8.7 statistics (process ").count()), (2, 2));
    assert_eq!(with("table", file.to_str().unwrap()), "");
    assert_eq!(
        std::fs::read_to_string(&file).unwrap().matches("hakmem 9.8.7 statistics (process ").count(),
        2
    );
    // Those of the program itself have its name, and are there once.
    let ended = run(&mut fake_run(["-q", "--stats", "--set", "STATS=table", "perl", "-e", "system('true')"]));
    assert_eq!(ended.stderr.matches(" statistics of perl (process ").count(), 1, "{}", ended.stderr);
    assert_eq!(ended.stderr.matches(" statistics").count(), 2, "{}", ended.stderr);
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn closed_descriptors_stay_closed() {
    let list = "for f in 0 1 2; do [ -e /dev/fd/$f ] && open=$open$f; done; printf \"$open\" >&9";
    for (closed, left) in [("", "012"), ("<&-", "12"), (">&-", "02"), ("2>&-", "01"), ("<&- >&- 2>&-", "")] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let command = fake_run(["-q", "sh", "-c", list]);
        let words: Vec<&OsStr> = [command.get_program()].into_iter().chain(command.get_args()).collect();
        let mut sh = clean(std::process::Command::new("sh"));
        sh.args(["-c", &format!("exec 9>\"$0\" {closed}; exec \"$@\"")]).arg(file.path()).args(words);
        sh.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        assert_eq!(run(&mut sh).code(), Some(0), "{closed}");
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), left, "{closed}");
    }
}

#[test]
fn statistics_asked_of_the_library_still_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats");
    std::fs::write(&file, "before\n").unwrap();
    run(fake_run(["-q", "true"]).env("HAKMEM_STATS", "json").env("HAKMEM_STATS_FILE", &file));
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0] == "before" && lines[1].contains("start") && lines[2].contains("\"allocations\":17"));

    let ended = run(fake_run(["-q", "true"]).env("HAKMEM_STATS", "json"));
    assert!(ended.line().contains("\"allocations\":17"));
    let ended = run(&mut fake_run(["-q", "--set", "STATS=table", "true"]));
    assert!(ended.stderr.contains("statistics of true"));
    let ended = run(fake_run(["-q", "true"]).env("HAKMEM_STATS", "bogus"));
    assert_eq!(ended.line(), "hakmem: HAKMEM_STATS=bogus: expected none, table or json; ignored");
    let ended =
        run(fake_run(["-q", "true"]).envs([("HAKMEM_STATS", "json"), ("HAKMEM_STATS_FILE", "/nope/x")]));
    assert!(ended.line().starts_with("hakmem: HAKMEM_STATS_FILE=/nope/x: "), "{}", ended.line());
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn set_reaches_the_program() {
    let show = ["sh", "-c", "echo $HAKMEM_PURGE_DELAY $HAKMEM_THP"];
    let ended = run(fake_run(["--set", "purge_delay=-1", "--set=HAKMEM_THP=never"]).args(show));
    assert_eq!(ended.stdout(), "-1 never\n");
    for wrong in ["NAME", "=x", "A B=1", "LIB=/x", ""] {
        let ended = run(&mut fake_run(["--set", wrong, "true"]));
        assert!(ended.stderr.contains("--set"), "{wrong}: {}", ended.stderr);
        assert_eq!(ended.code(), Some(2), "{wrong}");
    }
}

#[test]
fn arguments_pass_through_untouched() {
    let args = ["--quiet", "-x", "--", "", "a b", "*", "--lib", "$HOME", "-h", "--", "--version"];
    for front in [&[][..], &["--"][..]] {
        let mut command = fake_run(front);
        command.args(["printf", "[%s]"]).args(args).arg(OsStr::from_bytes(b"\xff\xfe"));
        let ended = run(&mut command);
        let mut want = args.map(|a| format!("[{a}]")).concat().into_bytes();
        want.extend(b"[\xff\xfe]");
        assert_eq!(ended.stdout, want, "{front:?}");
    }
}

#[test]
fn options_before_the_program_are_ours() {
    let ended = run(&mut fake_run(["--bogus", "true"]));
    assert!(ended.stderr.contains("--bogus"), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(2));
    let ended = run(&mut fake_run([] as [&str; 0]));
    assert!(ended.stderr.contains("PROGRAM"), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(2));
    assert_eq!(run(&mut fake_run(["--", "--bogus"])).line(), "hakmem: --bogus: program not found");
}

#[test]
fn input_passes_through() {
    let mut child = fake_run(["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert_eq!(finish(child).stdout, bytes);
}

#[test]
fn exit_codes_pass_through() {
    for code in [0, 1, 2, 126, 127, 128, 137, 255] {
        assert_eq!(run(&mut fake_run(["sh", "-c", &format!("exit {code}")])).code(), Some(code));
    }
}

#[test]
fn a_program_that_cannot_start() {
    let folder = tempfile::tempdir().unwrap();
    let plain = script(&folder.path().join("plain"), "#!/bin/sh\n", "644");
    let lost = script(&folder.path().join("lost"), "#!/no/such/interpreter\n", "755");
    let broken = script(&folder.path().join("broken"), "\x7fELF\x01\x02", "755");
    let cases = [
        (OsStr::new("no-such-program-anywhere"), 127, "program not found"),
        (OsStr::new("/no/such/program"), 127, "program not found"),
        (OsStr::new(""), 127, "program not found"),
        (lost.as_os_str(), 127, "interpreter it asks for is missing"),
        (plain.as_os_str(), 126, "program not executable"),
        (folder.path().as_os_str(), 126, "program not executable"),
    ];
    for (program, code, message) in cases {
        let ended = run(&mut fake_run([program]));
        assert!(ended.line().starts_with("hakmem: ") && ended.line().contains(message), "{}", ended.line());
        assert_eq!(ended.code(), Some(code), "{program:?}");
        assert_eq!(run(fake_run([OsStr::new("--quiet")]).arg(program)).line(), ended.line());
    }
    // execvp hands what is no program to the shell, so that one has its own words for it.
    assert!(matches!(run(&mut fake_run([broken])).code(), Some(126 | 127 | 2)));
}

#[test]
fn a_closed_stderr_changes_nothing() {
    let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(reader);
    let stderr = std::os::fd::OwnedFd::from(writer);
    let child = fake_run(["sh", "-c", "exit 6"]).stderr(stderr).spawn().unwrap();
    assert_eq!(finish(child).code(), Some(6));
}

#[test]
fn earlier_preloads_stay() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.so");
    std::fs::copy(fake(), &other).unwrap();
    let ended = run(fake_run(["-q", "sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", &other));
    assert_eq!(ended.stdout(), format!("{}:{}\n", fake().display(), other.display()));
}

#[test]
fn nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let awkward = folder.path().join("a b:c.so");
    let temp = folder.path().join("tmp");
    std::fs::create_dir(&temp).unwrap();
    std::fs::copy(fake(), &awkward).unwrap();
    for program in ["true", "no-such-program-anywhere"] {
        let mut command = fake_run([program]);
        run(command.env("HAKMEM_LIB", &awkward).env("TMPDIR", &temp));
        assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 0, "{program}");
    }
    let ended = run(fake_run(["true"]).env("TMPDIR", "/no/such/folder"));
    assert!(ended.line().contains("/no/such/folder"), "{}", ended.line());
    assert_eq!(ended.code(), Some(2));
}

#[test]
fn a_name_with_control_characters_stays_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = script(&folder.path().join("a\nb"), "#!/usr/bin/env true\n", "755");
    assert!(run(&mut fake_run([program])).line().contains("served a\\nb: "));
}
