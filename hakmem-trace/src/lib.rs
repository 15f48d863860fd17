//! Allocation traces: what `hakmem record` writes and `hakmem replay` reads.
//!
//! A recording goes through three forms. The preloaded library (`hakmem-record`) writes the [`raw`] one,
//! straight into a shared mapping, so that a crash loses nothing. [`convert()`] makes a [`Trace`] of it: one
//! stream of events for every process, in the order of time, without addresses, compact and compressed. A
//! [`Program`] is what one process of a trace becomes to be replayed: fixed-size operations of every thread,
//! outside the heap.

mod codec;
mod convert;
mod file;
mod memory;
mod pace;
mod plan;
mod process;
mod program;
pub mod raw;
mod replay;

pub use codec::{Event, Object, Step};
pub use convert::{Recording, convert};
pub use file::{Trace, replaceable};
pub use process::{Builder, Facts, ProcessTrace};
pub use program::Program;
pub use replay::{FIGURES, Options, Touch, replay};
