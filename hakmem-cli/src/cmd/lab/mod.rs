//! The subcommands that measure, compare and record.

mod ab;
mod bench;
mod instructions;
mod memory;
mod record;
mod replay;
mod replay_worker;
mod report;
mod trace;
mod worker;

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;

use crate::sys::interrupt;

#[derive(Subcommand)]
pub enum Sub {
    Ab(Box<ab::Args>),
    Bench(Box<bench::Args>),
    Memory(Box<memory::Args>),
    Replay(Box<replay::Args>),
    Instructions(instructions::Args),
    Report(report::Args),
    Record(record::Args),
    Trace(trace::Args),
    ReplayWorker(replay_worker::Args),
    Worker(worker::Args),
}

/// Runs the subcommand.
pub fn execute(sub: Sub) -> anyhow::Result<ExitCode> {
    // `record` passes signals on to its program at first, and a worker is to have one thread.
    let measures =
        matches!(sub, Sub::Ab(_) | Sub::Bench(_) | Sub::Memory(_) | Sub::Replay(_) | Sub::Instructions(_));
    if measures {
        interrupt::watch().context("cannot watch for signals")?;
    }
    match sub {
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
    }
}
