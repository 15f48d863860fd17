//! Processes that a program has left behind, as one does that becomes a daemon.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::attach::{self, Environment, LOADING, LOOK, Process};

/// Processes named in one line.
const NAMED: usize = 3;

/// Those that still write to files whose names begin with `prefix`.
pub fn find(prefix: &Path) -> Vec<i32> {
    let own = std::process::id() as i32;
    // Who is older than this command has nothing to do with what that has begun, and need not be looked at.
    // Ages are of whole ticks.
    let Some(ours) = attach::age(own) else { return Vec::new() };
    let ours = ours + Duration::from_millis(20);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let young = numbers.filter(|&pid| pid != own && attach::age(pid).is_some_and(|age| age <= ours));
    let writes = |&pid: &i32| {
        loop {
            // Asked before: what is told to write there, and just becoming another program, or loading the
            // library, cannot be looked into yet.
            let young = is_told(pid, prefix) && attach::age(pid).is_some_and(|age| age < LOADING);
            // Another user's, and what has just ended, cannot be looked into.
            let process = Process::find_now(pid).ok().flatten();
            let path = process.as_ref().and_then(|process| process.prefix().ok().flatten());
            if path.is_some_and(|path| path == prefix) {
                // It keeps that path when its profile has ended, and so do children that it forks then.
                return process.is_some_and(|process| matches!(process.stopped(), Ok(None)));
            }
            if !young {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    };
    let mut found: Vec<i32> = young.filter(writes).collect();
    found.sort_unstable();
    found
}

/// Whether the environment that a process was started with says so, or is not known yet. Some overwrite it,
/// for their title.
fn is_told(pid: i32, prefix: &Path) -> bool {
    let expected = [b"HAKMEM_PROFILE=", prefix.as_os_str().as_bytes()].concat();
    // Once more where it comes while it is looked at.
    for _ in 0..2 {
        // Another user's cannot be read.
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
        if !environment.is_empty() {
            return environment.split(|&byte| byte == 0).any(|entry| entry == expected);
        }
        // It is empty while a process becomes another program: the kernel has taken the old one's memory away
        // and not set up the new one's environment yet.
        match attach::environment(pid) {
            Some(Environment::Unknown) => return true,
            Some(Environment::None) | None => return false,
            Some(Environment::Some) => {}
        }
    }
    false
}

/// That they go on, and what to do about it. `why` says what they have to do with what was profiled.
pub fn said(pids: &[i32], why: &str) -> String {
    let named: Vec<String> = pids.iter().take(NAMED).map(i32::to_string).collect();
    let (what, go) = if pids.len() == 1 { ("process", "goes") } else { ("processes", "go") };
    let more = pids.len() - named.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!(
        "{what} {}{more}, {why}, {go} on: `hakmem profile --pid {} --stop` ends the profile and shows it",
        named.join(", "),
        named.first().map_or("PID", String::as_str)
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_goes_on_is_named() {
        let line = said(&[7], "started by it");
        assert!(
            line.starts_with("process 7, started by it, goes on: `hakmem profile --pid 7 --stop`"),
            "{line}"
        );
        let line = said(&[7, 8, 9, 10, 11], "forked by it");
        assert!(line.starts_with("processes 7, 8, 9 and 2 more, forked by it, go on: `"), "{line}");
        assert_eq!(find(Path::new("/no/such/prefix")), [0; 0]);
    }

    /// Whether a process is a copy of this one still.
    fn is_ours(pid: i32) -> bool {
        let ours = std::env::current_exe().unwrap();
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == ours)
    }

    #[test]
    fn who_is_just_starting_is_told() {
        let prefix = Path::new("/a/prefix");
        let mut unknown = 0;
        for _ in 0..300 {
            let mut sleep = Command::new("sleep");
            // This goes on when the new program has memory of its own, mostly before its environment is
            // there.
            let mut child = sleep.arg("10").env("HAKMEM_PROFILE", prefix).spawn().unwrap();
            let pid = child.id() as i32;
            // The kernel lets the parent go on a moment before that.
            while is_ours(pid) {}
            unknown += usize::from(attach::environment(pid) == Some(Environment::Unknown));
            let told = is_told(pid, prefix);
            let others = attach::environment(pid) == Some(Environment::Some) && is_told(pid, Path::new("/a"));
            child.kill().unwrap();
            assert!(told && !others);
            // It has ended, and is not waited for.
            let ended = || attach::environment(pid) == Some(Environment::None);
            while !ended() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!is_told(pid, prefix));
            child.wait().unwrap();
            assert!(attach::environment(pid).is_none() && !is_told(pid, prefix));
        }
        println!("{unknown} of 300 were seen without their environment");

        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("10").env_clear().spawn().unwrap();
        let pid = child.id() as i32;
        while is_ours(pid) {}
        while attach::environment(pid) == Some(Environment::Unknown) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(attach::environment(pid) == Some(Environment::None) && !is_told(pid, prefix));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
