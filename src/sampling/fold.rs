//! What becomes of a profile with more call stacks than there is room for: a server that runs for long comes
//! upon new ones all the time.
//!
//! When there is no room, the half of the sites that matters least is *given up*: what it had is charged to
//! the stack [`OTHERS`], so that all sums stay what they are. A site matters less if fewer bytes were
//! allocated there, and less than any other if none of its blocks lived at the peak; one with a block that
//! lives stays. The numbers of what is left stay, and are not used again: files have them.

use crate::sampling::sites::{Site, place};
use crate::sampling::stacks::OTHERS;
use crate::sampling::store::Store;
use crate::sampling::tags;

/// So many samples that find no room are charged to others before it is made again.
const AGAIN: u32 = 1 << 16;
/// How often the half is given up at once, when sites that stay hold most of the stacks.
const HALVES: u32 = 4;
/// Of how many sites a power of two of bytes tells how much they matter, and of how many which were there at
/// the peak.
const CLASSES: usize = 128;

impl Store {
    /// Whether there is room for another stack and another site, now that some has been made if there was
    /// none.
    #[inline]
    pub(super) fn make_room(&mut self) -> bool {
        if self.has_room(0) {
            self.turned_away = 0;
            return true;
        }
        self.make_room_now()
    }

    #[cold]
    #[unsafe(link_section = "hakmem_rare")]
    fn make_room_now(&mut self) -> bool {
        if self.turned_away % AGAIN == 0 {
            for _ in 0..HALVES {
                if !self.fold() || self.has_room(3) {
                    break;
                }
            }
        }
        self.turned_away = self.turned_away.wrapping_add(1);
        self.has_room(0)
    }

    /// Whether there is room, and an eighth to a power of it at least, if that is not 0.
    fn has_room(&self, eighth: u32) -> bool {
        let part = |bound: usize| if eighth == 0 { bound } else { bound - (bound >> eighth) };
        self.sites.len() < part(self.bounds.sites)
            && self.stacks.words() < part(self.bounds.words)
            // The last numbers are left to others, of which there are few.
            && self.next_site.max(self.stacks.next()) < u32::MAX - (1 << 20)
    }

    /// The number of the site to charge a sample to; if there is no `room` for a new one, others'.
    pub(super) fn site_of(
        &mut self,
        room: bool,
        stack: u32,
        thread: u32,
        tag: u32,
        size: u64,
    ) -> Option<u32> {
        if room {
            return self.intern_site(stack, thread, tag, size);
        }
        self.find_site(stack, thread, tag, size)
            .or_else(|| self.find_site(OTHERS, thread, tag, size))
            .or_else(|| self.site_of_all(tag, size))
    }

    /// The number of the site of all threads, with all tags or none, for blocks of this size. There are as
    /// many as there are sizes, twice: some thousand.
    fn site_of_all(&mut self, tag: u32, size: u64) -> Option<u32> {
        let tag = if tag == u32::MAX { tag } else { self.intern_tag(tags::OTHERS)? };
        self.intern_site(OTHERS, OTHERS, tag, size)
    }

    /// Gives up the half of the sites that matters least, as far as none of their blocks live. Whether there
    /// are such.
    #[unsafe(link_section = "hakmem_rare")]
    fn fold(&mut self) -> bool {
        let before = self.sites.len();
        let (mut numbers, mut others) = ([0u32; CLASSES], 0);
        for site in self.sites.iter() {
            if site.stack == OTHERS {
                others += 1;
            } else if site.live == 0 {
                numbers.iter_mut().skip(self.weight(site)).take(1).for_each(|number| *number += 1);
            }
        }
        // Where all lives it takes a tenth of the time to find that out.
        if numbers.iter().all(|&number| number == 0) && others <= before / 4 {
            return false;
        }
        let mut sum = 0;
        let enough = numbers.iter().take_while(|&&number| {
            let more = sum < before / 2;
            sum += number as usize;
            more
        });
        let below = enough.count();
        self.folds = self.folds.wrapping_add(1);
        // The file knows of all of them: they need not be kept.
        if self.written.gone == self.gone.len() {
            self.gone.truncate(0);
            self.written.gone = 0;
        }
        for at in 0..before {
            let Some(&site) = self.sites.get(at) else { break };
            if site.live == 0 && site.stack != OTHERS && self.weight(&site) < below {
                let target = self.intern_site(OTHERS, site.thread, site.tag, site.size);
                self.give_up(at, &site, target);
            }
        }
        // What has been added is others'. Threads and tags may be as many as stacks.
        if others + (self.sites.len() - before) > before / 4 {
            for at in 0..self.sites.len() {
                let Some(&site) = self.sites.get(at) else { break };
                if site.live == 0 && site.stack == OTHERS && site.thread != OTHERS && site.size != 0 {
                    let target = self.site_of_all(site.tag, site.size);
                    self.give_up(at, &site, target);
                }
            }
        }
        let all = self.sites.len();
        self.sweep();
        self.sites.len() < all
    }

    /// How much a site matters: the power of two of the bytes that it stands for, about.
    fn weight(&self, site: &Site) -> usize {
        let bytes = site.allocated.saturating_mul(site.size.max(self.rate()));
        let log = bytes.max(1).ilog2() as usize;
        if self.at_peak(site) == 0 { log } else { log + CLASSES / 2 }
    }

    /// Charges what a site has to the one of number `target`. The site stays if there is no memory for that.
    fn give_up(&mut self, at: usize, site: &Site, target: Option<u32>) {
        let Some(to) = target.and_then(|target| place(&self.sites, target)) else { return };
        if site.number < self.written.sites && !self.gone.push(site.number) {
            return;
        }
        let (peak, at_peak) = (self.peak, self.at_peak(site));
        if let Some(to) = self.sites.get_mut(to) {
            to.keep_peak(peak);
            to.at_peak += at_peak;
            to.allocated += site.allocated;
            to.changed = 1;
            self.lifetimes.merge(&mut to.lifetimes, site.lifetimes);
        }
        if let Some(site) = self.sites.get_mut(at) {
            site.size = 0;
        }
    }

    /// Forgets the sites that were given up, and the stacks that are no site's.
    fn sweep(&mut self) {
        let mut kept = 0;
        self.site_index.empty();
        for at in 0..self.sites.len() {
            let Some(&site) = self.sites.get(at).filter(|site| site.size != 0) else { continue };
            self.sites.iter_mut().skip(kept).take(1).for_each(|to| *to = site);
            // There is room, since there was for more.
            let _ = self.index_site(kept);
            self.stacks.keep(site.stack);
            kept += 1;
        }
        self.sites.truncate(kept);
        self.stacks.sweep();
    }
}

#[cfg(test)]
mod tests;
