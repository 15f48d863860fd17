//! Any bytes are a program of allocations on several threads: see `hakmem_shadow`.
//!
//! `cargo +nightly fuzz run -s none operations fuzz/corpus/operations tests/corpus` from the root.
#![no_main]

use hakmem_shadow::functions::Functions;
use hakmem_shadow::operations;
use hakmem_shadow::session::{self, Allowed};
use libfuzzer_sys::fuzz_target;

hakmem_shadow::interpose!();

fuzz_target!(|bytes: &[u8]| {
    session::run(operations::program(bytes), &Functions::CORE, Allowed::ALL);
});
