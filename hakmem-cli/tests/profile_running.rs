//! `hakmem profile --pid`, and the signal by which a process begins a profile: of processes that run already.

#![cfg(feature = "profile")]

mod support;

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use hakmem_profile::file;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use support::growing::Growing;
use support::skips::skip;
use support::{compile, eventually, finish, hakmem, install, real, run, state};

#[test]
fn a_process_that_runs_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let growing = Growing::start(folder.path(), &[]);
    let watch = |pid: &str, options: &[&str]| {
        let mut command = hakmem();
        run(command.current_dir(folder.path()).args(["profile", "--pid", pid]).args(options))
    };
    // Again and again: nothing is left of the profile before, but its file.
    for again in [false, true] {
        let mut command = hakmem();
        command.current_dir(folder.path()).args(["profile", "--pid", &growing.pid(), "--seconds", "1000"]);
        command.args(["--rate", "4K", "--interval", "100ms"]).stdin(Stdio::null()).stderr(Stdio::piped());
        let command = command.spawn().unwrap();
        // Enough to suspect something by, however long that takes.
        let name = if again { "grow-2" } else { "grow" };
        let file = folder.path().join(format!("grow.profile/{name}.{}.hakprof", growing.pid()));
        let snapshots = || file::read(&std::fs::read(&file).ok()?).ok().map(|raw| raw.snapshots.len());
        eventually("15 snapshots", || snapshots().is_some_and(|count| count >= 15));
        signal::kill(Pid::from_raw(command.id() as i32), Signal::SIGINT).unwrap();
        let ended = finish(command);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        for expected in ["grow  ", "← main", "Leak suspects", "allocated before the profile began"] {
            assert!(ended.stderr.contains(expected), "{}", ended.stderr);
        }
        assert_eq!(ended.stderr.contains("is there already; this profile goes to grow-2."), again);
    }
    for name in ["grow", "grow-2"] {
        let file = folder.path().join(format!("grow.profile/{name}.{}.hakprof", growing.pid()));
        let raw = file::read(&std::fs::read(file).unwrap()).unwrap();
        assert!(raw.process.armed_late && raw.process.rate == 4096 && raw.end == Some(file::Why::End));
    }
    for (pid, options, expected) in [
        (&*std::process::id().to_string(), &[][..], "does not run on Hakmem's library"),
        ("2147483647", &[], "there is no process 2147483647"),
        (&growing.pid(), &["--seconds", "0"], "--seconds 0: expected a number above 0"),
        (&growing.pid(), &["--at", "1s"], "--at is not for a process that runs already"),
        (&growing.pid(), &["--out", "/proc/self"], "cannot write profiles to"),
    ] {
        let ended = watch(pid, options);
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.line().starts_with("hakmem: ") && ended.line().contains(expected), "{}", ended.stderr);
    }
    assert_eq!(watch("0", &[]).code(), Some(2));
}

/// The kernel cuts the name of a process after 15 bytes, and a file's may be no text at all.
#[test]
fn a_process_with_any_name_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["fourteen-bytesé".as_bytes(), b"bad\xffname"].map(OsStr::from_bytes);
    for (name, shown) in names.into_iter().zip(["fourteen-bytes\u{fffd}", "bad\u{fffd}name"]) {
        let program = folder.path().join(name);
        install(&compile("grow.c", "grow", &["-g", "-O1"]), &program, "755");
        let mut command = Command::new(program);
        command.current_dir(folder.path()).env("LD_PRELOAD", real()).stdin(Stdio::piped());
        let growing = Growing(command.spawn().unwrap());
        let ask = |options: &[&str]| {
            let mut command = hakmem();
            run(command.current_dir(folder.path()).args(["profile", "--pid", &growing.pid()]).args(options))
        };
        let watch = ask(&["--seconds", "0.5", "--rate", "4K"]);
        assert_eq!(watch.code(), Some(0), "{}", watch.stderr);
        let file = folder.path().join(format!("{shown}.profile/{shown}.{}.hakprof", growing.pid()));
        assert!(file.exists() && watch.stderr.contains("← main"), "{}", watch.stderr);
        assert!(ask(&["--stop"]).line().ends_with("there is no profile"));
    }
}

