//! Real programs, each run once on glibc and once with the library preloaded: both must say and write the
//! same.
//!
//! A program that is not installed is skipped with a line on stderr that names its package, unless
//! `HAKMEM_REQUIRE_PROGRAMS=1` is set (CI does), which turns the line into a failure. `.ci/install` installs
//! them all. Options (`HAKMEM_MAGAZINE=off`, ...) set for the tests are passed on to the programs that run on
//! the library. One run of all of them on two cores:
//! `cargo test -p hakmem-capi --test programs -- --test-threads=2`.

mod support;

#[path = "programs/twin.rs"]
mod twin;

#[path = "programs/inputs.rs"]
mod inputs;

#[path = "programs/compilers.rs"]
mod compilers;
#[path = "programs/data.rs"]
mod data;
#[path = "programs/git.rs"]
mod git;
#[path = "programs/languages.rs"]
mod languages;
#[path = "programs/python.rs"]
mod python;
#[path = "programs/redis.rs"]
mod redis;
#[path = "programs/tools.rs"]
mod tools;
