//! What a heap has beyond others while it is armed: see [`gate`](super::gate).

use crate::base::table::CellTable;
use crate::lockfree::magazine_slots::Slot;
use crate::superslab::pagemap::KINDS;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU32};
use crate::tiny::classes::stride;
use crate::{guard, sampling};
use core::cell::Cell;

/// Which arming heaps are to follow; 0 for none. Relaxed: a thread that sees it late is armed late.
pub(super) static EPOCH: AtomicU32 = AtomicU32::new(0);

/// So many allocations ahead is never.
const NEVER: u64 = 1 << 48;

/// Whether heaps are armed, or are to be.
#[inline(always)]
pub(crate) fn is_armed() -> bool {
    EPOCH.load(Relaxed) != 0
}

/// Arms all heaps, each as soon as its owner gets to it; `epoch` is not 0, and another one than the last. 0
/// disarms them.
pub(crate) fn set_epoch(epoch: u32) {
    // Release: pairs with the acquire in `Heap::follow`.
    EPOCH.store(epoch, Release);
}

/// Arms all heaps, before there is one. Until [`set_epoch`] no magazine has room that a free can see, from
/// the first one on: Rust's `dealloc` asks the page map then, and finds blocks that lie between guard pages.
#[cold]
pub(super) fn arm_from_the_start() {
    // Another epoch than that of the first profile.
    set_epoch(u32::MAX);
}

/// What the gate keeps for one heap. The owner's alone, but for the atomics, which visitors read under the
/// heap's lock, and statistics at any time. What each free looks at lies in tables of its own, whose elements
/// the processor can address by class.
#[repr(C, align(64))]
pub(crate) struct Gate {
    /// The ends of the magazines, while the heap is armed.
    pub(super) limits: CellTable<AtomicPtr<Slot>, KINDS>,
    /// How many blocks may be pushed into each magazine, if it has room, until the client's next allocation
    /// comes into it; none if that is 0 or less.
    pub(super) pushes: CellTable<Cell<isize>, KINDS>,
    /// The magazines' own notices.
    pub(super) notices: CellTable<Cell<u8>, KINDS>,
    pub(super) leases: CellTable<Lease, KINDS>,
    /// The arming that this heap follows.
    pub(super) epoch: Cell<u32>,
    /// The state of the generator of random numbers.
    pub(super) random: Cell<u64>,
    /// Which clients have asked for the block that was just allocated, until they get it.
    pub(super) due: Cell<u8>,
    /// Which clients ask for the next block of each class.
    clients: CellTable<Cell<u8>, KINDS>,
    /// The classes, a bit each, whose next allocation of a client was drawn by the parent of this process.
    inherited: Cell<u64>,
}

const _: () = assert!(KINDS <= u64::BITS as usize);

/// The client that is the heap profile.
const PROFILE: u8 = 1;
/// The client that puts blocks between guard pages.
const GUARD: u8 = 2;

/// Who has asked for a block.
#[derive(Clone, Copy)]
pub(crate) struct Due(pub(super) u8);

impl Due {
    /// Nobody.
    pub(super) const NONE: Self = Self(0);

    /// Whether the heap profile has.
    pub(crate) fn is_for_profile(self) -> bool {
        self.0 & PROFILE != 0
    }

    /// Whether it is to lie between guard pages.
    pub(crate) fn is_for_guard(self) -> bool {
        self.0 & GUARD != 0
    }
}

/// What the gate keeps for one magazine: how many allocations its owner may make before the client's next
/// one.
pub(super) struct Lease {
    /// The slot that this one would pop, if nothing more were pushed than [`Gate::pushes`]: its distance from
    /// the magazine's first slot, in bytes. Pops do not change it, and each push adds a slot. Below the
    /// magazine it is negative.
    due: Cell<isize>,
    /// The block that lay there; null where the magazine is not cut. If it is, `due` is the slot.
    pub(super) saved: AtomicPtr<u8>,
}

/// Bytes of a slot.
pub(super) const SLOT: isize = size_of::<Slot>() as isize;

impl Lease {
    /// The slot where the magazine is cut, if it is.
    pub(super) fn cut(&self) -> isize {
        self.due.get()
    }
}

impl Gate {
    /// The slot of the client's next allocation of `class`: see [`Lease::due`].
    pub(super) fn due(&self, class: usize) -> isize {
        self.leases[class].due.get() - SLOT * self.pushes[class].get().max(0)
    }

    /// Sets that slot.
    pub(super) fn set_due(&self, class: usize, due: isize) {
        // None may be in the magazine, nor just above its first slot: where the magazine is empty, that is
        // what the next allocation would pop.
        let pushes = (-due / SLOT - 1).max(0);
        self.pushes[class].set(pushes);
        self.leases[class].due.set(due + SLOT * pushes);
    }

    /// Whether a block has been taken out of the magazine of `class`. For any thread.
    pub(super) fn is_cut(&self, class: usize) -> bool {
        !self.leases[class].saved.load(Relaxed).is_null()
    }

