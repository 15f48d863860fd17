//! The twin runs: the same steps on glibc and on the library, in the same (fresh) folder one after the other,
//! compared.

use crate::support;
use crate::support::skips::is_there;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// Whether one of `programs`, pairs of a program and its Debian package, is not installed. Says so, or fails
/// if every program is required.
pub fn missing(programs: &[(&str, &str)]) -> bool {
    let absent: Vec<_> = programs.iter().filter(|(program, _)| which(program).is_none()).collect();
    for (program, package) in &absent {
        is_there(format_args!("{program} (apt-get install {package})"), false);
    }
    !absent.is_empty()
}

/// Where `program` is on the search path.
pub fn which(program: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let runs =
        |file: &PathBuf| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(runs)
}

/// One comparison of a program on glibc and on the library.
pub struct Twin {
    base: PathBuf,
    limit: Duration,
    processes: usize,
    unordered: Vec<&'static str>,
}

/// One of the two runs: where it works, and all it has said so far.
pub struct Side {
    pub dir: PathBuf,
    /// The statistics file, if this side runs on the library.
    records: Option<PathBuf>,
    env: BTreeMap<String, String>,
    limit: Duration,
    said: Vec<Said>,
}

/// What one step did; `context` is shown with a difference but not compared.
struct Said {
    step: String,
    text: Vec<u8>,
    context: Vec<u8>,
}

impl Twin {
    /// A comparison in a scratch folder of its own; each step of a side may take `seconds`.
    pub fn new(name: &str, seconds: u64) -> Twin {
        let base = support::scratch(&format!("program-{name}"));
        let _ = std::fs::remove_dir_all(&base);
        std::fs::create_dir_all(&base).unwrap();
        Twin { base, limit: Duration::from_secs(seconds), processes: 1, unordered: Vec::new() }
    }

    /// The library must have started in at least this many processes (or program images, counting `exec`).
    pub fn processes(mut self, at_least: usize) -> Twin {
        self.processes = at_least;
        self
    }

    /// A produced file or folder that is not the same from run to run, and so not compared.
    pub fn ignore(mut self, name: &'static str) -> Twin {
        self.unordered.push(name);
        self
    }

    /// Runs `steps` on both sides and compares what they printed and the files they left.
    pub fn compare(self, steps: impl Fn(&mut Side)) {
        let glibc = self.side("glibc", false, &steps);
        let hakmem = self.side("hakmem", true, &steps);
        assert_eq!(glibc.len(), hakmem.len(), "both sides take the same steps");
        for (plain, ours) in glibc.iter().zip(&hakmem) {
            same(&plain.step, &plain.text, &ours.text, &self.base, &ours.context);
        }
        let (plain, ours) = (self.base.join("glibc"), self.base.join("hakmem"));
        let names = |root: &Path| -> Vec<String> { files(root, &self.unordered).into_keys().collect() };
        same(
            "the list of files",
            names(&plain).join("\n").as_bytes(),
            names(&ours).join("\n").as_bytes(),
            &self.base,
            b"",
        );
        for (name, path) in files(&plain, &self.unordered) {
            same(&name, &read(&path), &read(&ours.join(&name)), &self.base, b"");
        }
        self.served();
        let _ = std::fs::remove_dir_all(&self.base);
    }

