//! pprof's format: a gzipped protocol buffer (`profile.proto` of github.com/google/pprof).

pub mod proto;
mod read;
mod write;

/// The label that says how far apart the sizes are which a block's was rounded to, in bytes.
const STEP: &str = "rounded to";

pub use read::{Decoded, Sample, decode, is_gzip};
pub use write::{encode, encode_since};
