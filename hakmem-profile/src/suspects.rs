//! Leak suspects: call stacks whose live bytes grow over the timeline and do not stop, with the evidence.

use std::collections::HashMap;

use serde::Serialize;

use crate::file::{Row, Why};
use crate::model::Profile;

/// Points of the timeline that are looked at; of a longer one, that many are picked.
const POINTS: usize = 120;
/// Fewer say nothing.
const FEWEST: usize = 8;
/// Sampled blocks that must have been added.
const SAMPLES: u64 = 5;
/// Growth, in standard deviations of what chance makes of it: which blocks are sampled is random, and the
/// difference of two such numbers has about their sum for its variance.
const DEVIATIONS: f64 = 2.0;
/// Kendall's tau between time and live bytes, after the start and in the last half.
const TAU: (f64, f64) = (0.6, 0.3);
/// The least share in all that is live at the end.
const SHARE: f64 = 0.01;

/// One call stack that grows, and why it is suspected.
#[derive(Clone, Debug, Serialize)]
pub struct Suspect {
    /// An index of [`Profile::stacks`].
    pub stack: usize,
    /// Bytes per second: the median of the slopes between any two points (Theil and Sen's).
    pub slope: f64,
    /// The share of intervals between points in which it grew.
    pub grew: f64,
    /// The share in which it shrank.
    pub shrank: f64,
    /// Estimated live bytes where the look begins: after the first fifth of the time.
    pub from: f64,
    /// Estimated live bytes at the end.
    pub to: f64,
    /// Sampled blocks at the end, less those at the beginning.
    pub samples: i64,
    /// Its growth in that of all that is live; `None` where all of it together does not grow.
    pub of_growth: Option<f64>,
    /// Time in ns and estimated live bytes of each point.
    pub series: Vec<(u64, f64)>,
}

/// The suspects, as far as the first `number` snapshots tell, those that grow fastest first.
pub fn find(profile: &Profile, number: usize) -> Vec<Suspect> {
    let mut picked = profile.pick(number, POINTS);
    // A program that frees everything on its way out leaked while it ran.
    if picked.last().is_some_and(|last| profile.raw.snapshots[*last].why == Why::End) {
        picked.pop();
    }
    if picked.len() < FEWEST {
        return Vec::new();
    }
    let times: Vec<u64> = picked.iter().map(|&i| profile.raw.snapshots[i].time).collect();
    let first = times.partition_point(|time| *time < times[times.len() - 1] / 5);
    // A point of each stack twice: a large profile has a million stacks, of which few grow.
    let (mut start, mut end) = (Vec::new(), vec![(0.0, 0); profile.stacks.len()]);
    replay(profile, &picked, |at, changes| {
        changes.for_each(|(stack, change)| add(&mut end[stack], change));
        if at == Some(first) {
            start.clone_from(&end);
        }
    });
    let sum = |points: &[Point]| points.iter().map(|(bytes, _)| *bytes).sum::<f64>();
    let all = (sum(&start), sum(&end));
    let growing: Vec<usize> =
        (0..end.len()).filter(|&stack| has_grown(start[stack], end[stack], all.1)).collect();
    let mut suspects: Vec<Suspect> = series(profile, &picked, &growing)
        .iter()
        .zip(&growing)
        .filter_map(|(series, &stack)| judge(stack, &times, series, first, all))
        .collect();
    suspects.sort_by(|a, b| b.slope.total_cmp(&a.slope));
    suspects
}

/// Estimated live bytes and live samples of a stack at one time.
type Point = (f64, i64);

fn add(point: &mut Point, change: Point) {
    point.0 += change.0;
    point.1 += change.1;
}

