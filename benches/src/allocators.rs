//! `cargo bench`: Hakmem beside other allocators, through `GlobalAlloc`, in one process.
//!
//! One group for each pattern of `hakmem-workloads`, one function in it for each allocator, so that
//! criterion's plots compare the allocators. The process itself (criterion, and the lists of blocks)
//! allocates from the system.

mod heaps;
mod larson;
mod remote;

use std::time::Duration;

use criterion::{Bencher, Criterion, Throughput};
use hakmem_workloads::patterns::{self, Pattern};
use hakmem_workloads::{Global, Heap};

use heaps::Visit;

/// One pattern, under whichever allocator is visited.
struct OnePattern<'a>(&'a str);

impl OnePattern<'_> {
    /// The pattern after its first rounds, and the operations of those to come. (Some keep blocks between
    /// rounds.)
    fn ready<H: Heap>(&self, heap: &H) -> (Pattern, u64) {
        let mut pattern = patterns::pattern(self.0).expect("one of the names");
        pattern.round(heap);
        let operations = pattern.round(heap);
        (pattern, operations)
    }
}

impl Visit for OnePattern<'_> {
    fn operations(&self) -> u64 {
        let heap = Global(std::alloc::System);
        let (mut pattern, operations) = self.ready(&heap);
        pattern.clear(&heap);
        operations
    }

    fn visit<H: Heap>(&self, heap: &H, bencher: &mut Bencher<'_>) {
        let (mut pattern, _) = self.ready(heap);
        bencher.iter(|| pattern.round(heap));
        pattern.clear(heap);
    }
}

/// A group over all allocators.
fn group(criterion: &mut Criterion, name: &str, visit: &impl Visit) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(visit.operations()));
    for (allocator, run) in heaps::all() {
        group.bench_function(allocator, |bencher| run(visit, bencher));
    }
    group.finish();
}

fn main() {
    // About five minutes in all; the command line (--measurement-time and the like) goes over these.
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .sample_size(40)
        .nresamples(20_000)
        .configure_from_args();
    for name in patterns::names() {
        group(&mut criterion, name, &OnePattern(name));
    }
    group(&mut criterion, "remote-64", &remote::Remote);
    group(&mut criterion, "larson", &larson::Larson);
    criterion.final_summary();
}
