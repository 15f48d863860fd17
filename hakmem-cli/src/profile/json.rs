//! A profile for programs.

use hakmem_profile::estimate::Estimate;
use hakmem_profile::model::{By, Group, Moment, Profile, What};
use hakmem_profile::suspects::{self, Suspect};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use super::summary;

/// Everything that the tables are made of: all groups, the largest first. With `missing`, what there is to
/// say about symbols.
pub fn render(
    profile: &Profile,
    moment: &Moment,
    by: By,
    what: What,
    missing: &[String],
) -> serde_json::Result<Vec<u8>> {
    let mut groups = profile.groups(moment, by);
    groups.sort_by(|a, b| b.figures.bytes(what).total_cmp(&a.figures.bytes(what)));
    let suspects = suspects::find(profile, moment.snapshot + 1);
    let document = Document { profile, moment, groups, suspects, missing };
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

/// Written group by group: as one [`Value`] a profile of 10 MB took a gigabyte, for its stacks are in it
/// again and again.
struct Document<'a> {
    profile: &'a Profile,
    moment: &'a Moment,
    groups: Vec<Group>,
    suspects: Vec<Suspect>,
    missing: &'a [String],
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Document { profile, moment, .. } = self;
        let process = &profile.raw.process;
        let total = profile.total(moment);
        let reach = profile.reach(moment);
        let mut map = serializer.serialize_map(None)?;
        let process = json!({
            "pid": process.pid,
            "arguments": process.arguments,
            "hakmem": process.allocator,
            "start_ns": process.start,
            "rate_bytes": process.rate,
        });
        map.serialize_entry("process", &process)?;
        map.serialize_entry("time_ns", &moment.time)?;
        map.serialize_entry("snapshots", &profile.raw.snapshots.len())?;
        // Samples whose walk came to an outermost frame, and of these, those that end in the start of the
        // program or of a thread.
        let stacks = json!({ "samples": reach.samples, "whole": reach.whole, "to_start": reach.to_start });
        map.serialize_entry("stacks", &stacks)?;
        map.serialize_entry("memory", &totals(&moment.totals))?;
        map.serialize_entry("live", &estimate(&total.live))?;
        map.serialize_entry("peak", &estimate(&total.peak))?;
        map.serialize_entry("peak_time_ns", &moment.peak_time)?;
        map.serialize_entry("allocated", &estimate(&total.allocated))?;
        map.serialize_entry("groups", &Each(|| self.groups.iter().map(|one| group(profile, moment, one))))?;
        map.serialize_entry(
            "leak_suspects",
            &Each(|| self.suspects.iter().map(|one| suspect(profile, one))),
        )?;
        let timeline = profile.timeline();
        let points = || {
            timeline.iter().map(|(time, all, live)| {
                let mut point = totals(all);
                point["time_ns"] = json!(time);
                point["live_estimate_bytes"] = json!(live);
                point
            })
        };
        map.serialize_entry("timeline", &Each(points))?;
        map.serialize_entry("notes", &summary::notes(profile))?;
        map.serialize_entry("missing_symbols", self.missing)?;
        map.end()
    }
}

/// A list, of which each element is made when it is written.
struct Each<F>(F);

impl<I: IntoIterator<Item = Value>, F: Fn() -> I> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

fn group(profile: &Profile, moment: &Moment, group: &Group) -> Value {
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
}

fn suspect(profile: &Profile, suspect: &Suspect) -> Value {
    let mut value = serde_json::to_value(suspect).expect("figures and lists");
    value["stack"] = json!(profile.stacks[suspect.stack]);
    value
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
        "fresh_bytes": totals.fresh,
    })
}
