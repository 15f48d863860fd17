//! The page of `--report`: timeline, flame graphs, call sites and leak suspects, in one file that needs no
//! network.

use std::collections::HashMap;

use hakmem_profile::model::{By, Figures, Group, Moment, Profile, What, place};
use hakmem_profile::suspects::{self, Suspect};
use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};

use super::units::{bytes, count, range, share, time};
use super::{summary, table};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Points of a timeline: more are not seen, and each holds what has changed.
const POINTS: usize = 300;

/// Call sites in the table.
const SITES: usize = 100;

/// The page of these profiles, and what there is to say about missing symbols.
pub fn render(profiles: &[(&Profile, &Moment)], notes: &[String]) -> String {
    let title = match profiles {
        [(profile, _), ..] => format!("Heap profile of {}", profile.name()),
        [] => "Heap profile".into(),
    };
    let main = html! {
        @if profiles.len() > 1 {
            nav aria-label="Processes" {
                @for (profile, _) in profiles {
                    a href={ "#p" (profile.raw.process.pid) } { (profile.name()) " " (profile.raw.process.pid) } " "
                }
            }
        }
        @for (profile, moment) in profiles { (process(profile, moment)) }
        @if !notes.is_empty() {
            section.missing aria-labelledby="missing" {
                h2 #missing { "What is missing" }
                ul { @for note in notes { li { (note) } } }
            }
        }
    };
    let footer = html! {
        "Made by hakmem " (env!("CARGO_PKG_VERSION"))
        ". Figures are estimates from samples; intervals contain the truth in 95 of 100 cases."
    };
    crate::html::page(&title, STYLE, html! {}, main, footer, SCRIPT).into_string()
}

/// The part of one process.
fn process(profile: &Profile, moment: &Moment) -> Markup {
    let process = &profile.raw.process;
    let id = format!("p{}", process.pid);
    let total = profile.total(moment);
    let notes = summary::notes(profile);
    let held = format!("Held {}", summary::when(profile, moment));
    html! {
        article.process id=(id) {
            h2 { (profile.name()) ", process " (process.pid) }
            pre.command { code { (process.arguments.join(" ")) } }
            section aria-label="Summary" {
                p.sum { (summary::how(profile, moment)) }
                ul {
                    @for (what, name) in [(What::Live, held.as_str()), (What::Peak, "Held at the peak"), (What::Allocated, "Allocated")] {
                        li { (name) ": " (summary::amount(&total, what, process.rate)) }
                    }
                }
                p.sum { (summary::retention(profile, moment)) }
                @for note in &notes { p.note { (note) } }
            }
            section.timeline aria-label="Timeline" {
                h2 { "Timeline" }
                p.said { "Click on a moment, or move the slider, to see what was held then." }
                div.plot {}
                input type="range" min="0" value="0" step="1" aria-label="Moment";
                ul.legend {
                    li data-column="0" { "at " b {} }
                    @for (column, name, key) in LEGEND {
                        li data-column=(column) { i style={ "background:var(--" (key) ")" } {} (name) " " b {} }
                    }
                }
            }
            section.graph aria-label="Flame graph" {
                h2 { "Call stacks" }
                div.bar {
                    div role="tablist" {
                        @for (what, name) in [("live", "Live"), ("peak", "At the peak"), ("allocated", "Allocated")] {
                            button type="button" role="tab" data-what=(what) aria-selected="false" { (name) }
                        }
                    }
                    input type="search" placeholder="Search functions and files" aria-label="Search functions and files";
                    button.reset type="button" hidden { "Zoom out" }
                }
                p.said aria-live="polite" {}
                div.flames {}
                p.detail {}
            }
            (suspected(profile))
            (sites(profile, moment, &total))
            script type="application/json" { (PreEscaped(data(profile, moment).to_string().replace('<', "\\u003c"))) }
        }
    }
}

/// Columns of the timeline's points.
const LEGEND: [(usize, &str, &str); 7] = [
    (1, "resident", "resident"),
    (2, "live", "live"),
    (3, "cached", "cached"),
    (4, "free in slabs", "free"),
    (5, "dirty", "dirty"),
    (6, "metadata", "metadata"),
    (7, "fresh", "fresh"),
];

fn interval(figures: &Figures, what: What) -> String {
    range(figures.estimate(what).interval())
}

/// Everything that the script draws.
fn data(profile: &Profile, moment: &Moment) -> Value {
    // A function has one place in the page, whatever line of it calls.
    let mut numbers: HashMap<(&str, &str), usize> = HashMap::new();
    let mut names: Vec<[String; 3]> = Vec::new();
    let mut stacks: Vec<Vec<usize>> = Vec::with_capacity(profile.stacks.len());
    for frames in &profile.stacks {
        let numbered = frames.iter().rev().map(|frame| {
            *numbers.entry((&frame.function, &frame.module)).or_insert_with(|| {
                let place = frame.location();
                let place = if place == frame.module { String::new() } else { place };
                names.push([frame.function.clone(), place, frame.module.clone()]);
                names.len() - 1
            })
        });
        stacks.push(numbered.collect());
    }
    let mut picked = profile.pick(profile.raw.snapshots.len(), POINTS);
    // What the tables are of is where the page begins.
    let place = picked.partition_point(|&snapshot| snapshot < moment.snapshot);
    if picked.get(place) != Some(&moment.snapshot) {
        picked.insert(place, moment.snapshot);
    }
    let timeline = profile.timeline();
    let points = picked.iter().map(|&i| {
        let (time, t, _) = &timeline[i];
        json!([time, t.resident, t.live, t.cached, t.free, t.dirty, t.metadata, t.fresh])
    });
    let round = |(stack, bytes): (usize, f64)| json!([stack, bytes.round()]);
    let live =
        profile.live(&picked).into_iter().map(|changes| changes.into_iter().map(round).collect::<Vec<_>>());
    let groups = profile.groups(moment, By::Stack);
    let of = |what| -> Vec<Value> {
        let values = groups.iter().map(|group| (group.stack.unwrap_or_default(), group.figures.bytes(what)));
        values.filter(|(_, bytes)| *bytes > 0.0).map(round).collect()
    };
    json!({
        "moment": place,
        "timeline": points.collect::<Vec<_>>(),
        "live": live.collect::<Vec<_>>(),
        "peak": of(What::Peak),
        "allocated": of(What::Allocated),
        "names": names,
        "stacks": stacks,
    })
}

