//! `hakmem profile` and `hakmem diff`: of files that exist, and of programs under a stand-in for the library.

#![cfg(feature = "profile")]

mod support;

use std::path::Path;
use std::process::Command;

use hakmem_profile::file::{Module, Process, Row, Site, StackEnd, Totals, Why, Writer};
use support::saved::{profile, put, show};
use support::{Ended, compile, fake, hakmem, real, run};

#[test]
fn a_file_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "server.4711.hakprof", &profile(12));
    let ended = show(&path, &[]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    let text = ended.stdout();
    for expected in [
        "server --port 80\nprocess 4711: 2.0 s in 2 snapshots, 21 samples, one for 512.0 KiB on average",
        "on average, 100.0 % of them",
        "Held at the end: 13.9 MiB in 14 objects (95%: 12.0 – 1",
        "Held at the peak: 16.4 MiB",
        "Allocated until 2.0 s: 18.4 MiB",
        "server+0x2000 ",
        "← server+0x4000",
        "Resident at the end: 50.0 MiB = 20.0 MiB live + 5.0 MiB cached",
        "+ 25.0 MiB not the allocator's",
        "note: /no/such/server is not there any more",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    // Not one line is wider than a page.
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    // One table only, of an earlier moment.
    let early = show(&path, &["--at", "1500ms", "--what", "live", "--top", "1"]);
    assert!(early.stdout().contains("Held at 1.0 s: 16.4 MiB"), "{}", early.stdout());
    assert!(
        early.stdout().contains("in 1 other") && !early.stdout().contains("Allocated"),
        "{}",
        early.stdout()
    );
    assert_eq!(show(&path, &["--sort", "pinned", "--group", "thread"]).code(), Some(0));
    assert!(show(&path, &["--stop"]).line().contains("name it with --pid"));
    // So is the page.
    let page = |options: &[&str]| {
        let report = folder.path().join("report");
        show(&path, &[options, &["--report", report.to_str().unwrap()]].concat());
        std::fs::read_to_string(report.join("index.html")).unwrap()
    };
    let [early, end] = [page(&["--at", "1500ms"]), page(&[])];
    let says = |page: &str, when: &str| {
        page.contains(&format!("Held {when}")) && page.contains(&format!(">held {when}<"))
    };
    assert!(says(&early, "at 1.0 s") && !early.contains("eld at the end"));
    assert!(says(&end, "at the end") && !end.contains("eld at 1.0 s"));
    // Nothing sampled is not nothing at all.
    let none = put(folder.path(), "none.hakprof", &profile(0));
    let expected = "Held at the end: no sampled block, so less than 1.8 MiB most likely";
    assert!(show(&none, &[]).stdout().contains(expected), "{}", show(&none, &[]).stdout());
}

#[test]
fn a_file_is_written_for_other_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "x.hakprof", &profile(12));
    let json = show(&path, &["--format", "json"]);
    let value: serde_json::Value = serde_json::from_str(json.stdout()).unwrap();
    assert_eq!(value["process"]["pid"], 4711);
    assert_eq!(value["live"]["samples"], 12);
    assert_eq!(value["groups"][0]["stack"][0]["function"], "server+0x2000");
    assert_eq!(value["memory"]["resident_bytes"], 50 << 20);
    assert_eq!(value["timeline"].as_array().unwrap().len(), 2);
    let collapsed = show(&path, &["--format", "collapsed", "--what", "peak"]);
    let lines: Vec<&str> = collapsed.stdout().lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("server+0x4000;server+0x2000 14552360"), "{lines:?}");
    let svg = show(&path, &["--format", "svg"]);
    assert!(svg.stdout().contains("<svg") && svg.stdout().contains("server+0x2000"));
    let pprof = show(&path, &["--format", "pprof"]);
    assert!(hakmem_profile::pprof::decode(&pprof.stdout).unwrap().samples.len() == 2);
}

