//! The command line: one module per subcommand.

mod ab;
mod bench;
mod instructions;
mod lib_path;
mod memory;
mod record;
mod replay;
mod replay_worker;
mod report;
mod run;
mod trace;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What `hakmem` itself exits with when something is wrong before the program starts, as clap does.
const USAGE: u8 = 2;

/// Hakmem: a memory allocator that is fast, gives memory back and can be seen into.
#[derive(Parser)]
#[command(name = "hakmem", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    Run(run::Args),
    Ab(Box<ab::Args>),
    Bench(Box<bench::Args>),
    Memory(Box<memory::Args>),
    Replay(Box<replay::Args>),
    Instructions(instructions::Args),
    Report(report::Args),
    Record(record::Args),
    Trace(trace::Args),
    ReplayWorker(replay_worker::Args),
    Lib(lib_path::Args),
    Worker(worker::Args),
}

/// Parses the command line and runs the subcommand.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Sub::Run(args) => run::execute(args),
        Sub::Ab(args) => ab::execute(*args),
        Sub::Bench(args) => bench::execute(*args),
        Sub::Memory(args) => memory::execute(*args),
        Sub::Worker(args) => worker::execute(args),
        Sub::Replay(args) => replay::execute(*args),
        Sub::Instructions(args) => instructions::execute(args),
        Sub::Report(args) => report::execute(args),
        Sub::Record(args) => record::execute(args),
        Sub::Trace(args) => trace::execute(args),
        Sub::ReplayWorker(args) => replay_worker::execute(args),
        Sub::Lib(args) => lib_path::execute(args),
    };
    result.unwrap_or_else(|error| {
        crate::report::say(&format!("hakmem: {error:#}"));
        ExitCode::from(USAGE)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
