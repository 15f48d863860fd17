//! Runs of programs with a limit against hanging. For the tests of all packages.
#![allow(dead_code)]

use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Nothing that a test runs takes as long, unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(900);

/// Runs `command` to its end, without input, in a process group of its own, and returns its output. One that
/// is still running after [`LIMIT`] is killed with its group, and fails the test.
pub fn output(command: &mut Command) -> Output {
    output_within(LIMIT, command)
}

/// The same with another limit.
pub fn output_within(limit: Duration, command: &mut Command) -> Output {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Should the test be killed, which no longer kills it as one of its group.
    // SAFETY: a plain system call, after which nothing is done but to start the program.
    unsafe {
        piped.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
    let child = piped.process_group(0).spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    finish(limit, child, command)
}

/// Waits for `child`, and reads its output until nobody has a pipe of it any more, for so long at most. It
/// and its process group, if it has one of its own, are killed then, and the test fails: `what` says of whom.
pub fn finish(limit: Duration, mut child: Child, what: impl std::fmt::Debug) -> Output {
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > limit {
            end_group(&child);
            let _ = (child.kill(), child.wait());
            panic!("{what:?} was still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let collect = |pipe: Option<Receiver<Vec<u8>>>| {
        // What it has left behind may have its pipes, and hang.
        let left = limit.saturating_sub(start.elapsed()).max(Duration::from_secs(10));
        pipe.map_or(Vec::new(), |pipe| {
            pipe.recv_timeout(left).unwrap_or_else(|_| {
                end_group(&child);
                panic!("{what:?} has ended, but something had its pipes for {left:?}")
            })
        })
    };
    Output { status, stdout: collect(stdout), stderr: collect(stderr) }
}

/// Kills the group that this process leads, if it leads one.
fn end_group(child: &Child) {
    // SAFETY: takes plain numbers. A group keeps its number while it has members.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
}

/// Reads a pipe to its end on a thread of its own, so that a chatty program never blocks on a full one.
fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}
