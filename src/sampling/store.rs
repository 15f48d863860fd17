//! What a profile has gathered: stacks, sites, the sampled blocks that live, and lifetimes.

use crate::os;
use crate::os::futex::Inherit;
use crate::sampling::grown::{Grown, Index, mix};
use crate::sampling::lifetimes::{Lifetime, Lifetimes};
use crate::sampling::lists::Lists;
use crate::sampling::live::{self, Entry, Live};
use crate::sampling::sites::{Bounds, Site, hash_of, place};
use crate::sampling::stacks::{OTHERS, Stacks};
use crate::sampling::threads::Threads;
use crate::sampling::{random, tags};
use crate::superslab::layout::SUPERSLAB;

/// The longest stack that is kept.
pub(super) const FRAMES: usize = 128;

/// What a profile has gathered.
pub(super) struct Store {
    pub(super) stacks: Stacks,
    pub(super) lists: Lists,
    pub(super) sites: Grown<Site>,
    pub(super) site_index: Index,
    /// The number of the next site.
    pub(super) next_site: u32,
    pub(super) bounds: Bounds,
    /// Samples that have found no room since there last was some.
    pub(super) turned_away: u32,
    /// How often sites have been given up; and the numbers of those that the file has.
    pub(super) folds: u32,
    pub(super) gone: Grown<u32>,
    /// Whether anything is charged to [`OTHERS`].
    pub(super) has_others: bool,
    pub(super) live: Live,
    pub(super) lifetimes: Lifetimes,
    pub(super) threads: Threads,
    /// The numbers of the tags that samples carry.
    pub(super) tags: Grown<u32>,
    tag_index: Index,
    /// Estimated bytes that live, and the most that they have been.
    bytes: f64,
    most: f64,
    /// The most that the process has had mapped at a sample.
    mapped: usize,
    /// Bytes that may be allocated until the peak is taken to be over.
    window: f64,
    /// How often `most` has grown.
    pub(super) peak: u32,
    /// Samples that found no memory for what is kept of them.
    pub(super) lost: u64,
    /// What of this the file has.
    pub(super) written: Written,
    pub(super) began: Began,
    rate: u64,
    /// The frames that go to the file next.
    pub(super) out: Grown<u8>,
}

/// How much of the store a file has.
#[derive(Clone, Copy, Default)]
pub(super) struct Written {
    /// Whether it has been begun.
    pub(super) begun: usize,
    /// Those of smaller numbers, as of sites.
    pub(super) stacks: u32,
    pub(super) sites: u32,
    /// How many sites that were given up it knows to be.
    pub(super) gone: usize,
    /// Whether it has the stack [`OTHERS`].
    pub(super) others: bool,
    pub(super) threads: usize,
    /// The [`Threads::renamed`] of then.
    pub(super) renamed: u32,
    pub(super) tags: usize,
    /// The list of modules.
    pub(super) modules: u32,
    /// How many of the earlier lists, with the stacks that are left to them.
    pub(super) lists: usize,
    /// Whether it has its end, behind which nothing may stand.
    pub(super) ended: bool,
}

/// When a profile began, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Began {
    /// Since 1970.
    pub(super) real: u64,
    pub(super) monotonic: u64,
    /// Whether the process may have allocated before.
    pub(super) late: bool,
}

/// What is known of a sample when it is allocated.
pub(super) struct Sample<'a> {
    pub(super) address: usize,
    pub(super) size: u64,
    pub(super) rate: u64,
    pub(super) thread: u32,
    /// The number that [`tags`] has given, 0 for none.
    pub(super) tag: u32,
    pub(super) now: u64,
    /// The most bytes that the process has had mapped.
    pub(super) mapped: usize,
    pub(super) addresses: &'a [usize],
    /// How the stack ends.
    pub(super) end: u8,
}

impl Store {
    /// Nothing yet.
    pub(super) const fn new() -> Self {
        Self {
            stacks: Stacks::new(),
            lists: Lists::new(),
            sites: Grown::new(),
            site_index: Index::new(),
            next_site: 0,
            bounds: Bounds::USUAL,
            turned_away: 0,
            folds: 0,
            gone: Grown::new(),
            has_others: false,
            live: Live::new(),
            lifetimes: Lifetimes::new(),
            threads: Threads::new(),
            tags: Grown::new(),
            tag_index: Index::new(),
            bytes: 0.0,
            most: 0.0,
            mapped: 0,
            window: 0.0,
            peak: 0,
            lost: 0,
            written: Written {
                begun: 0,
                stacks: 0,
                sites: 0,
                gone: 0,
                others: false,
                threads: 0,
                renamed: 0,
                tags: 0,
                modules: 0,
                lists: 0,
                ended: false,
            },
            began: Began { real: 0, monotonic: 0, late: false },
            rate: 0,
            out: Grown::new(),
        }
    }

