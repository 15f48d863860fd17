//! The fuzzer's kept corpus, and programs of random bytes: what `fuzz/` runs without end, for a moment.
//!
//! `HAKMEM_SHADOW_ROUNDS` is how many random ones, `HAKMEM_SHADOW_SEED` which; `HAKMEM_CORPUS_PART=2/3`
//! replays the second of three parts of the corpus, so that several processes share it.

mod support;

use hakmem_shadow::functions::Functions;
use hakmem_shadow::operations::{self, Operation};
use hakmem_shadow::random::{Random, number};
use hakmem_shadow::session::{self, Allowed, Report};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use support::in_own_processes;

hakmem_shadow::interpose!();

const ALLOWED: Allowed = if cfg!(miri) { Allowed::MIRI } else { Allowed::ALL };

fn corpus() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let entries = std::fs::read_dir(&folder).unwrap();
    // Names, since paths are compared part by part, which took half of the time under Miri.
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert!((20..200).contains(&names.len()), "{} files", names.len());
    let step = if takes_its_time() { 12 } else { 1 };
    names.into_iter().step_by(step).map(|name| folder.join(name)).collect()
}

/// Which part of the corpus this process replays, counted from one, and of how many.
fn part_of_all() -> (usize, usize) {
    let Ok(text) = std::env::var("HAKMEM_CORPUS_PART") else { return (1, 1) };
    let parse = || {
        let (part, parts) = text.split_once('/')?;
        let (part, parts): (usize, usize) = (part.parse().ok()?, parts.parse().ok()?);
        (1..=parts).contains(&part).then_some((part, parts))
    };
    parse().unwrap_or_else(|| panic!("HAKMEM_CORPUS_PART={text}: 2/3 is the second of three parts"))
}

/// Miri does, which runs a part of the corpus, if it is not told to take all of it.
fn takes_its_time() -> bool {
    cfg!(miri) && std::env::var_os("HAKMEM_LONG").is_none()
}

fn read(file: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(file).unwrap();
    if takes_its_time() {
        bytes.truncate(60);
    }
    bytes
}

fn run(bytes: &[u8]) -> Report {
    session::run(operations::program(bytes), &Functions::CORE, ALLOWED)
}

/// What changes the way that a block goes, or when memory goes back.
const SETTINGS: [&[(&str, &str)]; 9] = [
    &[],
    &[("HAKMEM_MAGAZINE", "off"), ("HAKMEM_PURGE_DELAY", "0")],
    &[("HAKMEM_OUTBOX", "off"), ("HAKMEM_ORPHANS", "off")],
    &[("HAKMEM_PRESET", "memory")],
    &[("HAKMEM_PRESET", "throughput"), ("HAKMEM_PURGE_DELAY", "1"), ("HAKMEM_BACKGROUND", "on")],
    &[("HAKMEM_PRESET", "latency")],
    &[("HAKMEM_HARDENED", "on")],
    &[("HAKMEM_HARDENED", "light"), ("HAKMEM_PURGE_DELAY", "0")],
    &[("HAKMEM_GUARD", "1")],
];

/// Their names.
const OPTIONS: [&str; 5] =
    ["HAKMEM_MAGAZINE", "HAKMEM_OUTBOX", "HAKMEM_PRESET", "HAKMEM_HARDENED", "HAKMEM_GUARD"];

/// Runs `f` in a process of its own for each of the settings.
fn with_settings(name: &str, f: impl FnOnce()) {
    if cfg!(miri) {
        return f();
    }
    in_own_processes(name, &SETTINGS, |settings| {
        // SAFETY: nothing has been allocated from the allocator under test, and no other thread reads them.
        settings.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
        f();
    });
}

/// Some of it is in every form: what the corpus is for.
#[test]
fn the_corpus_has_all_kinds_of_operations() {
    let programs: Vec<_> = corpus().iter().map(|file| operations::program(&read(file))).collect();
    assert!(
        programs.iter().any(|program| program.in_turn) && programs.iter().any(|program| !program.in_turn)
    );
    let all: Vec<&Operation> =
        programs.iter().flat_map(|program| program.parts.iter().flat_map(|(_, part)| part)).collect();
    let kinds: HashSet<_> = all.iter().map(|operation| std::mem::discriminant(*operation)).collect();
    assert!(kinds.len() == 19 || cfg!(miri), "{} kinds of operations", kinds.len());
}

#[test]
fn the_corpus_is_replayed() {
    with_settings("the_corpus_is_replayed", || {
        let (mut operations, mut refused, mut held) = (0, 0, 0);
        // All of it as the options are by default; of the rest a part each.
        let step = if std::env::vars().any(|(name, _)| OPTIONS.contains(&name.as_str())) { 12 } else { 1 };
        let (part, parts) = part_of_all();
        for file in corpus().into_iter().step_by(step).skip(part - 1).step_by(parts) {
            // The name of the file that fails is the last one.
            println!("{}", file.display());
            let report = run(&read(&file));
            operations += report.operations;
            refused += report.refused;
            held = report.held.max(held);
        }
        println!("{operations} operations, {refused} allocations refused, {held} bytes held in the end");
        assert!(operations > 1000 && refused > 50 || cfg!(miri) && operations > 100);
    });
}

#[test]
fn random_programs() {
    with_settings("random_programs", || {
        let programs = number("HAKMEM_SHADOW_ROUNDS", if cfg!(miri) { 1 } else { 4 });
        let seed = number("HAKMEM_SHADOW_SEED", 1);
        for n in 0..programs {
            println!("seed {seed}, program {n}");
            run(&Random::program(seed, n));
        }
    });
}
