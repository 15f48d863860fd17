//! Statistics and options as a C program sees them: `hak_stats`, what is printed at exit, and the
//! environment.

#[path = "support/link.rs"]
mod link;
mod support;

use link::{LIMIT, Link, build, command};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use support::{expect_ok, run, scratch};

/// Every figure by its name in JSON, which is also its name in `hak_stats_t`.
const FIGURES: &str = "allocations magazine_misses magazine_overflows refill_current refill_bump refill_partial \
    refill_ready refill_orphan refill_span superslabs_mapped home_local home_foreign outbox_blocks outbox_pushes \
    publishes large_allocs large_frees large_cache_hits threads_started threads_exited bytes_mapped \
    bytes_mapped_peak bytes_purged bytes_held soft_limit_hits hard_limit_hits allocated_bytes peak_resident_bytes \
    background_passes background_wakeups active_bytes cached_bytes free_bytes fresh_bytes slack_bytes \
    untouched_bytes dirty_bytes metadata_bytes resident_bytes resident_kernel_bytes retained_bytes \
    guard_samples guard_blocks";

/// The options, a few values each takes, and a few it does not.
const OPTIONS: [(&str, &[&str], &[&str]); 15] = [
    ("HAKMEM_PRESET", &["throughput", "balanced", "memory", "latency"], &["fast", "memor"]),
    ("HAKMEM_STATS", &["none"], &["bogus", "yes", "jso", "jsonx"]),
    ("HAKMEM_PURGE_DELAY", &["0", "1", "250", "100000", "-1"], &["soon", "-2", "1s", "99999999999999999999"]),
    ("HAKMEM_MAGAZINE", &["on", "off"], &["maybe", "o", "offf"]),
    ("HAKMEM_OUTBOX", &["on", "off"], &["maybe"]),
    ("HAKMEM_ORPHANS", &["on", "off"], &["maybe"]),
    ("HAKMEM_THP", &["auto", "folios", "always", "never"], &["sometimes"]),
    (
        "HAKMEM_LARGE_CACHE",
        &["0", "1", "4096", "64K", "32M", "1G"],
        &["much", "-1", "12Q", "M", "1MB", "99999999999999999999", "99999999999999G"],
    ),
    ("HAKMEM_SOFT_LIMIT", &["0", "1", "64K", "1G"], &["much", "-1", "12Q", "1MB", "99999999999999G"]),
    ("HAKMEM_HARD_LIMIT", &["0", "64M", "1G", "1000000000"], &["much", "-1", "none", "99999999999999G"]),
    ("HAKMEM_FOREIGN", &["abort", "warn"], &["ignore"]),
    ("HAKMEM_BACKGROUND", &["on", "off"], &["yes", "of"]),
    ("HAKMEM_GUARD", &["off", "on", "1", "100000"], &["yes", "-1", "1K"]),
    ("HAKMEM_GUARD_SLOTS", &["1", "4096"], &["0", "4097", "many"]),
    ("HAKMEM_STATS_FILE", &["/dev/null"], &[]),
];

/// The program that allocates a little, prints its process id and ends as told, with the library preloaded.
fn ends(how: &str) -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let mut command =
        command(PROGRAM.get_or_init(|| build("stats_exit.c", Link::Preload, &[])), Link::Preload);
    command.arg(how);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are UTF-8")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The members of one JSON object, each value as Python writes it.
fn members(json: &str) -> BTreeMap<String, String> {
    let script = "import json,sys\nfor k, v in json.loads(sys.argv[1]).items(): print(k, json.dumps(v))";
    let lines = expect_ok(Command::new("python3").args(["-c", script, json]), LIMIT);
    lines.lines().filter_map(|line| line.split_once(' ')).map(|(k, v)| (k.into(), v.into())).collect()
}

