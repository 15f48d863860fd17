//! What comes of misuse of memory, by kind and level of protection: the programs `security_*` do each kind
//! once, and `security.txt` keeps how that ends. Any change fails here, by name; `HAKMEM_BLESS=1` accepts it
//! (and `HAKMEM_SECURITY_RUNS=100` makes the fractions of random outcomes better). The page docs/security.md
//! shows what is kept.

#[path = "support/security.rs"]
mod kinds;
mod support;

use kinds::{Kind, LEVELS, Outcomes, Row, cell, is_stopped};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

const SIZES: [&str; 4] = ["small", "medium", "large", "huge"];

fn bless() -> bool {
    std::env::var_os("HAKMEM_BLESS").is_some()
}

/// How probable it is that of `runs` at least `count`, or at most as many, end in a way that has
/// `probability`: the smaller of the two.
fn tail(runs: usize, count: usize, probability: f64) -> f64 {
    let mut sums = [0.0; 2];
    let mut ways = 1.0;
    for k in 0..=runs {
        let this = ways * probability.powi(k as i32) * (1.0 - probability).powi((runs - k) as i32);
        sums[0] += if k <= count { this } else { 0.0 };
        sums[1] += if k >= count { this } else { 0.0 };
        ways *= (runs - k) as f64 / (k + 1) as f64;
    }
    sums[0].min(sums[1])
}

/// How well outcomes agree with what is kept: the smallest tail. What is kept comes from so many runs too, so
/// the probability may be four standard deviations away; and one in fifty though it was never seen.
fn agreement(kept: &BTreeMap<String, f64>, found: &Outcomes, kept_runs: usize) -> f64 {
    let runs: usize = found.values().sum();
    let all: BTreeSet<&String> = kept.keys().chain(found.keys()).collect();
    let tails = all.into_iter().map(|outcome| {
        let (kept, count) = (kept.get(outcome).unwrap_or(&0.0) / 100.0, *found.get(outcome).unwrap_or(&0));
        let doubt = (4.0 * (kept * (1.0 - kept) / kept_runs as f64).sqrt()).max(0.02);
        let likely = (count as f64 / runs as f64).clamp(kept - doubt, kept + doubt);
        tail(runs, count, likely.clamp(0.0, 1.0))
    });
    tails.fold(1.0, f64::min)
}

/// A kind that ends differently from run to run is run so often at first, and those about which there is
/// doubt so often again.
const RUNS: usize = 8;
const RUNS_IN_DOUBT: usize = 40;
/// A change of what is always so is seen in all the runs in doubt, and one of even odds in most.
const CERTAIN: f64 = 1e-6;
const DOUBTFUL: f64 = 0.05;

#[test]
fn every_kind_ends_as_is_kept() {
    let kinds = kinds::kinds();
    let names: BTreeSet<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert!(names.len() == kinds.len() && kinds.len() >= 116, "{} kinds, {} names", kinds.len(), names.len());
    if bless() {
        return write_anew(&kinds);
    }
    let (kept, kept_runs) = (kinds::kept(), kinds::kept_runs());
    let mut jobs = Vec::new();
    for kind in &kinds {
        let row = kept.iter().find(|row| row.name == kind.name);
        let row = row.unwrap_or_else(|| panic!("{} is not in security.txt", kind.name));
        assert!(row.group == kind.group && row.words == kind.words, "{}: the words differ", kind.name);
        for (level, (label, variable)) in LEVELS.iter().enumerate() {
            let expected = &row.levels[level];
            jobs.push((kind, *variable, if expected.len() > 1 { RUNS } else { 1 }, expected, *label));
        }
    }
    let runs: Vec<_> = jobs.iter().map(|job| (job.0, job.1, job.2)).collect();
    let found = kinds::count(&runs);
    let doubtful: Vec<usize> =
        (0..jobs.len()).filter(|&job| agreement(jobs[job].3, &found[job], kept_runs) < DOUBTFUL).collect();
    let again: Vec<_> = doubtful.iter().map(|&job| (jobs[job].0, jobs[job].1, RUNS_IN_DOUBT)).collect();
    println!("{} kinds, {} in doubt", kinds.len(), doubtful.len());
    let mut changed = String::new();
    for (&job, more) in doubtful.iter().zip(kinds::count(&again)) {
        let (kind, _, _, expected, level) = jobs[job];
        if agreement(expected, &more, kept_runs) < CERTAIN {
            let _ = writeln!(changed, "{} {level}: {}, was {}", kind.name, shown(&more), cell(expected));
        }
    }
    assert!(changed.is_empty(), "misuse ends otherwise than is kept:\n{changed}");
    assert_eq!(kept.len(), kinds.len(), "security.txt has kinds that are no more");
}

