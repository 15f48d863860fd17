//! The file that a profile goes to as it runs: when a snapshot is due, where it goes, and what is in it
//! beside the samples.

use crate::api::control;
use crate::os::message::{self, Shown, Text};
use crate::sampling::{self, Totals, Why};
use crate::stats::Snapshot;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64};
use crate::{large, os};
use core::ffi::CStr;
use core::fmt::Write;

/// Snapshots in a file before the time between two doubles.
const SNAPSHOTS: u32 = 512;

/// How often the time until a file that cannot be written is tried again doubles: from a second to 17
/// minutes.
const MOST_DOUBLINGS: u32 = 10;

/// The process whose profile it is. Relaxed, as all of these.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Whether the profile goes to a file of its own, as the options say.
static TO_FILE: AtomicBool = AtomicBool::new(false);
/// When the next snapshot is due, in nanoseconds; 0 for never. Relaxed, as is what follows: who changes it by
/// an exchange writes the snapshot.
static DUE: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds between two snapshots.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// Snapshots since that last doubled.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
/// How often the file could not be written since it last could.
static FAILED: AtomicU32 = AtomicU32::new(0);
/// Whether that has been said of this profile.
static SAID: AtomicBool = AtomicBool::new(false);

/// From now on the profile is this process's.
pub(super) fn claim() {
    PROCESS.store(os::process_id(), Relaxed);
}

/// The profile that has begun goes to a file, with a snapshot every `interval` milliseconds, if that is not
/// 0.
pub(super) fn begin(interval: u32) {
    let interval = u64::from(interval) * 1_000_000;
    INTERVAL.store(interval, Relaxed);
    WRITTEN.store(0, Relaxed);
    FAILED.store(0, Relaxed);
    SAID.store(false, Relaxed);
    DUE.store(if interval == 0 { 0 } else { os::now_ns() + interval }, Relaxed);
    TO_FILE.store(true, Relaxed);
}

/// Writes the end of the profile to its file, if it has one. Called when the process ends.
pub(super) fn finish() {
    DUE.store(0, Relaxed);
    if TO_FILE.swap(false, Relaxed) {
        append(Why::End);
    }
}

/// [`tick`], if there is a profile.
#[inline(always)]
pub(super) fn tick_if_on() {
    if sampling::is_on() {
        tick();
    }
}

/// Appends a snapshot to the profile's file, if that is due.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn tick() {
    let due = DUE.load(Relaxed);
    if due == 0 {
        return;
    }
    let now = os::now_ns();
    let interval = INTERVAL.load(Relaxed);
    if now < due || DUE.compare_exchange(due, now + interval, Relaxed, Relaxed).is_err() {
        return;
    }
    if !TO_FILE.load(Relaxed) {
        return;
    }
    if !append(Why::Timer) {
        // What fails once may fail for long. Not after somebody has ended the profile meanwhile.
        let times = 1 << FAILED.fetch_add(1, Relaxed).saturating_add(1).min(MOST_DOUBLINGS);
        let later = now.saturating_add(interval.saturating_mul(times));
        let _ = DUE.compare_exchange(now + interval, later, Relaxed, Relaxed);
        return;
    }
    FAILED.store(0, Relaxed);
    if doubles() {
        INTERVAL.store(interval.saturating_mul(2), Relaxed);
    }
}

/// One more snapshot is in the file. Whether the time between two doubles.
fn doubles() -> bool {
    let last = WRITTEN.fetch_add(1, Relaxed) >= SNAPSHOTS - 1;
    if last {
        WRITTEN.store(0, Relaxed);
    }
    last
}

/// Appends a snapshot to the profile's own file: `<prefix>.<pid>.hakprof`. False, after a message the first
/// time, when that cannot be written.
#[unsafe(link_section = "hakmem_rare")]
fn append(why: Why) -> bool {
    // Not in a child that was made behind the C library's back: the file is its parent's.
    if os::process_id() != PROCESS.load(Relaxed) || os::is_confined() {
        return true;
    }
    let mut path = Text::<{ control::LONGEST_FILE + 1 }>::new();
    control::prefix(&mut path);
    let _ = write!(path, ".{}.hakprof\0", os::process_id());
    let Ok(path) = CStr::from_bytes_until_nul(path.bytes()) else { return true };
    let done = sampling::append_to(path, why, &totals(why));
    if !done && !SAID.swap(true, Relaxed) {
        let path = Shown(path.to_bytes());
        let again = if why == Why::Timer { ", and tries again later" } else { "" };
        message::line(format_args!(
            "HAKMEM_PROFILE: cannot write {path}{again}: name a folder that is there, may be written to and \
             has room"
        ));
    }
    done
}

/// The allocator's figures.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn totals(why: Why) -> Totals {
    // The timer's snapshot is made within an allocation.
    Snapshot::with_patience(why != Why::Timer, |now| {
        let s = &now.stats;
        let kept = large::kept().saturating_sub(large::clean()) as u64;
        [
            os::resident(),
            s.bytes_mapped,
            s.allocated_bytes,
            s.cached_bytes + kept,
            s.free_bytes,
            s.dirty_bytes.saturating_sub(kept),
            s.metadata_bytes,
            (s.fresh_bytes + s.slack_bytes).saturating_sub(s.untouched_bytes),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn the_time_between_snapshots_doubles_with_every_512th() {
        let doubled = (1..=1100).filter(|_| doubles());
        assert_eq!(doubled.collect::<std::vec::Vec<_>>(), [512, 1024]);
    }
}
