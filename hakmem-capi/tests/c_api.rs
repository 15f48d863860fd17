//! The C and C++ surface: every function of the malloc family and every operator new and delete, in programs
//! that have the library preloaded, linked as a shared library, linked as an archive, and linked fully
//! static; copies loaded with `dlopen`; and the list of what the shared library exports.

#[path = "support/link.rs"]
mod link;
mod support;

use link::{LIMIT, Link, build, command};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{expect_ok, lib, run, scratch};

/// Builds and runs one program in one way; its last line says that it came to its end.
fn check(source: &str, how: Link, args: &[&str]) {
    let program = build(source, how, &[]);
    let out = expect_ok(command(&program, how).args(args), LIMIT);
    assert!(out.ends_with(" ok\n") || out == "caught\n", "{source} ended early: {out}");
}

/// One module per program, with a test for each way to get the library.
macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident: $source:literal $($arg:literal)*;)*) => {$(
        $(#[$doc])*
        mod $name {
            use super::{Link, check};
            #[test]
            fn preloaded() {
                check($source, Link::Preload, &[$($arg)*]);
            }
            #[test]
            fn shared() {
                check($source, Link::Shared, &[$($arg)*]);
            }
            #[test]
            fn archive() {
                check($source, Link::Archive, &[$($arg)*]);
            }
            #[test]
            fn fully_static() {
                check($source, Link::Static, &[$($arg)*]);
            }
        }
    )*};
}

programs! {
    /// Every size from 0 to 70,000 and the powers of two to 1 GiB: alignment, usable size, neighbours,
    /// zeroing.
    sizes: "api_sizes.c";
    /// Sizes that cannot be had, and products that overflow.
    limits: "api_limits.c";
    /// Every alignment to 1 GiB, and alignments that are none.
    alignments: "api_align.c";
    /// Contents through realloc and reallocarray, to 512 MiB.
    reallocs: "api_realloc.c";
    /// free(NULL) first of all, allocation before and after main, errno kept.
    first: "api_first.c";
    /// free_sized, free_aligned_sized, cfree.
    sized: "api_sized.c";
    /// The second names that functions have in glibc.
    second_names: "api_names.c";
    /// mallinfo2 and its family.
    figures: "api_figures.c";
    /// All forms of new and delete, over-aligned types, bad_alloc.
    new: "cxx_new.cpp";
    /// bad_alloc in a program that asks nothing else of libstdc++.
    throw: "cxx_throw.cpp";
    /// The new-handler: helps, resets itself, throws.
    handler: "cxx_handler.cpp";
    /// Containers in many threads.
    stress: "cxx_stress.cpp";
}

/// A program whose own malloc calls the second names has one allocator: the library where that is preloaded.
#[test]
fn interposed_malloc() {
    let program = support::compile("gcc", "interposer.c", &["-rdynamic", "-pthread"]);
    expect_ok(&mut Command::new(&program), LIMIT);
    expect_ok(support::preloaded(&program).arg("ours"), LIMIT);
}

/// Operators that a program does not replace call those that it does. The library among them runs before
/// ours.
#[test]
fn replaced_operators() {
    let quiet =
        ["-std=c++17", "-Wno-mismatched-new-delete", "-Wno-sized-deallocation", "-Wno-free-nonheap-object"];
    let compiled = |more: &[&str]| support::compile("g++", "cxx_replaced.cpp", &[&quiet, more].concat());
    let first = compiled(&["-DLIBRARY", "-shared", "-fPIC"]).display().to_string();
    for replaced in ["-DPLAIN", "-DARRAYS", "-DALIGNED"] {
        let more =
            [&[][..], &["-DARRAY"], &["-no-pie"], &["-static-libstdc++"], &["-Wl,--no-as-needed", &first]];
        for more in more {
            let program = compiled(&[&[replaced], more].concat());
            assert_eq!(expect_ok(&mut Command::new(&program), LIMIT), "as C++ says\n");
            assert_eq!(
                expect_ok(&mut support::preloaded(&program), LIMIT),
                "as C++ says\n",
                "{replaced} {more:?}"
            );
        }
    }
}

