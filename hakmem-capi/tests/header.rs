//! The checked-in header is what cbindgen makes of `src/prefix*.rs`, and it names the interface, no more and
//! no less. `HAKMEM_BLESS=1` rewrites it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The members of `hak_stats_t`, whose names and meanings are documented; programs rely on them.
const FIGURES: [&str; 43] = [
    "allocations",
    "magazine_misses",
    "magazine_overflows",
    "refill_current",
    "refill_bump",
    "refill_partial",
    "refill_ready",
    "refill_orphan",
    "refill_span",
    "superslabs_mapped",
    "home_local",
    "home_foreign",
    "outbox_blocks",
    "outbox_pushes",
    "publishes",
    "large_allocs",
    "large_frees",
    "large_cache_hits",
    "threads_started",
    "threads_exited",
    "bytes_mapped",
    "bytes_mapped_peak",
    "bytes_purged",
    "bytes_held",
    "soft_limit_hits",
    "hard_limit_hits",
    "allocated_bytes",
    "peak_resident_bytes",
    "background_passes",
    "background_wakeups",
    "active_bytes",
    "cached_bytes",
    "free_bytes",
    "fresh_bytes",
    "slack_bytes",
    "untouched_bytes",
    "dirty_bytes",
    "metadata_bytes",
    "resident_bytes",
    "resident_kernel_bytes",
    "retained_bytes",
    "guard_samples",
    "guard_blocks",
];

/// The members of `hak_class_stats_t`, likewise.
const CLASS_FIGURES: [&str; 10] = [
    "block_bytes",
    "blocks",
    "allocated_bytes",
    "cached_blocks",
    "free_blocks",
    "fresh_blocks",
    "slabs",
    "slack_bytes",
    "active_bytes",
    "resident_bytes",
];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The header that belongs to the sources as they are now.
fn generated() -> String {
    let mut config = cbindgen::Config::from_file(here("cbindgen.toml")).expect("cbindgen.toml is valid");
    config.after_includes = Some(format!("{}\n{ATTRIBUTES}", version_macros()));
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(here("src/prefix.rs"))
        .with_src(here("src/prefix_stats.rs"))
        .generate()
        .expect("src/prefix*.rs parse");
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).unwrap()
}

/// What compilers are told of the functions that allocate, as they know it of `malloc`: for
/// `_FORTIFY_SOURCE`, analysers and warnings.
const ATTRIBUTES: &str = "
// What these functions return, for compilers that want to know.
#if defined(__GNUC__)
#define HAK_USED __attribute__((warn_unused_result))
#define HAK_NEW __attribute__((malloc, warn_unused_result))
#define HAK_SIZE(bytes) __attribute__((alloc_size(bytes)))
#define HAK_SIZES(count, bytes) __attribute__((alloc_size(count, bytes)))
#define HAK_ALIGN(align) __attribute__((alloc_align(align)))
#else
#define HAK_USED
#define HAK_NEW
#define HAK_SIZE(bytes)
#define HAK_SIZES(count, bytes)
#define HAK_ALIGN(align)
#endif";

/// What a program that is compiled for several versions asks by `#if`.
fn version_macros() -> String {
    let parts = [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    let parts: String =
        parts.iter().map(|(name, value)| format!("#define HAKMEM_VERSION_{name} {value}\n")).collect();
    format!(
        "\n// The version of this header; `hak_version` says that of the library, which may be another one.\n\
        {parts}\
        // In one number, to be compared: 1.2.3 is 10203.\n\
        #define HAKMEM_VERSION \
        (HAKMEM_VERSION_MAJOR * 10000 + HAKMEM_VERSION_MINOR * 100 + HAKMEM_VERSION_PATCH)"
    )
}

/// The header in the repository, which `HAKMEM_BLESS=1` first brings up to date.
fn checked_in() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        if std::env::var_os("HAKMEM_BLESS").is_some() {
            std::fs::create_dir_all(here("include")).unwrap();
            std::fs::write(here("include/hakmem.h"), generated()).unwrap();
        }
        std::fs::read_to_string(here("include/hakmem.h")).expect("include/hakmem.h is there")
    })
}

/// The header without its comments.
fn code() -> String {
    checked_in().lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// Every name of ours in `text` that is followed by an opening parenthesis.
fn functions(text: &str) -> BTreeSet<&str> {
    text.match_indices('(')
        .map(|(at, _)| text[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
        .filter(|name| name.starts_with("hak_"))
        .collect()
}

#[test]
fn header_is_current() {
    let (old, text) = (checked_in(), generated());
    let differs = old.lines().zip(text.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| old.lines().count().min(text.lines().count()));
    assert!(
        old == text,
        "include/hakmem.h differs from src/prefix*.rs at line {}: {:?} should be {:?}; HAKMEM_BLESS=1 rewrites it",
        line + 1,
        old.lines().nth(line).unwrap_or(""),
        text.lines().nth(line).unwrap_or("")
    );
}

/// The functions of the header are the exported `hak_` names.
#[test]
fn header_names_the_exports() {
    let code = code();
    let exports = std::fs::read_to_string(here("tests/exports.txt")).unwrap();
    let exports: BTreeSet<&str> = exports.lines().filter(|name| name.starts_with("hak_")).collect();
    assert_eq!(functions(&code), exports);
}

/// The members of a struct, sorted.
fn members<'a>(code: &'a str, name: &str) -> Vec<&'a str> {
    let (_, body) = code.split_once(&format!("struct {name} {{")).unwrap_or_else(|| panic!("struct {name}"));
    let (body, rest) = body.split_once('}').unwrap();
    assert!(rest.trim_start().starts_with(&format!("{name};")), "a typedef too");
    let mut members: Vec<&str> = Vec::new();
    for member in body.split(';').map(str::trim).filter(|member| !member.is_empty()) {
        members.push(member.strip_prefix("uint64_t ").unwrap_or_else(|| panic!("not a uint64_t: {member}")));
    }
    members.sort_unstable();
    members
}

#[test]
fn header_has_the_figures() {
    let code = code();
    for (name, wanted) in [("hak_stats_t", &FIGURES[..]), ("hak_class_stats_t", &CLASS_FIGURES)] {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        assert_eq!(members(&code, name), wanted);
    }
    let ours = code.matches("struct hak_stats_t").count() + code.matches("struct hak_class_stats_t").count();
    assert_eq!(code.matches("struct ").count(), ours, "other structs");
}

/// Each function and each member has its comment; C++ and double inclusion are seen to.
#[test]
fn header_is_documented() {
    let header = checked_in();
    let lines: Vec<&str> = header.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if line.contains(" hak_") && line.contains('(')
            || line.contains("*hak_")
            || line.trim().starts_with("uint64_t ")
        {
            assert!(at > 0 && lines[at - 1].trim_start().starts_with("//"), "no comment above: {line}");
        }
    }
    for part in ["#ifndef HAKMEM_H", "#define HAKMEM_H", "#ifdef __cplusplus", "extern \"C\" {"] {
        assert_eq!(header.matches(part).count(), if part.contains("cplus") { 2 } else { 1 }, "{part}");
    }
}
