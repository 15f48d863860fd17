//! `hakmem record` with the real recorder, what it writes, and `hakmem replay-worker` on it.

#![cfg(feature = "lab")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use hakmem_trace::{Event, ProcessTrace, Trace};
use hakmem_workloads::Report;
use support::skips::skip;
use support::{Ended, compile, hakmem, install, run};
use tempfile::TempDir;

/// A folder, and recordings in it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("x.trace")
    }

    /// `hakmem record OPTIONS -o FILE -- PROGRAM`.
    fn record(&self, options: &[&str], program: &[&str]) -> Ended {
        run(hakmem().arg("record").args(options).arg("-o").arg(self.file()).arg("--").args(program))
    }

    /// The same with the C program; its trace is the only thing left behind.
    #[track_caller]
    fn allocate(&self, options: &[&str], what: &str) -> (Ended, Trace) {
        let ended = self.record(options, &[allocate().to_str().unwrap(), what]);
        let trace = Trace::read(&self.file()).unwrap_or_else(|error| panic!("{error:#}\n{}", ended.stderr));
        assert_eq!(std::fs::read_dir(self.0.path()).unwrap().count(), 1);
        (ended, trace)
    }

    fn replay(&self, options: &[&str]) -> Result<Report, Ended> {
        let result = self.0.path().join("result");
        let mut command = hakmem();
        let ended =
            run(command.arg("replay-worker").arg(self.file()).args(options).arg("--result").arg(&result));
        if ended.code() != Some(0) {
            return Err(ended);
        }
        Ok(serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap())
    }
}

/// The last line on stderr; before it cargo may have said what it waits for.
#[track_caller]
fn last(ended: &Ended) -> &str {
    ended.stderr.lines().last().expect("a line on stderr")
}

fn allocate() -> PathBuf {
    compile("allocate.c", "allocate", &["-O1", "-fno-builtin", "-pthread", "-w"])
}

/// The sizes of the allocations of one thread, in their order.
fn sizes(process: &ProcessTrace, of: u32) -> Vec<u64> {
    let size = |event| match event {
        Event::Allocate { size, .. } => Some(size),
        _ => None,
    };
    process.steps().filter(|step| step.thread == of).filter_map(|step| size(step.event)).collect()
}

#[test]
fn every_function_is_recorded_and_the_program_notices_nothing() {
    let place = Place::new();
    let (ended, trace) = place.allocate(&[], "all");
    assert_eq!((ended.code(), ended.stdout()), (Some(7), "done\n"));
    let [process] = &trace.processes[..] else { panic!("one process") };
    let facts = &process.facts;
    assert_eq!((facts.allocations, facts.zeroed, facts.aligned), (116, 5, 5));
    assert_eq!((facts.reallocations, facts.frees, process.unknown), (4, 106, 0));
    assert_eq!(facts.live_at_end, 4 * 150 + 128 + 100 + 10 + 5 + page() + 49);
    assert_eq!((&*process.name, process.parent, facts.threads), ("allocate", None, 1));
    let aligned: Vec<_> = process
        .steps()
        .filter_map(|step| match step.event {
            Event::Allocate { size, align_log2, .. } if align_log2 > 0 => Some((size, align_log2)),
            _ => None,
        })
        .collect();
    let page_log2 = page().ilog2() as u8;
    assert_eq!(aligned, [(128, 6), (100, 8), (10, 12), (5, page_log2), (page(), page_log2)]);
    let report = place.replay(&[]).ok().unwrap();
    assert_eq!((report.operations, report.live_after), (226, facts.live_at_end));
    assert!(ended.stderr.contains("226 operations by 1 process with 1 thread"), "{}", ended.stderr);
}

