//! Freed mappings of the hardened heap's large blocks that are not unmapped: those whose addresses are not
//! used again yet, and those that are set aside.

use crate::base::options::Hardened;
use crate::base::table::Table;
use crate::hardened::large::Large;
use crate::hardened::parts;
use crate::os::futex::{Inherit, Lock};
use crate::os::{self, returning::Returning};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicUsize, compiler_fence};
use core::ptr;

/// Freed mappings whose addresses are not used again, at most.
pub(super) const KEPT: usize = 64;
/// The same in bytes of address space, but for as many mappings as are freed later.
const KEPT_BYTES: usize = 256 << 20;

/// With the quarantine, so many mappings are freed after one, at least, before its addresses are used again.
pub(super) const LATER: usize = 4;
/// So many mappings of what is set aside are looked at for a block.
const LOOKS: usize = 32;

/// Freed mappings, the oldest first.
pub(super) struct Quarantine {
    kept: [*mut Large; KEPT],
    count: usize,
    /// Bytes of address space.
    pub(super) bytes: usize,
    /// What is set aside: mappings that the system would not unmap, or that would leave a hole. The last one
    /// first.
    aside: *mut Large,
    /// Bytes of address space of that.
    pub(super) aside_bytes: usize,
}

// SAFETY: records stay mapped, and the list is used only under the lock.
unsafe impl Send for Quarantine {}

impl Inherit for Quarantine {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // What was being put in or taken out may be in two places, or in none: better to lose all than to
            // hand one out twice.
            (self.count, self.bytes) = (0, 0);
            RESIDENT.store(0, Relaxed);
            (self.aside, self.aside_bytes) = (ptr::null_mut(), 0);
        }
    }
}

pub(super) static QUARANTINE: Lock<Quarantine> = Lock::new(Quarantine::new());
/// Bytes of the freed mappings in the quarantine that are resident. Changed under its lock; relaxed: who
/// reads it without wants a figure.
pub(super) static RESIDENT: AtomicUsize = AtomicUsize::new(0);

/// How many mappings are freed after one, at least, before its addresses are used again.
fn later() -> usize {
    if parts::has(Hardened::QUARANTINE) { LATER } else { 0 }
}

impl Quarantine {
    const fn new() -> Self {
        Self { kept: [ptr::null_mut(); KEPT], count: 0, bytes: 0, aside: ptr::null_mut(), aside_bytes: 0 }
    }

    /// Takes the mapping at `index` out.
    pub(super) fn remove(&mut self, index: usize) -> Option<*mut Large> {
        let large = *self.kept.get(..self.count)?.get(index)?;
        self.kept.get_mut(index..self.count)?.rotate_left(1);
        self.count -= 1;
        // SAFETY: the record of a mapping that was in the list.
        let (len, resident) = unsafe { ((*large).len.get(), (*large).kept()) };
        self.bytes -= len;
        RESIDENT.fetch_sub(resident, Relaxed);
        Some(large)
    }

    /// Puts a mapping in, as the one freed last. False if there is no room.
    pub(super) fn add(&mut self, large: *mut Large) -> bool {
        // SAFETY: the caller's mapping.
        let (len, resident) = unsafe { ((*large).len.get(), (*large).kept()) };
        if self.count >= later().max(1) && self.bytes + len > KEPT_BYTES {
            return false;
        }
        let Some(slot) = self.kept.get_mut(self.count) else { return false };
        *slot = large;
        self.count += 1;
        self.bytes += len;
        RESIDENT.fetch_add(resident, Relaxed);
        true
    }

    /// Takes the oldest mapping out that is resident, if it was freed `delay` milliseconds before `now` or
    /// earlier. Returns also where it was.
    pub(super) fn take_aged(&mut self, now: u32, delay: u32) -> Option<(usize, *mut Large)> {
        let all = self.kept.get(..self.count)?;
        // SAFETY: records of mappings in the list.
        let is_aged = |&large: &*mut Large| unsafe {
            (*large).resident.load(Relaxed) && os::elapsed((*large).freed.load(Relaxed), now) >= delay
        };
        let index = all.iter().position(is_aged)?;
        Some((index, self.remove(index)?))
    }

