//! Resident memory over time, and time against memory.

use plotters::style::text_anchor::HPos;

use super::Plot;
use super::axis::Axis;
use super::canvas::{self, FINE, HALF, HEAD, Ink, Space};
use crate::lab::model::{Experiment, Unit, Workload};
use crate::lab::report::html::palette::{Look, Palette};
use crate::lab::stats;

const HEIGHT: i32 = 300;
/// The room left of the y axis.
const LEFT: i32 = 64;
/// More points than this of a line are thinned out.
const POINTS: usize = 800;
/// Axes become logarithmic from here.
const FAR: f64 = 25.0;

fn titled(what: &str, axis: &Axis) -> String {
    if axis.unit.is_empty() { what.to_string() } else { format!("{what}, {}", axis.unit) }
}

/// A subject's name and look, and its points: seconds, bytes.
type Line = (String, Look, Vec<(f64, f64)>);

/// Resident memory over time; none where it was not sampled.
pub fn over_time(workload: &Workload, slug: &str, palette: &Palette) -> Option<Plot> {
    let sampled = workload.rows.iter().filter(|row| !row.timeline.is_empty());
    let mut lines: Vec<Line> =
        sampled.map(|row| (row.subject.clone(), palette.look(&row.subject), thin(&row.timeline))).collect();
    if lines.is_empty() {
        return None;
    }
    let entries: Vec<_> = lines.iter().map(|(name, look, _)| (name.clone(), *look)).collect();
    let points = || lines.iter().flat_map(|(_, _, points)| points.iter());
    let x = Axis::linear(points().map(|point| point.0).chain([0.0]), Unit::Seconds, true);
    let y = Axis::linear(points().map(|point| point.1), Unit::Bytes, true);
    let (x_title, y_title) = (titled("time since the start", &x), titled("resident memory", &y));
    // The prominent one lies on top.
    lines.sort_by_key(|(_, look, _)| look.prominent);
    let title = format!("{}: resident memory over time", workload.name);
    let subtitle = "1 run of each, the one with the median wall time, sampled from /proc";
    let top = HEAD + canvas::legend_height(HALF, &entries) + 6;
    let svg = canvas::document((&title, subtitle), (HALF, HEIGHT + top - HEAD), |area| {
        canvas::legend(area, HALF, HEAD + 6, &entries)?;
        let mut chart = canvas::chart(area, Space(top, 24, 46, LEFT), (x, &x_title), (y, &y_title), false)?;
        for (_, look, points) in &lines {
            let thick = if look.prominent { 5 } else { 3 };
            canvas::strokes(&mut chart, points, look.colour, look.again, thick)?;
            if let [only] = points[..] {
                canvas::dot(&mut chart, only, *look, 7)?;
            }
        }
        Ok(())
    });
    Some(Plot {
        file: format!("{slug}-memory-over-time"),
        title,
        note: subtitle.to_string(),
        wide: false,
        svg,
    })
}

/// The line with fewer points, none of the peaks and valleys lost.
fn thin(timeline: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let points: Vec<(f64, f64)> = timeline.iter().map(|(time, bytes)| (*time, *bytes as f64)).collect();
    let points: Vec<(f64, f64)> = points.into_iter().filter(|(time, _)| time.is_finite()).collect();
    if points.len() <= POINTS {
        return points;
    }
    let ends = |part: &[(f64, f64)]| {
        let low = (1..part.len()).fold(0, |best, i| if part[i].1 < part[best].1 { i } else { best });
        let high = (1..part.len()).fold(0, |best, i| if part[i].1 > part[best].1 { i } else { best });
        let mut kept = vec![low, high];
        kept.sort_unstable();
        kept.dedup();
        kept.into_iter().map(|i| part[i]).collect::<Vec<_>>()
    };
    let mut kept: Vec<(f64, f64)> = points.chunks(points.len().div_ceil(POINTS / 2)).flat_map(ends).collect();
    kept.extend(points.last().copied().filter(|last| kept.last() != Some(last)));
    kept
}

