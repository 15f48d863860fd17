//! A profile for programs.

use hakmem_profile::estimate::Estimate;
use hakmem_profile::model::{By, Moment, Profile, What};
use hakmem_profile::suspects;
use serde_json::{Value, json};

use super::table;

/// Everything that the tables are made of: all groups, the largest first.
pub fn render(profile: &Profile, moment: &Moment, by: By, what: What) -> Value {
    let mut groups = profile.groups(moment, by);
    groups.sort_by(|a, b| b.figures.bytes(what).total_cmp(&a.figures.bytes(what)));
    let groups = groups.iter().map(|group| {
        let figures = &group.figures;
        let quantile = |share| figures.lifetimes.quantile(share).filter(|ns| ns.is_finite());
        json!({
            "label": group.label,
            "location": group.location,
            "stack": group.stack.map(|stack| &profile.stacks[stack]),
            "live": estimate(&figures.live),
            "peak": estimate(&figures.peak),
            "allocated": estimate(&figures.allocated),
            "pinned_bytes": moment.pinned_known.then_some(figures.pinned),
            // null: unknown, or most blocks live still.
            "lifetime_ns": { "p10": quantile(0.1), "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99) },
        })
    });
    let groups: Vec<Value> = groups.collect();
    let process = &profile.raw.process;
    let total = profile.total(moment);
    let reach = profile.reach(moment);
    let suspects = suspects::find(profile).into_iter().map(|suspect| {
        let mut value = serde_json::to_value(&suspect).expect("figures and lists");
        value["stack"] = json!(profile.stacks[suspect.stack]);
        value
    });
    let suspects: Vec<Value> = suspects.collect();
    json!({
        "process": {
            "pid": process.pid,
            "arguments": process.arguments,
            "hakmem": process.allocator,
            "start_ns": process.start,
            "rate_bytes": process.rate,
        },
        "time_ns": moment.time,
        "snapshots": profile.raw.snapshots.len(),
        // Samples whose walk came to an outermost frame, and of these, those that end in the start of the
        // program or of a thread.
        "stacks": { "samples": reach.samples, "whole": reach.whole, "to_start": reach.to_start },
        "memory": totals(&moment.totals),
        "live": estimate(&total.live),
        "peak": estimate(&total.peak),
        "peak_time_ns": moment.peak_time,
        "allocated": estimate(&total.allocated),
        "groups": groups,
        "leak_suspects": suspects,
        "timeline": profile.timeline().iter().map(|(time, all, live)| {
            let mut point = totals(all);
            point["time_ns"] = json!(time);
            point["live_estimate_bytes"] = json!(live);
            point
        }).collect::<Vec<_>>(),
        "notes": table::notes(profile),
    })
}

fn estimate(estimate: &Estimate) -> Value {
    let (low, high) = estimate.interval();
    json!({
        "samples": estimate.samples,
        "objects": estimate.objects,
        "bytes": estimate.bytes,
        "bytes_error": estimate.bytes_error(),
        "bytes_low": low,
        "bytes_high": high,
    })
}

fn totals(totals: &hakmem_profile::file::Totals) -> Value {
    json!({
        "resident_bytes": totals.resident,
        "mapped_bytes": totals.mapped,
        "live_bytes": totals.live,
        "cached_bytes": totals.cached,
        "free_bytes": totals.free,
        "dirty_bytes": totals.dirty,
        "metadata_bytes": totals.metadata,
    })
}
