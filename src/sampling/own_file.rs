//! The file that a profile goes to as it runs, as the options say.

use crate::os::file::{self, File, State};
use crate::os::futex::{self, Inherit, Lock};
use crate::sampling::frames::seal;
use crate::sampling::grown::Grown;
use crate::sampling::state::with_store;
use crate::sampling::store::Written;
use crate::sampling::write::{MAGIC, Totals, Why, look_for_modules, put};
use core::ffi::CStr;
use core::mem;

/// How often to wait for who writes to the profile's file, a millisecond each time at least.
const SOON: u32 = 500;

/// How many nanoseconds the time of a file may be behind.
const COARSE: u64 = 10_000_000;

/// The longest snapshot whose memory is kept for the next one.
const KEPT: usize = 64 << 10;

/// The file as this process has left it. One that is there and is another, or has another length, is
/// somebody else's by now: of a process with the same number in another container, or cut by its reader.
struct Ours(Option<State>);

impl Inherit for Ours {
    /// The child's file is another one.
    fn inherit(&mut self, _torn: bool) {
        self.0 = None;
    }
}

/// Held by who writes to the profile's file.
static FILE: Lock<Ours> = Lock::new(Ours(None));

/// In the child of a fork: see [`Lock::inherit`].
pub(super) fn inherit() {
    FILE.inherit();
}

/// Appends to the profile's own file what that does not have yet, and a snapshot. Begins the file if it has
/// nothing, or it is not there or not ours any more, by one that is whole. Does nothing when another thread
/// is writing, or there is no memory. False when the file cannot be written: then it is as it was, and what
/// it does not have goes to it the next time.
pub(crate) fn append_to(path: &CStr, why: Why, totals: &Totals) -> bool {
    let patient = why != Why::Timer;
    // Not for ever: this may be the thread that was interrupted while it was writing.
    let soon = || {
        FILE.lock_soon().or_else(|| {
            // Who has been waited for in vain once is not waited for again by `lock_soon`.
            futex::pause();
            None
        })
    };
    let file = if patient { (0..SOON).find_map(|_| soon()) } else { FILE.try_lock() };
    let Some(mut ours) = file else { return true };
    look_for_modules();
    let is_gone = file::kind(path).is_none();
    // Opened before it is looked at: what is at `path` may be another one a moment later.
    let left = ours.0.filter(|_| !is_gone);
    let file = left.and_then(|left| File::append_existing(path).filter(|file| file.state() == left));
    let Some((mut out, before, began, folds, is_new)) = with_store(patient, |store| {
        let mut out = mem::replace(&mut store.out, Grown::new());
        let before = store.written;
        let have = if file.is_none() { Written::default() } else { before };
        // What another program has left under this number, before an `exec` or long ago, is replaced.
        let is_new = have.begun == 0;
        // Not by nothing what another Hakmem in this process has written: a program that has one built in may
        // have a second preloaded, which sees no allocation.
        let is_other = || file::changed(path).saturating_add(COARSE) >= store.began.real;
        let is_idle = is_new && !is_gone && store.sites.is_empty() && is_other();
        // A thread whose snapshot was due may come only after the end.
        if !before.ended && !is_idle {
            if let Some(written) = put(store, &mut out, have, why, totals) {
                store.sites.iter_mut().for_each(|site| site.changed = 0);
                store.written = written;
            }
        }
        (out, before, store.began.monotonic, store.folds, is_new)
    }) else {
        return true;
    };
    seal(&mut out, if is_new { MAGIC.len() } else { 0 });
    #[cfg(all(test, not(miri)))]
    tests::during_write();
    let done = out.is_empty() || {
        let written = match file {
            Some(file) if !is_new => append(&file, &out),
            _ => file::replace(path, &out).ok_or(true),
        };
        let is_there = written.is_ok();
        match written {
            Ok(state) => ours.0 = Some(state),
            Err(is_as_it_was) => {
                let restored = with_store(true, |store| {
                    // Another profile may have begun meanwhile.
                    if store.began.monotonic == began {
                        // Of sites that were given up meanwhile nobody knows whether the file has them.
                        let same = store.folds == folds;
                        store.written = if same { before } else { Written::default() };
                        store.sites.iter_mut().for_each(|site| site.changed = 1);
                    }
                });
                if !is_as_it_was || restored.is_none() {
                    ours.0 = None;
                }
            }
        }
        is_there
    };
    // Most of the others are as small as each other, but the first one has everything.
    if out.len() <= KEPT {
        out.truncate(0);
        with_store(false, |store| mem::swap(&mut store.out, &mut out));
    }
    out.clear();
    done
}

/// Adds bytes to a file, and returns how it is left. After a failure, whether it is as it was.
#[unsafe(link_section = "hakmem_rare")]
fn append(file: &File, bytes: &[u8]) -> Result<State, bool> {
    let state = file.state();
    if !file::fits(file, bytes.len()) {
        return Err(true);
    }
    if file::write(file.fd(), bytes) {
        return Ok(state.and(bytes.len()));
    }
    // Behind a part of a frame nothing can be read.
    Err(state.length.is_some_and(|length| file.cut(length)))
}

#[cfg(test)]
mod tests;
