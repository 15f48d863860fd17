//! The `hakmem` command: runs a program on Hakmem and says whether Hakmem really served it.
//!
//! `cmd` holds one module per subcommand and uses the modules beside it; those use only `sys`, the one place
//! with system calls that std does not offer.

mod cmd;
mod elf;
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
