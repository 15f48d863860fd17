//! `hakmem profile` and `hakmem diff` on files that exist.

mod support;

use std::path::{Path, PathBuf};

use hakmem_profile::file::{Module, Process, Row, Site, StackEnd, Totals, Why, Writer};
use support::{Ended, hakmem, run};

/// A profile of a program that has left no file: one site that holds `live` blocks of 1 MiB, and one that has
/// freed all of its small ones.
fn profile(live: u64) -> Vec<u8> {
    let arguments = ["server", "--port", "80"].map(String::from).to_vec();
    let process =
        Process { pid: 4711, rate: 1 << 19, arguments, allocator: "0.2.0".into(), ..Process::default() };
    let mut writer = Writer::new(&process);
    let path = "/no/such/server".to_string();
    writer.modules(&[Module { start: 0, end: 0x9000, offset: 0, build_id: vec![1, 2], path }]);
    for (address, size) in [(0x2001, 1 << 20), (0x3001, 64)] {
        let stack = writer.stack(&[address, 0x4001], StackEnd::Complete);
        writer.site(&Site { stack: stack as usize, thread: 4711, tag: None, size });
    }
    let mib = 1 << 20;
    let totals = Totals { resident: 50 * mib, live: 20 * mib, cached: 5 * mib, ..Totals::default() };
    let row = |allocated, live, peak| Row { allocated, live, peak, pinned: 0.0 };
    writer.snapshot(1_000_000_000, Why::Timer, &totals, &[(0, row(live, live, 0)), (1, row(5, 5, 0))]);
    writer.snapshot(2_000_000_000, Why::End, &totals, &[(0, row(live, live, live)), (1, row(9, 0, 5))]);
    writer.end(Why::End);
    writer.bytes().to_vec()
}

/// Writes a file.
fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn show(path: &Path, options: &[&str]) -> Ended {
    run(hakmem().arg("profile").arg(path).args(options))
}

#[test]
fn a_file_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "server.4711.hakprof", &profile(12));
    let ended = show(&path, &[]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    let text = ended.stdout();
    for expected in [
        "server --port 80\nprocess 4711: 2.0 s in 2 snapshots, 21 samples, one for 512.0 KiB on average",
        "Held at the end: 13.9 MiB in 14 objects (95%: 12.0 MiB to",
        "Held at the peak: 16.4 MiB",
        "Allocated until 2.0 s: 18.4 MiB",
        "server+0x2000  server",
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
        early.stdout().contains("in 1 other (--top shows more)") && !early.stdout().contains("Allocated"),
        "{}",
        early.stdout()
    );
    assert_eq!(show(&path, &["--sort", "pinned", "--group", "thread"]).code(), Some(0));
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