#[test]
fn growth_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let before = put(folder.path(), "before.hakprof", &profile(12));
    let after = put(folder.path(), "after.hakprof", &profile(40));
    let packed = put(folder.path(), "after.pb.gz", &show(&after, &["--format", "pprof"]).stdout);
    let svg = folder.path().join("growth.svg");
    for after in [&after, &packed] {
        let ended = run(hakmem().arg("diff").arg(&before).arg(after).arg("--svg").arg(&svg));
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let text = ended.stdout();
        assert!(text.contains("13.9 MiB before, 46.3 MiB after: +32.4 MiB"), "{text}");
        assert!(text.contains("Grown: +32.4 MiB by 1 call site") && !text.contains("Shrunk"), "{text}");
        assert!(text.contains("server+0x2000"), "{text}");
        assert!(std::fs::read_to_string(&svg).unwrap().contains("server+0x2000"));
        let back = run(hakmem().arg("diff").arg(after).arg(&before));
        assert!(back.stdout().contains("Shrunk: -32.4 MiB"), "{}", back.stdout());
    }
    // What leaked is gone: there is nothing of it to draw.
    let (fixed, none) = (put(folder.path(), "fixed.hakprof", &profile(0)), folder.path().join("none.svg"));
    let ended = run(hakmem().arg("diff").arg(&before).arg(&fixed).arg("--svg").arg(&none));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stdout().contains("Shrunk: -13.9 MiB"), "{}", ended.stdout());
    assert!(ended.stderr.contains("no flame graph: nothing of") && !none.exists(), "{}", ended.stderr);
    // The same profile twice.
    let ended = run(hakmem().arg("diff").arg(&before).arg(&before));
    assert!(ended.stdout().contains(": 0 B"), "{}", ended.stdout());
}

#[test]
fn a_cut_file_is_shown_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let whole = profile(12);
    let path = put(folder.path(), "x.hakprof", &whole[..whole.len() - 40]);
    let ended = show(&path, &[]);
    assert_eq!(ended.code(), Some(0));
    assert!(ended.stdout().contains("note: the end of the file is missing, from byte"), "{}", ended.stdout());
    assert!(
        ended.stdout().contains("Held at the peak, of the snapshots that at 1.0 s"),
        "{}",
        ended.stdout()
    );
}

/// One line that begins with the file, and the exit status of a wrong use.
#[track_caller]
fn refused(ended: &Ended, path: &Path, expected: &str) {
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.line().starts_with(&format!("hakmem: {}: ", path.display())), "{}", ended.stderr);
    assert!(ended.line().contains(expected), "{}", ended.stderr);
}

#[test]
fn what_is_no_profile_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = put(folder, "good.hakprof", &profile(1));
    let mut newer = Writer::with_version(&Process { rate: 1, ..Process::default() }, 9).bytes().to_vec();
    newer.extend(b"whatever comes then");
    let none = Writer::new(&Process { rate: 1, ..Process::default() }).bytes().to_vec();
    let mut damaged = profile(1);
    damaged[40] ^= 1;
    let wrong = [
        (put(folder, "empty.hakprof", b""), "empty"),
        (put(folder, "text.txt", b"hello"), "no heap profile"),
        (put(folder, "newer.hakprof", &newer), "version 9"),
        (put(folder, "none.hakprof", &none), "no snapshot"),
        (put(folder, "damaged.hakprof", &damaged), "damaged at byte 8"),
        (folder.join("gone.hakprof"), "no such file"),
        (folder.to_path_buf(), "it is a folder"),
    ];
    for (path, expected) in &wrong {
        refused(&show(path, &[]), path, expected);
        refused(&run(hakmem().arg("diff").arg(&good).arg(path)), path, expected);
        refused(&run(hakmem().arg("diff").arg(path).arg(&good)), path, expected);
    }
    let packed = put(folder, "packed.pb.gz", &show(&good, &["--format", "pprof"]).stdout);
    refused(&show(&packed, &[]), &packed, "pprof's format");
    let bytes = std::fs::read(&packed).unwrap();
    let cut = put(folder, "cut.pb.gz", &bytes[..bytes.len() / 2]);
    refused(&run(hakmem().arg("diff").arg(&good).arg(&cut)), &cut, "cut short");
    refused(&show(&good, &["--rate", "1K"]), &good, "--rate is for running a program");
    refused(&show(&good, &[cut.to_str().unwrap()]), &good, "one file at a time");
    let ended = show(&good, &["--at", "1ms"]);
    assert!(
        ended.code() == Some(2) && ended.line().contains("the first snapshot is at 1.0 s"),
        "{}",
        ended.stderr
    );
    // Root may read everything.
    if !nix::unistd::geteuid().is_root() {
        std::fs::set_permissions(&good, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        refused(&show(&good, &[]), &good, "permission denied");
    }
}

