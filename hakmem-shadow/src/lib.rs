//! The shadow model: whatever a program may do with an allocator, each block checked against a plain map of
//! what is live.
//!
//! Every block carries a pattern that follows from its identity and its size, so a block that overlaps
//! another, loses its contents on the way through `realloc`, or comes back dirty from `calloc` is found the
//! next time that it is touched, and by the [map](block) at once.
//!
//! One decoder ([`operations`]) turns bytes into operations of several threads, and one runner ([`session`])
//! executes and checks them. The fuzzer (`fuzz/`), the replay of its corpus (`tests/fuzz_corpus.rs`,
//! `hakmem-capi/tests/corpus.rs`) and the soak test (`tests/soak.rs`) all use these. `tests/shadow.rs` has
//! operations of its own, and uses the blocks and the map.
//!
//! What does not hold ends the process or the test by a panic.

pub mod block;
pub mod faults;
pub mod functions;
mod hand;
pub mod operations;
mod process;
pub mod random;
pub mod session;
mod threads;
