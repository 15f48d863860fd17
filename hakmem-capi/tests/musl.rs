//! The library made for musl: preloaded, linked as a shared library and as an archive, and fully static; what
//! it exports and what it wants.
//!
//! Needs `musl-gcc` and Rust's target. Where one is missing each test says so, and passes, unless
//! `HAKMEM_REQUIRE_PROGRAMS=1` is set. The library is built for it in the release profile, in a target folder
//! of its own.
#![cfg(target_arch = "x86_64")]

mod support;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use support::skips::is_there;
use support::{expect_ok, root, run, scratch};

const TARGET: &str = "x86_64-unknown-linux-musl";
const LOADER: &str = "/lib/ld-musl-x86_64.so.1";
/// More than any program here needs, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// glibc's names for what musl has no need of, or has for itself alone.
const GLIBCS: [&str; 3] = ["dlopen", "dlmopen", "pthread_key_create"];

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Preload,
    Shared,
    Archive,
    Static,
}
use Link::{Archive, Preload, Shared, Static};

/// The folder with the library for musl. None where it cannot be made.
fn built() -> Option<&'static Path> {
    static DIR: OnceLock<Option<PathBuf>> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(what) = missing() {
            is_there(what, false);
            return None;
        }
        let folder = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
        let folder = folder.join("musl");
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--quiet", "-p", "hakmem-capi", "--target", TARGET])
            .current_dir(root())
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env("RUSTFLAGS", "-C target-feature=-crt-static")
            .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER", "musl-gcc")
            .env("CARGO_TARGET_DIR", &folder)
            .status()
            .expect("cargo runs");
        assert!(status.success(), "cargo build for {TARGET} failed");
        Some(folder.join(TARGET).join("release"))
    })
    .as_deref()
}

/// What is missing, and how to get it.
fn missing() -> Option<&'static str> {
    if !Command::new("musl-gcc").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Some("musl-gcc (apt-get install musl-tools)");
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let query = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    let folder = String::from_utf8(query.expect("rustc runs").stdout).unwrap();
    let is_there = Path::new(folder.trim()).is_dir();
    (!is_there).then_some("Rust's target is missing (rustup target add x86_64-unknown-linux-musl)")
}

/// Compiles `tests/c/<source>` for musl and for `link`.
fn build(source: &str, link: Link, dir: &Path, more: &[&str]) -> PathBuf {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/musl.h");
    let (header, dir) = (header.display().to_string(), dir.display().to_string());
    let (search, rpath) = (format!("-L{dir}"), format!("-Wl,-rpath,{dir}"));
    let archive = format!("{dir}/libhakmem.a");
    let mut args = vec!["-pthread", "-Wextra", "-Werror", "-fno-builtin", "-fPIE", "-include", &header];
    // What is declared weak may be found when the program is loaded.
    args.push("-Wl,--no-as-needed,-z,dynamic-undefined-weak");
    args.extend(more);
    match link {
        Preload => {}
        Shared => args.extend([&*search, &*rpath, "-lhakmem"]),
        Archive => args.extend(["-rdynamic", &*archive]),
        Static => args.extend(["-static", "-DFULLY_STATIC", &*archive]),
    }
    support::compile("musl-gcc", source, &args)
}

/// A command that runs `program` as it was built, and has it check who serves it.
fn command(program: &Path, link: Link, dir: &Path) -> Command {
    let mut command = Command::new(program);
    // There are glibc's libraries in the folders that cargo names.
    command.env_remove("LD_LIBRARY_PATH");
    if link == Preload {
        command.env("LD_PRELOAD", dir.join("libhakmem.so"));
    }
    if link != Static {
        let expected = if link == Archive { program } else { Path::new("libhakmem.so") };
        command.env("EXPECT_LIB", expected.file_name().unwrap());
    }
    command
}

/// Builds and runs a program in each of `ways`.
fn check(source: &str, args: &[&str], ways: &[Link]) {
    let Some(dir) = built() else { return };
    for &link in ways {
        let program = build(source, link, dir, &[]);
        let out = expect_ok(command(&program, link, dir).args(args), LIMIT);
        assert!(
            !source.starts_with("api_") || out.ends_with(" ok\n"),
            "{source} ended early, {link:?}: {out}"
        );
    }
}

const ALL: &[Link] = &[Preload, Shared, Archive, Static];

/// Alignments, sizes that cannot be had, sized frees, before and after main.
#[test]
fn the_malloc_family() {
    for source in ["api_align.c", "api_limits.c", "api_sized.c", "api_first.c"] {
        check(source, &[], ALL);
    }
}

#[test]
fn static_programs_are_served() {
    check("static_check.c", &[], &[Archive, Static]);
    check("prefix_api.c", &[], &[Shared, Archive, Static]);
}

