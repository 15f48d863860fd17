//! `hakmem stats`: the statistics of processes that run already.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use support::growing::Growing;
use support::skips::skip;
use support::{Ended, clean, compile, eventually, finish, hakmem, install, real, run, state};

/// Killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that does nothing, with this library.
fn sleeping(library: &Path, with: &[(&str, &str)]) -> (Killed, String) {
    let mut command = clean(Command::new("sleep"));
    let child = command.arg("600").env("LD_PRELOAD", library).envs(with.iter().copied()).spawn().unwrap();
    let (pid, name) = (child.id() as i32, library.file_name().unwrap().to_str().unwrap());
    let child = Killed(child);
    eventually("it sleeps, with the library", || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        state(pid) == Some('S') && maps.contains(name)
    });
    (child, pid.to_string())
}

fn stats(pid: &str, options: &[&str]) -> Ended {
    run(hakmem().args(["stats", "--pid", pid]).args(options))
}

/// A program that has begun to grow.
fn growing(folder: &Path) -> Growing {
    let growing = Growing::start(folder, &[]);
    grown(&growing.pid());
    growing
}

/// Asked very early, a process has no block of any class yet.
fn grown(pid: &str) {
    eventually("it grows", || stats(pid, &["--json"]).stdout().contains("\"slabs\":"));
}

#[track_caller]
fn check_table(ended: &Ended) {
    assert!(ended.code() == Some(0) && ended.stderr.is_empty(), "{:?} {}", ended.code(), ended.stderr);
    let text = ended.stdout();
    assert!(text.starts_with("hakmem 0.") && text.ends_with(" %\n"), "{text}");
    for expected in ["  allocated_bytes  ", "= resident  ", "\nclass  "] {
        assert_eq!(text.matches(expected).count(), 1, "{text}");
    }
}

#[track_caller]
fn check_line(ended: &Ended, pid: &str) -> serde_json::Value {
    assert!(ended.code() == Some(0) && ended.stderr.is_empty(), "{:?} {}", ended.code(), ended.stderr);
    assert_eq!(ended.stdout().lines().count(), 1, "{}", ended.stdout());
    let value: serde_json::Value = serde_json::from_str(ended.stdout()).unwrap();
    assert_eq!((value["event"].as_str(), value["pid"].to_string().as_str()), (Some("running"), pid));
    assert!(value["classes"].as_array().is_some_and(|classes| !classes.is_empty()), "{value}");
    value
}

#[test]
fn a_process_that_runs_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut growing = growing(folder.path());
    let pid = growing.pid();
    check_table(&stats(&pid, &[]));
    let first = check_line(&stats(&pid, &["--json"]), &pid);
    let held = |value: &serde_json::Value| value["allocated_bytes"].as_u64().unwrap();
    eventually("it grows", || held(&check_line(&stats(&pid, &["--json"]), &pid)) > held(&first));
    check_table(&stats(&pid, &[]));
    // The child of a fork answers for itself.
    std::io::Write::write_all(growing.0.stdin.as_mut().unwrap(), b"f").unwrap();
    let children = format!("/proc/{pid}/task/{pid}/children");
    if !Path::new(&children).exists() {
        return skip("the kernel does not list children");
    }
    let children = || std::fs::read_to_string(&children).unwrap();
    eventually("a child", || !children().is_empty());
    let child = children().trim().to_string();
    grown(&child);
    check_line(&stats(&child, &["--json"]), &child);
    check_line(&stats(&pid, &["--json"]), &pid);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file is written");
}

#[test]
fn a_process_is_asked_that_has_mapped_the_library_as_a_file_too() {
    let mut command = Command::new(compile("grow.c", "grow", &["-g", "-O1"]));
    command.arg(real()).env("LD_PRELOAD", real()).stdin(Stdio::piped());
    let growing = Growing(command.spawn().unwrap());
    grown(&growing.pid());
    check_table(&stats(&growing.pid(), &[]));
}