fn page() -> u64 {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

#[test]
fn threads_are_told_apart() {
    let place = Place::new();
    let (ended, trace) = place.allocate(&[], "threads");
    assert_eq!(ended.code(), Some(0));
    let [process] = &trace.processes[..] else { panic!("one process") };
    assert_eq!(process.facts.threads, 5);
    for thread in 1..5 {
        let sizes = sizes(process, thread);
        assert_eq!((sizes.len(), sizes[0], sizes[1000]), (1001, 48, 333), "thread {thread}");
    }
    assert_eq!(sizes(process, 0).iter().filter(|&&size| size == 777).count(), 4);
    // What main passed to each, and each to main.
    assert_eq!((process.facts.remote, process.unknown), (8, 0));
    let report = place.replay(&["--touch", "all", "--repeat", "3"]).ok().unwrap();
    assert_eq!(report.operations, 3 * process.facts.operations());
    assert!(report.figures.contains(&("threads".into(), 5.0)));
}

#[test]
fn a_forked_child_has_a_stream_of_its_own() {
    for how in ["fork", "raw-fork"] {
        let place = Place::new();
        let (ended, trace) = place.allocate(&[], how);
        assert_eq!(ended.code(), Some(0), "{how}");
        let [parent, child] = &trace.processes[..] else { panic!("two processes") };
        assert_eq!((parent.facts.allocations, parent.facts.frees, parent.unknown), (30, 0, 0), "{how}");
        assert_eq!((child.facts.allocations, child.facts.frees, child.unknown), (500, 0, 10), "{how}");
        assert_eq!((child.parent, child.facts.threads), (Some(0), 1));
        assert_eq!(place.replay(&[]).ok().unwrap().operations, 530);
        assert_eq!(place.replay(&["--process", "1"]).ok().unwrap().operations, 500);
        let ended = place.replay(&["--process", "2"]).unwrap_err();
        assert_eq!(ended.code(), Some(2));
        assert!(
            ended.line().contains("x.trace") && ended.line().contains("no process 2"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn a_killed_program_leaves_all_it_did() {
    use std::os::unix::process::ExitStatusExt;
    let place = Place::new();
    let (ended, trace) = place.allocate(&[], "kill");
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL));
    assert_eq!(trace.processes[0].facts.allocations, 5000);
    assert!(!trace.truncated);
}

#[test]
fn an_executed_program_joins() {
    let place = Place::new();
    let (ended, trace) = place.allocate(&[], "exec");
    assert_eq!((ended.code(), ended.stdout()), (Some(7), "done\n"));
    let figures: Vec<_> =
        trace.processes.iter().map(|process| (process.facts.allocations, process.parent)).collect();
    assert_eq!(figures, [(50, None), (116, Some(0))]);
}

#[test]
fn a_program_may_close_every_file() {
    let (_, trace) = Place::new().allocate(&[], "closed");
    assert_eq!(trace.processes[0].facts.allocations, 5000);
}

#[test]
fn the_limit_ends_the_recording_and_not_the_program() {
    let place = Place::new();
    let (ended, trace) = place.allocate(&["--limit", "1M"], "endless");
    assert_eq!(ended.code(), Some(0));
    assert!(trace.truncated);
    let facts = &trace.processes[0].facts;
    // 40 bytes for both calls, and a little for each chunk.
    assert!((24_000..=26_215).contains(&facts.allocations), "{facts:?}");
    assert!(facts.allocations - facts.frees <= 1);
    assert!(last(&ended).contains("TRUNCATED"), "{}", ended.stderr);
    assert!(run(hakmem().arg("trace").arg(place.file())).stdout().contains("TRUNCATED"));
    assert_eq!(place.replay(&[]).ok().unwrap().operations, facts.operations());
}

#[test]
fn a_pipeline_of_the_shell() {
    let place = Place::new();
    let ended = place.record(&[], &["sh", "-c", "echo hello | tr a-z A-Z | cat; exit 5"]);
    assert_eq!((ended.code(), ended.stdout()), (Some(5), "HELLO\n"));
    let trace = Trace::read(&place.file()).unwrap();
    let names: Vec<_> = trace.processes.iter().map(|process| &*process.name).collect();
    assert!(["sh", "tr", "cat"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(trace.processes[1..].iter().all(|process| process.parent.is_some()));
}

#[test]
fn names_are_left_out_on_request_and_arguments_always() {
    let place = Place::new();
    place.record(&["--no-names", "--quiet"], &["sh", "-c", "cat </dev/null; true some-secret"]);
    let trace = Trace::read(&place.file()).unwrap();
    assert!(!trace.processes.is_empty() && trace.processes.iter().all(|process| process.name.is_empty()));
    let ended = place.record(&[], &["sh", "-c", "cat </dev/null; true some-secret"]);
    assert_eq!(ended.code(), Some(0));
    for process in Trace::read(&place.file()).unwrap().processes {
        assert!(["sh", "cat"].contains(&&*process.name), "{}", process.name);
    }
}

#[test]
fn a_static_program_is_named_as_such() {
    let place = Place::new();
    let program = compile("plain.c", "plain-static", &["-static"]);
    let ended = place.record(&[], &[program.to_str().unwrap()]);
    assert!(
        last(&ended).contains("nothing was recorded") && last(&ended).contains("static"),
        "{}",
        ended.stderr
    );
    assert!(!place.file().exists());
}

#[test]
fn a_process_that_cannot_record_runs_and_says_so() {
    let place = Place::new();
    let script = format!("ulimit -v 300000; exec '{}' all", allocate().display());
    let ended = place.record(&["--limit", "500M"], &["sh", "-c", &script]);
    assert_eq!((ended.code(), ended.stdout()), (Some(7), "done\n"));
    assert!(ended.stderr.contains("this process is not recorded: cannot map"), "{}", ended.stderr);
    assert!(last(&ended).ends_with("; 1 process could not be recorded"), "{}", ended.stderr);
    assert_eq!(Trace::read(&place.file()).unwrap().processes.len(), 1);
}

#[test]
fn what_cannot_be_done_is_said_first() {
    let place = Place::new();
    let ended = place.record(&[], &["/no/such/program"]);
    assert_eq!(ended.code(), Some(127));
    assert!(ended.stderr.contains("not found"), "{}", ended.stderr);
    let ended = run(hakmem().args(["record", "-o", "/no/such/folder/x", "touch"]).arg(place.file()));
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("/no/such/folder"), "{}", ended.stderr);
    let ended = place.record(&["--limit", "900000G"], &["touch", place.file().to_str().unwrap()]);
    assert!(ended.code() == Some(2) && ended.stderr.contains("--limit"), "{}", ended.stderr);
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 0);
}

/// To make a longer file would end the command by a signal.
#[test]
fn files_may_be_short() {
    // Installed, so that no cargo comes by the limit; but that has to build the recorder first.
    let built = Path::new(env!("CARGO_BIN_EXE_hakmem"));
    Place::new().allocate(&[], "all");
    let (installed, recorder) = (tempfile::tempdir().unwrap(), "libhakmem_record.so");
    let bin = installed.path();
    install(built, &bin.join("hakmem"), "755");
    install(&built.parent().unwrap().with_file_name("release").join(recorder), &bin.join(recorder), "755");
    let place = Place::new();
    let record_within = |blocks: u32, options: &str| {
        let (hakmem, file, program) = (bin.join("hakmem"), place.file(), allocate());
        let (hakmem, file, program) = (hakmem.display(), file.display(), program.display());
        run(Command::new("sh").arg("-c").arg(format!(
            "ulimit -f {blocks}; exec '{hakmem}' record {options} -o '{file}' -- '{program}' all"
        )))
    };
    let record = |options: &str| record_within(8192, options);
    let ended = record("--limit 500M");
    assert!(ended.code() == Some(2) && ended.stderr.contains("--limit"), "{}", ended.stderr);
    let ended = record("");
    assert_eq!((ended.code(), ended.stdout()), (Some(7), "done\n"), "{}", ended.stderr);
    std::fs::remove_file(place.file()).unwrap();
    let ended = record_within(8, "");
    assert!(ended.code() == Some(2) && ended.stderr.contains("ulimit -f"), "{}", ended.stderr);
    let ended = record("");
    assert_eq!(ended.code(), Some(7), "{}", ended.stderr);
    assert!(!Trace::read(&place.file()).unwrap().truncated);
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 1);
}

#[test]
fn what_is_no_file_stays_what_it_is() {
    use std::os::unix::fs::FileTypeExt;
    let allocate = allocate();
    let program = [allocate.to_str().unwrap(), "all"];
    for there in [true, false] {
        let place = Place::new();
        let target = place.0.path().join("target");
        if there {
            std::fs::write(&target, "old").unwrap();
        }
        std::os::unix::fs::symlink("target", place.file()).unwrap();
        assert_eq!(place.record(&[], &program).code(), Some(7));
        assert_eq!(std::fs::read_link(place.file()).unwrap(), Path::new("target"));
        assert!(target.symlink_metadata().unwrap().is_file() && Trace::read(&target).is_ok());
        assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 2);
    }
    let place = Place::new();
    nix::unistd::mkfifo(&place.file(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let path = place.file();
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
    let ended = place.record(&[], &program);
    assert_eq!(ended.code(), Some(7), "{}", ended.stderr);
    assert!(place.file().symlink_metadata().unwrap().file_type().is_fifo());
    assert_eq!(Trace::from_bytes(&reader.join().unwrap()).unwrap().processes.len(), 1);
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 1);
}

/// A small file system in memory.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        assert!(run(Command::new("umount").arg(&self.0)).status.success());
    }
}

