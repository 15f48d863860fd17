//! A profile: who held and who allocated how much, at a moment, by call stack, function, thread or tag.

mod figures;
mod time;

pub use figures::{Figures, Lifetimes};

use std::collections::HashMap;
use std::rc::Rc;

use crate::estimate::{Estimate, probability, step};
use crate::file::{OTHERS, Raw, Row, StackEnd, Totals};
use crate::symbols::{Frame, Frames, Symbols};

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum What {
    /// What is held at the moment: the end, unless another one is asked for.
    Live,
    /// What was held when that was most.
    Peak,
    /// What has been allocated.
    Allocated,
    /// Memory that cannot be given back because of what is held.
    Pinned,
}

/// What sites are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum By {
    /// Call sites: the function that allocates, and its callers.
    Site,
    /// Whole call stacks, with what passes allocations on.
    Stack,
    /// Functions that allocate.
    Function,
    /// Threads.
    Thread,
    /// Tags that the program has set.
    Tag,
}

/// A file, and the functions of its stacks.
pub struct Profile {
    /// What the file says.
    pub raw: Raw,
    /// Different call stacks, the innermost function first.
    pub stacks: Vec<Frames>,
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

/// How far call stacks reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// All samples.
    pub samples: u64,
    /// Those whose walk came to an outermost frame.
    pub whole: u64,
    /// Of these, those that end in a function which is known to begin a program or a thread.
    pub to_start: u64,
    /// Samples whose stack the allocator had no room for.
    pub others: u64,
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
pub fn place(stack: &[Rc<Frame>]) -> usize {
    stack.iter().position(|frame| !frame.is_plumbing()).unwrap_or(0)
}

impl Profile {
    /// Finds the functions of all stacks of `raw`.
    pub fn new(raw: Raw, symbols: &mut Symbols) -> Self {
        // By where its functions are, as equal ones are the same: names are long, and stacks many.
        fn key(frames: &[Rc<Frame>]) -> Box<[*const Frame]> {
            frames.iter().map(Rc::as_ptr).collect()
        }
        let mut indices = HashMap::new();
        let mut stacks: Vec<Frames> = Vec::new();
        let mut of_stack = Vec::new();
        for i in 0..raw.stacks.len() {
            let mut frames = symbols.stack(&raw, i);
            frames.shrink_to_fit();
            let index = *indices.entry(key(&frames)).or_insert(stacks.len());
            if index == stacks.len() {
                stacks.push(frames);
            }
            of_stack.push(index);
        }
        drop(indices);
        let of_site = raw.sites.iter().map(|site| of_stack[site.stack]).collect();
        let probability = raw.sites.iter().map(|site| probability(site.size, raw.process.rate)).collect();
        let mut first = HashMap::new();
        let alike = stacks.iter().enumerate();
        let alike = alike.map(|(i, stack)| *first.entry(key(&stack[place(stack)..])).or_insert(i)).collect();
        Self { of_site, alike, probability, raw, stacks }
    }

    /// The call stack of a site, as an index of `stacks`.
    pub fn stack_of(&self, site: usize) -> usize {
        self.of_site[site]
    }

    /// The figures of one site at a moment.
    pub fn site(&self, moment: &Moment, site: usize) -> Figures {
        let (row, size, rate) = (moment.rows[site], self.raw.sites[site].size, self.raw.process.rate);
        let p = self.probability[site];
        let step = self.step(site);
        let estimate = |n| Estimate::new(n, size, rate).rounded(step);
        // Only of the last moment is it known how long blocks had lived.
        let is_last = moment.snapshot + 1 == self.raw.snapshots.len();
        let longest = moment.time as f64;
        let mut lifetimes = Lifetimes { alive: row.live as f64 / p, longest, ..Lifetimes::default() };
        match self.raw.lifetimes.get(&site).filter(|_| is_last) {
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

    /// How far the stacks of all samples up to a moment reach.
    pub fn reach(&self, moment: &Moment) -> Reach {
        let mut reach = Reach::default();
        for (i, site) in self.raw.sites.iter().enumerate() {
            let samples = moment.rows[i].allocated;
            let whole = self.raw.stacks[site.stack].end == StackEnd::Complete;
            let start = self.stacks[self.of_site[i]].last().is_some_and(|frame| frame.is_start());
            reach.samples += samples;
            reach.others += if self.raw.stacks[site.stack].end == StackEnd::Others { samples } else { 0 };
            reach.whole += if whole { samples } else { 0 };
            reach.to_start += if whole && start { samples } else { 0 };
        }
        reach
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
                    let frame = frame.map(|frame| Frame::clone(frame)).unwrap_or_default();
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
            Some(name) if thread == OTHERS => name.clone(),
            Some(name) => format!("{name} ({thread})"),
            None => format!("thread {thread}"),
        }
    }

    /// A tag's text.
    pub fn tag(&self, tag: Option<u32>) -> Option<&str> {
        self.raw.tags.get(&tag?).map(String::as_str)
    }

    /// How far apart the sizes are that one of a site's blocks may have been rounded to; 0: it was not.
    pub(crate) fn step(&self, site: usize) -> u64 {
        step(self.raw.sites[site].size, self.raw.process.coarse)
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