#[test]
fn a_script_is_asked() {
    let script = "held = []\nwhile input(): held.append(bytes(300))";
    // What is called so may be a script that becomes Python by and by.
    let find = Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output();
    let Ok(python) = find else { return skip("there is no python3") };
    let mut command = clean(Command::new(std::str::from_utf8(&python.stdout).unwrap()));
    command.args(["-c", script]).envs([("PYTHONMALLOC", "malloc")]).env("LD_PRELOAD", real());
    let mut python = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let (pid, mut input) = (python.id().to_string(), python.stdin.take().unwrap());
    let feeder =
        std::thread::spawn(move || while std::io::Write::write_all(&mut input, b"more\n").is_ok() {});
    let _killed = Killed(python);
    grown(&pid);
    check_table(&stats(&pid, &[]));
    eventually("100 kB", || {
        let value = check_line(&stats(&pid, &["--json"]), &pid);
        value["allocated_bytes"].as_u64().unwrap() > 100_000
    });
    drop(_killed);
    feeder.join().unwrap();
}

/// Each gets a whole answer, of its own form.
#[test]
fn several_ask_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let growing = growing(folder.path());
    let start = |form: Option<&str>| {
        let mut command = hakmem();
        command.args(["stats", "--pid", &growing.pid(), "--wait", "200"]).args(form);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = (0..4).flat_map(|_| [start(None), start(Some("--json"))]).collect();
    for (number, child) in all.into_iter().enumerate() {
        let ended = finish(child);
        if number % 2 == 0 {
            check_table(&ended);
        } else {
            check_line(&ended, &growing.pid());
        }
    }
}

/// What was asked before is not taken for an answer.
#[test]
fn an_answer_that_comes_late_is_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let growing = growing(folder.path());
    check_table(&stats(&growing.pid(), &[]));
    let send = |signal| signal::kill(Pid::from_raw(growing.0.id() as i32), signal).unwrap();
    send(Signal::SIGSTOP);
    eventually("it stops", || state(growing.0.id() as i32) == Some('T'));
    let none = stats(&growing.pid(), &["--json", "--wait", "0.7"]);
    assert!(none.code() == Some(1) && none.stdout.is_empty(), "{:?} {}", none.code(), none.stdout());
    // Two that the user has had enough of: one waits for the answer, the other one for its turn.
    let two = [(); 2].map(|()| {
        let mut command = hakmem();
        command.args(["stats", "--json", "--wait", "100", "--pid", &growing.pid()]).stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let blocked = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", command.id())).unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
            u64::from_str_radix(mask, 16).unwrap() & 1 << (libc::SIGINT - 1) != 0
        };
        eventually("it waits", blocked);
        command
    });
    for command in two.into_iter().rev() {
        signal::kill(Pid::from_raw(command.id() as i32), Signal::SIGINT).unwrap();
        let stopped = finish(command);
        let says = stopped.line().ends_with("had not answered yet");
        assert!(stopped.code() == Some(1) && says, "{}", stopped.stderr);
    }
    send(Signal::SIGCONT);
    check_table(&stats(&growing.pid(), &[]));
}

#[cfg(feature = "profile")]
#[test]
fn a_profile_goes_on_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let growing = growing(folder.path());
    let (watch, file) = growing.watched(folder.path(), "out");
    for _ in 0..3 {
        check_table(&stats(&growing.pid(), &[]));
        check_line(&stats(&growing.pid(), &["--json"]), &growing.pid());
    }
    let before = std::fs::metadata(&file).unwrap().len();
    eventually("another snapshot", || std::fs::metadata(&file).unwrap().len() > before);
    signal::kill(Pid::from_raw(watch.id() as i32), Signal::SIGINT).unwrap();
    let watch = finish(watch);
    assert!(watch.code() == Some(0) && watch.stderr.contains("← main"), "{}", watch.stderr);
    check_table(&stats(&growing.pid(), &[]));
}

