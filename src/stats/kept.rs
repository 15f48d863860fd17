//! Statistics as text for another process, which reads them from the memory of this one: nothing has to be
//! opened for that, and nobody else can have put anything in its place.

use crate::os;
use crate::os::futex::{Inherit, Lock};
use crate::stats::print::{NotMapped, TEXT, mapped};
use crate::stats::snapshot::TEXT_BYTES;
use crate::sync::Ordering::Relaxed;
use core::{mem, ptr};

/// A mapping of [`TEXT`] bytes; null for none.
struct Kept(*mut u8);

// SAFETY: the mapping is this value's alone, whichever thread has that.
unsafe impl Send for Kept {}

impl Inherit for Kept {
    /// It is one store, and the mapping is the child's as well.
    fn inherit(&mut self, _torn: bool) {}
}

impl Kept {
    #[unsafe(link_section = "hakmem_rare")]
    fn clear(&mut self) {
        // Forgotten before it is gone: a fork may come in between.
        let memory = mem::replace(&mut self.0, ptr::null_mut());
        if memory.is_null() {
            return;
        }
        // SAFETY: a whole mapping of that length, which nobody in this process uses any more.
        unsafe { os::discard_uncounted(memory, TEXT) };
        TEXT_BYTES.store(0, Relaxed);
    }
}

/// The text that was asked for last.
static KEPT: Lock<Kept> = Lock::new(Kept(ptr::null_mut()));

/// Keeps the statistics as text, instead of what was kept before, and calls `then` with where that is and
/// with its length; null when there is no memory for it. Does nothing if that is not `wanted`, if somebody is
/// at it, perhaps the thread that this one has interrupted, or if slabs can't be looked at now: who asks does
/// so again.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn keep(json: bool, wanted: impl FnOnce() -> bool, then: impl FnOnce(*const u8, usize)) {
    let Some(mut kept) = KEPT.try_lock().filter(|_| wanted()) else { return };
    // First, so that it is not in the figures.
    kept.clear();
    let (memory, len) = match mapped(json) {
        Ok(text) => text,
        Err(NotMapped::NoMemory) => (ptr::null_mut(), 0),
        Err(NotMapped::Busy) => return,
    };
    kept.0 = memory;
    TEXT_BYTES.store(if memory.is_null() { 0 } else { TEXT }, Relaxed);
    then(memory, len);
}

/// Gives back what is kept. False if somebody is at it.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn forget() -> bool {
    let kept = KEPT.try_lock();
    let had = kept.is_some();
    if let Some(mut kept) = kept {
        kept.clear();
    }
    had
}

/// In the child of a fork: what was asked for is its parent's.
pub(crate) fn inherit() {
    KEPT.inherit();
    if keeps_text() {
        forget();
    }
}

/// Whether there is one.
pub(crate) fn keeps_text() -> bool {
    TEXT_BYTES.load(Relaxed) != 0
}