#[test]
fn a_disk_that_fills_up_ends_the_recording_and_not_the_program() {
    let place = Place::new();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=4M", "none"]).arg(place.0.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skip("no file system can be mounted here");
    }
    let _mounted = Mounted(place.0.path().into());
    let (allocate, fill) = (allocate(), place.0.path().join("fill"));
    let script = |end: &str| {
        format!(
            "cat /dev/zero >'{0}' 2>&-; '{1}' endless; s=$?; {end} '{0}'; exit $s",
            fill.display(),
            allocate.display()
        )
    };
    let ended = place.record(&[], &["sh", "-c", &script("rm")]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(last(&ended).contains("TRUNCATED: it went on after the disk was full"), "{}", ended.stderr);
    assert!(Trace::read(&place.file()).unwrap().truncated);
    std::fs::remove_file(place.file()).unwrap();
    // Neither is there room for the trace.
    let ended = place.record(&[], &["sh", "-c", &script("true")]);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(last(&ended).contains("the recording is lost") && last(&ended).ends_with("; sh exited with 0"));
}

#[test]
fn what_is_no_trace_is_not_replayed() {
    let place = Place::new();
    let complaint = || {
        let ended = place.replay(&[]).unwrap_err();
        assert_eq!(ended.code(), Some(2));
        let shown = run(hakmem().arg("trace").arg(place.file()));
        assert_eq!(shown.line(), ended.line());
        ended.line().to_string()
    };
    assert!(complaint().contains("x.trace: No such file"));
    std::fs::write(place.file(), "hello").unwrap();
    assert!(complaint().contains("x.trace: not a trace"));
    place.allocate(&[], "all");
    let good = std::fs::read(place.file()).unwrap();
    std::fs::write(place.file(), &good[..good.len() - 10]).unwrap();
    assert!(complaint().contains("x.trace: process 0, at byte 24: it breaks off"));
    let mut bad = good.clone();
    bad[60] ^= 1;
    std::fs::write(place.file(), bad).unwrap();
    assert!(complaint().contains("x.trace: process 0, at byte 24: damaged"));
}

