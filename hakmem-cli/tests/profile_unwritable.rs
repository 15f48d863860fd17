//! Heap profiles that cannot be written, or whose files vanish: it is said once, and the program goes on.

#![cfg(feature = "profile")]

mod support;

use std::path::Path;
use std::process::Stdio;

use hakmem_profile::file::Why;
use support::disk::Disk;
use support::ends::*;
use support::{Ended, finish, hakmem, real, run};

/// One line that names the file and says what to do.
#[track_caller]
fn check_line(ended: &Ended, path: &Path) {
    let line = ended.line();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(line.starts_with("hakmem: HAKMEM_PROFILE: cannot write ") && line.contains(name), "{line}");
    assert!(line.contains("name a folder that is there, may be written to and has room"), "{line}");
}

#[test]
fn a_full_disk_is_said_once() {
    let Some(disk) = Disk::new("256K") else { return };
    disk.fill();
    let mut steps = Steps::start(disk.path(), "p");
    (0..2).for_each(|_| steps.step());
    let path = steps.path.clone();
    check_line(&steps.end(), &path);
    assert!(!path.exists() && std::fs::read_dir(disk.path()).unwrap().count() == 1, "no part of it stays");
}

/// Its name can be guessed. Who may write to the folder could have any file of the user's overwritten.
#[test]
fn a_link_that_waits_for_the_file_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    std::fs::write(&target, "somebody's").unwrap();
    let child = ends(folder.path(), &["link", "target"]).stderr(Stdio::piped()).spawn().unwrap();
    let path = folder.path().join(format!("p.{}.hakprof", child.id()));
    let ended = finish(child);
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(std::fs::read(&target).unwrap(), b"somebody's");
    assert!(path.symlink_metadata().unwrap().is_file());
    assert_eq!(read(&path).end, Some(Why::End));
}

/// A longer write would raise a signal that ends the program.
#[test]
fn a_limit_on_files_is_said_once_and_kills_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut steps = Steps::start(folder.path(), "p");
    steps.step();
    let path = steps.path.clone();
    let most = std::fs::metadata(&path).unwrap().len() + 20;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: `limit` outlives the call, and the process is ours.
    let set =
        unsafe { libc::prlimit(steps.child.id() as i32, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    (0..3).for_each(|_| steps.step());
    check_line(&steps.end(), &path);
    let raw = read(&path);
    assert_eq!((raw.cut, count(&raw, OWN).0), (None, MORE + 1));
}

#[test]
fn a_folder_that_vanishes_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("there")).unwrap();
    let mut steps = Steps::start(folder.path(), "there/p");
    steps.step();
    let path = steps.path.clone();
    assert!(path.exists());
    std::fs::remove_dir_all(folder.path().join("there")).unwrap();
    (0..3).for_each(|_| steps.step());
    check_line(&steps.end(), &path);
}

#[test]
fn a_file_that_vanishes_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut steps = Steps::start(folder.path(), "p");
    steps.step();
    let path = steps.path.clone();
    std::fs::remove_file(&path).unwrap();
    steps.step();
    let raw = read(&path);
    assert_eq!(count(&raw, OWN).0, MORE + 2);
    assert!(raw.snapshots[0].rows.len() == raw.sites.len(), "the first one has them all");
    assert_eq!(steps.end().stderr, "");
    assert_eq!(read(&path).end, Some(Why::End));
}

/// One that its reader has cut, or that a process with the same number in another container has written.
#[test]
fn a_file_that_is_another_by_now_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut steps = Steps::start(folder.path(), "p");
    let path = steps.path.clone();
    steps.step();
    std::fs::write(&path, "").unwrap();
    steps.step();
    let before = read(&path);
    assert_eq!(count(&before, OWN).0, MORE + 2);
    std::fs::copy(&path, folder.path().join("other")).unwrap();
    std::fs::rename(folder.path().join("other"), &path).unwrap();
    steps.step();
    let raw = read(&path);
    assert_eq!((raw.cut, count(&raw, OWN).0), (None, MORE + 3));
    assert!(raw.snapshots[0].time > before.snapshots.last().unwrap().time, "nothing of the other one");
    assert_eq!(steps.end().stderr, "");
}

#[test]
fn a_folder_that_comes_back_is_written_to_again() {
    let folder = tempfile::tempdir().unwrap();
    let [there, gone] = ["there", "gone"].map(|name| folder.path().join(name));
    std::fs::create_dir(&there).unwrap();
    let mut steps = Steps::start(folder.path(), "there/p");
    let path = steps.path.clone();
    steps.step();
    std::fs::rename(&there, &gone).unwrap();
    (0..3).for_each(|_| steps.step());
    std::fs::rename(&gone, &there).unwrap();
    let before = std::fs::read(&path).unwrap();
    check_line(&steps.end(), &path);
    assert!(std::fs::read(&path).unwrap().starts_with(&before), "what was there is gone on with");
    let raw = read(&path);
    assert_eq!((raw.cut, raw.end, count(&raw, OWN).0), (None, Some(Why::End), MORE + 4));
}

#[test]
fn a_folder_that_may_not_be_written_to_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    // Root may write to folders that say otherwise; nobody may write here.
    for prefix in ["/proc/p", "/dev/null/p", "no-such-folder/p"] {
        let mut steps = Steps::start(folder.path(), prefix);
        (0..2).for_each(|_| steps.step());
        let path = steps.path.clone();
        check_line(&steps.end(), &path);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_that_vanishes_under_the_command_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = hakmem();
    command.current_dir(folder.path()).env("HAKMEM_LIB", real());
    let script = "rm -r there; exit 3";
    let ended = run(command.args(["profile", "--out", "there", "--", "bash", "-c", script]));
    assert_eq!(ended.code(), Some(3));
    let last = ended.stderr.lines().last().unwrap();
    assert!(last.starts_with("hakmem: no profile of bash: ") && last.contains("there is gone"), "{last}");
}