/// Checks that every figure is there and a whole number, and that a few are plausible.
fn assert_figures(json: &str) -> BTreeMap<String, String> {
    let all = members(json);
    let number = |name: &str| -> u64 {
        let value = all.get(name).unwrap_or_else(|| panic!("{name} is missing: {json}"));
        value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
    };
    for name in FIGURES.split_whitespace() {
        number(name);
    }
    assert!(number("allocations") > 0 && number("bytes_mapped") > 0, "{json}");
    assert!(number("bytes_mapped_peak") >= number("bytes_mapped"), "{json}");
    assert!((500_000..1 << 40).contains(&number("peak_resident_bytes")), "{json}");
    assert!((500_000..1 << 40).contains(&number("resident_kernel_bytes")), "{json}");
    let sum = |names: &str| names.split(' ').map(number).sum::<u64>();
    let active = "allocated_bytes cached_bytes free_bytes fresh_bytes slack_bytes";
    assert_eq!(number("active_bytes"), sum(active), "{json}");
    let resident = sum("active_bytes dirty_bytes metadata_bytes") - number("untouched_bytes");
    assert_eq!(number("resident_bytes"), resident, "{json}");
    assert_eq!(number("bytes_mapped"), sum("resident_bytes retained_bytes"), "{json}");
    assert!(all["classes"].starts_with("[{\"class\": "), "{json}");
    all
}

fn assert_table(text: &str) {
    assert!(text.contains("hakmem") && text.contains("allocations"), "{text}");
    assert!(text.lines().count() >= 5 && !text.contains('{'), "{text}");
    // The column of sums, to its end.
    let bytes = |what: &str| -> u64 {
        let line = text.lines().find(|line| line.trim_start().starts_with(what));
        let mut words = line.unwrap_or_else(|| panic!("no {what}: {text}")).split_whitespace().rev();
        words.nth(2).unwrap().parse().unwrap()
    };
    assert_eq!(bytes("= mapped"), bytes("= resident") + bytes("+ retained"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("class ")), "{text}");
}

