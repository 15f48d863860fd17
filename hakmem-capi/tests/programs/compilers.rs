//! Compilers and linkers: their objects, programs and libraries are the same to the byte.

use crate::inputs;
use crate::support;
use crate::support::skips::is_there;
use crate::twin::{Twin, missing, which};
use std::path::Path;

#[test]
fn gcc_compiles_and_links_something_large() {
    if missing(&[("gcc", "gcc"), ("ld", "binutils"), ("ar", "binutils")]) {
        return;
    }
    let source = inputs::c_source(600);
    assert!(source.lines().count() > 15_000);
    let small = inputs::c_source(150);
    Twin::new("gcc", 150).processes(12).compare(|side| {
        side.file("large.c", &source);
        side.file("small.c", &small);
        side.run(&["gcc", "-O1", "-g", "-Wall", "-c", "large.c"]);
        side.run(&["gcc", "-o", "large", "large.o"]);
        side.run(&["./large"]);
        // All of the program through the link-time optimiser as well, on two processes.
        side.run(&["gcc", "-O2", "-flto=2", "-frandom-seed=1", "-c", "small.c"]);
        side.run(&["gcc", "-O2", "-flto=2", "-frandom-seed=1", "-o", "small", "small.o"]);
        side.run(&["./small"]);
        side.run(&["ar", "rcsD", "libsmall.a", "small.o", "large.o"]);
        side.run(&["nm", "large"]);
    });
}

/// Containers, streams, exceptions, threads: the program is compiled with the standard library's headers, and
/// run.
const CXX: &str = r#"
#include <algorithm>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Tower : Tower<N - 1> {
    std::variant<int, std::string, std::vector<double>> value{std::string(N, 'x')};
    std::size_t sum() const {
        return Tower<N - 1>::sum() + std::visit([](auto const &v) {
            std::ostringstream out;
            if constexpr (requires { out << v; }) out << v; else out << v.size();
            return out.str().size();
        }, value);
    }
};
template <> struct Tower<0> { std::size_t sum() const { return 0; } };

static long work(unsigned seed) {
    std::map<std::string, std::unique_ptr<std::vector<int>>> map;
    std::unordered_map<int, std::shared_ptr<std::string>> shared;
    std::multiset<std::string> set;
    long sum = 0;
    for (unsigned i = 0; i < 30000; i++) {
        seed = seed * 1664525 + 1013904223;
        auto &slot = map["key " + std::to_string(seed % 2003)];
        if (!slot) slot = std::make_unique<std::vector<int>>();
        slot->insert(slot->begin() + slot->size() / 2, int(i));
        shared[seed % 777] = std::make_shared<std::string>(seed % 300, 'c');
        set.insert(*shared.begin()->second + std::to_string(i % 100));
        if (i % 3 == 0) set.erase(set.begin());
        try {
            if (i % 50 == 0) throw std::runtime_error("at " + std::to_string(i));
        } catch (std::exception const &e) {
            sum += long(std::string(e.what()).size());
        }
    }
    for (auto const &[key, list] : map) sum += long(key.size() + list->size()) * list->back();
    return sum + long(set.size()) + long(shared.size());
}

struct alignas(128) Wide { char bytes[384]; };

int main() {
    std::vector<std::future<long>> jobs;
    for (unsigned i = 0; i < 4; i++) jobs.push_back(std::async(std::launch::async, work, i));
    for (auto &job : jobs) std::cout << job.get() << '\n';
    std::cout << std::make_unique<Tower<60>>()->sum() << '\n';
    std::regex word("([a-z]+)-([0-9]+)");
    std::cout << std::regex_replace(std::string("abc-123 def-456"), word, "$2-$1") << '\n';
    std::vector<std::unique_ptr<Wide>> wide;
    for (int i = 0; i < 500; i++) wide.push_back(std::make_unique<Wide>());
    std::cout << std::all_of(wide.begin(), wide.end(), [](auto &w) { return std::size_t(w.get()) % 128 == 0; }) << '\n';
    try {
        // More than the address space; the compilers may not know, lest they leave the call out.
        std::size_t volatile huge = std::size_t(1) << 62;
        ::operator delete(::operator new(huge));
    } catch (std::bad_alloc const &) {
        std::cout << "bad_alloc\n";
    }
}
"#;

