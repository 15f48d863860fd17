//! The statistics as text, for programs that keep them: what `HAKMEM_STATS` prints.

#[path = "support/options.rs"]
mod support;

use hakmem::{ClassStats, Hakmem, StatsReport, stats_report};
use std::fmt::{self, Write};
use support::process;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

/// The names of a line of JSON, in order, as far as the end of the first class.
fn names(line: &str) -> Vec<String> {
    let one = line.split_once('}').expect("a class").0;
    // What comes before a colon.
    let parts: Vec<&str> = one.split('"').collect();
    parts.windows(2).filter(|two| two[1].starts_with(':')).map(|two| two[0].to_owned()).collect()
}

#[test]
#[cfg_attr(miri, ignore)]
fn the_line_is_that_of_the_end() {
    let options = [("HAKMEM_STATS", "json"), ("HAKMEM_STATS_FILE", "/dev/stderr")];
    let output = process("the_line_is_that_of_the_end", &options, || {
        eprint!("{}", stats_report().json());
    });
    let Some(output) = output else { return };
    let text = String::from_utf8(output.stderr).unwrap();
    let is_line = |line: &&str| line.contains("\"running\"") || line.contains("\"exit\"");
    let lines: Vec<&str> = text.lines().filter(is_line).collect();
    assert!(output.status.success() && lines.len() == 2, "{text}");
    assert_eq!(names(lines[0]), names(lines[1]));
    assert_eq!(names(lines[0])[..4], ["hakmem", "event", "pid", "allocations"]);
    let begins = |line: &str| line.split_once(",\"allocations\"").unwrap().0.to_owned();
    assert!(lines[0].contains("\"event\":\"running\""), "{text}");
    assert_eq!(begins(lines[0]).replace("running", "exit"), begins(lines[1]), "version and process");
}

/// What the report says of its figures.
fn figures(report: &StatsReport) -> String {
    let mut text = String::new();
    report.stats.each(|name, value| write!(text, ",\"{name}\":{value}").unwrap());
    text += ",\"classes\":[";
    for class in report.classes.iter().filter(|class| class.is_used()) {
        class.each(|name, value| write!(text, ",\"{name}\":{value}").unwrap());
    }
    text
}

#[test]
fn both_forms_have_the_figures_of_one_moment() {
    let kept: Vec<Vec<u8>> = (0..200).map(|n| vec![1; n * 100]).collect();
    let report = stats_report();
    let (line, table) = (report.json().to_string(), report.to_string());
    drop(kept);
    assert!(line.starts_with(&format!("{{\"hakmem\":\"{}\",", hakmem::VERSION)) && line.ends_with("]}\n"));
    assert_eq!(line.lines().count(), 1);
    // The same text but for the braces and names of the classes.
    let (before, classes) = line.split_once("\"classes\":[").unwrap();
    let classes: Vec<&str> =
        classes.split('{').skip(1).map(|class| class.split_once(',').unwrap().1).collect();
    let classes = classes.join("").replace("]}\n", "").replace("},", "}").replace('}', ",");
    let before = &before[before.find(",\"allocations\"").unwrap()..];
    assert_eq!(format!("{before}\"classes\":[,{}", classes.trim_end_matches(',')), figures(&report));

    let heading = ClassStats::HEADING;
    let begins = format!("hakmem {} statistics\n{}{heading}\n", hakmem::VERSION, report.stats);
    let rows = table.strip_prefix(&begins).unwrap_or_else(|| panic!("{table}"));
    let used: Vec<String> = report.classes.iter().filter(|c| c.is_used()).map(|c| c.to_string()).collect();
    let rows: Vec<String> =
        rows.lines().map(|row| row.replace("runs  ", "large ").replace("direct", "large ")).collect();
    assert!(used.len() > 10 && rows == used, "{table}");
    // The vectors are there, as they were.
    let blocks = |bytes| report.classes.iter().find(|c| c.block_bytes == bytes).unwrap().blocks;
    assert!(blocks(320) >= 1 && report.stats.allocated_bytes > 1_900_000, "{table}");
}

/// Takes so many bytes, and refuses all that comes then.
struct Takes(usize, bool);

impl fmt::Write for Takes {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        assert!(!self.1, "asked again after it has refused");
        self.1 = s.len() > self.0;
        self.0 = self.0.saturating_sub(s.len());
        if self.1 { Err(fmt::Error) } else { Ok(()) }
    }
}

#[test]
fn who_refuses_a_part_is_not_asked_again() {
    let report = stats_report();
    let (line, table) = (report.json().to_string(), report.to_string());
    for bytes in (0..line.len()).step_by(61) {
        assert!(write!(Takes(bytes, false), "{}", report.json()).is_err(), "{bytes}");
    }
    for bytes in (0..table.len()).step_by(61) {
        assert!(write!(Takes(bytes, false), "{report}").is_err(), "{bytes}");
    }
    assert!(write!(Takes(line.len(), false), "{}", report.json()).is_ok());
    assert!(write!(Takes(table.len(), false), "{report}").is_ok());
}
