//! Where statistics go at exit, and what that must not do to the program: `HAKMEM_STATS_FILE` and standard
//! error.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use support::{compile, preloaded, run, scratch};

const LIMIT: Duration = Duration::from_secs(120);

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("gcc", "stats_exit.c", &[]))
}

/// The program that allocates a little and ends as told, with statistics in JSON.
fn ends(how: &str) -> Command {
    let mut command = preloaded(program());
    command.arg(how).env("HAKMEM_STATS", "json");
    command
}

/// A relative path means the folder in which the process starts, wherever it is when it ends.
#[test]
fn of_a_program_that_goes_elsewhere() {
    let folder = scratch("stats-files").join("start");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("figures.json");
    for path in ["figures.json", "../start/figures.json"] {
        let _ = std::fs::remove_file(&file);
        let output = run(ends("elsewhere").current_dir(&folder).env("HAKMEM_STATS_FILE", path), LIMIT);
        assert!(output.status.success() && output.stderr.is_empty(), "{path}: {output:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        let events = ["start", "exit"].map(|event| format!("\"event\":\"{event}\""));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().zip(events).all(|(line, event)| line.contains(&event)), "{text}");
    }
}
