//! The lab: runs programs under several allocators so that the figures can be compared.

pub mod model;