/// As `program & hakmem profile --pid $!` does it: the process is the shell's still.
#[test]
fn a_process_that_is_just_started_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.current_dir(folder.path()).args(["-c", "sleep 0.2; LD_PRELOAD=$0 exec $1"]);
    command.arg(real()).arg(compile("grow.c", "grow", &["-g", "-O1"]));
    let growing = Growing(command.stdin(Stdio::piped()).spawn().unwrap());
    let mut watch = hakmem();
    let watch = watch.current_dir(folder.path()).args(["profile", "--seconds", "0.5", "--rate", "4K"]);
    let watch = run(watch.args(["--pid", &growing.pid()]));
    assert_eq!(watch.code(), Some(0), "{}", watch.stderr);
    assert!(watch.stderr.contains("grow  "), "{}", watch.stderr);
    // It is as young as the command, but its profile has ended.
    assert!(!watch.stderr.contains("goes on"), "{}", watch.stderr);
}

/// A child has the profile of the process that forks it, and nobody asks it to end.
#[test]
fn who_was_forked_meanwhile_and_goes_on_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut growing = Growing::start(folder.path(), &[]);
    let (watch, file) = growing.watched(folder.path(), "out");
    growing.0.stdin.as_mut().unwrap().write_all(b"f").unwrap();
    let child = || {
        let files = std::fs::read_dir(folder.path().join("out")).unwrap();
        let mut files = files.map(|entry| entry.unwrap().path());
        files.find(|path| *path != file && path.extension() == file.extension())
    };
    eventually("the child's first snapshot", || child().is_some());
    let childs_file = child().unwrap();
    signal::kill(Pid::from_raw(watch.id() as i32), Signal::SIGINT).unwrap();
    let watch = finish(watch);
    assert_eq!(watch.code(), Some(0), "{}", watch.stderr);
    let name = childs_file.file_name().unwrap().to_str().unwrap();
    let pid = name.strip_prefix("grow.").unwrap().strip_suffix(".hakprof").unwrap();
    let expected =
        format!("hakmem: process {pid}, forked by it, goes on: `hakmem profile --pid {pid} --stop` ");
    assert!(watch.stderr.lines().last().unwrap().starts_with(&expected), "{}", watch.stderr);
    let stop = run(hakmem().args(["profile", "--pid", pid, "--stop"]));
    assert_eq!(stop.code(), Some(0), "{}", stop.stderr);
    assert!(stop.stderr.contains(&*childs_file.to_string_lossy()), "{}", stop.stderr);
}

#[test]
fn a_signal_starts_and_stops_a_profile() {
    let folder = tempfile::tempdir().unwrap();
    let set = [
        ("HAKMEM_PROFILE", "by-signal"),
        ("HAKMEM_PROFILE_RATE", "4K"),
        ("HAKMEM_PROFILE_SIGNAL", "USR2"),
        ("HAKMEM_PROFILE_INTERVAL", "50"),
    ];
    let growing = Growing::start(folder.path(), &set);
    let file = folder.path().join(format!("by-signal.{}.hakprof", growing.pid()));
    let pid = nix::unistd::Pid::from_raw(growing.0.id() as i32);
    // Not before the library has been loaded: the signal would end the process.
    let maps = format!("/proc/{pid}/status");
    let handled = || {
        let status = std::fs::read_to_string(&maps).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (libc::SIGUSR2 - 1) != 0
    };
    eventually("the signal is handled", handled);
    // A profile that was asked for otherwise changes nothing of what the signal means.
    let mut command = hakmem();
    let other = command.current_dir(folder.path()).args(["profile", "--seconds", "0.3", "--rate", "1K"]);
    let other = run(other.args(["--pid", &growing.pid()]));
    assert_eq!(other.code(), Some(0), "{}", other.stderr);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!file.exists(), "it waits for the signal");
    nix::sys::signal::kill(pid, nix::sys::signal::SIGUSR2).unwrap();
    // It begins when the program next needs memory from a slab, and shows at the first snapshot.
    eventually("the first snapshot", || file.exists());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGUSR2).unwrap();
    let ended = || file::read(&std::fs::read(&file).ok()?).ok().filter(|raw| raw.end.is_some());
    eventually("the profile ends", || ended().is_some());
    let raw = ended().unwrap();
    assert!(raw.snapshots.last().unwrap().rows.iter().any(|(_, row)| row.live > 0));
    assert_eq!(raw.process.rate, 4096);
}

