//! Kinds of misuse as the programs `security_*` list them, how often they end how, and the file that says so.

use crate::support::{compile, lib, root};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A variable of the environment and its value, if any.
pub type Variable = Option<(&'static str, &'static str)>;

/// Levels of protection: a name, and the variable that asks for it.
pub const LEVELS: &[(&str, Variable)] = &[
    ("default", None),
    ("light", Some(("HAKMEM_HARDENED", "light"))),
    ("hardened", Some(("HAKMEM_HARDENED", "on"))),
];

/// One kind, as its program lists it.
#[derive(Clone, PartialEq)]
pub struct Kind {
    pub program: PathBuf,
    pub group: String,
    /// `WHAT/SIZE`, or `WHAT`.
    pub name: String,
    pub words: String,
}

/// Outcomes, and how many of the runs ended so.
pub type Outcomes = BTreeMap<String, usize>;

/// Whether nobody is worse off than before: reported, trapped, or harmless.
pub fn is_stopped(outcome: &str) -> bool {
    outcome.starts_with("reported") || outcome == "trapped" || outcome == "harmless"
}

/// The programs of misuse, compiled once. The one in Rust is built as users build theirs: release.
pub fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let mut programs: Vec<_> = ["bounds", "free", "stale", "thread"]
            .iter()
            .map(|name| compile("gcc", &format!("security_{name}.c"), &["-pthread", "-ldl"]))
            .collect();
        programs.push(compile("g++", "security_new.cpp", &["-pthread", "-ldl"]));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--release", "--quiet", "-p", "hakmem-tests", "--example", "security_layouts"])
            .current_dir(root())
            .status()
            .expect("cargo runs");
        assert!(status.success(), "security_layouts is not built");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
        programs.push(target.join("release/examples/security_layouts"));
        programs
    })
}

/// All kinds of misuse.
pub fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for program in programs() {
        let output = Command::new(program).arg("list").output().unwrap();
        assert!(output.status.success(), "{program:?} list: {}", output.status);
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let [group, name, words] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{program:?}: {line}");
            };
            let [group, name, words] = [group, name, words].map(String::from);
            kinds.push(Kind { program: program.clone(), group, name, words });
        }
    }
    kinds
}

/// Runs `program` with the library preloaded and one variable set, if any: how it ended, and what it said.
pub fn outcome(program: &Path, name: &str, variable: Variable) -> (String, String) {
    let mut command = Command::new(program);
    for (inherited, _) in std::env::vars_os() {
        if inherited.to_string_lossy().starts_with("HAKMEM_") {
            command.env_remove(inherited);
        }
    }
    command.arg(name).envs(variable);
    // The one in Rust has the crate linked.
    if !program.ends_with("security_layouts") {
        command.env("LD_PRELOAD", lib());
    }
    // The program ends itself by an alarm, should it hang.
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("hakmem:")).collect();
    let status = output.status;
    let ended = match (status.code(), status.signal()) {
        (Some(0), _) => "harmless".into(),
        (Some(3), _) => "unnoticed".into(),
        (Some(4), _) => "absent".into(),
        (_, Some(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL)) => "trapped".into(),
        (_, Some(libc::SIGALRM)) => "hung".into(),
        (_, Some(libc::SIGABRT)) if lines.len() == 1 => {
            // `hakmem: FUNCTION(ADDRESS): WHAT: more words`
            let what = lines[0].split("): ").nth(1).unwrap_or(lines[0]);
            format!("reported ({})", what.split(':').next().unwrap())
        }
        _ => panic!("{name} is broken, or its report is: {status}\n{text}"),
    };
    (ended, text)
}

/// Counts how kinds end, each in as many runs as its number says, on all processors.
pub fn count(jobs: &[(&Kind, Variable, usize)]) -> Vec<Outcomes> {
    let next = AtomicUsize::new(0);
    let mut found: Vec<(usize, Outcomes)> = std::thread::scope(|scope| {
        let work = || {
            let mut mine = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some((kind, variable, runs)) = jobs.get(number) else { return mine };
                let mut outcomes = Outcomes::new();
                for _ in 0..*runs {
                    *outcomes.entry(outcome(&kind.program, &kind.name, *variable).0).or_default() += 1;
                }
                mine.push((number, outcomes));
            }
        };
        let workers = std::thread::available_parallelism().map_or(2, usize::from);
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    found.sort_unstable_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, outcomes)| outcomes).collect()
}

/// One line of the kept file: a kind, and for each level how many of a hundred runs end how.
#[derive(Clone)]
pub struct Row {
    pub group: String,
    pub name: String,
    pub words: String,
    pub levels: Vec<BTreeMap<String, f64>>,
}

fn kept_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/security.txt")
}

/// As in the kept file: `reported (double free) 97, unnoticed 3`, and without figure if it is always so.
pub fn cell(percents: &BTreeMap<String, f64>) -> String {
    let mut parts: Vec<_> = percents.iter().collect();
    parts.sort_by(|a, b| b.1.total_cmp(a.1));
    let parts: Vec<_> = parts
        .into_iter()
        .map(
            |(outcome, percent)| {
                if percents.len() == 1 { outcome.clone() } else { format!("{outcome} {percent}") }
            },
        )
        .collect();
    parts.join(", ")
}

fn parsed(cell: &str) -> BTreeMap<String, f64> {
    let parse = |part: &str| match part.rsplit_once(' ') {
        Some((outcome, percent)) if percent.parse::<f64>().is_ok() => {
            (outcome.into(), percent.parse().unwrap())
        }
        _ => (part.into(), 100.0),
    };
    cell.split(", ").map(parse).collect()
}

/// The kept file.
pub fn kept() -> Vec<Row> {
    let text = std::fs::read_to_string(kept_file()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut cells = line.split('\t');
            let mut text = || cells.next().unwrap_or_else(|| panic!("too short: {line}")).to_string();
            let (group, name, words) = (text(), text(), text());
            Row { group, name, words, levels: cells.map(parsed).collect() }
        })
        .collect()
}

/// The runs of each kind that the kept file comes from.
pub fn kept_runs() -> usize {
    let text = std::fs::read_to_string(kept_file()).unwrap();
    let runs = text.lines().find_map(|line| line.strip_prefix("# Runs: "));
    runs.expect("the file says of how many runs it is").parse().unwrap()
}

/// Writes the kept file.
pub fn keep(rows: &[Row], runs: usize) {
    let names: Vec<_> = LEVELS.iter().map(|(name, _)| *name).collect();
    let mut text = format!(
        "# How each kind of misuse ends, by level; in percent of the runs where that is random.\n\
         # HAKMEM_BLESS=1 cargo test -p hakmem-capi --test security writes this file and docs/security.md.\n\
         # Runs: {runs}\n\
         # group\tkind\twords\t{}\n",
        names.join("\t")
    );
    for row in rows {
        let cells: Vec<_> = row.levels.iter().map(cell).collect();
        text += &format!("{}\t{}\t{}\t{}\n", row.group, row.name, row.words, cells.join("\t"));
    }
    std::fs::write(kept_file(), text).unwrap();
}
