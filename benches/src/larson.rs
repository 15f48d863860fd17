//! Threads that replace random blocks and hand them over: the workload of `hakmem bench`, small.

use std::time::Duration;

use criterion::Bencher;
use hakmem_workloads::{Global, Heap, Report, Settings, find, run};

use crate::heaps::Visit;

/// What differs from the workload's defaults: one iteration takes about a millisecond.
const VALUES: [(&str, &str); 3] = [("blocks", "500"), ("rounds", "100"), ("handovers", "2")];

/// Each iteration is a whole run, of which the workload itself says how long it took.
pub struct Larson;

fn once<H: Heap>(heap: &H) -> Report {
    let workload = find("larson").expect("one of the workloads");
    let values = VALUES.map(|(name, value)| (name.to_string(), value.to_string()));
    let settings = Settings::resolve(workload, &values).expect("parameters that it has");
    run(workload, &settings, heap, false).expect("it has nothing to fail at but the heap")
}

impl Visit for Larson {
    fn operations(&self) -> u64 {
        once(&Global(std::alloc::System)).operations
    }

    fn visit<H: Heap>(&self, heap: &H, bencher: &mut Bencher<'_>) {
        bencher.iter_custom(|rounds| (0..rounds).map(|_| Duration::from_nanos(once(heap).elapsed_ns)).sum());
    }
}
