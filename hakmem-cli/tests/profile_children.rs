//! Heap profiles of a server's processes: what each samples has nothing to do with what the others do.

#![cfg(feature = "profile")]

mod support;

use std::collections::BTreeMap;
use std::process::Command;

use hakmem_profile::file;
use support::{clean, compile, real, run};

/// How many of the children took so many samples of their blocks.
fn samples(size: u64, hardened: &str) -> BTreeMap<u64, usize> {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("children.c", "children", &["-O1"]);
    let mut command = clean(Command::new(program));
    command.current_dir(folder.path()).arg(size.to_string()).env("LD_PRELOAD", real());
    command.env("HAKMEM_PROFILE", "p").env("HAKMEM_PROFILE_RATE", "500K").env("HAKMEM_HARDENED", hardened);
    run(&mut command);
    let mut counts = BTreeMap::new();
    let profiles: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(profiles.len(), 61);
    for path in profiles {
        let raw = file::read(&std::fs::read(path).unwrap()).unwrap();
        let rows = raw.snapshots.last().unwrap().rows.iter();
        let near = |found: u64| found.abs_diff(size) <= size / 8;
        let rows = rows.filter(|(site, _)| near(raw.sites[*site].size));
        *counts.entry(rows.map(|(_, row)| row.allocated).sum()).or_insert(0) += 1;
    }
    counts
}

/// Sixty children with two samples each, on average, or with 36.
#[test]
fn children_do_not_take_the_samples_of_their_siblings() {
    for (size, mean, hardened) in [(5120, 2.0, "off"), (100_000, 36.3, "off"), (5120, 2.0, "light")] {
        let counts = samples(size, hardened);
        assert!(counts.len() >= 4, "{size} {hardened}: {counts:?}");
        let sum: u64 = counts.iter().map(|(count, children)| count * *children as u64).sum();
        // Five standard deviations.
        let (expected, margin) = (60.0 * mean, 5.0 * f64::sqrt(60.0 * mean));
        assert!((sum as f64 - expected).abs() < margin, "{size} {hardened}: {sum}, not {expected}");
    }
}