/// Before the options are read, nobody knows whether the heap is hardened.
#[test]
fn a_short_calloc_comes_first() {
    let program = support::compile("gcc", "calloc_first.c", &["-ldl"]);
    for hardened in ["off", "on", "light"] {
        expect_ok(support::preloaded(&program).env("HAKMEM_HARDENED", hardened), LIMIT);
    }
}

/// The constructor of a plugin waits for a thread that uses each of these for the first time: the loader's
/// lock is held meanwhile.
#[test]
fn nothing_is_looked_up_late() {
    let quiet = ["-std=c++17", "-Wno-mismatched-new-delete", "-Wno-sized-deallocation", "-pthread"];
    let compiled = |more: &[&str]| support::compile("g++", "cxx_waits.cpp", &[&quiet, more].concat());
    let plugin = compiled(&["-DPLUGIN", "-shared", "-fPIC"]);
    let program = compiled(&["-rdynamic"]);
    expect_ok(Command::new(&program).arg(&plugin), LIMIT);
    expect_ok(support::preloaded(&program).arg(&plugin), LIMIT);
}

/// The new-handler throws under a form of new that may not. Not fully static: there is no other `new` to
/// catch it there.
#[test]
fn quiet_handler() {
    for link in [Link::Preload, Link::Shared, Link::Archive] {
        check("cxx_handler.cpp", link, &["quiet"]);
    }
}

/// The switches for experiments change speed, not behaviour.
#[test]
fn every_switch() {
    let programs = ["api_sizes.c", "api_realloc.c", "api_align.c", "cxx_stress.cpp"]
        .map(|source| (source, build(source, Link::Preload, &[])));
    let switches = [
        ("HAKMEM_MAGAZINE", "off"),
        ("HAKMEM_OUTBOX", "off"),
        ("HAKMEM_ORPHANS", "off"),
        ("HAKMEM_THP", "always"),
        ("HAKMEM_THP", "never"),
        ("HAKMEM_LARGE_CACHE", "0"),
        ("HAKMEM_LARGE_CACHE", "4G"),
        ("HAKMEM_PURGE_DELAY", "0"),
        ("HAKMEM_PURGE_DELAY", "-1"),
    ];
    for (name, value) in switches {
        for (source, program) in &programs {
            let concerned = match *source {
                "cxx_stress.cpp" => true,
                "api_realloc.c" => name == "HAKMEM_LARGE_CACHE",
                _ => matches!(name, "HAKMEM_MAGAZINE" | "HAKMEM_THP"),
            };
            if concerned {
                let out = expect_ok(command(program, Link::Preload).env(name, value), LIMIT);
                assert!(out.ends_with(" ok\n"), "{source} under {name}={value}: {out}");
            }
        }
    }
}

/// malloc_stats writes figures to stderr.
#[test]
fn malloc_stats_prints() {
    let program = build("api_figures.c", Link::Preload, &[]);
    let output = run(&mut command(&program, Link::Preload), LIMIT);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(
        text.lines().count() >= 2 && text.contains(|c: char| c.is_ascii_digit()),
        "malloc_stats: {text:?}"
    );
}

/// The check that the library serves the program fails when it does not.
#[test]
fn not_serving_is_seen() {
    let program = build("api_first.c", Link::Preload, &[]);
    let output = run(Command::new(&program).env("EXPECT_LIB", "libhakmem.so"), LIMIT);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not by libhakmem.so"));
}

/// malloc, free and the figures in a fully static program are the library's.
#[test]
fn static_program_is_served() {
    for how in [Link::Static, Link::Archive] {
        let program = build("static_check.c", how, &[]);
        assert_eq!(expect_ok(&mut command(&program, how), LIMIT).trim(), env!("CARGO_PKG_VERSION"));
    }
}

/// The header alone is enough for strict C99 and for C++.
#[test]
fn prefixed_functions() {
    let strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"];
    for how in [Link::Shared, Link::Archive, Link::Static] {
        for (source, flags) in [("prefix_api.c", &strict[..]), ("prefix_cxx.cpp", &strict[1..])] {
            let program = build(source, how, flags);
            let mut run = Command::new(program);
            assert_eq!(expect_ok(&mut run, LIMIT).trim(), env!("CARGO_PKG_VERSION"), "{source} {how:?}");
        }
    }
}