fn percents(outcomes: &Outcomes) -> BTreeMap<String, f64> {
    let runs: usize = outcomes.values().sum();
    let percent = |count: usize| (1000.0 * count as f64 / runs as f64).round() / 10.0;
    outcomes.iter().map(|(outcome, &count)| (outcome.clone(), percent(count))).collect()
}

fn shown(outcomes: &Outcomes) -> String {
    cell(&percents(outcomes))
}

/// Runs anew those kinds that are not kept yet, and those whose names contain one of the words in
/// `HAKMEM_BLESS` (between commas); all if that is `1`.
fn write_anew(kinds: &[Kind]) {
    let wanted = std::env::var("HAKMEM_BLESS").unwrap();
    let kept = if wanted == "1" { Vec::new() } else { kinds::kept() };
    let is_kept = |kind: &&Kind| {
        !wanted.split(',').any(|part| kind.name.contains(part))
            && kept.iter().any(|row| row.name == kind.name && row.levels.len() == LEVELS.len())
    };
    let (old, new): (Vec<&Kind>, Vec<&Kind>) = kinds.iter().partition(is_kept);
    println!("{} kinds are kept as they are, {} run", old.len(), new.len());
    let runs = std::env::var("HAKMEM_SECURITY_RUNS").map_or(20, |runs| runs.parse().unwrap());
    let jobs: Vec<_> = new
        .iter()
        .flat_map(|kind| LEVELS.iter().map(move |(_, variable)| (*kind, *variable, runs)))
        .collect();
    let found = kinds::count(&jobs);
    let mut found = found.chunks(LEVELS.len());
    let mut row = |kind: &Kind| Row {
        group: kind.group.clone(),
        name: kind.name.clone(),
        words: kind.words.clone(),
        levels: match kept.iter().find(|row| is_kept(&kind) && row.name == kind.name) {
            Some(row) => row.levels.clone(),
            None => found.next().unwrap().iter().map(percents).collect(),
        },
    };
    let rows: Vec<Row> = kinds.iter().map(&mut row).collect();
    // Some rows may come from fewer runs: the file says the fewest.
    let runs = if old.is_empty() { runs } else { runs.min(kinds::kept_runs()) };
    kinds::keep(&rows, runs);
    write_page(&rows);
}

/// Without misuse the programs end well and nothing is said: else nothing above means anything.
#[test]
fn without_misuse_nothing_is_said() {
    for program in kinds::programs() {
        for &(level, variable) in LEVELS {
            for size in SIZES {
                let (ended, text) = kinds::outcome(program, &format!("none/{size}"), variable);
                assert!(
                    ended == "harmless" && text.is_empty(),
                    "{program:?} {size} {level}: {ended}\n{text}"
                );
            }
        }
    }
}

