//! The ways a C or C++ program comes to use the library, and running one in each of them.

use crate::support;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// `LD_PRELOAD`.
    Preload,
    /// `-lhakmem`, found through an rpath.
    Shared,
    /// `libhakmem.a` in a program that is linked dynamically otherwise.
    Archive,
    /// `libhakmem.a` and everything else in one static program.
    Static,
}

/// More than any program here needs, also on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Compiles `tests/c/<source>` for `link`, with `more` arguments.
pub fn build(source: &str, link: Link, more: &[&str]) -> PathBuf {
    let compiler = if source.ends_with(".cpp") { "g++" } else { "gcc" };
    let dir = support::lib_dir();
    // The old kind of path comes before LD_LIBRARY_PATH, in which cargo names the folder of the debug build.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", dir.display());
    let search = format!("-L{}", dir.display());
    let archive = dir.join("libhakmem.a").display().to_string();
    // -fno-builtin: the compiler takes some promises for granted that are tested here (posix_memalign keeps
    // errno).
    let mut args = vec!["-pthread", "-Wextra", "-Werror", "-fno-builtin", "-Wl,--no-as-needed"];
    if compiler == "g++" {
        args.push("-std=c++17");
    }
    args.extend(more);
    match link {
        Link::Preload => {}
        Link::Shared => args.extend([search.as_str(), rpath.as_str(), "-lhakmem"]),
        // The program's own symbols must be visible to dlsym.
        Link::Archive => args.extend(["-rdynamic", archive.as_str()]),
        Link::Static => {
            args.extend(["-static", "-DFULLY_STATIC", archive.as_str()]);
            // Nothing else in a small program asks libstdc++.a for the function that throws (docs/use.md,
            // fully static).
            if compiler == "g++" {
                args.push("-Wl,-u,_ZSt17__throw_bad_allocv");
            }
        }
    }
    args.push("-ldl");
    support::compile(compiler, source, &args)
}

/// A command that runs `program`, built for `link`, and has it check that the library serves it.
pub fn command(program: &Path, link: Link) -> Command {
    let lib = support::lib();
    let mut command = if link == Link::Preload { support::preloaded(program) } else { Command::new(program) };
    match link {
        Link::Preload | Link::Shared => command.env("EXPECT_LIB", lib.file_name().unwrap()),
        Link::Archive => command.env("EXPECT_LIB", program.file_name().unwrap()),
        Link::Static => &mut command,
    };
    command
}