    /// Runs one side in the folder `work`, which then gets the side's name: so both see the same absolute
    /// paths.
    fn side(&self, name: &str, preload: bool, steps: &impl Fn(&mut Side)) -> Vec<Said> {
        let dir = self.base.join("work");
        std::fs::create_dir(&dir).unwrap();
        let mut side = Side {
            dir: dir.clone(),
            records: preload.then(|| self.base.join("stats.jsonl")),
            env: BTreeMap::new(),
            limit: self.limit,
            said: Vec::new(),
        };
        for (key, value) in [("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("USER", "tester"), ("TERM", "dumb")] {
            side.env(key, value);
        }
        side.env("HOME", dir.to_str().unwrap());
        side.env("PATH", &std::env::var("PATH").unwrap());
        steps(&mut side);
        std::fs::rename(&dir, self.base.join(name)).unwrap();
        side.said
    }

    /// Checks in the statistics that the library really was in the processes and served them.
    fn served(&self) {
        if !support::lib().file_name().unwrap().to_string_lossy().starts_with("libhakmem") {
            return;
        }
        let records =
            std::fs::read_to_string(self.base.join("stats.jsonl")).expect("the library wrote statistics");
        let starts = records.lines().filter(|line| line.contains(r#""event":"start""#)).count();
        assert!(starts >= self.processes, "{} starts expected, {starts} seen:\n{records}", self.processes);
        let allocations: u64 = records.lines().filter_map(|line| member(line, "allocations")).sum();
        assert!(allocations > 0, "no process says at its end that the library served it:\n{records}");
    }
}

/// The number that `line`, one JSON object, has for `name`.
fn member(line: &str, name: &str) -> Option<u64> {
    let rest = line.split_once(&format!("\"{name}\":"))?.1;
    rest.split([',', '}']).next()?.trim().parse().ok()
}

impl Side {
    /// Sets an environment variable for the steps to come.
    pub fn env(&mut self, key: &str, value: &str) -> &mut Side {
        self.env.insert(key.to_string(), value.to_string());
        self
    }

    /// Passes the caller's variable on, for programs that find their own parts through it.
    pub fn inherit(&mut self, keys: &[&str]) -> &mut Side {
        for key in keys {
            if let Ok(value) = std::env::var(key) {
                self.env(key, &value);
            }
        }
        self
    }

    /// Writes an input file.
    pub fn file(&mut self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }

    /// What this side's programs find in their environment; the library's side gets the caller's options for
    /// it too.
    fn environment(&self) -> Vec<(String, String)> {
        let mut env: Vec<_> = self.env.clone().into_iter().collect();
        if let Some(records) = &self.records {
            let not_options = ["HAKMEM_LIB", "HAKMEM_REQUIRE_PROGRAMS", "HAKMEM_STATS", "HAKMEM_STATS_FILE"];
            let option = |key: &str| key.starts_with("HAKMEM_") && !not_options.contains(&key);
            env.extend(std::env::vars().filter(|(key, _)| option(key)));
            for (key, value) in [
                ("LD_PRELOAD", support::lib().to_str().unwrap()),
                ("HAKMEM_STATS", "json"),
                ("HAKMEM_STATS_FILE", records.to_str().unwrap()),
            ] {
                env.push((key.to_string(), value.to_string()));
            }
        }
        env
    }

    /// `program` on this side's allocator, to be started by the caller.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).env_clear().envs(self.environment());
        command
    }

    /// Runs a step to its end without recording it; fails unless it succeeds.
    pub fn output(&self, step: &[&str]) -> Output {
        // `timeout` ends the whole process group, grandchildren too; the limit around it is only for
        // `timeout` itself.
        let mut command = Command::new("timeout");
        let limit = self.limit.as_secs() * u64::from(support::SLOWER);
        command.arg("--kill-after=5").arg(limit.to_string()).arg("env");
        command.args(self.environment().iter().map(|(key, value)| format!("{key}={value}")));
        command.args(step).current_dir(&self.dir).env_clear().env("PATH", &self.env["PATH"]);
        let output = support::run(&mut command, self.limit + Duration::from_secs(20));
        let under = if self.records.is_some() { "under the library" } else { "under glibc" };
        let why = match output.status.code() {
            Some(0) => return output,
            Some(124 | 137) => format!("was killed, perhaps after its {limit} s"),
            _ => format!("failed: {}", output.status),
        };
        panic!(
            "{step:?} {under} {why}\n--- stdout\n{}\n--- stderr\n{}",
            tail(&output.stdout),
            tail(&output.stderr)
        );
    }

    /// Runs a step; its stdout and stderr are compared.
    pub fn run(&mut self, step: &[&str]) {
        let output = self.output(step);
        self.say(&format!("stdout of {}", step.join(" ")), &output.stdout);
        self.say(&format!("stderr of {}", step.join(" ")), &output.stderr);
    }

    /// Records something to compare.
    pub fn say(&mut self, what: &str, text: &[u8]) {
        self.say_with(what, text, b"");
    }

    /// Records something to compare, and what to show beside it when it differs.
    pub fn say_with(&mut self, what: &str, text: &[u8], context: &[u8]) {
        self.said.push(Said { step: what.to_string(), text: text.to_vec(), context: context.to_vec() });
    }
}

/// Every file below `root` by its relative name, links and folders included as far as they are names.
fn files(root: &Path, ignore: &[&str]) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if ignore.contains(&name.as_str()) {
                continue;
            }
            if path.symlink_metadata().unwrap().is_dir() {
                folders.push(path.clone());
            }
            found.insert(name, path);
        }
    }
    found
}

/// A file's bytes, a link's target, nothing for anything else.
fn read(path: &Path) -> Vec<u8> {
    match path.symlink_metadata() {
        Ok(m) if m.is_file() => std::fs::read(path).unwrap(),
        Ok(m) if m.is_symlink() => {
            std::fs::read_link(path).unwrap().to_string_lossy().into_owned().into_bytes()
        }
        _ => Vec::new(),
    }
}

/// Fails, showing the first line that differs, unless both sides' bytes are equal.
fn same(what: &str, glibc: &[u8], hakmem: &[u8], base: &Path, context: &[u8]) {
    if glibc == hakmem {
        return;
    }
    let at = glibc.iter().zip(hakmem).position(|(a, b)| a != b).unwrap_or(glibc.len().min(hakmem.len()));
    let line = |bytes: &[u8]| {
        let start = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |n| n + 1);
        let shown = &bytes[start..bytes.len().min(start + 400)];
        let plain = shown.iter().all(|b| b" \n\t".contains(b) || b.is_ascii_graphic());
        if plain { String::from_utf8_lossy(shown).into_owned() } else { shown.escape_ascii().to_string() }
    };
    panic!(
        "{what} differs at byte {at} (of {} under glibc, {} under the library)\n--- glibc\n{}\n--- library\n{}\n{}(both runs are kept in {})",
        glibc.len(),
        hakmem.len(),
        line(glibc),
        line(hakmem),
        if context.is_empty() { String::new() } else { format!("--- beside it\n{}\n", tail(context)) },
        base.display()
    );
}

/// The last few thousand bytes of what a program printed.
fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(4000)..]).into_owned()
}
