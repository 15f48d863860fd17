//! AddressSanitizer and memcheck see through the allocator, with the features made for them: a program whose
//! global allocator it is, and which misuses its blocks, is found out, and one that does not is not accused.
//!
//! Needs a nightly toolchain and valgrind. Where one is missing its test says so, and passes, unless
//! `HAKMEM_REQUIRE_PROGRAMS=1` is set.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "support/skips.rs"]
mod skips;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Whether `command` works; says so if not.
fn has(what: &str, command: &mut Command) -> bool {
    skips::is_there(what, command.output().is_ok_and(|output| output.status.success()))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}:\n{}", text(&output));
}

/// `rustc` or `cargo` of a toolchain, without what this test's own cargo has set for its children.
fn tool(name: &str, toolchain: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(toolchain).current_dir(root()).env_remove("RUSTUP_TOOLCHAIN");
    for set in ["CARGO", "RUSTC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR"] {
        command.env_remove(set);
    }
    command
}

/// Builds `tests/watched/program.rs` with a feature of the allocator, by a toolchain with such flags.
fn build(feature: &str, toolchain: &[&str], flags: &[&str]) -> PathBuf {
    // Kept from run to run: the allocator is then built once for each feature.
    let target = root().join("target/watched").join(feature);
    succeed(
        tool("cargo", toolchain)
            .args(["build", "--quiet", "--offline", "-p", "hakmem-alloc", "--lib", "--no-default-features"])
            .args(["--features", feature, "--target", TARGET, "--target-dir"])
            .arg(&target)
            .env("RUSTFLAGS", flags.join(" ")),
    );
    let built = target.join(TARGET).join("debug");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("watched-{feature}"));
    succeed(
        tool("rustc", toolchain)
            .args(flags)
            .args(["--edition", "2024", "-g", "--target", TARGET, "tests/watched/program.rs", "-o"])
            .arg(&program)
            .arg("--extern")
            .arg(format!("hakmem={}", built.join("libhakmem.rlib").display()))
            .arg("-L")
            .arg(format!("dependency={}", built.join("deps").display())),
    );
    program
}

/// One of the program's modes, and a size of block: small, the last of its class, a run, a direct mapping.
const CASES: [(&str, &str); 10] = [
    ("after_free", "37"),
    ("after_free", "1024"),
    ("after_free", "70000"),
    ("after_free", "3000000"),
    ("behind", "37"),
    ("behind", "1024"),
    ("behind", "70000"),
    ("before", "37"),
    ("moved", "37"),
    ("moved", "3000000"),
];

#[test]
fn address_sanitizer() {
    if !has("nightly Rust", tool("rustc", &["+nightly"]).arg("--version")) {
        return;
    }
    let program = build("asan", &["+nightly"], &["-Zsanitizer=address"]);
    let run = |arguments: &[&str]| Command::new(&program).args(arguments).output().unwrap();
    let fine = run(&["fine"]);
    assert!(fine.status.success() && text(&fine) == "200000 15000\nend\n", "{}", text(&fine));
    for (mode, size) in CASES {
        let said = text(&run(&[mode, size]));
        let whole = said.contains("AddressSanitizer: use-after-poison") && said.contains("program::reads");
        assert!(whole && !said.contains("end\n"), "{mode} {size}: {said}");
    }
    let twice = text(&run(&["twice"]));
    assert!(twice.contains("double free: the block is free already"), "{twice}");
}

#[test]
fn memcheck() {
    if !has("valgrind", Command::new("valgrind").arg("--version")) {
        return;
    }
    let program = build("valgrind", &[], &[]);
    let run = |arguments: &[&str]| {
        let options = ["--quiet", "--leak-check=full", "--error-exitcode=9", "--num-callers=20"];
        let output = Command::new("valgrind").args(options).arg(&program).args(arguments).output().unwrap();
        // It writes 1024 as 1,024.
        (output.status.code(), text(&output).replace(',', ""))
    };
    let (status, fine) = run(&["fine"]);
    assert!(status == Some(0) && fine == "200000 15000\nend\n", "{fine}");
    // What memcheck says of the address, and who has made, or freed, the block.
    let about = |mode: &str, size: &str| match mode {
        "after_free" | "moved" => (format!("inside a block of size {size} free'd"), "frees_the_block"),
        "behind" => (format!("0 bytes after a block of size {size} alloc'd"), "makes_a_block"),
        _ => (format!("1 bytes before a block of size {size} alloc'd"), "makes_a_block"),
    };
    for (mode, size) in CASES.into_iter().filter(|&(mode, size)| mode == "after_free" || size == "37") {
        let (status, said) = run(&[mode, size]);
        let (address, function) = about(mode, size);
        let function = if mode == "moved" { "realloc" } else { function };
        let parts = ["Invalid read of size 1", "program::reads", address.as_str(), function];
        assert!(status == Some(9) && parts.iter().all(|part| said.contains(part)), "{mode} {size}: {said}");
    }
    let (_, twice) = run(&["twice"]);
    assert!(
        twice.contains("Invalid free()") && twice.contains("inside a block of size 37 free'd"),
        "{twice}"
    );
    let (status, leak) = run(&["leak"]);
    let parts = ["37 bytes in 1 blocks are definitely lost", "program::leaks_a_block"];
    assert!(status == Some(9) && parts.iter().all(|part| leak.contains(part)), "{leak}");
}