    /// Puts a mapping back where it was. If older ones have gone meanwhile it counts as freed later than it
    /// was. False if there is no room.
    pub(super) fn put_back(&mut self, index: usize, large: *mut Large) -> bool {
        if !self.add(large) {
            return false;
        }
        // There is one at least, the one just added.
        let index = index.min(self.count.saturating_sub(1));
        match self.kept.get_mut(index..self.count) {
            // A fork that comes between leaves it torn, and then all are lost.
            Some(later) if !later.is_empty() => later.rotate_right(1),
            _ => {}
        }
        true
    }

    /// Takes the newest mapping out that is resident, if one `fits`. Returns also where it was.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn take_newest(&mut self, fits: impl Fn(&Large) -> bool) -> Option<(usize, *mut Large)> {
        let all = self.kept.get(..self.count)?;
        // SAFETY: records of mappings in the list.
        let fits = |&large: &*mut Large| unsafe { (*large).resident.load(Relaxed) && fits(&*large) };
        let index = all.iter().rposition(fits)?;
        Some((index, self.remove(index)?))
    }

    /// Whether a mapping that is resident `fits`.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn has(&self, fits: impl Fn(&Large) -> bool) -> bool {
        let mut all = self.kept.iter().take(self.count);
        // SAFETY: records of mappings in the list.
        all.any(|&large| unsafe { (*large).resident.load(Relaxed) && fits(&*large) })
    }

    /// Takes out the oldest mapping of `len` bytes that is resident, `huge` or not, if enough were freed
    /// later.
    pub(super) fn reuse(&mut self, len: usize, huge: bool) -> Option<*mut Large> {
        let old = self.kept.get(..self.count.saturating_sub(later()))?;
        // SAFETY: records of mappings in the list.
        let fits = |&large: &*mut Large| unsafe {
            (*large).len.get() == len && (*large).huge.get() == huge && (*large).resident.load(Relaxed)
        };
        let index = old.iter().position(fits)?;
        self.remove(index)
    }

    /// Takes out a mapping of `len` bytes, or of up to twice as many, of what is set aside. One that is not
    /// to be `huge` needs less room than one that is.
    pub(super) fn reuse_aside(&mut self, len: usize, huge: bool) -> Option<*mut Large> {
        let mut link = &raw mut self.aside;
        // SAFETY: records stay mapped, and their links are used under the lock, as this is.
        unsafe {
            for looked in 0..LOOKS {
                let large = *link;
                if large.is_null() {
                    return None;
                }
                let fits = (len..=2 * len).contains(&(*large).len.get()) && (huge || !(*large).huge.get());
                if looked >= later() && fits {
                    *link = (*large).next.get();
                    self.aside_bytes -= (*large).len.get();
                    return Some(large);
                }
                link = (*large).next.as_ptr();
            }
        }
        None
    }
}

/// Sets a freed mapping aside, which the system shall not unmap, or would not. False without the lock.
///
/// # Safety
///
/// The block is freed, and the mapping the caller's alone. Whether it is not zero is what `resident` says.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn set_aside(large: *mut Large) -> bool {
    let Some(mut kept) = QUARANTINE.lock_soon() else { return false };
    // SAFETY: the caller's, until it is in the list.
    unsafe {
        (*large).next.set(kept.aside);
        kept.aside_bytes += (*large).len.get();
    }
    // A fork may come between.
    compiler_fence(Release);
    kept.aside = large;
    true
}

/// Takes out all that is set aside, in order of address: unmapped in any other, each would leave a hole for a
/// while. With it a sign that it goes back, if there is any.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take_aside() -> (impl Iterator<Item = *mut Large>, Option<Returning>) {
    let (all, returning) = QUARANTINE.lock_soon().map_or((ptr::null_mut(), None), |mut kept| {
        kept.aside_bytes = 0;
        let all = core::mem::replace(&mut kept.aside, ptr::null_mut());
        (all, (!all.is_null()).then(Returning::begin))
    });
    // SAFETY: out of the list, so ours alone, as are the links.
    let mut next = unsafe { sorted(all) };
    let all = core::iter::from_fn(move || {
        // SAFETY: records stay mapped; the caller has not had this one yet.
        let large = unsafe { next.as_ref() }?;
        Some(core::mem::replace(&mut next, large.next.get()))
    });
    (all, returning)
}

