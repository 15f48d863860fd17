//! Running a workload.

mod asymmetric;
mod burst;
mod channel;
mod churn;
mod dead_thread;
mod drift;
mod fork;
mod growth;
mod idle;
mod idle_threads;
mod large;
mod larson;
mod messages;
mod one_size;
mod oscillation;
mod part_used;
mod producer_consumer;
mod random_mixed;
mod server;
mod single;
mod thread_cost;

use std::fmt;

use crate::heap::Heap;
use crate::report::Report;
use crate::settings::Settings;
use crate::workload::Workload;

/// Why a workload came to no figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// An error with this message.
pub(crate) fn error(text: impl Into<String>) -> Error {
    Error(text.into())
}

/// What a workload runs with.
pub(crate) struct Context<'a, H> {
    /// What it allocates from.
    pub heap: &'a H,
    /// Its parameters.
    pub settings: &'a Settings,
    /// Whether to measure single calls.
    pub latency: bool,
}

/// Declares the workloads: each is a module's `WORKLOAD` and the function that runs it.
macro_rules! workloads {
    ($($declared:path, $run:path;)*) => {
        /// All of them.
        pub(crate) static ALL: &[&Workload] = &[$(&$declared),*];

        /// Runs `workload` over `heap`. Ends the program where the heap damages a block or refuses one.
        ///
        /// # Errors
        ///
        /// Latency is asked of a workload that has none; something besides the heap failed.
        pub fn run<H: Heap>(
            workload: &Workload,
            settings: &Settings,
            heap: &H,
            latency: bool,
        ) -> Result<Report, Error> {
            if latency && !workload.latency {
                let names: Vec<_> = ALL.iter().filter(|w| w.latency).map(|w| w.name).collect();
                return Err(error(format!(
                    "{} cannot measure the latency of single calls; {} can",
                    workload.name,
                    names.join(", ")
                )));
            }
            let context = Context { heap, settings, latency };
            $(if std::ptr::eq(workload, &$declared) {
                return $run(&context);
            })*
            Err(error(format!("{}: not one of these workloads", workload.name)))
        }
    };
}

