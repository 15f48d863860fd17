//! A profile: who held and who allocated how much, at a moment, by call stack, function, thread or tag.

use std::collections::{BTreeSet, HashMap};

use crate::estimate::{Estimate, probability};
use crate::file::{Raw, Row, Totals, Why};
use crate::symbols::{Frame, Symbols};

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// What is held at the moment.
    Live,
    /// What was held when that was most.
    Peak,
    /// What has been allocated up to the moment.
    Allocated,
    /// Memory that blocks keep from being given back.
    Pinned,
}

/// What sites are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The call site: the function that allocates, and its callers.
    Site,
    /// The whole call stack, with what passes allocations on.
    Stack,
    /// The function that allocates.
    Function,
    /// The thread.
    Thread,
    /// The tag.
    Tag,
}

/// A file, and the functions of its stacks.
pub struct Profile {
    /// What the file says.
    pub raw: Raw,
    /// Different call stacks, the innermost function first.
    pub stacks: Vec<Vec<Frame>>,
    /// For each site, its index in `stacks`.
    of_site: Vec<usize>,
    /// For each stack, the first one that differs from it only in what passes allocations on.
    alike: Vec<usize>,
    /// For each site, the probability of a sample.
    probability: Vec<f64>,
}

/// A profile as it was at one snapshot.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The index of the snapshot.
    pub snapshot: usize,
    /// ns since the start.
    pub time: u64,
    /// What the memory was used for.
    pub totals: Totals,
    /// Whether what is pinned was written down at this snapshot; the regular ones leave it out.
    pub pinned_known: bool,
    /// When it was that most was held; `None` where the allocator itself has written down what was held then.
    pub peak_time: Option<u64>,
    /// The figures of each site.
    rows: Vec<Row>,
}

/// How long blocks lived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lifetimes {
    /// Blocks freed after 2^b to 2^(b+1) ns.
    freed: Vec<f64>,
    /// Blocks that live.
    alive: f64,
    /// Blocks that were freed, nobody knows after how long.
    unknown: f64,
    /// No block lived longer than this many ns.
    longest: f64,
}

/// The figures of a site, or of several.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// What is held.
    pub live: Estimate,
    /// What was held when that was most.
    pub peak: Estimate,
    /// What has been allocated.
    pub allocated: Estimate,
    /// Bytes that cannot be given back because of what is held.
    pub pinned: f64,
    /// How long blocks lived, up to the file's end.
    pub lifetimes: Lifetimes,
}

/// Sites that have something in common.
#[derive(Clone, Debug)]
pub struct Group {
    /// What they have in common: a function, a thread, a tag.
    pub label: String,
    /// Where the function is.
    pub location: String,
    /// Their index in [`Profile::stacks`], or that of one of them, if they are of one call stack or site.
    pub stack: Option<usize>,
    /// Their figures.
    pub figures: Figures,
}

/// Where a stack allocates: its first function that is not plumbing.
pub fn place(stack: &[Frame]) -> usize {
    stack.iter().position(|frame| !frame.is_plumbing()).unwrap_or(0)
}

impl Profile {
    /// Finds the functions of all stacks of `raw`.
    pub fn new(raw: Raw, symbols: &mut Symbols) -> Self {
        let mut indices: HashMap<Vec<Frame>, usize> = HashMap::new();
        let mut stacks: Vec<Vec<Frame>> = Vec::new();
        let mut of_stack = Vec::new();
        for i in 0..raw.stacks.len() {
            let frames = symbols.stack(&raw, i);
            let index = *indices.entry(frames).or_insert_with_key(|frames| {
                stacks.push(frames.clone());
                stacks.len() - 1
            });
            of_stack.push(index);
        }
        let of_site = raw.sites.iter().map(|site| of_stack[site.stack]).collect();
        let probability = raw.sites.iter().map(|site| probability(site.size, raw.process.rate)).collect();
        let mut first = HashMap::new();
        let alike = stacks.iter().enumerate();
        let alike = alike.map(|(i, stack)| *first.entry(&stack[place(stack)..]).or_insert(i)).collect();
        Self { of_site, alike, probability, raw, stacks }
    }

