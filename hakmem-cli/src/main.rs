//! The `hakmem` command: runs a program on Hakmem and says whether Hakmem really served it.
//!
//! `cmd` holds one module per subcommand (those that measure in `cmd/lab`, with the feature `lab`) and uses
//! the modules beside it; those use only `sys`, the one place with system calls that std does not offer.

// What only the lab needs of the modules that all share.
#![cfg_attr(not(feature = "lab"), allow(dead_code))]

mod cmd;
mod elf;
#[cfg(feature = "lab")]
mod lab;
mod library;
mod preload;
mod process;
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