/// `hakmem profile` of a program whose profile will be `profile`.
fn profiled(folder: &Path, profile: &[u8], arguments: &[&str]) -> Command {
    let mut command = hakmem();
    command.current_dir(folder).env("HAKMEM_LIB", fake());
    command.env("FAKE_PROFILE", put(folder, "source", profile)).arg("profile").args(arguments);
    command
}

/// The names of the files in a folder, less the number of the process.
fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(name)
        .map(|name| name.replace(char::is_numeric, ""))
        .collect();
    names.sort();
    names
}

#[test]
fn a_program_is_run_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $HAKMEM_PROFILE_RATE $HAKMEM_PROFILE_INTERVAL $HAKMEM_THP; exit 3";
    let options = ["--rate", "64K", "--interval", "250ms", "--set", "thp=never", "--top", "1", "--"];
    let arguments = [&options[..], &["bash", "-c", script]].concat();
    let ended = run(&mut profiled(folder.path(), &profile(12), &arguments));
    assert_eq!((ended.code(), ended.stdout()), (Some(3), "65536 250 never\n"), "{}", ended.stderr);
    for expected in
        ["Held at the end: 13.9 MiB", "Held at the peak", "Resident at the end", "files: bash.profile/"]
    {
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
    }
    let files = names(&folder.path().join("bash.profile"));
    assert_eq!(files, ["bash..hakprof", "bash..pb.gz", "bash..peak.collapsed"]);

    // What an earlier run has left is not shown again.
    let ended = run(&mut profiled(
        folder.path(),
        &profile(40),
        &["--what", "live", "--", "bash", "-c", "kill -9 $$"],
    ));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(9));
    assert!(ended.stderr.contains("46.3 MiB") && !ended.stderr.contains("13.9 MiB"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("more process"), "{}", ended.stderr);
}

/// Tables are shown without the files for other tools.
#[test]
fn files_that_cannot_be_written_at_the_end_cost_no_tables() {
    let folder = tempfile::tempdir().unwrap();
    let shown = |endings: &str, code: &str| {
        let script =
            format!("for e in {endings}; do LD_PRELOAD= mkdir bash.profile/bash.$$.$e; done; exit {code}");
        run(&mut profiled(folder.path(), &profile(12), &["--", "bash", "-c", &script]))
    };
    let ended = shown("pb.gz peak.collapsed", "0");
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    for ending in [".pb.gz: ", ".peak.collapsed: "] {
        let is_it = |line: &str| {
            line.starts_with("hakmem: cannot write ")
                && line.contains(ending)
                && line.ends_with("File exists (os error 17); name another folder with --out")
        };
        assert!(ended.stderr.lines().any(is_it), "{}", ended.stderr);
    }
    assert!(ended.stderr.contains("Held at the end: 13.9 MiB"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("*.pb.gz") && !ended.stderr.contains("*.collapsed"), "{}", ended.stderr);
    // One of the two; and the program's own status says more.
    let ended = shown("pb.gz", "3");
    assert_eq!(ended.code(), Some(3));
    assert!(!ended.stderr.contains("*.pb.gz") && ended.stderr.contains(", *.collapsed"), "{}", ended.stderr);
}

/// The tables are what the user has asked for. The page is written without them.
#[test]
fn tables_that_cannot_be_printed_are_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    for (code, expected) in [(0, 1), (3, 3)] {
        let script = format!("exit {code}");
        let mut command =
            profiled(folder.path(), &profile(12), &["--report", "page", "--", "bash", "-c", &script]);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(command.stderr(full).status().unwrap().code(), Some(expected));
        let page = folder.path().join("page");
        assert_eq!(names(&page), ["index.html"]);
        std::fs::remove_dir_all(page).unwrap();
        // Who has gone has seen enough.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(command.stderr(writer).status().unwrap().code(), Some(code));
    }
}