    /// Whether this block has been taken out of the magazine of `class`. For any thread.
    pub(super) fn has_cut(&self, class: usize, block: *mut u8) -> bool {
        self.leases[class].saved.load(Relaxed) == block
    }

    /// How many allocations of `class` to pass over until the next one of any client. What is drawn for the
    /// others is forgotten: each allocation is as likely as any other to be theirs, whatever was before.
    pub(super) fn draw(&self, class: usize) -> u64 {
        let profile = sampling::draw(&self.random, stride(class) as usize).min(NEVER);
        let guard = guard::draw(&self.random).min(NEVER);
        let client = |left, client| if left <= profile.min(guard) { client } else { 0 };
        self.clients[class].set(client(profile, PROFILE) | client(guard, GUARD));
        profile.min(guard)
    }

    /// In the child of a fork: what is drawn from now on is not what the parent draws, or other children.
    /// What was drawn before is, so it is drawn again where that can be done, as [`Gate::is_inherited`] says.
    /// Not here: a signal handler of the thread may have forked, which has interrupted it anywhere.
    pub(super) fn reseed(&self) {
        self.random.set(sampling::seed());
        self.inherited.set(!0);
    }

    /// Whether the client's next allocation of `class` was drawn by the parent of this process, of which this
    /// has not been told yet.
    pub(super) fn is_inherited(&self, class: usize) -> bool {
        let inherited = self.inherited.get();
        self.inherited.set(inherited & !(1 << class));
        inherited & 1 << class != 0
    }

    /// Which clients the last [`Gate::draw`] was for.
    pub(super) fn clients(&self, class: usize) -> u8 {
        self.clients[class].get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::options::{Hardened, Options};
    use crate::os::child;
    use core::ptr;

    fn gate() -> Gate {
        // SAFETY: all zero is a valid gate.
        unsafe { core::mem::zeroed() }
    }

    /// Each push adds a slot above the next sample's, which so moves up by one.
    #[test]
    fn what_is_due_moves_up_with_each_push_but_not_unseen_into_the_magazine() {
        let gate = gate();
        for slots in -9..9 {
            let due = slots * SLOT;
            gate.set_due(3, due);
            assert_eq!(gate.due(3), due);
            let pushes = gate.pushes[3].get();
            assert_eq!(pushes, (-slots - 1).max(0), "{slots}");
            for done in 1..=pushes {
                gate.pushes[3].set(pushes - done);
                assert_eq!(gate.due(3), due + done * SLOT);
            }
            // A push that was not made, because something has to be looked at first.
            gate.pushes[3].set(-1);
            assert_eq!(gate.due(3), due + pushes * SLOT);
        }
        gate.set_due(3, 5 * SLOT);
        assert_eq!((gate.leases[3].cut(), gate.due(4)), (5 * SLOT, 0));
    }

    #[test]
    fn a_magazine_that_is_cut_has_the_block_that_was_cut_out() {
        let (gate, block) = (gate(), ptr::without_provenance_mut(64));
        assert!(!gate.is_cut(5) && !gate.has_cut(5, block));
        gate.leases[5].saved.store(block, Relaxed);
        assert!(gate.is_cut(5) && gate.has_cut(5, block) && !gate.is_cut(6));
        assert!(!gate.has_cut(5, block.wrapping_add(1)));
    }

    #[test]
    fn each_class_is_drawn_again_once_in_a_child() {
        let gate = gate();
        let inherited = || (0..KINDS).filter(|&class| gate.is_inherited(class)).count();
        assert_eq!(inherited(), 0);
        let before = gate.random.get();
        gate.reseed();
        assert_ne!(gate.random.get(), before);
        assert!(gate.is_inherited(7) && !gate.is_inherited(7));
        assert_eq!((inherited(), inherited()), (KINDS - 1, 0));
    }

    /// In the child of a fork, because rates are the process's.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn whoever_is_due_first_gets_the_block() {
        assert!(child::is_so(|| {
            let gate = gate();
            gate.random.set(1);
            assert_eq!(gate.draw(9), NEVER, "nobody asks");
            let options = Options::new().guard(1).guard_slots(4).hardened(Hardened::OFF);
            guard::init(&options);
            assert_eq!((gate.draw(9), gate.clients(9), gate.clients(8)), (0, GUARD, 0));
            assert!(sampling::begin(1, true, || ()));
            assert_eq!((gate.draw(9), gate.clients(9)), (0, PROFILE | GUARD));
            sampling::end(0, |armed| armed);
            assert!(sampling::begin(u64::MAX, true, || ()));
            assert_eq!((gate.draw(9), gate.clients(9)), (0, GUARD));
            let due = |clients| (Due(clients).is_for_profile(), Due(clients).is_for_guard());
            assert_eq!([due(0), due(PROFILE)], [(false, false), (true, false)]);
            assert_eq!([due(GUARD), due(PROFILE | GUARD)], [(false, true), (true, true)]);
            set_epoch(5);
            assert!(is_armed());
            set_epoch(0);
            assert!(!is_armed());
            arm_from_the_start();
            is_armed()
        }));
    }
}
