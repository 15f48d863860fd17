//! What the integration tests share: the built library, a C compiler, and runs with a time limit.
#![allow(dead_code, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

#[path = "../../../tests/support/limited.rs"]
pub mod limited;
#[path = "../../../tests/support/skips.rs"]
pub mod skips;

/// The workspace root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The folder that holds `libhakmem.so` and `libhakmem.a`, built in the release profile if need be.
///
/// `HAKMEM_LIB` names a shared library to test instead (its folder must hold the archive too).
pub fn lib_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(lib) = std::env::var_os("HAKMEM_LIB") {
            return PathBuf::from(lib).parent().unwrap().to_path_buf();
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--release", "--quiet", "-p", "hakmem-capi"])
            .current_dir(root())
            .status()
            .expect("cargo runs");
        assert!(status.success(), "cargo build --release -p hakmem-capi failed");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
        target.join("release")
    })
    .clone()
}

/// The shared library under test.
pub fn lib() -> PathBuf {
    std::env::var_os("HAKMEM_LIB").map_or_else(|| lib_dir().join("libhakmem.so"), PathBuf::from)
}

/// A fresh folder below cargo's own temporary folder.
pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Compiles `tests/c/<source>` with `compiler` and `args` (after the source) and returns the program's path.
pub fn compile(compiler: &str, source: &str, args: &[&str]) -> PathBuf {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let stem = source.replace(['.', '/'], "_");
    let out = scratch("bin").join(format!("{stem}-{n}"));
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let result = Command::new(compiler)
        .args([
            "-O2",
            "-g",
            "-Wall",
            "-fno-builtin-malloc",
            "-fno-builtin-free",
            "-fno-builtin-calloc",
            "-fno-builtin-realloc",
        ])
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg("-o")
        .arg(&out)
        .arg(&src)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{compiler} is missing: {e}"));
    assert!(result.status.success(), "{compiler} {source}:\n{}", String::from_utf8_lossy(&result.stderr));
    out
}

/// `program` with the library preloaded.
pub fn preloaded(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", lib());
    command
}

/// Limits are against hanging only: a machine that has more to do may be so many times as slow as the idle
/// one that they are written for.
pub const SLOWER: u32 = 5;

/// Runs `command` to its end, in a process group of its own, and returns its output, killing that and failing
/// the test after [`SLOWER`] times `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Output {
    limited::output_within(limit * SLOWER, command)
}

/// Runs `command`, fails the test unless it exits with 0, and returns what it printed on stdout. Says what it
/// has skipped.
pub fn expect_ok(command: &mut Command, limit: Duration) -> String {
    let output = run(command, limit);
    assert!(
        output.status.success(),
        "{command:?}: {}\n--- stdout\n{}--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    skips::skipped_in(&output.stdout);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
