//! pprof's format: a gzipped protocol buffer (`profile.proto` of github.com/google/pprof).

pub mod proto;
mod read;
mod write;

pub use read::{Decoded, Sample, decode, is_gzip};
pub use write::{encode, encode_since};
