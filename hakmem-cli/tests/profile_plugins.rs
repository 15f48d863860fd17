//! Libraries that are unloaded, and others that take their places in memory: what each has allocated is
//! charged to its own functions.

#![cfg(feature = "profile")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hakmem_profile::file;
use hakmem_profile::model::{Profile, place};
use hakmem_profile::symbols::Symbols;
use support::{clean, compile, finish, real};

fn plugin(name: &str, pad: u32) -> PathBuf {
    let (file, name, pad) = (format!("lib{name}.so"), format!("-DNAME={name}"), format!("-DPAD={pad}"));
    compile("plugins.c", &file, &["-shared", "-fPIC", "-g", "-O1", "-Wl,--build-id", &name, &pad])
}

/// How many blocks each function holds at the end, by the process's file.
fn run(folder: &Path, arguments: &[&Path]) -> BTreeMap<String, u64> {
    let program = compile("plugins.c", "plugins", &["-g", "-O1", "-ldl"]);
    let mut command = clean(Command::new(program));
    command.current_dir(folder).args(arguments).env("LD_PRELOAD", real()).stderr(Stdio::piped());
    // Written at the end only.
    command.env("HAKMEM_PROFILE", "p").env("HAKMEM_PROFILE_RATE", "1024").env("HAKMEM_PROFILE_INTERVAL", "0");
    let child = command.spawn().unwrap();
    let path = folder.join(format!("p.{}.hakprof", child.id()));
    let ended = finish(child);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    held(&path)
}

fn held(path: &Path) -> BTreeMap<String, u64> {
    let raw = file::read(&std::fs::read(path).unwrap()).unwrap();
    let profile = Profile::new(raw, &mut Symbols::new());
    let rows = &profile.raw.snapshots.last().unwrap().rows;
    let mut held = BTreeMap::new();
    for (site, row) in rows.iter().filter(|(site, _)| profile.raw.sites[*site].size == 40960) {
        let frames = &profile.stacks[profile.stack_of(*site)];
        *held.entry(frames[place(frames)].function.clone()).or_default() += row.live;
    }
    held
}

fn expected(names: &[&str]) -> BTreeMap<String, u64> {
    names.iter().map(|name| (name.to_string(), 50)).collect()
}

#[test]
fn one_that_is_laid_out_in_another_way_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = [plugin("near", 0), plugin("far", 2000)];
    let held = run(folder.path(), &libraries.each_ref().map(PathBuf::as_path));
    assert_eq!(held, expected(&["near", "far"]));
}

/// Nothing that a walk comes across is another one then.
#[test]
fn one_that_is_laid_out_alike_is_told_by_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = [plugin("first", 0), plugin("other", 0)];
    let written = folder.path().join("written");
    let [first, other] = libraries.each_ref().map(PathBuf::as_path);
    let held_at_end = run(folder.path(), &[Path::new("write"), &written, first, other]);
    assert_eq!(held_at_end, expected(&["first", "other"]));
    assert_eq!(held(&written), held_at_end);
}