#[test]
fn an_allocator_that_dies_is_said_to() {
    let place = Place::new();
    place.allocate(&[], "all");
    let result = place.0.path().join("result");
    let mut command = hakmem();
    command.arg("replay-worker").arg(place.file()).arg("--result").arg(&result);
    let library = compile("broken.c", "broken.so", &["-shared", "-fPIC"]);
    let ended = run(command.env("LD_PRELOAD", library));
    assert_eq!(ended.code(), Some(2));
    assert!(ended.line().contains("process 0: killed by SIGABRT"), "{}", ended.stderr);
    assert!(!result.exists());
}

#[test]
fn the_traces_in_the_repository_replay() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("benches/traces");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "trace") {
            continue;
        }
        count += 1;
        let trace = Trace::read(&path).unwrap();
        let place = Place::new();
        std::fs::copy(&path, place.file()).unwrap();
        let operations: u64 = trace.processes.iter().map(|process| process.facts.operations()).sum();
        assert_eq!(place.replay(&[]).ok().unwrap().operations, operations, "{}", path.display());
        assert!(!trace.truncated && path.metadata().unwrap().len() < 300 << 10, "{}", path.display());
        let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(readme.contains(&*path.file_name().unwrap().to_string_lossy()), "{}", path.display());
    }
    assert!(count >= 3, "{count} traces in {}", folder.display());
}
