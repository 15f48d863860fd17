//! Builds with the feature `checked`, or with debug assertions, notice at once what a release build notices
//! when a block leaves its thread's magazine, or not at all. `test.sh` runs this with the feature, in
//! release.
#![cfg(any(feature = "checked", debug_assertions))]

#[path = "support/options.rs"]
mod support;

use hakmem::Hakmem;
use std::alloc::{Layout, alloc, dealloc};
use std::os::unix::process::ExitStatusExt;
use support::process;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Runs the test `name` in a process where it does `misuse` to a block of 100 bytes, which is to be reported
/// as `fault` before anything else is allocated or freed.
fn ends(name: &str, fault: &str, misuse: impl FnOnce(*mut u8)) {
    let output = process(name, &[], || {
        // SAFETY: the size is not 0. What is done with the block ends the process, which is what is tested.
        misuse(unsafe { alloc(layout(100)) });
        // SAFETY: ends the process, in which nothing is left to do.
        unsafe { libc::_exit(0) };
    });
    let Some(output) = output else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(fault), "{output:?}");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
}

#[test]
fn a_double_free() {
    // SAFETY: the second free is not allowed, which is what is tested.
    ends("a_double_free", "double free", |block| unsafe {
        dealloc(block, layout(100));
        dealloc(block, layout(100));
    });
}

#[test]
fn a_pointer_into_a_block() {
    // SAFETY: not allowed, which is what is tested.
    ends("a_pointer_into_a_block", "interior pointer", |block| unsafe {
        dealloc(block.wrapping_add(16), layout(100));
    });
}

#[test]
fn another_size() {
    // SAFETY: as above.
    ends("another_size", "size", |block| unsafe { dealloc(block, layout(1000)) });
}

#[test]
fn a_foreign_pointer() {
    ends("a_foreign_pointer", "foreign", |_| {
        let mut ours = [0u64; 100];
        // SAFETY: as above.
        unsafe { dealloc(ours.as_mut_ptr().cast(), layout(100)) };
    });
}
