//! What is published: sources, README and licences of `hakmem-alloc`, and no other package. And that the
//! repository does not grow by what nobody reads.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use skips::{is_there, skip};

#[path = "support/skips.rs"]
mod skips;

/// Files in the package, and bytes in all of them. Files are small (about 200 lines), so there are many.
const MOST_FILES: usize = 283;
const MOST_BYTES: usize = 65 << 15;
/// Bytes of the file that is published.
const MOST_PACKED: u64 = 70 << 13;

/// What cargo makes itself.
const MADE: [&str; 3] = [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml.orig"];
const BESIDE_SOURCES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Runs cargo in the root of the repository; what it writes to stdout and stderr.
fn cargo(arguments: &[&str]) -> (String, String) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo runs");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "cargo {arguments:?}:\n{err}");
    (out, err)
}

#[test]
fn the_package_holds_sources_readme_and_licences() {
    let (list, warnings) = cargo(&["package", "--list", "--allow-dirty", "-p", "hakmem-alloc"]);
    assert!(!warnings.contains("warning"), "{warnings}");
    let files: BTreeSet<&str> = list.lines().collect();
    let beside: Vec<_> = files
        .iter()
        .filter(|file| !(file.starts_with("src/") && file.ends_with(".rs")))
        .filter(|file| !MADE.contains(file) && !BESIDE_SOURCES.contains(file))
        .collect();
    assert!(beside.is_empty(), "neither sources nor README nor licences: {beside:?}");
    for file in BESIDE_SOURCES.iter().chain(&["src/lib.rs"]) {
        assert!(files.contains(file), "{file} is missing");
    }
    assert!(files.len() <= MOST_FILES, "{} files", files.len());
    // As it is published: what cargo makes itself is shorter than what it has here.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
    let options = ["--allow-dirty", "--no-verify", "--offline", "--target-dir", folder.to_str().unwrap()];
    cargo(&[&["package", "-p", "hakmem-alloc"][..], &options].concat());
    let packed = folder.join(concat!("package/hakmem-alloc-", env!("CARGO_PKG_VERSION"), ".crate"));
    let unpacked = Command::new("tar").arg("-xzOf").arg(&packed).output().unwrap();
    assert!(unpacked.status.success(), "{unpacked:?}");
    let (bytes, packed) = (unpacked.stdout.len(), packed.metadata().unwrap().len());
    println!("{} files, {bytes} bytes, {packed} packed", files.len());
    assert!(bytes <= MOST_BYTES && packed <= MOST_PACKED, "{bytes} bytes, {packed} packed");
}

#[test]
fn one_package_is_published() {
    let (metadata, _) = cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    // `null`: to any registry. Of the others it is an empty list.
    assert_eq!(metadata.matches(r#""publish":null"#).count(), 1);
    let ours = metadata.split(r#""name":"hakmem-"#).find(|package| package.contains(r#""publish":null"#));
    assert!(ours.is_some_and(|package| package.starts_with("alloc\"")), "it is hakmem-alloc");
}

/// The first command of the README builds the command and the library, and nothing to measure or plot with.
#[test]
fn running_a_program_builds_only_what_it_needs() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains("cargo run --release -p hakmem-cli --no-default-features -- run -- "));
    let tree = [
        "tree",
        "--offline",
        "-e",
        "no-dev",
        "--prefix",
        "none",
        "-p",
        "hakmem-cli",
        "--no-default-features",
    ];
    let (packages, _) = cargo(&tree);
    for lab in ["plotters ", "maud ", "statrs ", "csv ", "hakmem-workloads ", "hakmem-profile ", "addr2line "]
    {
        assert!(!packages.lines().any(|package| package.starts_with(lab)), "{lab}is built:\n{packages}");
    }
}

/// Benchmark runs are kept as one page, a few plots and packed raw data; the README leaves the rest to the
/// guide.
#[test]
fn benchmark_output_and_readme_are_small() {
    let kept = std::fs::read_dir(root().join("docs/benchmarks")).unwrap();
    let bytes: u64 = kept.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    let page = root().join("docs/benchmarks.md").metadata().unwrap().len();
    assert!(bytes + page <= 1 << 20, "docs/benchmarks and its page have {} bytes", bytes + page);
    let lines = std::fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 140, "the README has {lines} lines");
}

/// What a run leaves in the folder that it was started in: profiles, recordings, cores. `.gitignore` does not
/// hide them, so that they are noticed before somebody adds them with everything else.
const LEFT: [&str; 5] = [".hakprof", ".pb.gz", ".collapsed", "/core", "/vgcore"];

#[test]
fn no_run_has_left_its_output() {
    // Sources without their history have been packed from what was listed.
    if !root().join(".git").exists() {
        return skip("there is no .git");
    }
    // The checkout may belong to somebody else.
    let list = ["-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"];
    let Ok(output) = Command::new("git").args(list).current_dir(root()).output() else {
        is_there("git", false);
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = String::from_utf8(output.stdout).unwrap();
    let is_left = |file: &str| {
        let named = format!("/{file}");
        named.contains(".hakprof.")
            || named.contains(".profile/")
            || LEFT.iter().any(|end| named.ends_with(end))
    };
    let left: Vec<_> = files.lines().filter(|file| is_left(file)).collect();
    assert!(files.lines().count() > 100 && left.is_empty(), "written by a run, not by hand: {left:?}");
}

/// A test that cargo does not know of would never run.
#[test]
fn every_test_and_example_is_declared() {
    let manifest = std::fs::read_to_string(root().join("tests/Cargo.toml")).unwrap();
    for (folder, prefix) in [("tests", ""), ("examples", "../examples/")] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".rs") {
                let line = format!("path = \"{prefix}{name}\"");
                assert!(manifest.contains(&line), "tests/Cargo.toml has no {line}");
            }
        }
    }
}
