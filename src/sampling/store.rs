//! What a profile has gathered: stacks, sites, the sampled blocks that live, and lifetimes.

use crate::os;
use crate::os::futex::Inherit;
use crate::sampling::grown::{Grown, Index, Zero, mix};
use crate::sampling::live::{self, Entry, Live};
use crate::sampling::random;
use crate::superslab::layout::SUPERSLAB;
use core::mem;

/// The longest stack that is kept.
pub(super) const FRAMES: usize = 128;

/// Where and what: one combination of a call stack, a thread, a tag and a size.
#[derive(Clone, Copy)]
pub(super) struct Site {
    pub(super) stack: u32,
    pub(super) thread: u32,
    /// `u32::MAX` for none, as in the file.
    pub(super) tag: u32,
    /// The [`Store::peak`] for which `at_peak` holds; if that has grown since, `live` does.
    peak: u32,
    pub(super) size: u64,
    /// Samples so far.
    pub(super) allocated: u64,
    /// Those that live.
    pub(super) live: u64,
    at_peak: u64,
    /// Bytes that the live ones pin.
    pub(super) pinned: f64,
    /// 0 if the last snapshot that was appended to the file says the same.
    pub(super) changed: u32,
    /// The number of its first lifetime, counted from 1; 0 for none.
    lifetimes: u32,
}

// SAFETY: it consists of numbers.
unsafe impl Zero for Site {}

/// How many samples of a site lived how long.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    /// The power of two of nanoseconds.
    pub(super) log: u32,
    /// The number of the site's next one, as there.
    next: u32,
    pub(super) count: u64,
}

// SAFETY: it consists of numbers.
unsafe impl Zero for Lifetime {}

/// A thread that has allocated a sample.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    pub(super) id: u32,
    /// Ends at the first zero.
    pub(super) name: [u8; 16],
}

// SAFETY: it consists of numbers.
unsafe impl Zero for Thread {}