#[test]
fn who_does_not_answer_is_named() {
    let (_sleeping, pid) = sleeping(&real(), &[]);
    let ended = stats(&pid, &["--wait", "0.5"]);
    assert_eq!((ended.code(), ended.stdout()), (Some(1), ""));
    let expected = format!("hakmem: process {pid} has not answered within 0.5 s: its threads slept ");
    assert!(ended.line().starts_with(&expected), "{}", ended.stderr);
    // Neither when it ends meanwhile.
    let mut command = hakmem();
    command.args(["stats", "--wait", "100", "--pid", &pid]).stdin(Stdio::null());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let waits = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", command.id())).unwrap();
        status.lines().any(|line| line.starts_with("SigBlk:") && !line.ends_with("0000000000000000"))
    };
    eventually("it waits", waits);
    drop(_sleeping);
    let ended = finish(command);
    assert!(ended.code() == Some(1) && ended.line().contains(" has ended, "), "{}", ended.stderr);
}

#[test]
fn who_cannot_be_asked_is_told_why() {
    let old = compile("asked.c", "libasked-old.so", &["-shared", "-fPIC", "-DOLD"]);
    let (_old, old) = sleeping(&old, &[]);
    let none = compile("asked.c", "libasked.so", &["-shared", "-fPIC", "-pthread"]);
    let (_none, none) = sleeping(&none, &[]);
    for (pid, options, expected) in [
        (
            &*std::process::id().to_string(),
            &[][..],
            "does not run on Hakmem's library: start it with `hakmem run`",
        ),
        ("2147483647", &[], "there is no process 2147483647"),
        (&*old, &[], "its library is older than this command"),
        (&*none, &[], "it has no memory for its statistics, or may make few system calls only"),
        (&*old, &["--wait", "0"], "--wait 0: expected a number above 0"),
    ] {
        let ended = stats(pid, options);
        assert_eq!((ended.code(), ended.stdout()), (Some(2), ""), "{}", ended.stderr);
        assert!(ended.line().starts_with("hakmem: ") && ended.line().contains(expected), "{}", ended.stderr);
    }
    assert_eq!(stats("0", &[]).code(), Some(2));
    assert_eq!(run(hakmem().arg("stats")).code(), Some(2));
}

/// What another process says may be anything.
#[test]
fn nothing_reaches_the_terminal_but_text() {
    let library = compile("asked.c", "libasked.so", &["-shared", "-fPIC", "-pthread"]);
    let (_sleeping, pid) = sleeping(&library, &[("WITH", "some\ttext\u{9b}")]);
    let ended = stats(&pid, &[]);
    assert_eq!((ended.code(), ended.stdout()), (Some(0), "?[2Jsome?text?\n"), "{}", ended.stderr);
}

/// The kernel says who may: as for a debugger.
#[test]
fn another_users_process_is_roots_to_ask() {
    if !nix::unistd::getuid().is_root() {
        return skip("only root can be two users");
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let at = |name: &str| folder.path().join(name);
    install(&real(), &at("libhakmem.so"), "755");
    install(Path::new(env!("CARGO_BIN_EXE_hakmem")), &at("hakmem"), "755");
    install(&compile("grow.c", "grow", &["-g", "-O1"]), &at("grow"), "755");
    // It becomes root's only if the loader leaves the library in place, and that is what is linked.
    let linked = [
        "-g",
        "-Wl,--no-as-needed",
        &format!("-L{}", folder.path().display()),
        "-lhakmem",
        &format!("-Wl,-rpath,{}", folder.path().display()),
    ];
    install(&compile("grow.c", "grow-setuid", &linked), &at("grow-setuid"), "4755");
    let start = |name: &str, user: u32| {
        let mut command = clean(Command::new(at(name)));
        command.current_dir("/").env("LD_PRELOAD", at("libhakmem.so")).stdin(Stdio::piped());
        Growing(command.uid(user).gid(user).spawn().unwrap())
    };
    let ask = |growing: &Growing, user: u32| {
        let mut command = clean(Command::new(at("hakmem")));
        run(command.args(["stats", "--pid", &growing.pid()]).uid(user).gid(user))
    };
    let nobodys = start("grow", 65534);
    grown(&nobodys.pid());
    check_table(&ask(&nobodys, 0));
    check_table(&ask(&nobodys, 65534));
    for refused in [ask(&start("grow", 0), 65534), ask(&start("grow-setuid", 65534), 65534)] {
        assert_eq!((refused.code(), refused.stdout()), (Some(2), ""), "{}", refused.stderr);
        assert!(refused.line().contains(" is another user's, or protected"), "{}", refused.stderr);
    }
}
