//! The source workspace this command was compiled from, and building the library there.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

use anyhow::{Context, bail};

use crate::library::Library;
use crate::report;

/// Cargo could not even be started.
#[derive(Debug)]
pub struct NoCargo(std::io::Error);

impl std::fmt::Display for NoCargo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot run cargo: {}", self.0)
    }
}

impl std::error::Error for NoCargo {}

/// The folder that this command was compiled in, whether it still exists or not.
pub fn compiled_from() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above this package").to_path_buf()
}

/// The source workspace, if it is still there.
pub fn root() -> Option<PathBuf> {
    let root = compiled_from();
    (root.join("Cargo.toml").is_file() && root.join("hakmem-capi/Cargo.toml").is_file()).then_some(root)
}

/// The cargo target folder that holds `executable`, if any: cargo keeps a file of that name at its top.
pub fn target_of(executable: &Path) -> Option<PathBuf> {
    executable
        .ancestors()
        .skip(1)
        .take(4)
        .find(|dir| dir.join(".rustc_info.json").is_file())
        .map(Path::to_path_buf)
}

/// Builds `library`, which is next to nothing where it is fresh, and returns where cargo put it.
///
/// `target` is used unless the user has set CARGO_TARGET_DIR. Nothing goes to stdout.
pub fn build(library: &Library, root: &Path, target: Option<&Path>) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "-p", library.package, "--message-format=json-render-diagnostics"]);
    // Run there, so that the workspace's own settings for cargo and rustup hold.
    command.current_dir(root).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match std::env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
        // Relative to where the user is, not to the workspace.
        Some(dir) => command.env("CARGO_TARGET_DIR", std::path::absolute(dir)?),
        None => command.args(target.iter().flat_map(|dir| [Path::new("--target-dir"), dir])),
    };
    let mut child = command.spawn().map_err(NoCargo)?;
    let stderr = child.stderr.take().expect("piped above");
    let progress = std::thread::spawn(move || relay(stderr));
    let mut found = None;
    for line in BufReader::new(child.stdout.take().expect("piped above")).lines() {
        found = artifact(&line?, library.name).or(found);
    }
    let status = child.wait()?;
    let held = progress.join().unwrap_or_default();
    if !status.success() {
        held.iter().for_each(|line| report::say(line));
        bail!("cargo build --release -p {} failed ({status})", library.package);
    }
    found.with_context(|| format!("cargo did not say where {} is", library.name))
}

/// Passes cargo's progress on from the first sign of work; returns what it held back if there was none.
fn relay(stderr: ChildStderr) -> Vec<String> {
    let mut held = Vec::new();
    let mut working = false;
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        working |= is_work(&line);
        if working {
            held.drain(..).for_each(|earlier: String| report::say(&earlier));
            report::say(&line);
        } else {
            held.push(line);
        }
    }
    held
}

/// Whether a line of cargo's tells of something that takes time, or of an error.
fn is_work(line: &str) -> bool {
    let word = line.trim_start();
    ["Compiling", "Building", "Updating", "Downloading", "Blocking", "Locking", "error"]
        .iter()
        .any(|verb| word.starts_with(verb))
}

/// The file `name` that a line of cargo's JSON names, if it names it.
fn artifact(line: &str, name: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let files = message.get("filenames")?.as_array()?;
    files.iter().filter_map(|file| file.as_str()).map(PathBuf::from).find(|file| file.ends_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_artifact_in_cargo_messages() {
        let line = r#"{"reason":"compiler-artifact","filenames":["/t/release/libhakmem.a","/t/release/libhakmem.so"]}"#;
        let artifact = |line| artifact(line, "libhakmem.so");
        assert_eq!(artifact(line), Some("/t/release/libhakmem.so".into()));
        assert_eq!(
            artifact(r#"{"reason":"compiler-artifact","filenames":["/t/release/libhakmem.rlib"]}"#),
            None
        );
        assert_eq!(artifact(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(artifact("not json"), None);
    }

    #[test]
    fn tells_work_from_a_fresh_build() {
        assert!(is_work("   Compiling hakmem-capi v0.1.0 (/work)"));
        assert!(is_work("    Blocking waiting for file lock on build directory"));
        assert!(is_work("error: could not compile"));
        assert!(!is_work("    Finished `release` profile [optimized] target(s) in 0.02s"));
        assert!(!is_work("warning: unused variable"));
    }

    #[test]
    fn finds_the_target_folder_around_an_executable() {
        let dir = tempfile::tempdir().unwrap();
        let executable = dir.path().join("release/hakmem");
        assert_eq!(target_of(&executable), None);
        std::fs::write(dir.path().join(".rustc_info.json"), "{}").unwrap();
        assert_eq!(target_of(&executable), Some(dir.path().to_path_buf()));
        assert_eq!(
            target_of(&dir.path().join("x86_64-unknown-linux-gnu/debug/hakmem")),
            Some(dir.path().to_path_buf())
        );
        assert_eq!(target_of(Path::new("")), None);
    }

    #[test]
    fn this_workspace_exists() {
        assert_eq!(root(), Some(compiled_from()));
    }
}