/// What a block has and what it would have are the same, also in hardened mode.
#[test]
fn sizes() {
    for how in [Link::Shared, Link::Static] {
        let program = build("sizes.c", how, &["-std=c99", "-pedantic"]);
        let usual = [("HAKMEM_HARDENED", "off"), ("HAKMEM_LARGE_CACHE", "0")];
        assert_eq!(expect_ok(Command::new(&program).envs(usual), LIMIT), "sizes ok\n", "{how:?}");
        let mut hardened = Command::new(&program);
        hardened.env("HAKMEM_HARDENED", "on").arg("exact");
        assert_eq!(expect_ok(&mut hardened, LIMIT), "sizes ok\n", "{how:?}");
    }
}

/// Copies of the shared library under names of their own: the loader takes them for different libraries.
fn copies(test: &str, count: usize) -> Vec<PathBuf> {
    let dir = scratch(test);
    let copy = |n: usize| {
        let path = dir.join(format!("copy{n}.so"));
        std::fs::copy(lib(), &path).unwrap();
        path
    };
    (0..count).map(copy).collect()
}

/// A private copy in a program on glibc, used by threads from before and after it was loaded.
#[test]
fn dlopened_copy() {
    let program = build("dlopen_local.c", Link::Preload, &[]);
    assert_eq!(expect_ok(Command::new(&program).arg("use").args(copies("one", 1)), LIMIT), "dlopen ok\n");
}

/// Copies do not meet, nor do they run out of static TLS.
#[test]
fn many_dlopened_copies() {
    let program = build("dlopen_local.c", Link::Preload, &[]);
    assert_eq!(expect_ok(Command::new(&program).arg("use").args(copies("many", 16)), LIMIT), "dlopen ok\n");
}

/// A copy is closed while threads that used it live on.
#[test]
fn closed_copy() {
    let program = build("dlopen_local.c", Link::Preload, &[]);
    assert_eq!(expect_ok(Command::new(&program).arg("close").args(copies("close", 2)), LIMIT), "dlopen ok\n");
}

/// The preloaded library and a copy of it in one process.
#[test]
fn preloaded_and_dlopened() {
    let files = copies("both", 2);
    let program = build("dlopen_both.c", Link::Preload, &[]);
    assert_eq!(expect_ok(command(&program, Link::Preload).arg(&files[0]), LIMIT), "both ok\n");
    let program = build("dlopen_local.c", Link::Preload, &[]);
    assert_eq!(expect_ok(command(&program, Link::Preload).arg("use").args(&files), LIMIT), "dlopen ok\n");
}

/// The output of a binary tool about the shared library.
fn inspect(tool: &str, flags: &[&str]) -> String {
    expect_ok(Command::new(tool).args(flags).arg(lib()), LIMIT)
}

/// Exactly the names in `tests/exports.txt` are exported. `HAKMEM_BLESS=1` rewrites the list.
#[test]
fn export_list() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports.txt");
    let table = inspect("nm", &["-D", "--defined-only"]);
    let mut names: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    if std::env::var_os("HAKMEM_BLESS").is_some() {
        std::fs::write(&list, names.join("\n") + "\n").unwrap();
    }
    let wanted = std::fs::read_to_string(&list).unwrap();
    let wanted: Vec<&str> = wanted.lines().collect();
    let missing: Vec<_> = wanted.iter().filter(|name| !names.contains(name)).collect();
    let extra: Vec<_> = names.iter().filter(|name| !wanted.contains(name)).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing: {missing:?}\nnot in tests/exports.txt: {extra:?}"
    );
}

/// One word of thread-local memory, so that the library can be opened late.
#[test]
fn one_word_of_tls() {
    let headers = inspect("readelf", &["-lW"]);
    let line = headers.lines().find(|line| line.trim_start().starts_with("TLS")).expect("a TLS segment");
    let memory = line.split_whitespace().nth(5).and_then(|field| field.strip_prefix("0x")).unwrap();
    let bytes = u64::from_str_radix(memory, 16).unwrap();
    assert!(bytes <= 8, "{bytes} bytes of thread-local memory: {line}");
}
