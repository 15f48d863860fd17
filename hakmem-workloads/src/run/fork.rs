//! Forks while threads allocate.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Context, Error, error};
use crate::heap::Heap;
use crate::meter::Meter;
use crate::patterns::{Kind, Pattern};
use crate::report::Report;
use crate::workload::{Figure, Parameter, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "fork-storm",
    models: "a server that forks while its threads allocate; each child allocates, starts a thread and ends",
    parameters: &[
        Parameter {
            name: "threads",
            default: 2,
            least: 0,
            most: 1_000,
            help: "threads that allocate meanwhile",
        },
        Parameter {
            name: "forks",
            default: 300,
            least: 1,
            most: 1 << 20,
            help: "children, one after another",
        },
        Parameter {
            name: "blocks",
            default: 2_000,
            least: 1,
            most: 1 << 20,
            help: "blocks that the children inherit, and make",
        },
    ],
    presets: &[],
    figures: &[Figure { key: "per_child", label: "time per child", unit: "nanoseconds" }],
    latency: false,
    primary: Some("per_child"),
    targets: &[],
};

/// A child that takes longer hangs: a known fault of allocators that hold a lock across fork.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a block.
const SIZE: usize = 100;

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (forks, blocks) = (settings["forks"], settings.size("blocks"));
    let mut inherited = Pattern::new(Kind::Fifo, SIZE, blocks);
    let mut own = Pattern::new(Kind::Random, SIZE, blocks);
    let mut worker = Pattern::new(Kind::Lifo, SIZE, blocks);
    inherited.up(heap);
    let over = AtomicBool::new(false);
    let meter = Meter::start();
    let ended = thread::scope(|scope| {
        for _ in 0..settings["threads"] {
            scope.spawn(|| {
                let mut pattern = Pattern::new(Kind::Mixed, 500, 200);
                // Relaxed: says only that it is time to end.
                while !over.load(Ordering::Relaxed) {
                    pattern.round(heap);
                }
            });
        }
        let ended = (0..forks).try_for_each(|number| {
            child(|| {
                if !H::FORKS {
                    return;
                }
                inherited.down(heap);
                own.round(heap);
                let end = thread::scope(|inner| inner.spawn(|| worker.round(heap)).join().is_ok());
                // SAFETY: ends this process, without running what the parent registered.
                unsafe { libc::_exit(i32::from(!end)) };
            })
            .map_err(|why| error(format!("child {} of {forks}: {why}", number + 1)))
        });
        over.store(true, Ordering::Relaxed);
        ended
    });
    // Only what the children did is counted: frees, a round and a thread's round of two operations a block
    // each.
    let mut report = meter.finish(forks * blocks as u64 * 5, (blocks * SIZE) as u64);
    report.figures.push(("per_child".into(), report.elapsed_ns as f64 / forks as f64));
    inherited.down(heap);
    ended.map(|()| report)
}

/// Runs `work` in a child and waits for it; says what went wrong.
fn child(mut work: impl FnMut()) -> Result<(), String> {
    // SAFETY: the child allocates and starts a thread, which is what is tried here: POSIX leaves it to the C
    // library and the allocator whether that works after a fork from a threaded process.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        work();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    if pid < 0 {
        return Err(format!("fork: {}", io::Error::last_os_error()));
    }
    let mut status = 0;
    let ended = wait(pid);
    // SAFETY: a child of ours, not waited for yet; then it is.
    unsafe {
        if !matches!(ended, Ok(true)) {
            libc::kill(pid, libc::SIGKILL);
        }
        libc::waitpid(pid, &mut status, 0);
    }
    match ended {
        Ok(true) => {}
        Ok(false) => return Err(format!("it hung: no end after {} s", PATIENCE.as_secs())),
        Err(error) => return Err(format!("waiting for it: {error}")),
    }
    if libc::WIFSIGNALED(status) {
        return Err(format!("killed by signal {}", libc::WTERMSIG(status)));
    }
    if libc::WEXITSTATUS(status) != 0 {
        return Err(format!("its thread failed (exit {})", libc::WEXITSTATUS(status)));
    }
    Ok(())
}

/// Waits for the end of `pid`, without looking again and again, which would show in the time. False: it took
/// too long.
fn wait(pid: i32) -> io::Result<bool> {
    // SAFETY: takes plain numbers and returns a new descriptor.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if handle < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and nobody else's.
    let handle = unsafe { OwnedFd::from_raw_fd(handle as i32) };
    let mut poll = libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one live pollfd.
        match unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            ready => return Ok(ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_fails_is_told() {
        assert_eq!(child(|| ()), Ok(()));
        // SAFETY: ends the child.
        assert!(child(|| unsafe { libc::_exit(3) }).unwrap_err().contains("exit 3"));
        // SAFETY: ends the child.
        assert!(child(|| unsafe { libc::abort() }).unwrap_err().contains("signal 6"));
    }
}