    /// The call stack of a site, as an index of `stacks`.
    pub fn stack_of(&self, site: usize) -> usize {
        self.of_site[site]
    }

    /// The profile at the last snapshot until `time`, or at the last one of all. `None` where there is none.
    pub fn moment(&self, time: Option<u64>) -> Option<Moment> {
        let until = time.unwrap_or(u64::MAX);
        let after = self.raw.snapshots.partition_point(|snapshot| snapshot.time <= until);
        let at = after.checked_sub(1)?;
        let mut rows = self.rows(at);
        let snapshot = &self.raw.snapshots[at];
        let full = snapshot.why != Why::Timer;
        let mut peak_time = None;
        if let Some((peak, time)) = (!full).then(|| self.peak_before(at)).flatten() {
            rows.iter_mut().zip(peak).for_each(|(row, peak)| row.peak = peak);
            peak_time = time;
        }
        let (time, totals) = (snapshot.time, snapshot.totals);
        Some(Moment { snapshot: at, time, totals, pinned_known: full, peak_time, rows })
    }

    /// The figures of all sites at snapshot `at`.
    fn rows(&self, at: usize) -> Vec<Row> {
        let mut rows = vec![Row::default(); self.raw.sites.len()];
        self.replay(at, |_, _, _| (), &mut rows);
        rows
    }

    /// Goes through the snapshots up to `at`, and calls `see` after each: its index, all rows, and what
    /// changed.
    pub(crate) fn replay(
        &self,
        at: usize,
        mut see: impl FnMut(usize, &[Row], &[(usize, Row, Row)]),
        rows: &mut [Row],
    ) {
        for (i, snapshot) in self.raw.snapshots.iter().enumerate().take(at + 1) {
            let mut changes = Vec::with_capacity(snapshot.rows.len());
            for &(site, new) in &snapshot.rows {
                let old = rows[site];
                rows[site] = match snapshot.why {
                    // The others are not up to date there.
                    Why::Timer => Row { allocated: new.allocated, live: new.live, ..old },
                    _ => new,
                };
                changes.push((site, old, rows[site]));
            }
            see(i, rows, &changes);
        }
    }

    /// What lived when most did, up to snapshot `at`, which does not tell: the last one that did, or a
    /// snapshot in which more lived, with its time.
    fn peak_before(&self, at: usize) -> Option<(Vec<u64>, Option<u64>)> {
        let bytes =
            |site: usize, n: u64| n as f64 * self.raw.sites[site].size as f64 / self.probability[site];
        let (mut live, mut most, mut told) = (0.0, (0.0, None), None);
        let mut rows = vec![Row::default(); self.raw.sites.len()];
        self.replay(
            at,
            |i, rows, changes| {
                live += changes
                    .iter()
                    .map(|(site, old, new)| bytes(*site, new.live) - bytes(*site, old.live))
                    .sum::<f64>();
                if live > most.0 {
                    most = (live, Some(i));
                }
                if self.raw.snapshots[i].why != Why::Timer {
                    told = Some(i);
                    let peak: f64 = rows.iter().enumerate().map(|(site, row)| bytes(site, row.peak)).sum();
                    // Rounding must not make a snapshot win against what is exact.
                    if peak * 1.000_001 >= most.0 {
                        most = (peak, None);
                    }
                }
            },
            &mut rows,
        );
        match (most.1, told) {
            (Some(i), _) => {
                let lived = self.rows(i).iter().map(|row| row.live).collect();
                Some((lived, Some(self.raw.snapshots[i].time)))
            }
            (None, Some(i)) => Some((self.rows(i).iter().map(|row| row.peak).collect(), None)),
            (None, None) => None,
        }
    }

