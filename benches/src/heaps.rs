//! The allocators that are compared.

use std::alloc::System;

use criterion::Bencher;
use hakmem::Hakmem;
use hakmem_workloads::{Global, Heap};
use mimalloc::MiMalloc;
use rusty_alloc_api::RustyAlloc;
use snmalloc_rs::SnMalloc;
use tikv_jemallocator::Jemalloc;

/// Something to run under every allocator, compiled for each.
pub trait Visit {
    /// Operations of one iteration: an allocation and a free are one each.
    fn operations(&self) -> u64;

    /// Measures it.
    fn visit<H: Heap>(&self, heap: &H, bencher: &mut Bencher<'_>);
}

/// Runs a visit under one of them.
pub type Run<V> = fn(&V, &mut Bencher<'_>);

/// Their names and how to run something under each, the order of the plots.
pub fn all<V: Visit>() -> [(String, Run<V>); 6] {
    static HAKMEM: Global<Hakmem> = Global(Hakmem::new());
    [
        ("hakmem".into(), |visit, bencher| visit.visit(&HAKMEM, bencher)),
        ("System".into(), |visit, bencher| visit.visit(&Global(System), bencher)),
        (mimalloc_name(), |visit, bencher| visit.visit(&Global(MiMalloc), bencher)),
        ("jemalloc".into(), |visit, bencher| visit.visit(&Global(Jemalloc), bencher)),
        ("snmalloc".into(), |visit, bencher| visit.visit(&Global(SnMalloc), bencher)),
        ("rusty_alloc".into(), |visit, bencher| visit.visit(&Global(RustyAlloc), bencher)),
    ]
}

/// With the version that is linked: the crate holds mimalloc 2 and 3, which are different allocators.
fn mimalloc_name() -> String {
    // Two digits each for minor version and patch.
    let version = MiMalloc.version();
    format!("mimalloc {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}