#[test]
fn a_profile_begins_at_once_whatever_the_caller_has_set() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo [$HAKMEM_PROFILE_SIGNAL]";
    let mut command = profiled(folder.path(), &profile(12), &["--", "bash", "-c", script]);
    assert_eq!(run(command.env("HAKMEM_PROFILE_SIGNAL", "USR2")).stdout(), "[]\n");
    // What it sets by --set holds.
    let script = ["--set", "PROFILE_INTERVAL=20", "--", "bash", "-c", "echo $HAKMEM_PROFILE_INTERVAL"];
    assert_eq!(run(&mut profiled(folder.path(), &profile(12), &script)).stdout(), "20\n");
}

/// Tags are the program's, and modules' names whoever's: neither may tell the terminal what to do.
#[test]
fn control_characters_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process { rate: 1, arguments: vec!["a".into()], ..Process::default() };
    let mut writer = Writer::new(&process);
    let path = "/no/such/\u{1b}[31mmodule".into();
    writer.modules(&[Module { start: 0, end: 0x9000, offset: 0, build_id: vec![1], path }]);
    let tag = Some(writer.tag("\u{1b}[2Jtag"));
    let stack = writer.stack(&[0x2001, 0x4001], StackEnd::Complete) as usize;
    writer.site(&Site { stack, thread: 1, tag, size: 64 });
    let row = Row { allocated: 5, live: 5, peak: 5, pinned: 0.0 };
    writer.snapshot(1, Why::End, &Totals::default(), &[(0, row)]);
    let path = put(folder.path(), "x.hakprof", writer.bytes());
    for (by, expected) in [("tag", "\\u{1b}[2Jtag"), ("site", "\\u{1b}[31mmodule+0x4000")] {
        let ended = show(&path, &["--group", by]);
        assert!(ended.stdout().contains(expected), "{}", ended.stdout());
        assert!(!ended.stdout().contains('\u{1b}') && !ended.stderr.contains('\u{1b}'), "{by}");
    }
}

#[test]
fn small_processes_are_summed() {
    let folder = tempfile::tempdir().unwrap();
    let script = "for i in 1 2 3; do FAKE_PROFILE=$PWD/small perl -e 1; done; :";
    put(folder.path(), "small", &profile(0));
    let ended =
        run(&mut profiled(folder.path(), &profile(90), &["--out", "out", "--", "bash", "-c", script]));
    assert_eq!(ended.code(), Some(0));
    assert!(ended.stderr.contains("and 3 more processes, together"), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("Held at the end").count(), 1, "{}", ended.stderr);
}