/// Debian has no C++ library for musl. A program without one has all that `new` and `delete` need from ours,
/// but for an exception.
#[test]
fn cxx_without_a_cxx_library() {
    let Some(dir) = built() else { return };
    for link in [Shared, Archive, Static] {
        let program = build("cxx_bare.cpp", link, dir, &["-std=c++17", "-fno-exceptions", "-fno-rtti"]);
        assert_eq!(expect_ok(&mut command(&program, link, dir), LIMIT), "bare ok\n", "{link:?}");
        let output = run(command(&program, link, dir).arg("throw"), LIMIT);
        let expected = "hakmem: operator new: out of memory, and no C++ library to throw std::bad_alloc\n";
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{link:?}");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{link:?}");
    }
}

#[test]
fn threads_of_every_kind() {
    check("thread_foreign.c", &["alive"], &[Preload]);
    check("thread_foreign.c", &["exited"], &[Preload, Static]);
    check("thread_foreign.c", &["swap", "10000"], &[Preload, Static]);
    check("thread_keys.c", &["30"], &[Preload, Static]);
    check("thread_stack.c", &["tiny"], &[Preload, Static]);
    check("thread_stack.c", &["exit"], &[Preload, Static]);
}

#[test]
fn forks_of_every_kind() {
    check("fork_load.c", &["load", "50"], &[Preload, Static]);
    check("fork_load.c", &["nested", "10"], &[Preload]);
    check("fork_atfork.c", &["10"], &[Preload, Static]);
    check("fork_threads.c", &["clone", "2"], &[Preload]);
    for mode in ["atexit", "atfork"] {
        check("first_call.c", &[mode], &[Preload, Static]);
    }
}

#[test]
fn the_background_thread() {
    for mode in ["none", "start"] {
        check("background.c", &[mode], &[Preload, Static]);
    }
}

/// C11's threads, blocks of the C library's, plugins, `exec`; with every option.
#[test]
fn the_rest_of_the_c_library() {
    let Some(dir) = built() else { return };
    let plugin = build("musl.c", Preload, dir, &["-DPLUGIN", "-shared", "-fPIC"]);
    let profile = scratch("musl").join("profile").display().to_string();
    let options = [
        ("HAKMEM_STATS", "none"),
        ("HAKMEM_STATS", "table"),
        ("HAKMEM_HARDENED", "on"),
        ("HAKMEM_GUARD", "10"),
        ("HAKMEM_BACKGROUND", "on"),
        ("HAKMEM_PROFILE", &profile),
    ];
    for link in [Preload, Shared, Static] {
        let program = build("musl.c", link, dir, &[]);
        for (name, value) in options {
            let mut command = command(&program, link, dir);
            command.args((link != Static).then_some(&plugin)).env(name, value);
            let output = run(&mut command, LIMIT);
            let said = String::from_utf8_lossy(&output.stderr);
            let case = format!("{link:?} {name}={value}: {}: {said}", output.status);
            assert!(output.status.success() && output.stdout.ends_with(b"musl ok\n"), "{case}");
            assert!(value != "table" || said.contains("hakmem"), "{case}");
        }
    }
    let profiles = std::fs::read_dir(scratch("musl")).unwrap().count();
    assert!(profiles >= 3, "{profiles} profiles");
}

/// The names in a table of `nm`'s, with the letters of their kinds.
fn names(file: &Path, flag: &str) -> Vec<(String, String)> {
    let table = expect_ok(Command::new("nm").args(["-D", flag]).arg(file), LIMIT);
    let names = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        Some((words.next()?.to_string(), words.next()?.to_string()))
    });
    names.collect()
}

/// What glibc's library has, without what only glibc has a use for.
#[test]
fn export_list() {
    let Some(dir) = built() else { return };
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports.txt");
    let list = std::fs::read_to_string(list).unwrap();
    let is_glibcs = |name: &&str| name.starts_with("__libc_") || GLIBCS.contains(name);
    let wanted: BTreeSet<_> = list.lines().filter(|name| !is_glibcs(name)).map(String::from).collect();
    let found: BTreeSet<_> =
        names(&dir.join("libhakmem.so"), "--defined-only").into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, wanted);
}

/// Nothing but musl, and nothing that musl lacks.
#[test]
fn it_needs_musl_only() {
    let Some(dir) = built() else { return };
    let lib = dir.join("libhakmem.so");
    let section = expect_ok(Command::new("readelf").arg("-d").arg(&lib), LIMIT);
    let needed: Vec<_> = section.lines().filter(|line| line.contains("(NEEDED)")).collect();
    // A name that any musl takes for its own.
    assert!(needed.len() == 1 && needed[0].ends_with("[libc.so]"), "{needed:?}");
    let musls: BTreeSet<_> =
        names(Path::new(LOADER), "--defined-only").into_iter().map(|(name, _)| name).collect();
    let lacking: Vec<_> = names(&lib, "--undefined-only")
        .into_iter()
        .filter(|(name, kind)| !matches!(&**kind, "w" | "v") && !musls.contains(name))
        .collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}