/// Every run as a point, time to the right and memory upwards, with each subject's medians; none without
/// both.
pub fn against_time(
    experiment: &Experiment,
    workload: &Workload,
    slug: &str,
    palette: &Palette,
) -> Option<Plot> {
    let memory = crate::lab::report::html::memory(experiment)?;
    let time = experiment.metric(&workload.primary).filter(|metric| metric.unit.is_time());
    let time = time.or_else(|| experiment.metrics.iter().find(|metric| metric.unit.is_time()))?;
    let mut clouds = Vec::new();
    for row in &workload.rows {
        let both = |values: &std::collections::BTreeMap<String, f64>| {
            Some((*values.get(&time.key)?, *values.get(&memory.key)?))
                .filter(|(x, y)| x.is_finite() && y.is_finite())
        };
        let points: Vec<(f64, f64)> = row.runs.iter().filter_map(|run| both(&run.values)).collect();
        if !points.is_empty() {
            let (times, sizes): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
            let middle = (stats::median(&times), stats::median(&sizes));
            clouds.push((row.subject.as_str(), palette.look(&row.subject), points, middle));
        }
    }
    if clouds.is_empty() {
        return None;
    }
    let runs = clouds.iter().map(|(_, _, points, _)| points.len()).max().unwrap_or(0);
    let entries: Vec<_> = clouds.iter().map(|(name, look, ..)| (name.to_string(), *look)).collect();
    let all = || clouds.iter().flat_map(|(_, _, points, _)| points.iter());
    let x = Axis::fitting(all().map(|point| point.0), time.unit, FAR);
    let y = Axis::fitting(all().map(|point| point.1), memory.unit, FAR);
    let (x_title, y_title) = (titled(&time.label, &x), titled(&memory.label, &y));
    clouds.sort_by_key(|(_, look, ..)| look.prominent);
    let title = format!("{}: {} against {}", workload.name, time.label, memory.label);
    let subtitle =
        format!("small: each of up to {runs} runs; large: the subject's medians; bottom left is best");
    let top = HEAD + canvas::legend_height(HALF, &entries) + 6;
    let svg = canvas::document((&title, &subtitle), (HALF, HEIGHT + top - HEAD), |area| {
        canvas::legend(area, HALF, HEAD + 6, &entries)?;
        let mut chart = canvas::chart(area, Space(top, 24, 46, LEFT), (x, &x_title), (y, &y_title), false)?;
        for (_, look, points, _) in &clouds {
            for point in points {
                canvas::dot(&mut chart, *point, *look, 4)?;
            }
        }
        let mut taken = Vec::new();
        for (_, look, _, middle) in &clouds {
            canvas::dot(&mut chart, *middle, *look, 11)?;
            let (x, y) = chart.backend_coord(middle);
            taken.push((x / FINE - 7, y / FINE - 7, x / FINE + 7, y / FINE + 7));
        }
        // Hakmem's name gets the first choice.
        for (name, _, _, middle) in clouds.iter().rev() {
            let (x, y) = chart.backend_coord(middle);
            let name = canvas::cut(name, 110, 11.0);
            let inside = (LEFT + 2, top, HALF - 4, HEIGHT + top - HEAD - 46);
            if let Some(place) =
                free_place((x / FINE, y / FINE), canvas::width(&name, 11.0), inside, &mut taken)
            {
                canvas::text(area, &name, place, 11.0, Ink::Strong, HPos::Left)?;
            }
        }
        Ok(())
    });
    Some(Plot { file: format!("{slug}-time-and-memory"), title, note: subtitle, wide: false, svg })
}

type Box4 = (i32, i32, i32, i32);

/// Where a name of this width can stand beside a point: the left end of its middle line. None where all
/// places are taken; the legend has the name too.
fn free_place((x, y): (i32, i32), wide: i32, inside: Box4, taken: &mut Vec<Box4>) -> Option<(i32, i32)> {
    let around = [
        (-wide / 2, -15),
        (-wide / 2, 15),
        (10, 0),
        (-10 - wide, 0),
        (8, -12),
        (8, 12),
        (-8 - wide, -12),
        (-8 - wide, 12),
    ];
    let overlap = |a: &Box4, b: &Box4| a.0 < b.2 && b.0 < a.2 && a.1 < b.3 && b.1 < a.3;
    for (right, down) in around {
        let (left, middle) = (x + right, y + down);
        let own = (left, middle - 7, left + wide, middle + 7);
        let fits = own.0 >= inside.0 && own.1 >= inside.1 && own.2 <= inside.2 && own.3 <= inside.3;
        if fits && !taken.iter().any(|other| overlap(&own, other)) {
            taken.push(own);
            return Some((left, middle));
        }
    }
    None
}
