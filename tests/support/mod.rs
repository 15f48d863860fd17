//! What several tests need.
#![allow(dead_code)]

use std::process::Command;

pub mod limited;
pub mod skips;

/// Runs `f` in a process of its own, in which it is the only test: `name` is the calling test's.
pub fn in_own_process(name: &str, f: impl FnOnce()) {
    in_own_processes(name, &[()], |()| f());
}

/// Runs `f` with each of `cases`, each time in a process of its own.
pub fn in_own_processes<T: Copy>(name: &str, cases: &[T], f: impl FnOnce(T)) {
    const CASE: &str = "TEST_IN_OWN_PROCESS";
    if let Ok(case) = std::env::var(CASE) {
        return f(cases[case.parse::<usize>().unwrap()]);
    }
    for case in 0..cases.len() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(CASE, case.to_string());
        let child = limited::output(&mut child);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = child.status;
        assert!(status.success(), "case {case}: {status}\n{}\n{}", text(&child.stdout), text(&child.stderr));
        assert!(text(&child.stdout).contains("1 passed"), "no test of the name {name}");
        print!("{}", text(&child.stdout));
        skips::pass_on(&child.stderr);
    }
}

/// The kernel's figure for what is resident of this process, in bytes.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    // SAFETY: no preconditions.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize
}
