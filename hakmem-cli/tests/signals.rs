//! `hakmem run` and signals: what is passed on, what is not, and how the program's end shows outside.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, kill, killpg, signal};
use nix::unistd::Pid;
use support::skips::skip;
use support::{clean, compile, eventually, fake, fake_run, finish, run, state};

/// A run of the program that prints its signals, in a process group of its own.
struct Run {
    child: Option<Child>,
    command: Pid,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    program: Pid,
}

impl Run {
    fn start() -> Self {
        let mut command = fake_run([compile("signals.c", "signals", &[])]);
        let mut child =
            command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().unwrap().unwrap();
        let program = Pid::from_raw(ready.strip_prefix("ready ").unwrap().parse().unwrap());
        let command = Pid::from_raw(child.id() as i32);
        Self { child: Some(child), command, lines, program }
    }

    fn next(&mut self) -> String {
        self.lines.next().unwrap_or_else(|| panic!("the program has ended")).unwrap()
    }

    /// Sends SIGTERM; the program must see it next, and the command leave with its code.
    #[track_caller]
    fn end(mut self) {
        kill(self.command, Signal::SIGTERM).unwrap();
        assert_eq!(self.next(), "TERM");
        let ended = finish(self.child.take().unwrap());
        assert_eq!(ended.code(), Some(7));
        assert!(ended.line().starts_with("hakmem 9.8.7 served signals: "), "{}", ended.line());
    }
}

impl Drop for Run {
    /// Leaves nothing behind when a test fails.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = kill(self.program, Signal::SIGKILL);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn each_signal_sent_to_the_command_is_passed_on_once() {
    let mut run = Run::start();
    let signals = [
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGWINCH, "WINCH"),
        (Signal::SIGCONT, "CONT"),
    ];
    for (signal, name) in signals {
        kill(run.command, signal).unwrap();
        assert_eq!(run.next(), name);
    }
    // Nothing twice: else it would come before TERM.
    std::thread::sleep(Duration::from_millis(50));
    run.end();
}

#[test]
fn a_stop_and_a_continue_take_both_along() {
    let mut run = Run::start();
    kill(run.command, Signal::SIGTSTP).unwrap();
    eventually("the program stops", || state(run.program.as_raw()) == Some('T'));
    eventually("the command stops", || state(run.command.as_raw()) == Some('T'));
    kill(run.command, Signal::SIGCONT).unwrap();
    assert_eq!(run.next(), "CONT");
    eventually("the command goes on", || state(run.command.as_raw()) != Some('T'));
    run.end();
}

#[test]
fn a_stop_and_a_continue_of_the_group_do_too() {
    let mut run = Run::start();
    for _ in 0..3 {
        killpg(run.command, Signal::SIGTSTP).unwrap();
        eventually("the program stops", || state(run.program.as_raw()) == Some('T'));
        eventually("the command stops", || state(run.command.as_raw()) == Some('T'));
        killpg(run.command, Signal::SIGCONT).unwrap();
        assert_eq!(run.next(), "CONT");
        eventually("both go on", || state(run.command.as_raw()) != Some('T'));
        // The command passes its own on as well: of the two that the program gets, it may see both or one.
        // SIGWINCH comes behind SIGCONT when both are pending.
        kill(run.command, Signal::SIGWINCH).unwrap();
        while run.next() != "WINCH" {}
    }
    run.end();
}

#[test]
fn a_program_stopped_by_somebody_else_does_not_stop_the_command() {
    let mut run = Run::start();
    kill(run.program, Signal::SIGSTOP).unwrap();
    eventually("the program stops", || state(run.program.as_raw()) == Some('T'));
    std::thread::sleep(Duration::from_millis(50));
    assert_ne!(state(run.command.as_raw()), Some('T'));
    kill(run.program, Signal::SIGCONT).unwrap();
    assert_eq!(run.next(), "CONT");
    run.end();
}

#[test]
fn a_signal_from_the_program_is_not_sent_back() {
    let ended = run(&mut fake_run(["sh", "-c", "kill -USR1 $PPID; kill -TERM $PPID; sleep 0.1; exit 5"]));
    assert_eq!(ended.code(), Some(5));
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
}

