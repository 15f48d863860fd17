//! The processes that descend from this one, also those in groups and sessions of their own.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;

/// How often to look whether all have ended, and how long to wait in between: a second in all.
const LOOKS: u32 = 500;
const WAIT: Duration = Duration::from_millis(2);

/// What was started since it was made, and all that those start.
pub struct Family {
    /// Children that were there before, of the program that this process was then.
    before: BTreeSet<i32>,
}

/// A process, as its `stat` tells.
pub struct Process {
    pid: i32,
    parent: i32,
    ended: bool,
}

impl Family {
    /// From here on a process whose parent has ended becomes a child of this one, so that none gets lost.
    pub fn new() -> Self {
        // Without that, those in groups of their own live on.
        let _ = nix::sys::prctl::set_child_subreaper(true);
        let own = std::process::id() as i32;
        Self { before: all().iter().filter(|one| one.parent == own).map(|one| one.pid).collect() }
    }

    /// Kills all of it, and waits until that has happened.
    pub fn end(&self) {
        // The usual case, without reading all of /proc.
        let ask = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        if waitid(Id::All, ask) != Err(Errno::ECHILD) {
            self.kill(true);
        }
    }

    /// Kills all of it; reaps what has become children of this process, if told to.
    pub fn kill(&self, reap: bool) {
        for _ in 0..LOOKS {
            let members = self.strike();
            for one in members.iter().filter(|one| one.ended && reap) {
                // Of another's child there is nothing to be had.
                let _ = waitpid(Pid::from_raw(one.pid), Some(WaitPidFlag::WNOHANG));
            }
            // Those of others that have ended go with their parents.
            if members.iter().all(|one| one.ended && !reap) {
                return;
            }
            std::thread::sleep(WAIT);
        }
    }

    /// Sends SIGKILL to all that live, once, and returns all that there were.
    pub fn strike(&self) -> Vec<Process> {
        let members = self.members();
        members.iter().filter(|one| !one.ended).for_each(|one| super::send(one.pid, libc::SIGKILL));
        members
    }

    /// Whether any but `pid` lives.
    pub fn lives_besides(&self, pid: i32) -> bool {
        self.members().iter().any(|one| one.pid != pid && !one.ended)
    }

    /// Reaps orphans that have ended, which would stay there until the end: there may be no more processes
    /// then. Not `pid`, of which the figures are wanted.
    pub fn reap_besides(&self, pid: i32) {
        while let Some(ended) = super::ended_child().filter(|&ended| ended != pid) {
            // An error also where it was ended by a signal that nix does not know; then it is reaped as well.
            let _ = waitpid(Pid::from_raw(ended), Some(WaitPidFlag::WNOHANG));
        }
    }

    fn members(&self) -> Vec<Process> {
        let mut ancestors = BTreeSet::from([std::process::id() as i32]);
        let (mut others, mut members) = (all(), Vec::new());
        others.retain(|one| !self.before.contains(&one.pid));
        loop {
            let (more, rest): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|one| ancestors.contains(&one.parent));
            if more.is_empty() {
                return members;
            }
            ancestors.extend(more.iter().map(|one| one.pid));
            members.extend(more);
            others = rest;
        }
    }
}

/// All processes of this machine that can be seen.
fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(read).collect()
}

fn read(pid: i32) -> Option<Process> {
    let text = super::proc_text(pid, "stat").ok()?;
    // The name before is in brackets and may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    Some(Process { pid, parent: fields.next()?.parse().ok()?, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel cuts the name after 15 bytes, inside the last character.
    #[test]
    fn a_member_may_have_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("fourteen-bytesé");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(program).arg("100").spawn().unwrap();
        let pid = child.id() as i32;
        // The kernel lets the parent go on a moment before the child has its name.
        let mut named = Vec::new();
        for _ in 0..1000 {
            named = std::fs::read(format!("/proc/{pid}/comm")).unwrap();
            if named.starts_with(b"fourteen") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let parent = read(pid).map(|one| one.parent);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(named, b"fourteen-bytes\xc3\n");
        assert_eq!(parent, Some(std::process::id() as i32));
    }
}