/// Each figure of `hak_stats` moves when, and as far as, its name says.
#[test]
fn figures_move() {
    let program = build("stats_figures.c", Link::Shared, &[]);
    let scenarios: [(&str, &[(&str, &str)]); 13] = [
        ("exact", &[("HAKMEM_MAGAZINE", "off")]),
        ("magazine", &[]),
        ("refills", &[]),
        ("foreign", &[]),
        ("no-outbox", &[("HAKMEM_OUTBOX", "off")]),
        ("orphans", &[]),
        ("no-orphans", &[("HAKMEM_ORPHANS", "off")]),
        ("large", &[]),
        ("no-cache", &[("HAKMEM_LARGE_CACHE", "0")]),
        ("threads", &[]),
        ("purge", &[]),
        ("classes", &[]),
        ("classes", &[("HAKMEM_MAGAZINE", "off")]),
    ];
    let mut failed = Vec::new();
    for (scenario, options) in scenarios {
        let output = run(Command::new(&program).arg(scenario).envs(options.iter().copied()), LIMIT);
        if !output.status.success() || stdout(&output) != "figures ok\n" {
            failed.push(format!("{scenario} {options:?}: {} {}", output.status, stderr(&output)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// How `stats_print.c` prints: by `hak_stats_print`, `hak_stats_write`, and that without a callback.
const BY: [&[&str]; 3] = [&[], &["write"], &["null"]];

/// `hak_stats_print` in both forms, on stderr and nowhere else, and the text of `hak_stats_write`.
#[test]
fn printed_on_request() {
    let program = build("stats_print.c", Link::Shared, &["-std=gnu99", "-pedantic"]);
    for by in BY {
        let output = run(Command::new(&program).args(["json", ""]).args(by), LIMIT);
        assert!(output.status.success() && output.stdout.is_empty(), "{by:?}: {}", output.status);
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{by:?}: {text}");
        assert_figures(&text);
        let output = run(Command::new(&program).args(["table", ""]).args(by), LIMIT);
        assert!(output.status.success() && output.stdout.is_empty(), "{by:?}: {}", output.status);
        assert_table(&stderr(&output));
    }
}

/// A block of every class: nothing is cut off, in either form, also when there is no memory for the text.
#[test]
fn every_class_is_printed() {
    let program = build("stats_print.c", Link::Shared, &["-std=gnu99", "-pedantic"]);
    // What is to be there: the classes that C's alignment leaves of the 60 (not those of 8, 24, 40 and 56
    // bytes), and the two kinds of large blocks, with ever more blocks.
    let script = "import json,sys\nr = json.loads(sys.argv[1]); c = r['classes']\n\
        assert [x['class'] for x in c] == [str(x['block_bytes']) for x in c[:-2]] + ['runs', 'direct'], c\n\
        assert all(x['blocks'] >= n + 1 for n, x in enumerate(c[:-2])) and c[-2]['blocks'] == 61 + 62, c\n\
        assert c[-1]['blocks'] == 1 and sum(x['active_bytes'] for x in c) == r['active_bytes'], c\n\
        print(len(c), *(x['class'] for x in c))";
    for (how, by) in ["all", "limit"].into_iter().flat_map(|how| BY.map(|by| (how, by))) {
        let output = run(Command::new(&program).args(["json", how]).args(by), LIMIT);
        assert!(output.status.success(), "{how} {by:?}: {}", output.status);
        let text = stderr(&output);
        assert!(text.lines().count() == 1 && text.ends_with("]}\n"), "{how} {by:?}: {text}");
        assert_figures(&text);
        let rows = expect_ok(Command::new("python3").args(["-c", script, &text]), LIMIT);
        let (count, classes) = rows.trim().split_once(' ').unwrap();
        assert_eq!(count, "58", "{how} {by:?}: {text}");

        let output = run(Command::new(&program).args(["table", how]).args(by), LIMIT);
        let text = stderr(&output);
        assert_table(&text);
        let (_, table) = text.split_once("\nclass ").expect("a table of classes");
        let table: Vec<&str> = table.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(table.join(" "), classes, "{how} {by:?}: {text}");
        assert!(text.ends_with(" %\n"), "{how} {by:?}: {text}");
    }
}

/// The exit record among the lines of `text`, checked.
fn exit_record(text: &str, pid: &str) -> BTreeMap<String, String> {
    let exits = text.lines().filter(|line| line.contains(r#""event":"exit""#));
    // The number alone may be a part of any figure.
    let line = exits.into_iter().find(|line| line.contains(&format!(r#""pid":{pid},"#)));
    let record = assert_figures(line.unwrap_or_else(|| panic!("no exit record of {pid}: {text:?}")));
    assert_eq!(record["hakmem"], format!("{:?}", env!("CARGO_PKG_VERSION")));
    assert_eq!(record["pid"], pid);
    record
}

/// Statistics at exit, on stderr: by return from main and by exit, preloaded and linked.
#[test]
fn printed_at_exit() {
    for how in [Link::Preload, Link::Shared, Link::Archive, Link::Static] {
        let program = build("stats_exit.c", how, &[]);
        for (end, code) in [("return", 0), ("exit", 3)] {
            let output = run(command(&program, how).arg(end).env("HAKMEM_STATS", "json"), LIMIT);
            assert_eq!(output.status.code(), Some(code), "{how:?}");
            exit_record(&stderr(&output), stdout(&output).trim());
            let output = run(command(&program, how).arg(end).env("HAKMEM_STATS", "table"), LIMIT);
            assert_eq!(output.status.code(), Some(code), "{how:?}");
            assert_table(&stderr(&output));
            let output = run(command(&program, how).arg(end), LIMIT);
            assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(code), ""), "{how:?}");
        }
    }
    // Also from a program that has closed its standard error by then, as coreutils do.
    let output = run(ends("closed").env("HAKMEM_STATS", "json"), LIMIT);
    assert_eq!(output.status.code(), Some(0));
    exit_record(&stderr(&output), stdout(&output).trim());
}

/// With HAKMEM_MAGAZINE=off the allocations at exit are those of the program and not many more.
#[test]
fn exact_counts_at_exit() {
    let output = run(ends("return").env("HAKMEM_STATS", "json").env("HAKMEM_MAGAZINE", "off"), LIMIT);
    let record = exit_record(&stderr(&output), stdout(&output).trim());
    let allocations: u64 = record["allocations"].parse().unwrap();
    assert!((1001..1200).contains(&allocations), "{allocations}");
}

/// A JSON file: one line each for start and exit, appended to what is there; nothing on stderr.
#[test]
fn json_file() {
    let file = scratch("stats").join("figures.json");
    let _ = std::fs::remove_file(&file);
    for round in 1..=2 {
        let output = run(ends("return").env("HAKMEM_STATS", "json").env("HAKMEM_STATS_FILE", &file), LIMIT);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
        let text = std::fs::read_to_string(&file).unwrap();
        let (lines, pid) = (text.lines().collect::<Vec<_>>(), stdout(&output).trim().to_owned());
        assert_eq!(lines.len(), 2 * round, "{text}");
        assert!(text.ends_with('\n'));
        let start = members(lines[2 * round - 2]);
        assert_eq!(start["hakmem"], format!("{:?}", env!("CARGO_PKG_VERSION")));
        assert_eq!((start["event"].as_str(), &start["pid"]), ("\"start\"", &pid));
        exit_record(lines[2 * round - 1], &pid);
    }
}

/// Parent and child of a fork both write their exit record; exec makes a new start.
#[test]
fn json_file_of_families() {
    let file = scratch("stats").join("fork.json");
    let _ = std::fs::remove_file(&file);
    let run_one = |how: &str| {
        let output = run(ends(how).env("HAKMEM_STATS", "json").env("HAKMEM_STATS_FILE", &file), LIMIT);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{how}");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        (text, stdout(&output).trim().to_owned())
    };
    let (text, pid) = run_one("fork");
    exit_record(&text, &pid);
    let exits: Vec<_> = text.lines().filter(|line| line.contains(r#""event":"exit""#)).collect();
    assert_eq!(exits.len(), 2, "{text}");
    let child = exits.iter().find(|line| members(line)["pid"] != pid).expect("the child's record");
    assert_figures(child);
    let (text, pid) = run_one("exec");
    exit_record(&text, &pid);
    assert_eq!(text.matches(r#""event":"start""#).count(), 2, "{text}");
    assert_eq!(text.matches(r#""event":"exit""#).count(), 1, "{text}");
}

/// The table goes to the file too; a file that cannot be opened changes nothing for the program.
#[test]
fn table_file() {
    let file = scratch("stats").join("figures.txt");
    let _ = std::fs::remove_file(&file);
    let output = run(ends("return").env("HAKMEM_STATS", "table").env("HAKMEM_STATS_FILE", &file), LIMIT);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_table(&std::fs::read_to_string(&file).unwrap());
    std::fs::remove_file(&file).unwrap();
    let output = run(ends("return").env("HAKMEM_STATS_FILE", &file), LIMIT);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert!(std::fs::read(&file).map_or(true, |bytes| bytes.is_empty()), "no statistics were asked for");
    let nowhere = Path::new("/nonexistent/folder/figures.json");
    let output = run(ends("exit").env("HAKMEM_STATS", "json").env("HAKMEM_STATS_FILE", nowhere), LIMIT);
    assert_eq!(output.status.code(), Some(3));
    // They go to standard error, which is still there.
    let text = stderr(&output);
    assert!(
        text.contains("hakmem: HAKMEM_STATS_FILE: cannot open /nonexistent/folder/figures.json\n"),
        "{text}"
    );
    exit_record(&text, stdout(&output).trim());
}

#[test]
fn good_values_are_silent() {
    for (name, good, _) in OPTIONS {
        for value in good {
            let output = run(ends("return").env(name, value), LIMIT);
            assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{name}={value}");
        }
    }
    let output = run(ends("return").env("HAKMEM_LIB", "whatever"), LIMIT);
    assert_eq!(stderr(&output), "", "HAKMEM_LIB belongs to the command and the tests");
}

/// A bad value: one line that names the option, the value and what is allowed.
#[test]
fn bad_values_are_named() {
    for (name, good, bad) in OPTIONS {
        for value in bad {
            let output = run(ends("return").env(name, value), LIMIT);
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(0), "{name}={value}");
            assert_eq!(text.lines().count(), 1, "{name}={value}: {text:?}");
            assert!(text.starts_with(&format!("hakmem: {name}={value}: expected ")), "{text:?}");
            assert!(text.ends_with("; ignored\n"), "{text:?}");
            let words = good.iter().filter(|word| word.chars().all(|c| c.is_ascii_lowercase()));
            assert!(words.clone().all(|word| text.contains(word)), "{text:?} does not list {good:?}");
        }
    }
    let output = run(ends("return").env("HAKMEM_STATS", "bogus"), LIMIT);
    assert_eq!(stderr(&output), "hakmem: HAKMEM_STATS=bogus: expected none, table or json; ignored\n");
}

/// A program that allocates before the C library has set itself up still gets its options.
#[test]
fn options_of_an_early_program() {
    let program = build("api_first.c", Link::Preload, &[]);
    let output =
        run(command(&program, Link::Preload).env("HAKMEM_STATS", "json").env("HAKMEM_FOO", "1"), LIMIT);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("HAKMEM_FOO: unknown option").count(), 1, "{text}");
    assert_figures(text.lines().find(|line| line.contains(r#""event":"exit""#)).expect("an exit record"));
}

/// Values that are very long or hold a line break: still one line, and no harm.
#[test]
fn strange_values() {
    for value in ["a\nb", "\n", "\u{1b}[31m", "{}", "%s%n"] {
        let output = run(ends("return").env("HAKMEM_THP", value), LIMIT);
        assert_eq!((output.status.code(), stderr(&output).lines().count()), (Some(0), 1), "{value:?}");
    }
    let long = "x".repeat(100_000);
    for name in ["HAKMEM_THP", "HAKMEM_PURGE_DELAY", "HAKMEM_UNKNOWN"] {
        let output = run(ends("return").env(name, &long), LIMIT);
        assert_eq!(output.status.code(), Some(0), "{name}");
        assert_eq!(stderr(&output).lines().count(), 1, "{name}");
    }
}

/// An unknown name: one line, which lists the known ones.
#[test]
fn unknown_names_are_named() {
    for name in ["HAKMEM_FOO", "HAKMEM_STAT", "HAKMEM_STATSX", "HAKMEM_", "HAKMEM_stats"] {
        let output = run(ends("return").env(name, "json"), LIMIT);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{name}");
        assert_eq!(text.lines().count(), 1, "{name}: {text:?}");
        assert!(text.starts_with(&format!("hakmem: {name}: unknown option; known: ")), "{text:?}");
        let known = text.split_once("known: ").unwrap().1;
        for (option, ..) in OPTIONS {
            assert!(known.contains(option.strip_prefix("HAKMEM_").unwrap()), "{option} is not in {known:?}");
        }
    }
    let mut two = ends("return");
    let output = run(two.env("HAKMEM_FOO", "1").env("HAKMEM_BAR", "2").env("HAKMEM_THP", "3"), LIMIT);
    let text = stderr(&output);
    assert_eq!(text.lines().count(), 3, "{text:?}");
    assert!(
        ["HAKMEM_FOO:", "HAKMEM_BAR:", "HAKMEM_THP=3:"].iter().all(|part| text.contains(part)),
        "{text:?}"
    );
    // Names that only look alike are none of ours.
    let output = run(ends("return").env("HAKMEMX", "1").env("XHAKMEM_FOO", "1").env("HAKME", "1"), LIMIT);
    assert_eq!(stderr(&output), "");
}

/// A library that is initialised before the C library allocates: the environment is the kernel's then.
#[test]
fn options_are_read_before_the_c_library_is_there() {
    let first = support::compile("gcc", "stats_first.c", &["-shared", "-fPIC", "-Wl,-z,initfirst"]);
    let preload = format!("{} {}", support::lib().display(), first.display());
    let output = run(ends("return").env("LD_PRELOAD", &preload).env("HAKMEM_STATS", "json"), LIMIT);
    exit_record(&stderr(&output), stdout(&output).trim());
    // A value whose beginning is a good one, and one that is too long for any.
    for (name, value) in
        [("HAKMEM_PURGE_DELAY", "0".repeat(600) + "x"), ("HAKMEM_STATS_FILE", "x".repeat(600))]
    {
        let output = run(ends("return").env("LD_PRELOAD", &preload).env(name, value), LIMIT);
        let text = stderr(&output);
        assert!(text.starts_with(&format!("hakmem: {name}=")) && text.lines().count() == 1, "{text:?}");
    }
}

/// What a program does to its environment after the start changes nothing.
#[test]
fn options_are_read_once() {
    let output = run(&mut ends("setenv"), LIMIT);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let output = run(ends("unsetenv").env("HAKMEM_STATS", "json"), LIMIT);
    exit_record(&stderr(&output), stdout(&output).trim());
}