/// Goes through all snapshots up to the last of these, and calls `see` after each: which of them it is, and
/// which stacks have changed by what.
fn replay(
    profile: &Profile,
    picked: &[usize],
    mut see: impl FnMut(Option<usize>, &mut dyn Iterator<Item = (usize, Point)>),
) {
    let Some(&last) = picked.last() else { return };
    let see = |i: usize, _: &[Row], changes: &[(usize, Row, Row)]| {
        let mut changes = changes.iter().map(|(site, old, new)| {
            let more = new.live as i64 - old.live as i64;
            (profile.stack_of(*site), (more as f64 * profile.weight(*site), more))
        });
        see(picked.binary_search(&i).ok(), &mut changes);
    };
    profile.replay(last, see, &mut vec![Row::default(); profile.raw.sites.len()]);
}

/// How these stacks were at each of the snapshots.
fn series(profile: &Profile, picked: &[usize], stacks: &[usize]) -> Vec<Vec<Point>> {
    let places: HashMap<usize, usize> = stacks.iter().enumerate().map(|(i, stack)| (*stack, i)).collect();
    let mut now = vec![(0.0, 0); stacks.len()];
    let mut series = vec![Vec::with_capacity(picked.len()); stacks.len()];
    replay(profile, picked, |at, changes| {
        for (stack, change) in changes {
            if let Some(&place) = places.get(&stack) {
                add(&mut now[place], change);
            }
        }
        if at.is_some() {
            series.iter_mut().zip(&now).for_each(|(series, now)| series.push(*now));
        }
    });
    series
}

/// Whether a stack has grown by more than chance explains, and by a share in all that lives at the end.
fn has_grown(start: Point, end: Point, all: f64) -> bool {
    let samples = end.1 - start.1;
    let chance = DEVIATIONS * ((start.1 + end.1) as f64).sqrt();
    samples >= SAMPLES as i64 && samples as f64 >= chance && end.0 - start.0 >= SHARE * all
}

/// The suspect that a stack is which has grown.
fn judge(
    stack: usize,
    times: &[u64],
    series: &[Point],
    first: usize,
    (before, after): (f64, f64),
) -> Option<Suspect> {
    let (start, end) = (series[first], *series.last()?);
    let points: Vec<(f64, f64)> =
        times.iter().zip(series).skip(first).map(|(time, (bytes, _))| (*time as f64 / 1e9, *bytes)).collect();
    let half = &points[points.len() / 2..];
    if points.len() < FEWEST - 2 || tau(&points) < TAU.0 || tau(half) < TAU.1 {
        return None;
    }
    let intervals = (points.len() - 1) as f64;
    let share = |wanted: fn(f64) -> bool| {
        points.windows(2).filter(|pair| wanted(pair[1].1 - pair[0].1)).count() as f64 / intervals
    };
    let all = after - before;
    Some(Suspect {
        stack,
        slope: slope(&points)?,
        grew: share(|change| change > 0.5),
        shrank: share(|change| change < -0.5),
        from: start.0,
        to: end.0,
        samples: end.1 - start.1,
        of_growth: (all > 0.0).then_some((end.0 - start.0) / all),
        series: times.iter().copied().zip(series.iter().map(|(bytes, _)| *bytes)).collect(),
    })
}

/// Kendall's tau: pairs in which the later is larger, less those in which it is smaller, of all.
fn tau(points: &[(f64, f64)]) -> f64 {
    let signs = pairs(points).map(|(_, rise)| if rise.abs() < 0.5 { 0.0 } else { rise.signum() });
    let number = points.len() * points.len().saturating_sub(1) / 2;
    signs.sum::<f64>() / number.max(1) as f64
}

/// Theil and Sen's slope: the median of all.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let mut slopes: Vec<f64> =
        pairs(points).filter(|(run, _)| *run > 0.0).map(|(run, rise)| rise / run).collect();
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().filter(|slope| *slope > 0.0)
}

/// The run and rise between any two points.
fn pairs(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    let from = |(i, a): (usize, &(f64, f64))| {
        let a = *a;
        points[i + 1..].iter().map(move |b| (b.0 - a.0, b.1 - a.1))
    };
    points.iter().enumerate().flat_map(from)
}
