//! Where statistics go at exit, and what that must not do to the program: `HAKMEM_STATS_FILE` and standard
//! error.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use support::{SLOWER, compile, expect_ok, lib, limited, preloaded, run, scratch};

const LIMIT: Duration = Duration::from_secs(120);

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("gcc", "stats_exit.c", &[]))
}

/// The program that allocates a little and ends as told, with statistics in JSON.
fn ends(how: &str) -> Command {
    let mut command = preloaded(program());
    command.arg(how).env("HAKMEM_STATS", "json");
    command
}

/// A relative path means the folder in which the process starts, wherever it is when it ends.
#[test]
fn of_a_program_that_goes_elsewhere() {
    let folder = scratch("stats-files").join("start");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("figures.json");
    for path in ["figures.json", "../start/figures.json"] {
        let _ = std::fs::remove_file(&file);
        let output = run(ends("elsewhere").current_dir(&folder).env("HAKMEM_STATS_FILE", path), LIMIT);
        assert!(output.status.success() && output.stderr.is_empty(), "{path}: {output:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        let events = ["start", "exit"].map(|event| format!("\"event\":\"{event}\""));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().zip(events).all(|(line, event)| line.contains(&event)), "{text}");
    }
}

/// A limit of the length of files (SIGXFSZ): on the file for statistics, and on standard error.
#[test]
fn that_may_not_grow() {
    let folder = scratch("stats-files");
    let file = folder.join("limited.json");
    for (options, limit) in [("HAKMEM_STATS_FILE=$1", 0), ("HAKMEM_STATS_FILE=$1", 1), ("HAKMEM_BAD=$1", 0)] {
        let _ = std::fs::remove_file(&file);
        let script = format!(
            "exec 2>\"$1.err\"; ulimit -f {limit}; HAKMEM_STATS=json {options} LD_PRELOAD=$2 exec \"$0\" return"
        );
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(program()).arg(&file).arg(lib());
        assert!(expect_ok(&mut command, LIMIT).ends_with('\n'), "{options}, {limit}");
        let len = std::fs::metadata(&file).map_or(0, |file| file.len());
        assert!(len <= limit * 1024 && (len > 0 || limit == 0), "{len} bytes");
    }
}

/// A pipe with nobody at its other end (SIGPIPE), where standard error or the file should be.
#[test]
fn nobody_reads() {
    let status = |command: &mut Command| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        let child =
            command.stdout(std::process::Stdio::null()).stderr(OwnedFd::from(theirs)).spawn().unwrap();
        limited::finish(LIMIT * SLOWER, child, command).status
    };
    assert!(status(&mut ends("return")).success());
    assert!(status(ends("return").env("HAKMEM_STATS", "table").env("HAKMEM_UNKNOWN", "1")).success());
    assert!(status(ends("return").env("HAKMEM_STATS_FILE", "/dev/stderr")).success());
    // The program's own such signals stay with it.
    let guest = compile("gcc", "guest.c", &["-pthread"]);
    assert!(status(preloaded(guest).arg("pipe")).success());
}

/// Standard error that is full, and that the program does not want to wait for (event loops do that to pipes
/// and terminals): who reads it after a while gets everything, and who does not is not waited for long.
#[test]
fn a_full_pipe_that_does_not_wait() {
    for reads in [true, false] {
        let mut ends_of_it = [0; 2];
        // SAFETY: room for two descriptors, which nobody else has then.
        let [ours, theirs] = unsafe {
            assert_eq!(libc::pipe2(ends_of_it.as_mut_ptr(), libc::O_CLOEXEC), 0);
            assert!(libc::fcntl(ends_of_it[1], libc::F_SETPIPE_SZ, 4096) >= 4096);
            assert_eq!(libc::fcntl(ends_of_it[1], libc::F_SETFL, libc::O_NONBLOCK), 0);
            ends_of_it.map(|end| OwnedFd::from_raw_fd(end))
        };
        let [mut ours, mut theirs] = [ours, theirs].map(File::from);
        let mut filled = 0;
        while let Ok(n) = theirs.write(&[b'x'; 4096]) {
            filled += n;
        }
        let mut command = ends("return");
        let child = command.stdout(Stdio::null()).stderr(OwnedFd::from(theirs)).spawn().unwrap();
        // With its copy of the descriptor: else there is no end.
        command.stderr(Stdio::null());
        if reads {
            std::thread::sleep(Duration::from_millis(100));
            let mut text = String::new();
            ours.read_to_string(&mut text).unwrap();
            let text = &text[filled..];
            assert!(text.lines().count() == 1 && text.ends_with("]}\n"), "{text}");
        }
        assert!(limited::finish(LIMIT * SLOWER, child, &command).status.success());
    }
}

/// A named pipe: waits for nobody who would read, and gives all to who does.
#[test]
fn named_pipe() {
    let pipe = scratch("stats-files").join("pipe");
    let _ = std::fs::remove_file(&pipe);
    expect_ok(Command::new("mkfifo").arg(&pipe), LIMIT);
    let output = run(ends("return").env("HAKMEM_STATS_FILE", &pipe), Duration::from_secs(20));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("hakmem: HAKMEM_STATS_FILE: cannot open "),
        "{output:?}"
    );
    // Also for writing: so that reading does not wait for the program either.
    let mut reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let output = run(ends("return").env("HAKMEM_STATS_FILE", &pipe), LIMIT);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let mut bytes = vec![0; 1 << 16];
    let len = reader.read(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes[..len]);
    assert!(text.lines().count() == 2 && text.ends_with("]}\n"), "{text}");
}
