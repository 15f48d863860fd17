//! The profile that is taken now, or was taken last.

use crate::os::futex::{self, Guard, Lock};
use crate::os::signals::Blocked;
use crate::sampling::store::Store;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicU64};

/// Mean bytes between two samples; 0 while none are taken. All accesses are relaxed: a thread that sees a
/// change late begins late, or has a sample refused.
pub(super) static RATE: AtomicU64 = AtomicU64::new(0);
/// Whether samples are shown to tracers only, and nothing is gathered. Changed under the store's lock.
pub(super) static FOR_TRACERS: AtomicBool = AtomicBool::new(false);

/// Samples, and frees of such, that found the store held for too long. Relaxed: a count, which is 0 when a
/// profile begins.
pub(super) static MISSED: AtomicU64 = AtomicU64::new(0);

/// Whether samples are taken.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    RATE.load(Relaxed) != 0
}

/// Whether there is a profile.
pub(crate) fn is_gathering() -> bool {
    is_on() && !FOR_TRACERS.load(Relaxed)
}

/// What has been gathered.
pub(super) static STORE: Lock<Store> = Lock::new(Store::new());

/// How often who needs the store tries to get it, a millisecond apart.
const PATIENCE: u32 = 500;

/// The store, while no signal handler can interrupt the thread: one that allocated would wait for itself.
pub(super) struct Locked {
    pub(super) store: Guard<'static, Store>,
    // Dropped last, since fields are dropped in order.
    _signals: Blocked,
}

/// The store, if it is free soon.
pub(super) fn lock() -> Option<Locked> {
    let signals = Blocked::all();
    STORE.lock_soon().map(|store| Locked { store, _signals: signals })
}

/// The store, even if a snapshot is put together meanwhile. Whoever holds it waits for nothing that this
/// thread may hold: at most for the pool, and for the kernel. But not for ever: in a child that was made
/// without the C library's handlers nobody may hold it.
pub(super) fn lock_patiently() -> Option<Locked> {
    (0..PATIENCE).find_map(|_| {
        let locked = lock();
        if locked.is_none() {
            futex::pause();
        }
        locked
    })
}

/// [`lock_patiently`] for what is missed otherwise.
pub(super) fn lock_or_miss() -> Option<Locked> {
    let locked = lock_patiently();
    if locked.is_none() {
        MISSED.fetch_add(1, Relaxed);
    }
    locked
}

/// Runs `f` with the store. If `patient` it waits for that as long as a snapshot takes.
pub(super) fn with_store<T>(patient: bool, f: impl FnOnce(&mut Store) -> T) -> Option<T> {
    let locked = if patient { lock_patiently() } else { lock() };
    locked.map(|mut locked| f(&mut locked.store))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::thread;

    #[test]
    fn a_scope_needs_no_lock() {
        let _held = STORE.lock();
        let outer = crate::scope("while a snapshot is put together");
        let tag = thread::tag();
        assert_ne!(tag, 0);
        let inner = crate::scope("another one");
        assert!(![0, tag].contains(&thread::tag()));
        drop(inner);
        assert_eq!(thread::tag(), tag);
        drop(outer);
        assert_eq!(thread::tag(), 0);
    }
}
