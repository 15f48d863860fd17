//! Every single call to the system fails once: for each scenario the first call of the library, then the
//! second, and so on until the scenario is over before one has failed. Nothing is lost, nothing hangs, and
//! what is refused has the right `errno`.
//!
//! `HAKMEM_LONG=1` does that, also with a second error for each call. Otherwise it is each of the first
//! calls, and one in several after that; and the first call of each kind.
//!
//! System calls that the library makes by the processor's instruction are stopped by a filter (seccomp).
//! Where the system allows none, as in some containers, this fails.

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::{compile, lib, run};

/// Only a program that hangs takes as long.
const LIMIT: Duration = Duration::from_secs(120);

/// Of the calls that are made when all is set up, one in so many fails in a short run. A prime: scenarios do
/// everything twice.
const STEP: usize = 17;
/// The calls before that.
const FIRST: usize = 16;

fn is_long() -> bool {
    std::env::var_os("HAKMEM_LONG").is_some_and(|v| v != "0")
}

/// A scenario, and the programs for it.
struct Scenario<'a> {
    name: &'a str,
    options: &'a [(&'a str, &'a str)],
    program: PathBuf,
    preload: String,
}

impl<'a> Scenario<'a> {
    fn new(name: &'a str, options: &'a [(&'a str, &'a str)]) -> Self {
        let library = lib().display().to_string();
        let program = compile("gcc", "fault_scenarios.c", &["-pthread", "-ldl", &library]);
        let shim = compile("gcc", "fault_shim.c", &["-shared", "-fPIC", "-ldl", "-Wl,-z,initfirst"]);
        Self { name, options, program, preload: format!("{} {library}", shim.display()) }
    }

    /// One run, with what FAULT says, in which all goes well. Which calls have failed, by their kinds: each
    /// process that forks has a count of its own.
    fn run(&self, fault: &str) -> Vec<String> {
        let mut command = Command::new(&self.program);
        command.arg(self.name).env("LD_PRELOAD", &self.preload).env("FAULT", fault);
        command.env("HAKMEM_PURGE_DELAY", "1").envs(self.options.iter().copied());
        let output = run(&mut command, LIMIT);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let fine = output.status.success() && out.ends_with("ok\n");
        let what = format!("{} {:?}, call {fault}", self.name, self.options);
        assert!(fine, "{what}: {}\n{out}{err}", output.status);
        let failed = err.lines().filter_map(|line| line.strip_prefix("fault: "));
        let failed: Vec<_> = failed.map(|call| call.split(" fails").next().unwrap().to_string()).collect();
        // One call cannot be what several allocations needed. At the limit something is refused anyway.
        let refused: usize = out.split(' ').next().unwrap().parse().unwrap();
        let most = if self.name == "limits" { 200 } else { 2 };
        assert!(refused <= most, "{what} ({failed:?}): {refused} allocations refused");
        failed
    }

    /// Fails its calls, one per run, and returns how often each kind of call has failed.
    fn every_call(&self, other: u8) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        // Threads make a few calls more at one time than at another.
        let mut without = 0;
        for n in (1..).filter(|n| is_long() || *n <= FIRST || n % STEP == 0) {
            let failed = self.run(&format!("{n} {other}"));
            without = if failed.is_empty() { without + 1 } else { 0 };
            failed.into_iter().for_each(|kind| *kinds.entry(kind).or_insert(0) += 1);
            if without == 3 {
                println!(
                    "{} {:?}: {} runs, {kinds:?}",
                    self.name,
                    self.options,
                    kinds.values().sum::<usize>()
                );
                return kinds;
            }
        }
        unreachable!()
    }
}

/// The scenario with each call failing. There are calls of these kinds.
fn scenario(name: &str, options: &[(&str, &str)], expected: &[&str]) {
    let scenario = Scenario::new(name, options);
    for other in if is_long() { &[0, 1][..] } else { &[0] } {
        for kind in expected {
            let failed = scenario.run(&format!("0 {other} {kind}"));
            assert!(!failed.is_empty() && failed.iter().all(|f| f == kind), "{name}: {kind}: {failed:?}");
        }
        let kinds = scenario.every_call(*other);
        assert!(kinds.len() >= 3, "{name}: {kinds:?}");
        // The first of all, by the processor's instruction.
        assert!(kinds.contains_key("getrandom"), "{name}: system calls are not seen: {kinds:?}");
    }
}

#[test]
fn blocks() {
    scenario("blocks", &[], &["mmap", "munmap", "mremap", "madvise", "pthread_key_create", "pthread_atfork"]);
}

#[test]
fn threads() {
    scenario("threads", &[], &["mmap", "madvise", "membarrier", "pthread_setspecific"]);
}

#[test]
fn background() {
    let kinds =
        ["pthread_create", "pthread_sigmask", "futex wait", "membarrier", "prctl", "sched_getaffinity"];
    scenario("background", &[], &kinds);
}

#[test]
fn profiles_and_statistics() {
    let options = [("HAKMEM_STATS", "json"), ("HAKMEM_STATS_FILE", "/dev/null")];
    scenario("profile", &options, &["openat", "write", "read", "process_vm_readv", "rt_sigprocmask"]);
}

#[test]
fn limits() {
    scenario("limits", &[("HAKMEM_THP", "always")], &["mmap", "munmap"]);
}

#[test]
fn forks() {
    scenario("fork", &[], &["mmap", "madvise"]);
}
