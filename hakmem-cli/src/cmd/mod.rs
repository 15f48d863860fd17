//! The command line: one module per subcommand.

mod ab;
mod lib_path;
mod report;
mod run;

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
    Ab(ab::Args),
    Report(report::Args),
    Lib(lib_path::Args),
}

/// Parses the command line and runs the subcommand.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Sub::Run(args) => run::execute(args),
        Sub::Ab(args) => ab::execute(args),
        Sub::Report(args) => report::execute(args),
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
