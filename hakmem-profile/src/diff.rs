//! Two profiles side by side, of whatever tools: what has grown.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::collapsed::{self, Folded};
use crate::estimate::{probability, rounding_variance};
use crate::model::{By, Moment, Profile, What, place};
use crate::pprof::Decoded;
use crate::symbols::{Frame, Frames};

/// One of the two: its call stacks by the names of their functions, as lines move with every change.
#[derive(Clone, Debug, Default)]
pub struct Side {
    entries: BTreeMap<Vec<String>, Entry>,
}

/// One call stack of one side.
#[derive(Clone, Debug, Default)]
struct Entry {
    frames: Frames,
    bytes: f64,
    objects: f64,
    /// The variance of `bytes`, if that is known.
    variance: Option<f64>,
}

/// One call site of both.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its functions, the innermost first.
    pub frames: Frames,
    /// Bytes before and after.
    pub bytes: (f64, f64),
    /// Objects before and after.
    pub objects: (f64, f64),
    /// The standard error of the change in bytes, that of rounded sizes included, if it is known.
    pub error: Option<f64>,
}

impl Side {
    /// The same by call site: without what passes allocations on.
    fn by_site(&self) -> Self {
        let mut side = Self::default();
        for Entry { frames, bytes, objects, variance } in self.entries.values() {
            side.add(&frames[place(frames)..], *bytes, *objects, *variance);
        }
        side
    }

    fn add(&mut self, frames: &[Rc<Frame>], bytes: f64, objects: f64, variance: Option<f64>) {
        let key = frames.iter().map(|frame| frame.function.clone()).collect();
        let new = || Entry { frames: frames.to_vec(), variance: Some(0.0), ..Entry::default() };
        let entry = self.entries.entry(key).or_insert_with(new);
        entry.bytes += bytes;
        entry.objects += objects;
        entry.variance = entry.variance.zip(variance).map(|(sum, one)| sum + one);
    }

    /// Of one of our files at a moment.
    pub fn of_profile(profile: &Profile, moment: &Moment, what: What) -> Self {
        let mut side = Self::default();
        for group in profile.groups(moment, By::Stack) {
            let estimate = group.figures.estimate(what);
            let (bytes, error) = (group.figures.bytes(what), estimate.bytes_error());
            let variance = (what != What::Pinned).then_some(error * error);
            let frames = group.stack.map_or(&[][..], |stack| &profile.stacks[stack]);
            side.add(frames, bytes, estimate.objects, variance);
        }
        side
    }

    /// Of a file in pprof's format.
    pub fn of_pprof(decoded: &Decoded, what: What) -> anyhow::Result<Self> {
        let (objects, bytes) = decoded.columns(what)?;
        let mut side = Self::default();
        for sample in &decoded.samples {
            let count = objects.map_or(0.0, |objects| sample.values[objects] as f64);
            let variance = decoded.rate.zip(sample.size).zip(objects).map(|((rate, size), _)| {
                let p = probability(size, rate);
                let blocks = count.max(0.0);
                blocks * (1.0 - p) / p * (size as f64).powi(2) + rounding_variance(blocks, sample.step)
            });
            side.add(&sample.frames, sample.values[bytes] as f64, count, variance);
        }
        Ok(side)
    }

    /// Its stacks as lines.
    pub fn folded(&self) -> Folded {
        let mut folded = Folded::new();
        for entry in self.entries.values() {
            *folded.entry(collapsed::line(&entry.frames)).or_default() += entry.bytes;
        }
        folded
    }

    /// All its bytes.
    pub fn bytes(&self) -> f64 {
        self.entries.values().map(|entry| entry.bytes).sum()
    }
}

/// All call sites, those that have grown most first.
pub fn rows(before: &Side, after: &Side) -> Vec<Row> {
    let (before, after) = (before.by_site(), after.by_site());
    let nothing = Entry { variance: Some(0.0), ..Entry::default() };
    let mut rows: Vec<Row> = after
        .entries
        .iter()
        .map(|(key, new)| (before.entries.get(key).unwrap_or(&nothing), new, &new.frames))
        .chain(
            before
                .entries
                .iter()
                .filter(|(key, _)| !after.entries.contains_key(*key))
                .map(|(_, old)| (old, &nothing, &old.frames)),
        )
        .map(|(old, new, frames)| Row {
            frames: frames.clone(),
            bytes: (old.bytes, new.bytes),
            objects: (old.objects, new.objects),
            error: old.variance.zip(new.variance).map(|(old, new)| (old + new).sqrt()),
        })
        .filter(|row| row.bytes != (0.0, 0.0))
        .collect();
    rows.sort_by(|a, b| b.change().total_cmp(&a.change()));
    rows
}

impl Row {
    /// How much it has grown.
    pub fn change(&self) -> f64 {
        self.bytes.1 - self.bytes.0
    }

    /// The function that allocates.
    pub fn place(&self) -> Frame {
        self.frames.get(place(&self.frames)).map(|frame| Frame::clone(frame)).unwrap_or_default()
    }
}