/// The call sites that matter in any of the tables.
fn sites(profile: &Profile, moment: &Moment, total: &Figures) -> Markup {
    let mut groups = profile.groups(moment, By::Site);
    let weight = |group: &Group| {
        let part = |what| group.figures.bytes(what) / total.bytes(what).max(1.0);
        part(What::Live).max(part(What::Peak)).max(part(What::Allocated))
    };
    groups.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    let left = groups.len().saturating_sub(SITES);
    groups.truncate(SITES);
    let held = format!("held {}", summary::when(profile, moment));
    let columns = [("live", What::Live), ("peak", What::Peak), ("allocated", What::Allocated)];
    html! {
        section aria-labelledby={ "sites" (profile.raw.process.pid) } {
            h2 id={ "sites" (profile.raw.process.pid) } { "Call sites" }
            div.scroll {
                table.sites {
                    thead {
                        tr {
                            @for (key, name) in [("live", held.as_str()), ("peak", "at the peak"), ("allocated", "allocated"), ("objects", "objects held")] {
                                th.number scope="col" data-key=(key) { button type="button" { (name) } }
                            }
                            th.number scope="col" { "median life" }
                            @if moment.pinned_known { th.number scope="col" data-key="pinned" { button type="button" { "pinned" } } }
                            th scope="col" { "call site" }
                        }
                    }
                    tbody {
                        @for group in &groups {
                            @let figures = &group.figures;
                            tr data-live=(figures.live.bytes) data-peak=(figures.peak.bytes) data-allocated=(figures.allocated.bytes)
                                data-objects=(figures.live.objects) data-pinned=(figures.pinned) {
                                @for (_, what) in columns {
                                    td.number {
                                        @if figures.bytes(what) > 0.0 {
                                            span.median { (bytes(figures.bytes(what))) }
                                            span.range { (interval(figures, what)) }
                                            span.range { (share(figures.bytes(what), total.bytes(what))) }
                                        }
                                    }
                                }
                                td.number { (count(figures.live.objects)) }
                                td.number { (figures.lifetimes.quantile(0.5).map_or(String::new(), time)) }
                                @if moment.pinned_known { td.number { (bytes(figures.pinned)) } }
                                td { (site(profile, group.stack)) }
                            }
                        }
                    }
                }
            }
            @if left > 0 { p.note { (left) " smaller ones are in the flame graphs only." } }
        }
    }
}

/// A call site's function, which can be looked for in the flame graph, and its callers.
fn site(profile: &Profile, stack: Option<usize>) -> Markup {
    let frames = stack.map_or(&[][..], |stack| &profile.stacks[stack]);
    let at = place(frames);
    let callers: Vec<&str> = frames
        .iter()
        .skip(at + 1)
        .filter(|frame| !frame.is_plumbing())
        .take(6)
        .map(|frame| frame.function.as_str())
        .collect();
    html! {
        @match frames.get(at) {
            Some(frame) => {
                button.find type="button" data-search=(frame.function) title="Look for it in the flame graph" { (frame.function) }
                small { (frame.location()) }
            },
            None => "(stack unknown)",
        }
        @if !callers.is_empty() { small { "← " (callers.join(" ← ")) } }
    }
}

fn suspected(profile: &Profile) -> Markup {
    let suspects = suspects::find(profile, profile.raw.snapshots.len());
    let id = format!("leaks{}", profile.raw.process.pid);
    html! {
        section.suspects aria-labelledby=(id) {
            h2 id=(id) { "Leak suspects" }
            @if suspects.is_empty() {
                p { "None: no call site grows over the timeline without an end, as far as the samples tell." }
            } @else {
                p { "Live bytes of these call sites grow over the timeline and do not stop, those that grow fastest first." }
                ol {
                    @for suspect in suspects.iter().take(20) {
                        li { (site(profile, Some(suspect.stack))) (table::evidence(suspect)) (sparkline(suspect)) }
                    }
                }
            }
        }
    }
}

/// Live bytes of a suspect over time.
fn sparkline(suspect: &Suspect) -> Markup {
    let end = suspect.series.last().map_or(1, |(time, _)| (*time).max(1)) as f64;
    let top = suspect.series.iter().map(|(_, bytes)| *bytes).fold(1.0, f64::max);
    let point = |(time, bytes): &(u64, f64)| {
        format!("{:.1},{:.1}", *time as f64 / end * 400.0, 44.0 - bytes / top * 42.0)
    };
    let points: Vec<String> = suspect.series.iter().map(point).collect();
    html! {
        svg viewBox="0 0 400 46" preserveAspectRatio="none" role="img" aria-label="Live bytes over time" {
            path d={ "M" (points.join("L")) } {}
        }
    }
}