    /// The figures of one site at a moment.
    pub fn site(&self, moment: &Moment, site: usize) -> Figures {
        let (row, size, rate) = (moment.rows[site], self.raw.sites[site].size, self.raw.process.rate);
        let p = self.probability[site];
        let estimate = |n| Estimate::new(n, size, rate);
        let longest = self.raw.snapshots.last().map_or(0, |snapshot| snapshot.time) as f64;
        let mut lifetimes = Lifetimes { alive: row.live as f64 / p, longest, ..Lifetimes::default() };
        match self.raw.lifetimes.get(&site) {
            Some(pairs) => {
                for &(b, count) in pairs {
                    let b = usize::from(b);
                    lifetimes.freed.resize(lifetimes.freed.len().max(b + 1), 0.0);
                    lifetimes.freed[b] += count as f64 / p;
                }
            }
            None => lifetimes.unknown = row.allocated.saturating_sub(row.live) as f64 / p,
        }
        Figures {
            live: estimate(row.live),
            peak: estimate(row.peak),
            allocated: estimate(row.allocated),
            pinned: row.pinned / p,
            lifetimes,
        }
    }

    /// The figures of everything at a moment.
    pub fn total(&self, moment: &Moment) -> Figures {
        let mut total = Figures::default();
        (0..self.raw.sites.len()).for_each(|site| total.add(self.site(moment, site)));
        total
    }

    /// All groups at a moment, in no order.
    pub fn groups(&self, moment: &Moment, by: By) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut indices = HashMap::new();
        for (i, site) in self.raw.sites.iter().enumerate() {
            let stack = self.of_site[i];
            let frames = &self.stacks[stack];
            let frame = frames.get(place(frames));
            let function = frame.map(|frame| (frame.function.as_str(), frame.module.as_str()));
            let stack = if by == By::Site { self.alike[stack] } else { stack };
            let key = match by {
                By::Site | By::Stack => (stack as u64, None),
                By::Function => (0, function),
                By::Thread => (site.thread.into(), None),
                By::Tag => (site.tag.map_or(u64::MAX, u64::from), None),
            };
            let index = *indices.entry(key).or_insert(groups.len());
            if index == groups.len() {
                let of_frame = || {
                    let frame = frame.cloned().unwrap_or_default();
                    let location = frame.location();
                    (
                        if frame.function.is_empty() { "(stack unknown)".into() } else { frame.function },
                        location,
                    )
                };
                let (label, location) = match by {
                    By::Site | By::Stack => of_frame(),
                    By::Function => {
                        let (label, location) = of_frame();
                        (label, location.rsplit_once(':').map_or(location.clone(), |(file, _)| file.into()))
                    }
                    By::Thread => (self.thread(site.thread), String::new()),
                    By::Tag => {
                        let tag = self.tag(site.tag).unwrap_or("(no tag)");
                        (if tag.is_empty() { "(empty tag)" } else { tag }.to_string(), String::new())
                    }
                };
                let stack = matches!(by, By::Site | By::Stack).then_some(stack);
                groups.push(Group { label, location, stack, figures: Figures::default() });
            }
            groups[index].figures.add(self.site(moment, i));
        }
        groups
    }

    /// A thread's name and number.
    pub fn thread(&self, thread: u32) -> String {
        match self.raw.threads.get(&thread) {
            Some(name) => format!("{name} ({thread})"),
            None => format!("thread {thread}"),
        }
    }

    /// A tag's text.
    pub fn tag(&self, tag: Option<u32>) -> Option<&str> {
        self.raw.tags.get(&tag?).map(String::as_str)
    }

    /// Snapshots to look at, so many at most: all, or some evenly spread, with the first and the last.
    pub fn pick(&self, most: usize) -> Vec<usize> {
        let number = self.raw.snapshots.len();
        if number <= most {
            return (0..number).collect();
        }
        (0..most).map(|i| i * (number - 1) / (most - 1)).collect()
    }

    /// For each of these snapshots, the stacks whose live bytes are not what they were at the one before, and
    /// what they are.
    pub fn live(&self, picked: &[usize]) -> Vec<Vec<(usize, f64)>> {
        let mut series = Vec::with_capacity(picked.len());
        let mut now = vec![0.0; self.stacks.len()];
        let mut changed = BTreeSet::new();
        let mut next = picked.iter().copied().peekable();
        self.replay(
            self.raw.snapshots.len(),
            |i, _, changes| {
                for (site, old, new) in changes.iter().filter(|(_, old, new)| old.live != new.live) {
                    now[self.of_site[*site]] += (new.live as f64 - old.live as f64) * self.weight(*site);
                    changed.insert(self.of_site[*site]);
                }
                if next.next_if_eq(&i).is_some() {
                    // What is left of a sum that has come down to nothing is rounding.
                    let value = |stack| (stack, if now[stack] < 0.5 { 0.0 } else { now[stack] });
                    series.push(std::mem::take(&mut changed).into_iter().map(value).collect());
                }
            },
            &mut vec![Row::default(); self.raw.sites.len()],
        );
        series
    }

    /// What memory was used for at each snapshot: its time, totals, and estimated live bytes.
    pub fn timeline(&self) -> Vec<(u64, Totals, f64)> {
        let mut live = 0.0;
        let mut points = Vec::new();
        let mut rows = vec![Row::default(); self.raw.sites.len()];
        self.replay(
            self.raw.snapshots.len(),
            |i, _, changes| {
                for (site, old, new) in changes {
                    live += (new.live as f64 - old.live as f64) * self.weight(*site);
                }
                let snapshot = &self.raw.snapshots[i];
                points.push((snapshot.time, snapshot.totals, live.max(0.0)));
            },
            &mut rows,
        );
        points
    }

    /// Estimated bytes for one sampled block of a site.
    pub(crate) fn weight(&self, site: usize) -> f64 {
        self.raw.sites[site].size as f64 / self.probability[site]
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        let first = self.raw.process.arguments.first().map_or("", String::as_str);
        if first.is_empty() { "program" } else { crate::symbols::file_name(first) }
    }
}

