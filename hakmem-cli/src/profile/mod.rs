//! The heap profiler's reading side: what `hakmem profile` and `hakmem diff` share.
//!
//! `input` opens files, `files` finds those of a run; `table` shows them on the terminal, `json` for
//! programs, `page` in a browser; `alive` says that a long run goes on, and `goes_on` finds what a program
//! leaves behind. What the figures mean is in the crate `hakmem-profile`.

pub mod alive;
pub mod builtin;
mod columns;
pub mod files;
pub mod goes_on;
pub mod input;
pub mod json;
pub mod page;
pub mod summary;
pub mod table;
pub mod units;