/// A profile that is refused leaves the one that runs alone: its file, and its end.
#[test]
fn a_second_profile_does_not_take_the_first_ones_file() {
    let folder = tempfile::tempdir().unwrap();
    let set =
        [("HAKMEM_PROFILE", "first/grow"), ("HAKMEM_PROFILE_RATE", "4K"), ("HAKMEM_PROFILE_INTERVAL", "50")];
    std::fs::create_dir(folder.path().join("first")).unwrap();
    let growing = Growing::start(folder.path(), &set);
    let file = folder.path().join(format!("first/grow.{}.hakprof", growing.pid()));
    eventually("the first snapshot", || file.exists());
    let mut command = hakmem();
    let second = command.current_dir(folder.path()).args(["profile", "--seconds", "1", "--out", "second"]);
    let second = run(second.args(["--pid", &growing.pid()]));
    assert_eq!(second.code(), Some(2), "{}", second.stderr);
    assert!(second.line().contains("there is a profile already"), "{}", second.stderr);
    let before = std::fs::metadata(&file).unwrap().len();
    eventually("another snapshot", || std::fs::metadata(&file).unwrap().len() > before);
    drop(growing);
    let raw = file::read(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(raw.end, Some(file::Why::End));
    let left = std::fs::read_dir(folder.path().join("second")).map_or(0, |files| files.count());
    assert_eq!(left, 0, "nothing goes to the second's folder");
}

/// One of two that ask at once gets its profile, the other one a refusal that is true.
#[test]
fn of_two_that_ask_at_once_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let growing = Growing::start(folder.path(), &[]);
    let watch = |out: &str| {
        let mut command = hakmem();
        command.current_dir(folder.path()).args([
            "profile",
            "--seconds",
            "1000",
            "--rate",
            "4K",
            "--out",
            out,
        ]);
        command.args(["--pid", &growing.pid()]).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut one = watch("one");
    let mut two = watch("two");
    let mut first_ends = false;
    eventually("one is refused", || {
        first_ends = one.try_wait().unwrap().is_some();
        first_ends || two.try_wait().unwrap().is_some()
    });
    let (taken, refused, out) = if first_ends { (two, one, "two") } else { (one, two, "one") };
    let refused = finish(refused);
    assert_eq!(refused.code(), Some(2), "{}", refused.stderr);
    assert!(refused.line().contains("there is a profile already"), "{}", refused.stderr);
    let file = folder.path().join(out).join(format!("grow.{}.hakprof", growing.pid()));
    eventually("the other's first snapshot", || file.exists());
    signal::kill(Pid::from_raw(taken.id() as i32), Signal::SIGINT).unwrap();
    let taken = finish(taken);
    assert_eq!(taken.code(), Some(0), "{}", taken.stderr);
}

/// A process that takes nothing from a slab cannot begin: that is said, and what to do about it.
#[test]
fn a_process_that_never_begins_is_said_to() {
    let folder = tempfile::tempdir().unwrap();
    let mut sleeping = Command::new("sleep").arg("60").env("LD_PRELOAD", real()).spawn().unwrap();
    let pid = sleeping.id().to_string();
    let status = |pid: u32, field: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (libc::SIGINT - 1) != 0
    };
    let maps = format!("/proc/{pid}/maps");
    eventually("it sleeps, with the library", || {
        state(sleeping.id() as i32) == Some('S')
            && std::fs::read_to_string(&maps).unwrap().contains("libhakmem.so")
    });
    let mut command = hakmem();
    command.current_dir(folder.path()).args(["profile", "--pid", &pid]);
    let watch = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The first one ends the wait for the beginning, the second one that for the end.
    for _ in 0..2 {
        eventually("it waits", || status(watch.id(), "SigBlk:") && !status(watch.id(), "ShdPnd:"));
        signal::kill(Pid::from_raw(watch.id() as i32), Signal::SIGINT).unwrap();
    }
    let watch = finish(watch);
    sleeping.kill().unwrap();
    sleeping.wait().unwrap();
    assert_eq!(watch.code(), Some(2), "{}", watch.stderr);
    assert!(
        watch.line().contains("it has not begun: its threads slept, or found every block"),
        "{}",
        watch.stderr
    );
}