    /// Forgets everything, and gives the memory back.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn clear(&mut self) {
        self.stacks.clear();
        self.lists.clear();
        self.sites.clear();
        self.site_index.clear();
        self.gone.clear();
        (self.next_site, self.turned_away, self.folds, self.has_others) = (0, 0, 0, false);
        self.live.clear();
        self.lifetimes.clear();
        self.threads.clear();
        self.tags.clear();
        self.tag_index.clear();
        self.out.clear();
        (self.bytes, self.most, self.peak, self.lost) = (0.0, 0.0, 0, 0);
        (self.mapped, self.window) = (0, 0.0);
        self.written = Written::default();
    }

    /// Begins with nothing. If `traced` the blocks that live are still found when they are freed.
    pub(super) fn start(&mut self, rate: u64, late: bool, traced: bool) {
        let mut live = core::mem::replace(&mut self.live, Live::new());
        if traced {
            live.disown();
        } else {
            live.clear();
        }
        self.clear();
        self.live = live;
        self.rate = rate;
        self.began = Began { real: os::real_ns(), monotonic: os::now_ns(), late };
    }

    /// Mean bytes between two samples.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// Adds a sample. `name` is called if its thread is new here. False when there is no memory for it.
    pub(super) fn allocated(&mut self, sample: &Sample<'_>, name: impl FnOnce() -> [u8; 16]) -> bool {
        let added = self.add(sample, name).is_some();
        if !added {
            self.lost += 1;
        }
        added
    }

    #[unsafe(link_section = "hakmem_rare")]
    fn add(&mut self, sample: &Sample<'_>, name: impl FnOnce() -> [u8; 16]) -> Option<()> {
        // The address may be one whose free nobody has seen: by a thread that was not armed yet.
        self.freed(sample.address, sample.rate, sample.now);
        self.lists.follow(&mut self.stacks);
        let room = self.make_room();
        let stack = match room {
            true => self.stacks.intern(sample.addresses, sample.end)?,
            false => self.stacks.find(sample.addresses, sample.end).unwrap_or(OTHERS),
        };
        let thread = self.threads.row_of(sample.thread, name, os::thread::has_ended)?;
        let tag = self.intern_tag(sample.tag)?;
        let number = self.site_of(room, stack, thread, tag, sample.size)?;
        if !self.live.insert(sample.address, number, sample.now) {
            return None;
        }
        let peak = self.peak;
        let at = place(&self.sites, number)?;
        let site = self.sites.get_mut(at)?;
        site.keep_peak(peak);
        site.allocated += 1;
        site.live = site.live.saturating_add(1);
        site.changed = 1;
        let bytes = sample.size as f64 / random::probability(sample.size, sample.rate);
        self.bytes += bytes;
        self.look_for_peak(sample, bytes);
        Some(())
    }

    /// Notes whether more lives now than ever, after a sample that stands for `bytes`.
    ///
    /// The largest of many estimates is larger than the truth. So the peak is sought where the process has
    /// mapped more than ever before, which is no estimate, until that much has been allocated; elsewhere an
    /// estimate must be larger than chance explains, by three standard deviations. And more may have been
    /// mapped since the last sample for another reason, before or after much was freed: what lives now is the
    /// peak only if chance explains by how much less it is.
    fn look_for_peak(&mut self, sample: &Sample<'_>, bytes: f64) {
        if sample.mapped > self.mapped {
            (self.mapped, self.window) = (sample.mapped, SUPERSLAB as f64);
            let less = self.most - self.bytes;
            // By two: the variance of an estimate is at most itself times the rate.
            if less <= 0.0 || less * less <= 4.0 * self.most * sample.rate as f64 {
                self.most = 0.0;
            }
        }
        let more = self.bytes - self.most;
        if more > 0.0 && (self.window > 0.0 || more * more > 9.0 * self.most * (bytes - sample.size as f64)) {
            self.most = self.bytes;
            self.peak = self.peak.wrapping_add(1);
        }
        self.window -= bytes;
    }

    /// Notes that a block is freed, if it is a sampled one.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn freed(&mut self, address: usize, rate: u64, now: u64) {
        if let Some(entry) = self.live.remove(address) {
            self.count_freed(&entry, rate, now);
        }
    }

    /// Counts a sampled block that is not among those that live any more as freed.
    pub(super) fn count_freed(&mut self, entry: &Entry, rate: u64, now: u64) {
        let peak = self.peak;
        let at = place(&self.sites, entry.site);
        let Some(site) = at.and_then(|at| self.sites.get_mut(at)) else { return };
        site.keep_peak(peak);
        site.live = site.live.saturating_sub(1);
        site.changed = 1;
        let size = site.size;
        self.bytes -= size as f64 / random::probability(size, rate);
        let lived = now.saturating_sub(entry.born).max(1);
        self.lifetimes.count(&mut site.lifetimes, lived.ilog2());
    }

    /// How many sampled blocks of a site lived when most did.
    pub(super) fn at_peak(&self, site: &Site) -> u64 {
        if site.peak == self.peak { site.at_peak } else { site.live.into() }
    }

    /// Which of the file's tags has this number. `None` when there is no memory.
    pub(super) fn intern_tag(&mut self, number: u32) -> Option<u32> {
        // A program may end a scope with a number that nobody gave it.
        if number == 0 || tags::text(number).is_none() {
            return Some(u32::MAX);
        }
        let known = &mut self.tags;
        let hash_of = |at: u32| mix(0, known.get(at as usize - 1).map_or(0, |&number| u64::from(number)));
        let is_it = |at: u32| known.get(at as usize - 1) == Some(&number);
        if let Some(at) = self.tag_index.find(mix(0, u64::from(number)), is_it) {
            return Some(at - 1);
        }
        let at = known.len() as u32;
        if !self.tag_index.insert(mix(0, u64::from(number)), at + 1, hash_of) {
            return None;
        }
        if !known.push(number) {
            let hash_of = |at: u32| mix(0, known.get(at as usize - 1).map_or(0, |&number| u64::from(number)));
            self.tag_index.remove(mix(0, u64::from(number)), at + 1, hash_of);
            return None;
        }
        Some(at)
    }

    /// The number of the site of these, if it is there.
    pub(super) fn find_site(&self, stack: u32, thread: u32, tag: u32, size: u64) -> Option<u32> {
        let is_it =
            |site: &Site| (site.stack, site.thread, site.tag, site.size) == (stack, thread, tag, size);
        let same = |place: u32| self.sites.get(place as usize - 1).is_some_and(is_it);
        let found = self.site_index.find(hash_of(stack, thread, tag, size), same)?;
        self.sites.get(found as usize - 1).map(|site| site.number)
    }

    /// The number of the site of these, which is added if it is new. `None` when there is no memory.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn intern_site(&mut self, stack: u32, thread: u32, tag: u32, size: u64) -> Option<u32> {
        if let Some(number) = self.find_site(stack, thread, tag, size) {
            return Some(number);
        }
        let number = self.next_site;
        let new = Site {
            number,
            stack,
            thread,
            tag,
            peak: self.peak,
            size,
            allocated: 0,
            live: 0,
            at_peak: 0,
            pinned: 0.0,
            changed: 1,
            lifetimes: 0,
        };
        let before = self.sites.len();
        if number == u32::MAX || !self.sites.push(new) {
            return None;
        }
        if !self.index_site(before) {
            self.sites.truncate(before);
            return None;
        }
        self.next_site += 1;
        self.has_others |= stack == OTHERS;
        Some(number)
    }

    /// Lets the site that lies there be found. False when there is no memory.
    pub(super) fn index_site(&mut self, at: usize) -> bool {
        let sites = &self.sites;
        let hash = |place: u32| {
            let site = sites.get(place as usize - 1);
            site.map_or(0, |site| hash_of(site.stack, site.thread, site.tag, site.size))
        };
        self.site_index.insert(hash(at as u32 + 1), at as u32 + 1, hash)
    }

    /// How long the freed samples of a site have lived.
    pub(super) fn lifetimes(&self, site: &Site) -> impl Iterator<Item = Lifetime> {
        self.lifetimes.list(site.lifetimes)
    }
}

impl Inherit for Store {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // Another thread was changing it. Its memory is lost to the child.
            let (rate, began) = (self.rate, self.began);
            *self = Store { rate, began, ..Store::new() };
            live::forget();
        }
    }
}

#[cfg(test)]
mod tests;
