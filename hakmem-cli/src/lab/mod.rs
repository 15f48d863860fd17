//! The lab: runs programs under several allocators so that the figures can be compared.
//!
//! `subjects` finds the allocators, `tasks` says what to run and measure, `experiment` runs it all in
//! shuffled rounds through `run`, with memory made equal by `equal`; `stats` compares, `targets` judges,
//! `report` shows. All that is shown is in `model`.

pub mod budgets;
mod callgrind;
mod equal;
pub mod experiment;
mod group;
pub mod instructions;
mod machine;
pub mod model;
pub mod output;
pub mod report;
mod resident;
mod rows;
mod run;
pub mod stats;
pub mod subjects;
pub mod targets;
pub mod tasks;
mod warnings;