/// What each part of hardened mode stops when it alone is on, and is not stopped so by the others. (Frees are
/// checked with any of them.)
const PARTS: [(&str, &str, &str, &str); 6] = [
    ("canary", "random,quarantine,zero,guard", "over-1-store/small", "reported (overflow)"),
    ("canary", "random,quarantine,zero,guard", "under-32-freed/small", "reported (underflow)"),
    ("zero", "random,quarantine,canary,guard", "write-then-wait/small", "reported (write after free)"),
    ("quarantine", "zero,canary,guard", "write-reused/small", "harmless"),
    ("random", "quarantine,zero,canary,guard", "fresh-known/small", "harmless"),
    ("guard", "random,quarantine,zero,canary", "over-1-store/large", "trapped"),
];

#[test]
fn each_part_of_hardened_mode_stops_something() {
    let kinds = kinds::kinds();
    for (part, others, name, expected) in PARTS {
        let kind = kinds.iter().find(|kind| kind.name == name).unwrap();
        let end = |parts| kinds::outcome(&kind.program, name, Some(("HAKMEM_HARDENED", parts))).0;
        // What is drawn at random is guessed now and then: `fresh-known` in about one of 128 runs.
        let tries = if part == "random" { 3 } else { 1 };
        assert!((0..tries).any(|_| end(part) == expected), "{name} with {part}");
        assert_ne!(end(others), expected, "{name} with {others}");
    }
}

/// How many kinds end so at a level: the sum of the fractions.
fn ended(rows: &[&Row], level: usize, so: &dyn Fn(&str) -> bool) -> f64 {
    let of = |row: &&Row| {
        let those = row.levels[level].iter().filter(|(outcome, _)| so(outcome));
        those.map(|(_, percent)| percent / 100.0).sum::<f64>()
    };
    rows.iter().map(of).sum()
}

/// A figure without a fraction that is nought.
fn figure(value: f64) -> String {
    let text = format!("{:.1}", value + 0.0);
    text.strip_suffix(".0").map_or(text.clone(), String::from)
}

/// The cell of the page for kinds that differ in size only: sizes that end alike are named together.
fn merged(rows: &[&Row], level: usize) -> String {
    let mut ends: Vec<(String, Vec<&str>)> = Vec::new();
    for row in rows {
        let mut text = cell(&row.levels[level]).replace("unnoticed", "**unnoticed**");
        if row.levels[level].len() > 1 {
            text = text.split(", ").map(|part| format!("{part}%")).collect::<Vec<_>>().join(", ");
        }
        let size = row.name.split_once('/').map_or("", |(_, size)| size);
        match ends.iter_mut().find(|(end, _)| *end == text) {
            Some((_, sizes)) => sizes.push(size),
            None => ends.push((text, vec![size])),
        }
    }
    match &ends[..] {
        [(end, _)] => end.clone(),
        _ => {
            let parts: Vec<_> =
                ends.iter().map(|(end, sizes)| format!("{}: {end}", sizes.join(", "))).collect();
            parts.join("; ")
        }
    }
}

fn header(first: &str, names: &[&str]) -> String {
    format!("| {first} | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()))
}

fn groups(rows: &[Row]) -> Vec<&str> {
    let mut groups: Vec<&str> = rows.iter().map(|row| row.group.as_str()).collect();
    let mut seen = BTreeSet::new();
    groups.retain(|group| seen.insert(*group));
    groups
}

/// How many kinds of each group are stopped at each level, and by others as `docs/benchmarks/misuse.py` has
/// counted.
fn totals(rows: &[Row], peers: &str) -> String {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().into()).collect();
    let peers: Vec<Vec<String>> = peers.lines().map(cells).collect();
    let others: Vec<usize> = (1..peers[0].len()).filter(|&at| !peers[0][at].starts_with("Hakmem")).collect();
    let names: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
    let names: Vec<&str> = names.into_iter().chain(others.iter().map(|&at| peers[0][at].as_str())).collect();
    let mut text = header("stopped", &names);
    let mut line = |title: &str, rows: &[&Row], ending: &dyn Fn(&str) -> bool| {
        let _ = write!(text, "| {title} |");
        for level in 0..LEVELS.len() {
            let _ = write!(text, " {} of {} |", figure(ended(rows, level, ending)), rows.len());
        }
        let counted =
            peers.iter().find(|cells| cells[0] == title).unwrap_or_else(|| panic!("{title}: no others"));
        others.iter().for_each(|&at| write!(text, " {} |", counted[at]).unwrap());
        text += "\n";
    };
    for group in groups(rows) {
        line(group, &rows.iter().filter(|row| row.group == group).collect::<Vec<_>>(), &is_stopped);
    }
    let all: Vec<&Row> = rows.iter().collect();
    line("**all**", &all, &is_stopped);
    for end in ["reported", "trapped", "harmless"] {
        line(&format!("of these {end}"), &all, &|outcome| outcome.starts_with(end));
    }
    text
}

