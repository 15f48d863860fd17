//! The `hakmem` command: runs a program on Hakmem and says whether Hakmem really served it.
//!
//! `cmd` holds one module per subcommand (those that measure in `cmd/lab`, with the feature `lab`; `profile`
//! and `diff` with the feature `profile`) and uses the modules beside it; those use only `sys`, the one place
//! with system calls that std does not offer.

// What only the lab or the profiler needs of the modules that all share.
#![cfg_attr(not(all(feature = "lab", feature = "profile")), allow(dead_code))]

mod attach;
mod cmd;
mod elf;
#[cfg(any(feature = "lab", feature = "profile"))]
mod html;
#[cfg(feature = "lab")]
mod lab;
mod library;
mod preload;
mod process;
#[cfg(feature = "profile")]
mod profile;
mod records;
mod report;
mod settings;
mod sys;
mod table;
mod why;
mod workspace;

fn main() -> std::process::ExitCode {
    cmd::main()
}