#[test]
fn death_by_signal_shows_as_such() {
    for number in [1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 17 + 14, 34, 40, 64] {
        let ended = run(&mut fake_run(["perl", "-e", &format!("kill {number}, $$; sleep 5")]));
        assert_eq!(ended.status.signal(), Some(number), "{}", ended.stderr);
        assert!(ended.line().contains("without a report (killed by "), "{}", ended.line());
    }
}

#[test]
fn death_shows_even_by_a_signal_that_we_inherited_blocked_or_ignored() {
    // The program takes both back, and dies.
    let perl =
        "use POSIX; sigprocmask(SIG_SETMASK, POSIX::SigSet->new()); $SIG{TERM} = 'DEFAULT'; kill TERM, $$";
    let prepares: [fn(); 2] = [
        || ignore(Signal::SIGTERM),
        || nix::sys::signal::SigSet::from(Signal::SIGTERM).thread_block().unwrap(),
    ];
    for prepare in prepares {
        let mut command = fake_run(["-q", "perl", "-e", perl]);
        // SAFETY: `prepare` calls only signal and sigprocmask.
        unsafe {
            command.pre_exec(move || {
                prepare();
                Ok(())
            })
        };
        assert_eq!(run(&mut command).status.signal(), Some(15));
    }
}

#[test]
fn a_shell_sees_the_same_status() {
    let script = format!("'{}' run -q perl -e 'kill 15, $$'; echo $?", env!("CARGO_BIN_EXE_hakmem"));
    let ended = run(Command::new("sh").args(["-c", &script]).env("HAKMEM_LIB", fake()));
    assert_eq!(ended.stdout(), "143\n");
}

#[test]
fn only_the_program_leaves_a_core() {
    let program = ["perl", "-e", "kill 11, $$"];
    // How it ends, and how many files it leaves: none where the system gives cores to a program.
    let end = |mut command: Command| {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: setrlimit is a plain system call.
        unsafe {
            command.pre_exec(|| {
                let (_, hard) = nix::sys::resource::getrlimit(Resource::RLIMIT_CORE)?;
                setrlimit(Resource::RLIMIT_CORE, hard, hard).map_err(Into::into)
            })
        };
        let ended = run(command.current_dir(folder.path()));
        assert_eq!(ended.status.signal(), Some(11));
        (ended.status.core_dumped(), std::fs::read_dir(folder.path()).unwrap().count())
    };
    let mut direct = clean(Command::new(program[0]));
    direct.args(&program[1..]);
    let (dumps, files) = end(direct);
    if !dumps {
        return skip("no program leaves a core here");
    }
    assert_eq!(end(fake_run(program)), (false, files));
}

/// What a program sees of its signals when started directly, and by the command.
fn inherited(prepare: fn()) -> (String, String) {
    let show = ["grep", "^Sig[BI]", "/proc/self/status"];
    let start = |mut command: Command| {
        // SAFETY: `prepare` calls only signal and sigprocmask.
        unsafe {
            command.pre_exec(move || {
                prepare();
                Ok(())
            })
        };
        String::from_utf8(run(&mut command).stdout).unwrap()
    };
    let mut direct = clean(Command::new(show[0]));
    direct.args(&show[1..]);
    (start(direct), start(fake_run(show)))
}

fn ignore(number: Signal) {
    // SAFETY: ignoring a signal calls nothing of ours.
    unsafe { signal(number, SigHandler::SigIgn) }.unwrap();
}

#[test]
fn the_program_inherits_what_we_inherited() {
    let cases: [fn(); 3] = [
        || (),
        || [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(ignore),
        || nix::sys::signal::SigSet::from(Signal::SIGUSR1).thread_block().unwrap(),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for prepare in cases {
        let (direct, through) = inherited(prepare);
        assert_eq!(direct, through);
        seen.insert(direct);
    }
    assert_eq!(seen.len(), 3, "the cases do not differ: {seen:?}");
}
