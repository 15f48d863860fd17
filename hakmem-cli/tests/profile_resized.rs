//! Profiles of programs that do little but `realloc`.

#![cfg(feature = "profile")]

mod support;

use std::process::{Command, Stdio};

use hakmem_profile::file;
use support::{clean, compile, eventually, finish, hakmem, real, run};

/// Each block lives once, as what it became.
#[test]
fn a_block_is_counted_as_what_realloc_has_made_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("resized.c", "resized", &["-O1"]);
    let mut command = clean(Command::new(&program));
    command.env("LD_PRELOAD", real()).env("HAKMEM_PROFILE", folder.path().join("x"));
    command.env("HAKMEM_PROFILE_RATE", "1").stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let path = folder.path().join(format!("x.{}.hakprof", child.id()));
    let ended = finish(child);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    let raw = file::read(&std::fs::read(path).unwrap()).unwrap();
    let rows = &raw.snapshots.last().unwrap().rows;
    let count = |sizes: std::ops::Range<u64>| {
        let of = |site: &u32| sizes.contains(&raw.sites[*site as usize].size);
        rows.iter().filter(|(site, _)| of(&(*site as u32))).map(|(_, row)| row.live).sum::<u64>()
    };
    // The classes of 50,000 and 20,000 bytes, and the pages of 77,824.
    assert_eq!([count(57344..57345), count(20480..20481), count(77824..81921)], [10, 10, 10]);
    assert_eq!([count(131072..131073), count(28673..32769), count(300000..327681), count(896..1025)], [0; 4]);
}

/// A program that does nothing but grow a buffer has snapshots, whoever ends it, and hears who asks.
#[test]
fn a_buffer_that_grows_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("buffer.c", "buffer", &["-O1"]);
    for hardened in ["off", "on"] {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", real()).env("HAKMEM_HARDENED", hardened);
        command.env("HAKMEM_PROFILE", folder.path().join("x")).env("HAKMEM_PROFILE_INTERVAL", "50");
        let mut child = command.spawn().unwrap();
        let file = folder.path().join(format!("x.{}.hakprof", child.id()));
        let snapshots = || file::read(&std::fs::read(&file).ok()?).ok().map(|raw| raw.snapshots.len());
        eventually("3 snapshots", || snapshots().is_some_and(|count| count >= 3));
        child.kill().unwrap();
        child.wait().unwrap();

        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", real()).env("HAKMEM_HARDENED", hardened).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut command = hakmem();
        let ended = run(command.args(["stats", "--pid", &child.id().to_string()]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ended.code(), Some(0), "hardened {hardened}: {}", ended.stderr);
    }
}