/// What a watch that was killed has begun can be ended.
#[test]
fn a_profile_that_nobody_waits_for_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let growing = Growing::start(folder.path(), &[]);
    let ask = |option: &str| {
        run(hakmem().current_dir(folder.path()).args(["profile", "--pid", &growing.pid(), option]))
    };
    let none = ask("--stop");
    assert_eq!(none.code(), Some(2), "{}", none.stderr);
    assert!(none.line().ends_with("there is no profile"), "{}", none.stderr);
    let (mut watch, file) = growing.watched(folder.path(), "out");
    watch.kill().unwrap();
    watch.wait().unwrap();
    let other = ask("--seconds=1");
    assert_eq!(other.code(), Some(2), "{}", other.stderr);
    let advice = format!(
        "there is a profile already; wait for its end, or end it with `hakmem profile --pid {} --stop`",
        growing.pid()
    );
    assert!(other.line().contains(&advice), "{}", other.stderr);
    assert!(!folder.path().join("grow.profile").exists(), "nothing is left of what was refused");
    let stopped = ask("--stop");
    assert_eq!(stopped.code(), Some(0), "{}", stopped.stderr);
    assert!(
        stopped.stderr.contains(&*file.to_string_lossy()) && stopped.stderr.contains("← main"),
        "{}",
        stopped.stderr
    );
    assert_eq!(file::read(&std::fs::read(&file).unwrap()).unwrap().end, Some(file::Why::End));
    assert_eq!(ask("--stop").code(), Some(2));
    // One that is waited for ends for both.
    let (watch, _) = growing.watched(folder.path(), "again");
    assert_eq!(ask("--stop").code(), Some(0));
    let watch = finish(watch);
    assert!(watch.code() == Some(0) && watch.stderr.contains("← main"), "{}", watch.stderr);
}

#[test]
fn a_terminal_that_is_closed_ends_the_profile() {
    let folder = tempfile::tempdir().unwrap();
    let growing = Growing::start(folder.path(), &[]);
    for (signal, out) in
        [(Signal::SIGHUP, "hangup"), (Signal::SIGQUIT, "quit"), (Signal::SIGINT, "interrupt")]
    {
        let (watch, file) = growing.watched(folder.path(), out);
        signal::kill(Pid::from_raw(watch.id() as i32), signal).unwrap();
        let watch = finish(watch);
        assert_eq!(watch.code(), Some(0), "{signal}: {}", watch.stderr);
        assert_eq!(file::read(&std::fs::read(&file).unwrap()).unwrap().end, Some(file::Why::End), "{signal}");
    }
}

/// A new build, or an upgrade, replaces the library's file under the processes that run on it.
#[test]
fn a_library_whose_file_is_gone_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libhakmem.so");
    install(&real(), &library, "755");
    let growing = Growing::start(folder.path(), &[("LD_PRELOAD", library.to_str().unwrap())]);
    let maps = format!("/proc/{}/maps", growing.pid());
    eventually("the library is loaded", || {
        let maps = std::fs::read_to_string(&maps).unwrap();
        maps.lines().filter(|line| line.contains("/libhakmem.so")).count() >= 4
    });
    std::fs::remove_file(&library).unwrap();
    let mut command = hakmem();
    let watch = command.current_dir(folder.path()).args(["profile", "--seconds", "0.5", "--rate", "4K"]);
    let watch = run(watch.args(["--pid", &growing.pid()]));
    assert_eq!(watch.code(), Some(0), "{}", watch.stderr);
    assert!(watch.stderr.contains("← main"), "{}", watch.stderr);
}

/// Root asks another user's process, which writes as that user.
#[test]
fn another_users_process_writes_to_a_folder_of_its_own() {
    if !nix::unistd::getuid().is_root() {
        return skip("only root may ask another user's process");
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (library, program) = (folder.path().join("libhakmem.so"), folder.path().join("grow"));
    install(&real(), &library, "755");
    install(&compile("grow.c", "grow", &["-g", "-O1"]), &program, "755");
    let mut command = Command::new(&program);
    command
        .current_dir(folder.path())
        .env("LD_PRELOAD", &library)
        .stdin(Stdio::piped())
        .uid(65534)
        .gid(65534);
    let growing = Growing(command.spawn().unwrap());
    let watch = |out: &str| {
        let mut command = hakmem();
        command.current_dir(folder.path()).args([
            "profile",
            "--seconds",
            "0.5",
            "--rate",
            "4K",
            "--out",
            out,
        ]);
        run(command.args(["--pid", &growing.pid()]))
    };
    let made = watch("made");
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    assert_eq!(std::fs::metadata(folder.path().join("made")).unwrap().uid(), 65534);
    std::fs::create_dir(folder.path().join("roots")).unwrap();
    let refused = watch("roots");
    assert_eq!(refused.code(), Some(2), "{}", refused.stderr);
    assert!(refused.line().contains("name with --out a folder that it can write to"), "{}", refused.stderr);
}
