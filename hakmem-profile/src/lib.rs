//! Heap profiles: what the allocator writes while it samples (`docs/profile-format.md`), and what is made of
//! it.
//!
//! [`mod@file`] reads the raw file and can write one. [`model`] groups and picks moments, [`estimate`] says
//! what samples stand for, [`suspects`] looks for leaks; [`symbols`] finds the functions of addresses.
//! [`pprof`] and [`collapsed`] write what other tools read, [`svg`] draws flame graphs, and [`diff`] compares
//! two profiles, of whatever tool.

pub mod collapsed;
pub mod diff;
pub mod estimate;
pub mod file;
pub mod model;
pub mod pprof;
pub mod suspects;
pub mod svg;
pub mod symbols;