#[test]
fn what_cannot_be_profiled_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let gone = run(&mut profiled(folder, b"", &["--", "no-such-program"]));
    assert_eq!((gone.code(), gone.line()), (Some(127), "hakmem: no-such-program: program not found"));
    let fixed = compile("plain.c", "static", &["-static"]);
    let ended = run(&mut profiled(folder, b"", &["--", fixed.to_str().unwrap()]));
    assert!(
        ended.line().contains("hakmem: no profile of static: ") && ended.line().contains("statically linked")
    );
    let ended = run(profiled(folder, b"", &["--", "true"]).env_remove("FAKE_PROFILE"));
    assert_eq!(ended.code(), Some(1));
    assert!(ended.line().contains("no profile of true") && ended.line().contains("has no profiler"));
    let mut killed = profiled(folder, b"", &["--", "bash", "-c", "kill -9 $$"]);
    let ended = run(killed.env_remove("FAKE_PROFILE"));
    assert!(ended.line().contains("it was killed by SIGKILL before its first snapshot"), "{}", ended.stderr);
    // No folder is left of those.
    assert_eq!(names(folder), ["source"]);
    let damaged = run(&mut profiled(folder, b"hello", &["--", "true"]));
    assert!(damaged.stderr.lines().next().unwrap().contains("it is no heap profile"), "{}", damaged.stderr);
    assert_eq!(damaged.code(), Some(1));
    let script = "rmdir page; : >page";
    let late = run(&mut profiled(folder, &profile(1), &["--report", "page", "--", "bash", "-c", script]));
    assert_eq!(late.code(), Some(1), "{}", late.stderr);
    assert!(late.stderr.contains("--report: cannot write page/index.html"), "{}", late.stderr);
    for (options, expected) in [
        (&["--out", "source"][..], "it is no folder"),
        (&["--out", "source/below"], "source/below; name another folder with --out"),
        (&["--out", &"long/".repeat(60)], "its path is too long"),
        (&["--report", "source"], "--report: cannot write to source; name another folder"),
        (&["--stop"], "--stop is for a process that runs already: name it with --pid"),
        (&["--seconds", "3"], "--seconds is for a process that runs already"),
        (&["--at", "1s"], "--at is for a file"),
        (&["--format", "json"], "--format is for a file"),
    ] {
        let ended = run(&mut profiled(folder, b"", &[options, &["--", "true"]].concat()));
        assert_eq!(ended.code(), Some(2));
        assert!(ended.line().starts_with("hakmem: ") && ended.line().contains(expected), "{}", ended.stderr);
    }
    for options in [["--rate", "0"], ["--interval", "0s"], ["--rate", "some"]] {
        let ended = run(&mut profiled(folder, b"", &[&options[..], &["--", "true"]].concat()));
        assert!(ended.code() == Some(2) && ended.stderr.contains("expected"), "{}", ended.stderr);
    }
}

#[test]
fn the_real_library_says_who_holds() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("hold.c", "hold", &["-g", "-O1"]);
    let mut command = hakmem();
    command.current_dir(folder.path()).env("HAKMEM_LIB", real()).args(["profile", "--rate", "64K", "--"]);
    let ended = run(command.arg(program));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("hold  ") && ended.stderr.contains("← main"), "{}", ended.stderr);
    let files =
        std::fs::read_dir(folder.path().join("hold.profile")).unwrap().flatten().map(|file| file.path());
    let file = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "hakprof")).unwrap();
    let value = |what: &str| -> serde_json::Value {
        serde_json::from_str(show(&file, &["--format", "json", "--what", what]).stdout()).unwrap()
    };
    let live = value("live");
    let first = &live["groups"][0];
    assert!(
        first["label"] == "hold" && first["location"].as_str().unwrap().ends_with("fake/hold.c:9"),
        "{first}"
    );
    assert_eq!(first["stack"][1]["function"], "main");
    // By far wider than chance.
    let bytes = first["live"]["bytes"].as_f64().unwrap();
    assert!((30e6..60e6).contains(&bytes), "{first}");
    // The blocks, and what they were rounded up to.
    let exact = live["memory"]["live_bytes"].as_f64().unwrap();
    assert!((40e6..60e6).contains(&exact), "{live}");
    // Freed at once.
    let allocated = value("allocated");
    let pass = &allocated["groups"][0];
    assert_eq!((&pass["label"], &pass["live"]["samples"]), (&"pass".into(), &0.into()), "{pass}");
    assert!((70e6..160e6).contains(&pass["allocated"]["bytes"].as_f64().unwrap()), "{pass}");
    assert!(pass["lifetime_ns"]["p50"].as_f64().unwrap() < 1e6, "{pass}");
}