/// How each kind ends.
fn tables(rows: &[Row]) -> String {
    let names: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
    let mut text = String::new();
    for group in groups(rows) {
        let _ =
            write!(text, "\n### {}{}\n\n{}", group[..1].to_uppercase(), &group[1..], header("kind", &names));
        let rows: Vec<&Row> = rows.iter().filter(|row| row.group == group).collect();
        for alike in rows.chunk_by(|a, b| a.words == b.words) {
            let what = alike[0].name.split('/').next().unwrap();
            let cells: String =
                (0..LEVELS.len()).map(|level| format!(" {} |", merged(alike, level))).collect();
            let _ = writeln!(text, "| {} (`{what}`) |{cells}", alike[0].words);
        }
    }
    text
}

/// Kept files that the page shows: what is in it between such lines.
const KINDS: &str = "<!-- from hakmem-capi/tests/security.txt -->\n";
const PEERS: &str = "<!-- from docs/benchmarks/misuse.txt -->\n";
const END: &str = "<!-- to here -->\n";

fn page_file() -> PathBuf {
    support::root().join("docs/security.md")
}

/// The page in three: what stands before what is shown of a kept file, that, and what follows.
fn parted<'a>(page: &'a str, begin: &str) -> (&'a str, &'a str, &'a str) {
    let at = page.find(begin).expect("where it begins") + begin.len();
    let length = page[at..].find(END).expect("where it ends");
    (&page[..at], &page[at..at + length], &page[at + length..])
}

/// What `docs/benchmarks/misuse.py` has printed.
fn peers() -> String {
    std::fs::read_to_string(support::root().join("docs/benchmarks/misuse.txt")).unwrap()
}

fn write_page(rows: &[Row]) {
    let mut page = std::fs::read_to_string(page_file()).unwrap();
    for (begin, shown) in [(KINDS, tables(rows)), (PEERS, totals(rows, &peers()))] {
        let (before, _, after) = parted(&page, begin);
        page = format!("{before}\n{shown}\n{after}");
    }
    std::fs::write(page_file(), page).unwrap();
}

#[test]
fn the_page_shows_what_is_kept() {
    if bless() {
        return; // who blesses writes both
    }
    let page = std::fs::read_to_string(page_file()).unwrap();
    let rows = kinds::kept();
    for (begin, kept) in [(KINDS, tables(&rows)), (PEERS, totals(&rows, &peers()))] {
        let shown = parted(&page, begin).1;
        let wrong = kept.lines().find(|line| !shown.contains(line));
        assert!(shown.trim() == kept.trim(), "docs/security.md lacks, or has in another place: {wrong:?}");
    }
}

/// At least 100 in 116 are to be stopped by hardened mode, the light one too.
#[test]
fn hardened_mode_stops_what_it_should() {
    let kept = kinds::kept();
    for (level, (name, _)) in LEVELS.iter().enumerate().skip(1) {
        let stopped = ended(&kept.iter().collect::<Vec<_>>(), level, &is_stopped);
        assert!(stopped / kept.len() as f64 >= 100.0 / 116.0, "{name}: {stopped} of {}", kept.len());
    }
}
