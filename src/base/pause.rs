//! A pause before the next try of what the system has refused.

use crate::sync::AtomicU32;
use crate::sync::Ordering::Relaxed;

/// A pause between tries that doubles with each refusal. Threads that race may lose one refusal.
/// Relaxed: a hint, which publishes nothing.
pub(crate) struct Pause {
    /// The pause in milliseconds; 0 when the last try succeeded.
    length: AtomicU32,
    since: AtomicU32,
    most: u32,
}

/// The first pause, in milliseconds.
const FIRST: u32 = 16;

impl Pause {
    /// No pause yet, and never one longer than `most` milliseconds.
    pub(crate) const fn up_to(most: u32) -> Self {
        Self { length: AtomicU32::new(0), since: AtomicU32::new(0), most }
    }

    /// Whether it is too early at `now`, in milliseconds, to try again.
    pub(crate) fn is_on(&self, now: u32) -> bool {
        crate::os::elapsed(self.since.load(Relaxed), now) < self.length.load(Relaxed)
    }

    /// Whether the last try was refused.
    #[cfg(test)]
    pub(crate) fn was_refused(&self) -> bool {
        self.length.load(Relaxed) != 0
    }

    /// A try at `now` was granted or refused.
    pub(crate) fn tried(&self, granted: bool, now: u32) {
        let before = self.length.load(Relaxed);
        let length = if granted { 0 } else { (2 * before).max(FIRST).min(self.most) };
        if length == before && granted {
            return;
        }
        self.since.store(now, Relaxed);
        self.length.store(length, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_until_a_try_is_granted() {
        let pause = Pause::up_to(4096);
        assert!(!pause.is_on(0) && !pause.is_on(u32::MAX));
        let mut now = u32::MAX - 100;
        for length in [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            pause.tried(false, now);
            assert!(pause.is_on(now.wrapping_add(length - 1)) && !pause.is_on(now.wrapping_add(length)));
            now = now.wrapping_add(length);
        }
        pause.tried(true, now);
        assert!(!pause.is_on(now));
        pause.tried(false, now);
        assert!(pause.is_on(now.wrapping_add(15)) && !pause.is_on(now.wrapping_add(16)));
    }
}
