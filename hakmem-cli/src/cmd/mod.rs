//! The command line: one module per subcommand.

#[cfg(feature = "profile")]
mod diff;
#[cfg(feature = "lab")]
mod lab;
mod lib_path;
#[cfg(feature = "profile")]
mod profile;
mod run;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What `hakmem` itself exits with when something is wrong before the program starts, as clap does.
const USAGE: u8 = 2;

/// Run programs on Hakmem, a memory allocator; compare allocators
#[derive(Parser)]
#[command(name = "hakmem", version, arg_required_else_help = true)]
#[cfg_attr(
    not(all(feature = "lab", feature = "profile")),
    command(
        after_help = "Built without the features `lab` (ab, bench, memory, record, replay and others) and `profile` \
                      (profile, diff), or without one of them."
    )
)]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    Run(run::Args),
    Lib(lib_path::Args),
    Stats(stats::Args),
    #[cfg(feature = "profile")]
    Profile(Box<profile::Args>),
    #[cfg(feature = "profile")]
    Diff(diff::Args),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(lab::Sub),
}

/// Parses the command line and runs the subcommand.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Sub::Run(args) => run::execute(args),
        Sub::Lib(args) => lib_path::execute(args),
        Sub::Stats(args) => stats::execute(args),
        #[cfg(feature = "profile")]
        Sub::Profile(args) => profile::execute(*args),
        #[cfg(feature = "profile")]
        Sub::Diff(args) => diff::execute(args),
        #[cfg(feature = "lab")]
        Sub::Lab(sub) => lab::execute(sub),
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
