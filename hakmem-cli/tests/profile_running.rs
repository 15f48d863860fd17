//! `hakmem profile --pid`, and the signal by which a process begins a profile: of processes that run already.

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hakmem_profile::file;
use support::{compile, hakmem, real, run};

/// A program that grows until this is dropped.
struct Growing(Child);

impl Growing {
    fn start(folder: &Path, set: &[(&str, &str)]) -> Self {
        let program = compile("grow.c", "grow", &["-g", "-O1"]);
        let mut command = Command::new(program);
        command.current_dir(folder).env("LD_PRELOAD", real()).envs(set.iter().copied());
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn a_process_that_runs_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let growing = Growing::start(folder.path(), &[]);
    let watch = |pid: &str, options: &[&str]| {
        let mut command = hakmem();
        run(command.current_dir(folder.path()).args(["profile", "--pid", pid]).args(options))
    };
    // Again and again: nothing is left of the profile before.
    for _ in 0..2 {
        let ended = watch(&growing.pid(), &["--seconds", "1.5", "--rate", "4K", "--interval", "100ms"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        for expected in ["grow  ", "← main", "Leak suspects", "allocated before the profile began"] {
            assert!(ended.stderr.contains(expected), "{}", ended.stderr);
        }
    }
    let file = folder.path().join(format!("grow.profile/grow.{}.hakprof", growing.pid()));
    let raw = file::read(&std::fs::read(file).unwrap()).unwrap();
    assert!(raw.process.armed_late && raw.process.rate == 4096 && raw.end == Some(file::Why::End));
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
    while !handled() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(100));
    assert!(!file.exists(), "it waits for the signal");
    nix::sys::signal::kill(pid, nix::sys::signal::SIGUSR2).unwrap();
    // It begins when the program next needs memory from a slab, and shows at the first snapshot.
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    nix::sys::signal::kill(pid, nix::sys::signal::SIGUSR2).unwrap();
    let ended = || file::read(&std::fs::read(&file).ok()?).ok().filter(|raw| raw.end.is_some());
    let raw = loop {
        if let Some(raw) = ended() {
            break raw;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(raw.snapshots.last().unwrap().rows.iter().any(|(_, row)| row.live > 0));
}