workloads! {
    single::LIFO, single::lifo;
    single::FIFO, single::fifo;
    single::RANDOM_ORDER, single::random_order;
    single::INTERLEAVED, single::interleaved;
    single::MIXED, single::mixed;
    random_mixed::WORKLOAD, random_mixed::run;
    larson::WORKLOAD, larson::run;
    producer_consumer::WORKLOAD, producer_consumer::run;
    messages::WORKLOAD, messages::run;
    asymmetric::WORKLOAD, asymmetric::run;
    burst::WORKLOAD, burst::run;
    growth::WORKLOAD, growth::run;
    large::WORKLOAD, large::run;
    one_size::WORKLOAD, one_size::run;
    server::WORKLOAD, server::run;
    idle::WORKLOAD, idle::run;
    idle_threads::WORKLOAD, idle_threads::run;
    oscillation::WORKLOAD, oscillation::run;
    dead_thread::WORKLOAD, dead_thread::run;
    drift::WORKLOAD, drift::run;
    part_used::WORKLOAD, part_used::run;
    thread_cost::WORKLOAD, thread_cost::run;
    churn::WORKLOAD, churn::run;
    fork::WORKLOAD, fork::run;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::heap::Malloc;
    use crate::workload::{Limit, all};

    /// A heap that checks what it is told about its blocks, and counts.
    #[derive(Default)]
    pub struct Checked {
        live: Mutex<HashMap<usize, (usize, usize)>>,
        operations: AtomicU64,
    }

    impl Checked {
        /// Live blocks.
        pub fn live(&self) -> usize {
            self.live.lock().unwrap().len()
        }

        /// Calls so far.
        pub fn operations(&self) -> u64 {
            self.operations.load(Ordering::SeqCst)
        }

        fn born(&self, block: *mut u8, size: usize, align: usize) -> *mut u8 {
            assert!(size > 0 && align.is_power_of_two());
            self.live.lock().unwrap().insert(block as usize, (size, align));
            block
        }

        fn gone(&self, block: *mut u8, size: usize, align: usize) {
            let known = self.live.lock().unwrap().remove(&(block as usize));
            assert_eq!(known, Some((size, align)), "what was allocated, and what the workload says it was");
        }
    }

    // SAFETY: all blocks are malloc's.
    unsafe impl Heap for Checked {
        // Another thread may hold the lock.
        const FORKS: bool = false;

        fn allocate(&self, size: usize, align: usize) -> *mut u8 {
            self.operations.fetch_add(1, Ordering::SeqCst);
            self.born(Malloc.allocate(size, align), size, align)
        }

        fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8 {
            self.operations.fetch_add(1, Ordering::SeqCst);
            self.born(Malloc.allocate_zeroed(size, align), size, align)
        }

        unsafe fn free(&self, block: *mut u8, size: usize, align: usize) {
            self.operations.fetch_add(1, Ordering::SeqCst);
            self.gone(block, size, align);
            // SAFETY: the caller's promise.
            unsafe { Malloc.free(block, size, align) };
        }

        unsafe fn reallocate(&self, block: *mut u8, size: usize, align: usize, new_size: usize) -> *mut u8 {
            self.operations.fetch_add(1, Ordering::SeqCst);
            self.gone(block, size, align);
            // SAFETY: the caller's promise.
            self.born(unsafe { Malloc.reallocate(block, size, align, new_size) }, new_size, align)
        }
    }

    /// Each workload at its smallest, so that it ends at once.
    fn smallest(workload: &Workload) -> Settings {
        let least: Vec<_> = workload
            .parameters
            .iter()
            .map(|p| (p.name.to_string(), if p.name == "max" { 300 } else { p.least }.to_string()))
            .collect();
        Settings::resolve(workload, &least).unwrap()
    }

    #[test]
    fn every_workload_counts_right_and_frees_all() {
        for workload in all() {
            let heap = Checked::default();
            let settings = smallest(workload);
            let report =
                run(workload, &settings, &heap, false).unwrap_or_else(|e| panic!("{}: {e}", workload.name));
            assert_eq!(heap.live(), 0, "{}", workload.name);
            let unmeasured = match workload.name {
                // A pass that does not count; what is made before, or freed after.
                "lifo" | "fifo" | "random-order" | "interleaved" | "mixed" => report.operations,
                "drift" | "part-used" | "thread-cost" => report.operations,
                "dead-thread" => report.operations / 3,
                "random-mixed" | "larson" => 1,
                "server" => 12,
                _ => 0,
            };
            // What its children do is not seen here.
            let forks = workload.name == "fork-storm";
            assert!(
                report.operations > 0 && (forks || report.operations + unmeasured == heap.operations()),
                "{}: {} {report:?}",
                workload.name,
                heap.operations()
            );
            assert!(report.elapsed_ns > 0 && report.resident_after > 0);
            let keys: Vec<_> = report.figures.iter().map(|(key, _)| key.as_str()).collect();
            let declared: Vec<_> = workload.figures.iter().map(|figure| figure.key).collect();
            assert_eq!(keys, declared, "{}", workload.name);
            assert!(report.figures.iter().all(|(_, value)| value.is_finite() && *value >= 0.0), "{report:?}");
            if let Some(primary) = workload.primary {
                assert!(declared.contains(&primary), "{}", workload.name);
            }
        }
    }

    #[test]
    fn whoever_frees_all_is_freed() {
        let workload = crate::workload::find("idle-return").unwrap();
        for by in 0..=5 {
            for keep in [0, 3] {
                let heap = Checked::default();
                let mut values: Vec<_> = [("peak", 1), ("size", 4000), ("idle_ms", 30)].to_vec();
                values.extend([("by", by), ("keep", keep)]);
                let values: Vec<_> = values.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
                let settings = Settings::resolve(workload, &values).unwrap();
                let report = run(workload, &settings, &heap, false).unwrap();
                assert_eq!(heap.live(), 0, "by {by}");
                assert_eq!(heap.operations(), 2 * (1u64 << 20).div_ceil(4000), "by {by}");
                assert!(report.timeline.len() >= 3, "by {by}: {:?}", report.timeline);
            }
        }
    }

    #[test]
    fn latency_where_it_can_be_had() {
        for workload in all() {
            let report = run(workload, &smallest(workload), &Malloc, true);
            match report {
                Ok(report) if workload.latency => {
                    let latency = report.latency.unwrap();
                    for one in [latency.malloc, latency.free] {
                        assert!(one.count > 0, "{}", workload.name);
                        assert!(one.p50 <= one.p99 && one.p99 <= one.p999 && one.p999 <= one.max);
                    }
                }
                Err(error) if !workload.latency => assert!(error.to_string().contains("cannot measure")),
                other => panic!("{}: {other:?}", workload.name),
            }
        }
    }

    #[test]
    fn declarations_make_sense() {
        for (i, workload) in all().iter().enumerate() {
            assert!(all()[..i].iter().all(|other| other.name != workload.name), "{} twice", workload.name);
            assert!(!workload.models.contains('\n') && workload.models.len() > 20, "{}", workload.name);
            for preset in workload.presets {
                let values: Vec<_> =
                    preset.values.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
                Settings::resolve(workload, &values).unwrap_or_else(|e| panic!("{}: {e}", preset.name));
            }
            for target in workload.targets {
                assert!(target.preset.is_empty() || workload.preset(target.preset).is_some(), "{target:?}");
                assert!(workload.figures.iter().any(|figure| figure.key == target.figure), "{target:?}");
                let (Limit::AtMost(limit) | Limit::OfBestPeer(limit)) = target.limit;
                assert!(limit > 0.0, "{target:?}");
            }
            for figure in workload.figures {
                let units = ["seconds", "nanoseconds", "bytes", "count", "ratio"];
                assert!(units.contains(&figure.unit), "{} {}", workload.name, figure.unit);
            }
        }
    }

    #[test]
    fn parameters_are_checked() {
        let workload = all()[0];
        let bad = |name: &str, value: &str| {
            Settings::resolve(workload, &[(name.to_string(), value.to_string())]).unwrap_err()
        };
        assert!(bad("nonsense", "1").contains("no parameter nonsense; there are"));
        let first = workload.parameters[0];
        assert!(bad(first.name, "x").contains("expected a whole number from"));
        assert!(bad(first.name, "-1").contains("expected a whole number from"));
        assert!(bad(first.name, &u64::MAX.to_string()).contains("expected a whole number from"));
    }
}
