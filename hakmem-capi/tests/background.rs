//! The background thread under C programs and real ones, switched on by the option or by the call.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use support::{compile, expect_ok, lib_dir, preloaded, scratch};

const LIMIT: Duration = Duration::from_secs(120);

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("gcc", "background.c", &["-pthread"]))
}

/// Runs one mode of background.c with the option on and the library preloaded.
fn with_option(mode: &str, options: &[(&str, &str)]) {
    let mut command = preloaded(program());
    command.arg(mode).env("HAKMEM_BACKGROUND", "on").envs(options.iter().copied());
    expect_ok(&mut command, LIMIT);
}

#[test]
fn there_is_none_by_default() {
    expect_ok(preloaded(program()).arg("none"), LIMIT);
}

#[test]
fn a_small_program_has_none() {
    with_option("small", &[]);
}

#[test]
fn started_and_stopped_by_calls() {
    expect_ok(preloaded(program()).arg("start"), LIMIT);
    let dir = lib_dir().display().to_string();
    let (search, rpath) = (format!("-L{dir}"), format!("-Wl,--disable-new-dtags,-rpath,{dir}"));
    let args = ["-pthread", "-Wl,--no-as-needed", &search, &rpath, "-lhakmem"];
    expect_ok(Command::new(compile("gcc", "background.c", &args)).arg("start"), LIMIT);
}

#[test]
fn works_in_a_static_program() {
    let archive = lib_dir().join("libhakmem.a").display().to_string();
    let fixed = compile(
        "gcc",
        "background.c",
        &["-pthread", "-static", "-Wl,--whole-archive", &archive, "-Wl,--no-whole-archive"],
    );
    expect_ok(Command::new(&fixed).arg("start"), LIMIT);
    expect_ok(Command::new(&fixed).arg("drop").env("HAKMEM_BACKGROUND", "on"), LIMIT);
}

#[test]
fn memory_goes_back_without_a_call() {
    with_option("drop", &[]);
    with_option("drop", &[("HAKMEM_PURGE_DELAY", "0")]);
}

/// Also when there was nothing to do for longer than the thread looks by itself.
#[test]
fn what_others_free_of_a_thread_that_sleeps_goes_back() {
    with_option("sleeper", &[]);
    with_option("sleeper", &[("HAKMEM_OUTBOX", "off")]);
}

#[test]
fn what_is_freed_of_a_thread_that_has_ended_goes_back() {
    with_option("orphans", &[]);
}

#[test]
fn what_ended_threads_had_in_their_heaps_goes_back_when_asked_for() {
    print!("{}", expect_ok(preloaded(program()).arg("records"), LIMIT));
}

/// What is wanted again before the delay is over stays, however much it is; without the thread such a drop
/// goes back at once.
#[test]
fn what_is_younger_than_the_delay_stays() {
    with_option("keep", &[("HAKMEM_PURGE_DELAY", "60000")]);
}

#[test]
fn signals_reach_the_threads_of_the_program() {
    with_option("signals", &[]);
}

#[test]
fn children_start_their_own_when_they_allocate() {
    with_option("fork", &[("HAKMEM_PURGE_DELAY", "1")]);
    // Whatever allocates looks whether the thread is to be started.
    with_option("fork", &[("HAKMEM_PURGE_DELAY", "1"), ("HAKMEM_MAGAZINE", "off")]);
}

#[test]
fn children_made_without_handlers_start_none() {
    with_option("raw", &[("HAKMEM_PURGE_DELAY", "1")]);
}

#[test]
fn an_ordinary_thread_whoever_starts_it() {
    with_option("ordinary", &[]);
}

#[test]
fn whoever_is_cancelled_while_stopping_it_has_stopped_it() {
    expect_ok(preloaded(program()).arg("cancel"), LIMIT);
}

#[test]
fn the_process_ends_at_any_moment() {
    for round in 0..40 {
        let stats = if round % 2 == 0 { "none" } else { "json" };
        with_option("exit", &[("HAKMEM_PURGE_DELAY", "0"), ("HAKMEM_STATS", stats)]);
    }
}

#[test]
fn the_process_ends_with_its_last_thread() {
    // With a delay that never is over the thread has nothing to wake up for.
    for delay in ["0", "60000", "-1"] {
        let mut command = preloaded(program());
        command.arg("leave").env("HAKMEM_BACKGROUND", "on").env("HAKMEM_PURGE_DELAY", delay);
        assert_eq!(expect_ok(&mut command, LIMIT), "outlived\noutlived\noutlived\nended\n");
    }
}

/// The fork tests' load, with the thread giving back all the time.
#[test]
fn forks_under_load() {
    let program = compile("gcc", "fork_load.c", &["-pthread"]);
    for (mode, forks) in [("load", "300"), ("large", "300"), ("churn", "150"), ("nested", "40")] {
        let mut command = preloaded(&program);
        command.args([mode, forks]).env("HAKMEM_BACKGROUND", "on");
        print!("{}", expect_ok(command.env("HAKMEM_PURGE_DELAY", "1"), LIMIT));
    }
}

/// Figures at exit say what it did.
#[test]
fn counted_in_the_statistics() {
    let file = scratch("background").join("figures.json");
    let _ = std::fs::remove_file(&file);
    let path = file.display().to_string();
    let options = [("HAKMEM_STATS", "json"), ("HAKMEM_STATS_FILE", &*path)];
    with_option("drop", &options);
    let text = std::fs::read_to_string(&file).unwrap();
    let figure = |name: &str| -> u64 {
        let (_, rest) = text.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name}: {text}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    for name in ["background_passes", "background_wakeups"] {
        assert!(figure(name) > 0, "{name}: {text}");
    }
}

/// A real program: Python with threads and children, and its SQLite.
#[test]
fn python_and_sqlite_run_with_it() {
    let script = "\
import sqlite3, subprocess, threading, os, sys
def work(n):
    db = sqlite3.connect(':memory:')
    db.execute('create table t(a integer, b text)')
    db.executemany('insert into t values(?, ?)', ((i, str(i) * (i % 50)) for i in range(20000)))
    db.execute('create index i on t(b)')
    out[n] = db.execute('select count(*), sum(length(b)) from t').fetchone()
    db.close()
for round in range(3):
    out = [None] * 3
    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    [t.start() for t in threads]
    pid = os.fork()
    if pid == 0: os._exit(0 if sum(len(x) for x in [str(i) * 3 for i in range(100000)]) > 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    [t.join() for t in threads]
    assert len(set(out)) == 1, out
    keep = ['x' * 5000 for _ in range(20000)]
    del keep
assert subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True).stdout == b'42\\n'
def name(task):
    try: return open(f'/proc/self/task/{task}/comm').read().strip()
    except OSError: return 'ended'
names = [name(task) for task in os.listdir('/proc/self/task')]
print(names.count('hakmem'), out[0])";
    let mut command = preloaded("python3");
    command.args(["-c", script]).env("HAKMEM_BACKGROUND", "on").env("PYTHONMALLOC", "malloc");
    let out = expect_ok(&mut command, LIMIT);
    assert!(out.starts_with("1 (20000, "), "{out}");
}
