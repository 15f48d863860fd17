//! What is allocated before the preloaded library's own constructor runs: by the loader, and by the
//! constructors of the libraries that the program links.

#![cfg(feature = "profile")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hakmem_profile::file::{self, Raw, Why};
use support::{clean, compile, finish, real};

/// As in `fake/early.c`: the sizes of blocks, and how many there are.
const HELD: (u64, u64) = (40960, 200);
const OWN: (u64, u64) = (49152, 150);

fn program() -> PathBuf {
    let library = compile("early.c", "libearly.so", &["-shared", "-fPIC", "-g", "-DLIBRARY"]);
    compile("early.c", "early", &["-g", "-Wl,--no-as-needed", library.to_str().unwrap()])
}

/// The profile of a run, if there is one.
fn profile(folder: &Path, variables: &[(&str, &str)]) -> Option<Raw> {
    let mut command = clean(Command::new(program()));
    command.current_dir(folder).env("LD_PRELOAD", real()).env("HAKMEM_PROFILE_RATE", "1024");
    command.envs(variables.iter().copied()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let path = folder.join(format!("p.{}.hakprof", child.id()));
    let ended = finish(child);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""), "{variables:?}");
    path.exists().then(|| file::read(&std::fs::read(path).unwrap()).unwrap())
}

/// How many blocks of a size live at the end.
fn live(raw: &Raw, size: u64) -> u64 {
    let rows = raw.snapshots.last().unwrap().rows.iter();
    rows.filter(|(site, _)| raw.sites[*site].size == size).map(|(_, row)| row.live).sum()
}

#[test]
fn what_constructors_allocate_is_seen() {
    for more in [None, Some(("HAKMEM_HARDENED", "light")), Some(("HAKMEM_BACKGROUND", "on"))] {
        let folder = tempfile::tempdir().unwrap();
        let variables: Vec<_> = [("HAKMEM_PROFILE", "p")].into_iter().chain(more).collect();
        let raw = profile(folder.path(), &variables).expect("a profile");
        assert_eq!((raw.process.armed_late, raw.cut, raw.end), (false, None, Some(Why::End)));
        assert_eq!((live(&raw, HELD.0), live(&raw, OWN.0)), (HELD.1, OWN.1), "{more:?}");
    }
}

#[test]
fn one_that_a_signal_begins_does_not_begin_before() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("HAKMEM_PROFILE", "p"), ("HAKMEM_PROFILE_SIGNAL", "USR2")];
    assert!(profile(folder.path(), &variables).is_none());
}