impl Figures {
    /// Adds those of others.
    pub fn add(&mut self, other: Figures) {
        self.live += other.live;
        self.peak += other.peak;
        self.allocated += other.allocated;
        self.pinned += other.pinned;
        self.lifetimes.add(&other.lifetimes);
    }

    /// The bytes of what is asked for.
    pub fn bytes(&self, what: What) -> f64 {
        match what {
            What::Pinned => self.pinned,
            _ => self.estimate(what).bytes,
        }
    }

    /// The estimate of what is asked for; of what is live, where memory pinned by that is.
    pub fn estimate(&self, what: What) -> &Estimate {
        match what {
            What::Live | What::Pinned => &self.live,
            What::Peak => &self.peak,
            What::Allocated => &self.allocated,
        }
    }
}

impl Lifetimes {
    fn add(&mut self, other: &Lifetimes) {
        self.freed.resize(self.freed.len().max(other.freed.len()), 0.0);
        self.freed.iter_mut().zip(&other.freed).for_each(|(sum, one)| *sum += one);
        self.alive += other.alive;
        self.unknown += other.unknown;
        self.longest = self.longest.max(other.longest);
    }

    /// The ns that a share of the blocks lived at the most; infinite where that many live still. `None` where
    /// that is not known.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let freed: f64 = self.freed.iter().sum();
        let all = freed + self.alive;
        if all <= 0.0 || self.unknown > 0.01 * (all + self.unknown) {
            return None;
        }
        let mut left = share * all;
        for (b, &count) in self.freed.iter().enumerate() {
            if count > 0.0 && left <= count {
                // As if evenly spread over the octave.
                return Some((b as f64 + left / count).exp2().min(self.longest));
            }
            left -= count;
        }
        Some(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_quantiles() {
        let lifetimes =
            Lifetimes { freed: vec![0.0, 0.0, 0.0, 10.0, 30.0], alive: 60.0, unknown: 0.0, longest: 20.0 };
        assert_eq!(lifetimes.quantile(0.05), Some(3.5f64.exp2()));
        assert_eq!(lifetimes.quantile(0.1), Some(16.0));
        assert_eq!(lifetimes.quantile(0.14), Some((4.0f64 + 4.0 / 30.0).exp2()));
        assert_eq!(lifetimes.quantile(0.25), Some(20.0));
        assert_eq!(lifetimes.quantile(0.5), Some(f64::INFINITY));
        assert_eq!(Lifetimes::default().quantile(0.5), None);
        assert_eq!(Lifetimes { unknown: 5.0, ..lifetimes }.quantile(0.5), None);
    }
}