/// The same records in order of address, by merging lists of equal length.
///
/// # Safety
///
/// The records and their links are the caller's alone.
unsafe fn sorted(mut rest: *mut Large) -> *mut Large {
    // At `n` there is none, or 2^n of them in order.
    let mut runs = Table([ptr::null_mut::<Large>(); 32]);
    // SAFETY: by the caller's clause.
    unsafe {
        while !rest.is_null() {
            let mut run = rest;
            rest = (*run).next.get();
            (*run).next.set(ptr::null_mut());
            let mut n = 0;
            while n < 31 && !runs[n].is_null() {
                run = merged(core::mem::replace(&mut runs[n], ptr::null_mut()), run);
                n += 1;
            }
            runs[n] = merged(runs[n], run);
        }
        runs.0.into_iter().fold(ptr::null_mut(), |all, run| merged(all, run))
    }
}

/// Two lists in order of address, as one.
///
/// # Safety
///
/// As [`sorted`].
unsafe fn merged(mut a: *mut Large, mut b: *mut Large) -> *mut Large {
    let mut first = ptr::null_mut();
    let mut link = &raw mut first;
    // SAFETY: by the caller's clause; `link` is `first`, or the link of the last record that was merged.
    unsafe {
        while !a.is_null() && !b.is_null() {
            let lower = if (*a).base.get() < (*b).base.get() { &mut a } else { &mut b };
            *link = *lower;
            link = (**lower).next.as_ptr();
            *lower = *link;
        }
        *link = if a.is_null() { b } else { a };
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of mappings of these lengths, each resident or not, that were freed at these times.
    fn records<const N: usize>(mappings: [(usize, bool, u32); N]) -> [*mut Large; N] {
        mappings.map(|(len, resident, freed)| {
            // SAFETY: zero is valid for all fields.
            let record: Large = unsafe { core::mem::zeroed() };
            record.len.set(len);
            record.resident.store(resident, Relaxed);
            record.freed.store(freed, Relaxed);
            ptr::from_mut(Box::leak(Box::new(record)))
        })
    }

    #[test]
    fn it_has_bounds_but_for_one() {
        let mut kept = Quarantine::new();
        let [long, short] = records([(2 * KEPT_BYTES, false, 0), (1, false, 0)]);
        assert!(kept.add(long) && !kept.add(short));
        assert_eq!(kept.remove(0), Some(long));
        let [half, other, more] =
            records([(KEPT_BYTES / 2, false, 0), (KEPT_BYTES / 2, false, 0), (1, false, 0)]);
        assert!(kept.add(half) && kept.add(other) && !kept.add(more));
        assert_eq!((kept.count, kept.bytes), (2, KEPT_BYTES));
        assert_eq!((kept.remove(1), kept.remove(1)), (Some(other), None));
        assert!(kept.add(more));
        assert_eq!(kept.bytes, KEPT_BYTES / 2 + 1);
        let many = records([(1, false, 0); KEPT]);
        let mut kept = Quarantine::new();
        assert!(many.iter().all(|&large| kept.add(large)) && !kept.add(short));
    }

    #[test]
    fn the_oldest_that_is_aged_goes_first() {
        let mut kept = Quarantine::new();
        let all = records([(1, false, 10), (1, true, 20), (1, true, 30), (1, true, u32::MAX - 5)]);
        assert!(all[..3].iter().all(|&large| kept.add(large)));
        assert_eq!(kept.take_aged(119, 100), None);
        assert_eq!(kept.take_aged(120, 100), Some((1, all[1])));
        assert_eq!(kept.take_aged(120, 100), None);
        assert_eq!(kept.take_aged(500, 100), Some((1, all[2])));
        assert_eq!(kept.take_aged(500, 100), None, "what is not resident stays");
        assert!(kept.add(all[3]));
        // The clock has begun anew.
        assert_eq!(kept.take_aged(3, 10), None);
        assert_eq!(kept.take_aged(4, 10), Some((1, all[3])));
    }

    #[test]
    fn what_fits_is_used_again() {
        let mut kept = Quarantine::new();
        let all = records([(8, false, 0), (9, true, 0), (8, true, 0), (8, true, 0)]);
        assert!(all.iter().all(|&large| kept.add(large)));
        assert_eq!(kept.reuse(8, false), Some(all[2]));
        assert_eq!(kept.reuse(8, false), Some(all[3]));
        assert_eq!(kept.reuse(8, false), None);
        assert_eq!((kept.count, kept.bytes), (2, 17));
        let aside = records([(7, false, 0), (17, false, 0), (16, false, 0), (8, false, 0), (9, false, 0)]);
        for &large in aside.iter().rev() {
            // SAFETY: a record of this test alone.
            unsafe { (*large).next.set(core::mem::replace(&mut kept.aside, large)) };
        }
        kept.aside_bytes = 57;
        assert_eq!(
            [8, 8, 8, 8].map(|len| kept.reuse_aside(len, false)),
            [Some(aside[2]), Some(aside[3]), Some(aside[4]), None]
        );
        assert_eq!([7, 9].map(|len| kept.reuse_aside(len, false)), [Some(aside[0]), Some(aside[1])]);
        assert!(kept.aside.is_null() && kept.aside_bytes == 0);
    }

    #[test]
    fn a_torn_one_is_lost_and_no_other() {
        let mut kept = Quarantine::new();
        let [one, aside] = records([(8, false, 0), (8, false, 0)]);
        assert!(kept.add(one));
        kept.aside = aside;
        kept.inherit(false);
        assert_eq!((kept.count, kept.bytes, kept.aside), (1, 8, aside));
        kept.inherit(true);
        assert_eq!((kept.count, kept.bytes, kept.aside), (0, 0, ptr::null_mut()));
    }

    /// Whatever has been taken out, or put in, meanwhile.
    #[test]
    fn what_was_taken_out_goes_back_to_its_place() {
        // SAFETY: zero is valid for all fields.
        let mut records: [Large; 6] = core::array::from_fn(|_| unsafe { core::mem::zeroed() });
        let each = records.each_mut().map(ptr::from_mut);
        let mut kept = Quarantine::new();
        assert!(each[..5].iter().all(|&large| kept.add(large)));
        for index in 0..5 {
            assert_eq!(kept.remove(index), Some(each[index]));
            assert!(kept.put_back(index, each[index]));
            assert_eq!(kept.kept[..kept.count], each[..5]);
        }
        for (gone, index) in [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4), (3, 0), (4, 0)] {
            kept.count = 0;
            assert!(each[..5].iter().all(|&large| kept.add(large)));
            let large = kept.remove(index).unwrap();
            (0..gone).for_each(|_| assert!(kept.remove(0).is_some()));
            assert!(kept.put_back(index, large));
            assert_eq!(kept.count, 5 - gone);
            assert_eq!(kept.kept[index.min(4 - gone)], large);
        }
        kept.count = 0;
        assert!(each[..2].iter().all(|&large| kept.add(large)));
        let first = kept.remove(0).unwrap();
        assert!(kept.add(each[5]) && kept.put_back(0, first));
        assert_eq!(kept.kept[..kept.count], [each[0], each[1], each[5]]);
    }

    #[test]
    fn what_is_set_aside_comes_in_order() {
        for count in [0usize, 1, 2, 3, 7, 64, 100, 1000] {
            // SAFETY: zero is valid for all fields.
            let records: Vec<Large> = (0..count).map(|_| unsafe { core::mem::zeroed() }).collect();
            let records = records.leak().as_mut_ptr();
            let mut first = ptr::null_mut();
            let mut bases = Vec::new();
            // SAFETY: records of this test alone.
            unsafe {
                for n in 0..count {
                    let record = records.add(n);
                    (*record).base.set(ptr::without_provenance_mut((n * 7919 + 13) % 1009 * 4096));
                    // A loop that the compiler does not vectorise: on 64-bit Arm rustc 1.95 crashes when it
                    // does.
                    (*record).next.set(core::hint::black_box(core::mem::replace(&mut first, record)));
                }
                first = sorted(first);
                while !first.is_null() {
                    bases.push((*first).base.get().addr());
                    first = (*first).next.get();
                }
            }
            assert!(bases.len() == count && bases.is_sorted(), "{count}: {bases:x?}");
        }
    }
}