/// What a profile has gathered.
pub(super) struct Store {
    /// Each stack: its number of addresses, shifted by 8, with how it ends; its hash; the addresses.
    stacks: Grown<usize>,
    /// Where each begins.
    starts: Grown<u32>,
    stack_index: Index,
    pub(super) sites: Grown<Site>,
    site_index: Index,
    pub(super) live: Live,
    lifetimes: Grown<Lifetime>,
    pub(super) threads: Grown<Thread>,
    /// Each tag: its length, then its bytes.
    pub(super) tags: Grown<u8>,
    pub(super) tag_count: u32,
    /// Estimated bytes that live, and the most that they have been.
    bytes: f64,
    most: f64,
    /// The most that the process has had mapped at a sample.
    mapped: usize,
    /// Bytes that may be allocated until the peak is taken to be over.
    window: f64,
    /// How often `most` has grown.
    peak: u32,
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
    pub(super) stacks: usize,
    pub(super) sites: usize,
    pub(super) threads: usize,
    pub(super) tags: usize,
    /// Bytes of `tags`.
    pub(super) tag_bytes: usize,
    /// The list of modules.
    pub(super) modules: u32,
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
            stacks: Grown::new(),
            starts: Grown::new(),
            stack_index: Index::new(),
            sites: Grown::new(),
            site_index: Index::new(),
            live: Live::new(),
            lifetimes: Grown::new(),
            threads: Grown::new(),
            tags: Grown::new(),
            tag_count: 0,
            bytes: 0.0,
            most: 0.0,
            mapped: 0,
            window: 0.0,
            peak: 0,
            lost: 0,
            written: Written { begun: 0, stacks: 0, sites: 0, threads: 0, tags: 0, tag_bytes: 0, modules: 0 },
            began: Began { real: 0, monotonic: 0, late: false },
            rate: 0,
            out: Grown::new(),
        }
    }

    /// Forgets everything but the tags, which threads may be carrying, and gives the memory back.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn clear(&mut self) {
        self.stacks.clear();
        self.starts.clear();
        self.stack_index.clear();
        self.sites.clear();
        self.site_index.clear();
        self.live.clear();
        self.lifetimes.clear();
        self.threads.clear();
        self.out.clear();
        (self.bytes, self.most, self.peak, self.lost) = (0.0, 0.0, 0, 0);
        (self.mapped, self.window) = (0, 0.0);
        self.written = Written::default();
    }

    /// Begins with nothing. If `traced` the blocks that live are still found when they are freed.
    pub(super) fn start(&mut self, rate: u64, late: bool, traced: bool) {
        let mut live = mem::replace(&mut self.live, Live::new());
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

    /// How many stacks there are.
    pub(super) fn stack_count(&self) -> usize {
        self.starts.len()
    }

    /// How a stack ends, and its addresses, innermost first.
    pub(super) fn stack(&self, number: usize) -> (u8, &[usize]) {
        let start = self.starts.get(number).map_or(usize::MAX, |&start| start as usize);
        let head = self.stacks.get(start).copied().unwrap_or(0);
        let addresses = start.checked_add(2).and_then(|from| self.stacks.get(from..from + (head >> 8)));
        (head as u8, addresses.unwrap_or_default())
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
        let stack = self.intern_stack(sample.addresses, sample.end)?;
        if !self.threads.iter().any(|thread| thread.id == sample.thread)
            && !self.threads.push(Thread { id: sample.thread, name: name() })
        {
            return None;
        }
        let number = self.intern_site(stack, sample)?;
        if !self.live.insert(sample.address, number, sample.now) {
            return None;
        }
        let peak = self.peak;
        let site = self.sites.get_mut(number as usize)?;
        site.keep_peak(peak);
        site.allocated += 1;
        site.live += 1;
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
    /// estimate must be larger than chance explains, by three standard deviations.
    fn look_for_peak(&mut self, sample: &Sample<'_>, bytes: f64) {
        if sample.mapped > self.mapped {
            (self.mapped, self.window, self.most) = (sample.mapped, SUPERSLAB as f64, 0.0);
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
        let Some(site) = self.sites.get_mut(entry.site as usize) else { return };
        site.keep_peak(peak);
        site.live = site.live.saturating_sub(1);
        site.changed = 1;
        let size = site.size;
        self.bytes -= size as f64 / random::probability(size, rate);
        let lived = now.saturating_sub(entry.born).max(1);
        self.count_lifetime(entry.site, lived.ilog2());
    }

    /// How many sampled blocks of a site lived when most did.
    pub(super) fn at_peak(&self, site: &Site) -> u64 {
        if site.peak == self.peak { site.at_peak } else { site.live }
    }

    #[unsafe(link_section = "hakmem_rare")]
    fn intern_stack(&mut self, addresses: &[usize], end: u8) -> Option<u32> {
        let hash = addresses.iter().fold(mix(0, u64::from(end)), |hash, &pc| mix(hash, pc as u64));
        let head = addresses.len() << 8 | end as usize;
        let is_it = |number: u32| self.stack(number as usize - 1) == (end, addresses);
        if let Some(number) = self.stack_index.find(hash, is_it) {
            return Some(number - 1);
        }
        let (start, number) = (self.stacks.len(), self.starts.len() as u32 + 1);
        let kept = self.stacks.append(&[head, hash as usize]) && self.stacks.append(addresses);
        let (stacks, starts) = (&self.stacks, &mut self.starts);
        let whole = kept && starts.push(u32::try_from(start).ok()?) && {
            let hash_of = |number: u32| {
                let start = starts.get(number as usize - 1).map_or(0, |&start| start as usize);
                stacks.get(start + 1).map_or(0, |&hash| hash as u64)
            };
            self.stack_index.insert(hash as usize as u64, number, hash_of)
        };
        if !whole {
            self.stacks.truncate(start);
            self.starts.truncate(number as usize - 1);
        }
        whole.then_some(number - 1)
    }

    #[unsafe(link_section = "hakmem_rare")]
    fn intern_site(&mut self, stack: u32, sample: &Sample<'_>) -> Option<u32> {
        let key = |site: &Site| (site.stack, site.thread, site.tag, site.size);
        let hash_of = |site: &Site| {
            let first = mix(site.size, u64::from(site.stack) << 32 | u64::from(site.thread));
            mix(first, u64::from(site.tag))
        };
        let new = Site {
            stack,
            thread: sample.thread,
            tag: sample.tag,
            peak: self.peak,
            size: sample.size,
            allocated: 0,
            live: 0,
            at_peak: 0,
            pinned: 0.0,
            changed: 1,
            lifetimes: 0,
        };
        let sites = &mut self.sites;
        let same = |number: u32| sites.get(number as usize - 1).is_some_and(|site| key(site) == key(&new));
        if let Some(number) = self.site_index.find(hash_of(&new), same) {
            return Some(number - 1);
        }
        let number = sites.len() as u32 + 1;
        if !sites.push(new) {
            return None;
        }
        let by_number = |number: u32| sites.get(number as usize - 1).map_or(0, hash_of);
        if !self.site_index.insert(hash_of(&new), number, by_number) {
            sites.truncate(number as usize - 1);
            return None;
        }
        Some(number - 1)
    }

    fn count_lifetime(&mut self, site: u32, log: u32) {
        let Some(site) = self.sites.get_mut(site as usize) else { return };
        let mut at = site.lifetimes;
        while let Some(known) = self.lifetimes.get_mut((at as usize).wrapping_sub(1)) {
            if known.log == log {
                known.count += 1;
                return;
            }
            at = known.next;
        }
        if self.lifetimes.push(Lifetime { log, next: site.lifetimes, count: 1 }) {
            site.lifetimes = self.lifetimes.len() as u32;
        }
    }

    /// How long the freed samples of a site have lived.
    pub(super) fn lifetimes(&self, site: &Site) -> impl Iterator<Item = Lifetime> {
        let by_number = |number: u32| self.lifetimes.get((number as usize).wrapping_sub(1)).copied();
        core::iter::successors(by_number(site.lifetimes), move |known| by_number(known.next))
    }

    /// The number of a tag. `None` when there is no memory.
    pub(super) fn tag(&mut self, text: &[u8]) -> Option<u32> {
        let text = text.get(..usize::from(u8::MAX)).unwrap_or(text);
        let mut rest: &[u8] = &self.tags;
        let mut number = 0;
        while let [len, more @ ..] = rest {
            let (known, behind) = more.split_at_checked(usize::from(*len))?;
            if known == text {
                return Some(number);
            }
            (rest, number) = (behind, number + 1);
        }
        let before = self.tags.len();
        if !(self.tags.push(text.len() as u8) && self.tags.append(text)) {
            self.tags.truncate(before);
            return None;
        }
        self.tag_count += 1;
        Some(number)
    }
}

impl Site {
    /// Before `live` changes: what it was at the peak, if that has been since it last changed.
    fn keep_peak(&mut self, peak: u32) {
        if self.peak != peak {
            (self.peak, self.at_peak) = (peak, self.live);
        }
    }
}

impl Inherit for Store {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // Another thread was changing it. Its memory is lost to the child, but for the tags, of which the
            // last may be half there; threads carry their numbers.
            let mut tags = mem::replace(&mut self.tags, Grown::new());
            let (mut whole, mut count) = (0, 0);
            while let Some(&len) = tags.get(whole).filter(|&&len| whole + usize::from(len) < tags.len()) {
                (whole, count) = (whole + 1 + usize::from(len), count + 1);
            }
            tags.truncate(whole);
            let (rate, began) = (self.rate, self.began);
            *self = Store { tags, tag_count: count, rate, began, ..Store::new() };
            live::forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(address: usize, size: u64, addresses: &[usize]) -> Sample<'_> {
        Sample { address, size, rate: 1, thread: 1, tag: u32::MAX, now: 1000, mapped: 0, addresses, end: 0 }
    }

    #[test]
    fn equal_samples_are_one_site_and_the_peak_is_kept() {
        let mut store = Store::new();
        for n in 0..1000usize {
            let stack = [n % 10, 7];
            store.allocated(&sample(0x10_0000 + n * 64, 64, &stack), || *b"main\0\0\0\0\0\0\0\0\0\0\0\0");
        }
        assert_eq!((store.stack_count(), store.sites.len(), store.threads.len()), (10, 10, 1));
        assert_eq!(store.stack(3), (0, &[3usize, 7][..]));
        for n in 0..900usize {
            store.freed(0x10_0000 + n * 64, 1, 1000 + 5);
        }
        // A few more, but not as many as there were.
        for n in 0..100usize {
            store.allocated(&sample(0x20_0000 + n * 64, 64, &[3, 7]), || unreachable!());
        }
        let site = store.sites[3];
        assert_eq!((site.allocated, site.live, store.at_peak(&site)), (200, 110, 100));
        let other = store.sites[4];
        assert_eq!((other.allocated, other.live, store.at_peak(&other)), (100, 10, 100));
        assert!(
            store
                .sites
                .iter()
                .all(|site| { store.lifetimes(site).map(|known| (known.log, known.count)).eq([(2, 90)]) })
        );
        assert_eq!(store.lost, 0);
        store.clear();
        assert_eq!((store.stack_count(), store.sites.len()), (0, 0));
    }

    #[test]
    fn a_block_whose_free_was_not_seen_does_not_count_twice() {
        let mut store = Store::new();
        for _ in 0..3 {
            store.allocated(&sample(0x30_0000, 48, &[1]), || [0; 16]);
        }
        let site = store.sites[0];
        assert_eq!((site.allocated, site.live), (3, 1));
        store.clear();
    }

    #[test]
    fn equal_tags_are_one() {
        let mut store = Store::new();
        let tags = [&b"a"[..], b"query 42", b"a", b"", b"query 42", b""];
        let numbers: Vec<_> = tags.iter().map(|tag| store.tag(tag)).collect();
        assert_eq!(numbers, [0, 1, 0, 2, 1, 2].map(Some));
        assert_eq!(store.tag_count, 3);
    }
}