#[test]
fn clang_compiles_cxx() {
    if missing(&[("clang++", "clang"), ("g++", "g++")]) {
        return;
    }
    Twin::new("clang", 150).processes(5).compare(|side| {
        side.file("work.cc", CXX);
        side.run(&["clang++", "-std=c++20", "-O2", "-g", "-pthread", "-c", "work.cc"]);
        side.run(&["clang++", "-pthread", "-o", "work", "work.o"]);
        side.run(&["./work"]);
        side.run(&["g++", "-std=c++20", "-O1", "-pthread", "-o", "work-g", "work.cc"]);
        side.run(&["./work-g"]);
    });
}

#[test]
fn gdb_reads_a_large_program() {
    if missing(&[("gdb", "gdb"), ("gcc", "gcc")]) {
        return;
    }
    let source = inputs::c_source(300);
    Twin::new("gdb", 90).processes(4).compare(|side| {
        side.file("large.c", &source);
        side.run(&["gcc", "-O1", "-g3", "-o", "large", "large.c"]);
        let python =
            "python print(sorted(s.name for s in gdb.lookup_global_symbol('f7').symtab.global_block())[:50])";
        let mut step = vec!["gdb", "-nx", "-batch", "large"];
        for command in
            ["info functions ^f1", "info types", "list f200", "info scope f100", "disassemble /s f3", python]
        {
            step.extend(["-ex", command]);
        }
        side.run(&step);
    });
}

/// Copies the files cargo needs, without built ones.
fn copy_sources(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if name == "target" || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            copy_sources(&path, &to.join(&name));
        } else if path.is_file() {
            std::fs::copy(&path, to.join(&name)).unwrap();
        }
    }
}

/// cargo and the linker are served; rustc brings an allocator of its own, which no preload replaces.
#[test]
fn cargo_builds_this_project() {
    if !is_there("rustc (from https://rustup.rs)", which("rustc").is_some()) {
        return;
    }
    if missing(&[("cc", "gcc")]) {
        return;
    }
    Twin::new("cargo", 200).processes(8).compare(|side| {
        // The project may change while this runs: the second build takes the first one's copy.
        let sources = side.dir.parent().unwrap().join("sources");
        if !sources.exists() {
            copy_sources(&support::root(), &sources);
        }
        copy_sources(&sources, &side.dir);
        let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_string());
        side.env("CARGO_HOME", &format!("{home}/.cargo")).env("RUSTUP_HOME", &format!("{home}/.rustup"));
        side.inherit(&["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"]);
        // Without optimising: that takes a minute, and is rustc's work.
        side.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        side.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        side.env("CARGO_INCREMENTAL", "0").env("CARGO_TARGET_DIR", "built").env("CARGO_BUILD_JOBS", "2");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
        let packages = ["-p", "hakmem-alloc", "-p", "hakmem-capi"];
        side.output(&[&[&*cargo, "build", "--release", "--offline", "--locked"], &packages[..]].concat());
        // What the build is for; the rest of its folder has times and hashes in it.
        let release = side.dir.join("built/release");
        for name in ["libhakmem.so", "libhakmem.a"] {
            std::fs::rename(release.join(name), side.dir.join(name))
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let rlib = std::fs::read_dir(release.join("deps")).unwrap().map(|entry| entry.unwrap().path());
        for path in rlib.filter(|path| path.extension().is_some_and(|end| end == "rlib")) {
            std::fs::rename(&path, side.dir.join(path.file_name().unwrap())).unwrap();
        }
        std::fs::remove_dir_all(side.dir.join("built")).unwrap();
    });
}
