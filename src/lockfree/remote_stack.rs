//! The remote-free stack of a slab: how blocks return to it from threads that do not own it.
//!
//! The whole state is one word, so one compare-and-swap decides everything:
//!
//! ```text
//!  63        48 47                          3   1   0
//! +------------+-----------------------------+---+---+
//! |   count    |  first block of the chain   | O | A |
//! +------------+-----------------------------+---+---+
//! ```
//!
//! * `A` (armed): the slab is in no ready list, and nobody is about to put it there. The first push clears
//!   the bit and thereby takes on the duty to publish the slab to its owner. So a slab is published once, by
//!   one thread, however many push.
//! * `O` (orphan): the slab has no owner. Then `count` is the number of blocks still in use. Without `O` it
//!   is the number of blocks in the chain, so that the owner learns it without walking through cold memory.
//!   The push that brings an orphan's count to zero takes the slab, and so does the thread that adopts it:
//!   whoever clears `O` owns the slab.
//!
//! The word is a pointer to the first block whose address carries the rest, so that the chain can be followed
//! by the pointers that came with the blocks. Without a chain it is a pointer to nothing.

use crate::sync::{AtomicPtr, Node, Ordering};
use core::ptr;

const ARMED: usize = 1;
const ORPHAN: usize = 2;
const POINTER: usize = ((1 << 48) - 1) & !7;
const COUNT_SHIFT: u32 = 48;

/// What a push obliges its caller to do next.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Pushed {
    /// Nothing: the owner, or whoever adopts the slab, will find the chain.
    Queued,
    /// To put the slab on its owner's ready list. Until that is done the owner does not release the slab.
    Publish,
    /// To release the slab: it was an orphan, has no block in use any more, and is the caller's now.
    Emptied,
}

/// A chain of blocks taken off the stack.
pub(crate) struct Chain<N> {
    /// Its first block; null when there is none.
    pub(crate) head: *mut N,
    /// How many blocks it has; 0 for the chain of an adopted orphan, whose length is not known.
    pub(crate) count: u32,
}

/// A stack of free blocks that many threads push to and the slab's owner drains. A visitor of the owner's
/// heap stands in for the owner.
#[repr(transparent)]
pub(crate) struct RemoteStack<N> {
    word: AtomicPtr<N>,
}

/// The word of an empty stack that nobody has to publish.
const fn armed<N>() -> *mut N {
    ptr::without_provenance_mut(ARMED)
}

/// The chain of a stack with this word.
fn chain<N>(word: *mut N) -> *mut N {
    word.map_addr(|a| a & POINTER)
}

/// The count in a word.
fn count<N>(word: *mut N) -> u32 {
    (word.addr() >> COUNT_SHIFT) as u32
}

impl<N: Node> RemoteStack<N> {
    /// An empty stack, armed.
    pub(crate) const fn constant() -> Self {
        Self { word: AtomicPtr::new(armed()) }
    }

    /// Makes it an empty, armed stack, for a slab that no other thread knows yet.
    pub(crate) fn reset(&self) {
        // Relaxed: other threads get the slab's blocks only through the program's own synchronisation.
        self.word.store(armed(), Ordering::Relaxed);
    }

    /// Pushes the chain `head..=tail` of `count` blocks. Returns what to do next and, for a slab with an
    /// owner, how many blocks wait now.
    ///
    /// # Safety
    ///
    /// The chain is linked through `Node::next` and consists of `count` free blocks of this stack's slab,
    /// which are the caller's alone.
    pub(crate) unsafe fn push(&self, head: *mut N, tail: *mut N, count: u32) -> (Pushed, u32) {
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            // SAFETY: by this function's contract `tail` is a valid block of ours alone, until the exchange
            // below succeeds.
            unsafe { N::set_next(tail, chain(old)) };
            let held = self::count(old);
            let (new, outcome) = if old.addr() & ORPHAN != 0 {
                if held <= count {
                    (armed(), Pushed::Emptied)
                } else {
                    let left = ((held - count) as usize) << COUNT_SHIFT;
                    (head.map_addr(|a| a | ORPHAN | left), Pushed::Queued)
                }
            } else {
                let outcome = if old.addr() & ARMED != 0 { Pushed::Publish } else { Pushed::Queued };
                (head.map_addr(|a| a | ((held + count) as usize) << COUNT_SHIFT), outcome)
            };
            // Release: pairs with the acquires in `take_chain`, `rearm` and `adopt`, which read the links
            // written above and hand out the blocks that the program wrote to before it freed them. Acquire:
            // a push that empties an orphan pairs with the releases in `orphan` (the slab's fields) and in
            // the pushes before it. A push that has to publish pairs with those in `arm` (the slab's link)
            // and `rearm` (the slab's owner).
            match self.word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (outcome, held + count),
                Err(now) => old = now,
            }
        }
    }

    /// [`RemoteStack::has_chain`] for the owner of a slab that is no orphan, which is quicker.
    #[inline(always)]
    pub(crate) fn has_chain_of_own(&self) -> bool {
        // Without a chain there is nothing in the word but perhaps this flag, the lowest bit.
        self.word.load(Ordering::Relaxed).addr() > ARMED
    }

    /// Whether a chain waits. `false` may become `true` at any time; for the owner, who alone takes the
    /// chain, `true` stays true. Relaxed: `take_chain` acquires.
    pub(crate) fn has_chain(&self) -> bool {
        self.word.load(Ordering::Relaxed).addr() & POINTER != 0
    }

    /// Whether the slab is in no ready list and nobody is about to put it there. Only a push disarms, so for
    /// an owner of a slab without blocks in use `true` stays true. Relaxed: what the push did, the owner
    /// acquires when it takes the slab off the ready list or takes the chain.
    pub(crate) fn is_armed(&self) -> bool {
        self.word.load(Ordering::Relaxed).addr() & ARMED != 0
    }

    /// Number of blocks in the chain, for statistics.
    pub(crate) fn waiting(&self) -> u32 {
        let word = self.word.load(Ordering::Relaxed);
        if word.addr() & ORPHAN == 0 { count(word) } else { 0 }
    }

    /// Number of an orphan's blocks still in use, for statistics.
    pub(crate) fn orphan_in_use(&self) -> Option<u32> {
        let word = self.word.load(Ordering::Relaxed);
        (word.addr() & ORPHAN != 0).then(|| count(word))
    }

    /// Takes the chain and leaves the armed bit as it is. Owner only.
    pub(crate) fn take_chain(&self) -> Chain<N> {
        let taken = |old: *mut N| Some(ptr::without_provenance_mut(old.addr() & ARMED));
        // Acquire: pairs with the release in `push`.
        let old = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, taken);
        let old = old.unwrap_or(armed());
        Chain { head: chain(old), count: count(old) }
    }

    /// Arms the stack and leaves the chain where it is; returns how many blocks it has. For the owner, after
    /// it has taken the slab off its ready list. It does not look at a chain before it needs the blocks.
    pub(crate) fn arm(&self) -> u32 {
        // Release: pairs with the acquire in a `push` that takes the duty to publish, and so may write the
        // link that the owner has just read. No acquire: nothing is read from the chain.
        let armed = |old: *mut N| Some(old.map_addr(|a| a | ARMED));
        let old = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, armed);
        old.map_or(0, count)
    }

    /// Takes the chain and arms the stack. For the owner, after it has taken the slab off its ready list or
    /// adopted it.
    pub(crate) fn rearm(&self) -> Chain<N> {
        // Acquire: pairs with the release in `push`. Release: pairs with the acquire in a `push` that takes
        // the duty to publish, and so finds the owner that was written before.
        let old = self.word.swap(armed(), Ordering::AcqRel);
        Chain { head: chain(old), count: count(old) }
    }

    /// Makes the slab an orphan with `in_use` blocks in use. False, with nothing changed, while a chain waits
    /// or the slab is published. Owner only.
    pub(crate) fn orphan(&self, in_use: u32) -> bool {
        // Release: pairs with the acquires in `adopt` and in a `push` that empties the orphan, which read the
        // slab's fields.
        let orphan = ptr::without_provenance_mut(ORPHAN | (in_use as usize) << COUNT_SHIFT);
        self.word.compare_exchange(armed(), orphan, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Claims an orphan. Returns its chain and the number of blocks still in use; `None` when another thread
    /// was first.
    ///
    /// The stack is left disarmed, because nobody may publish the slab before its new owner is stored. After
    /// storing it, the caller must [`RemoteStack::rearm`] and take in what has been pushed meanwhile.
    pub(crate) fn adopt(&self) -> Option<(Chain<N>, u32)> {
        let adopted = |old: *mut N| (old.addr() & ORPHAN != 0).then_some(ptr::null_mut());
        // Acquire: pairs with the releases in `orphan` and `push`.
        let old = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, adopted).ok()?;
        Some((Chain { head: chain(old), count: 0 }, count(old)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superslab::slab::Block;

    #[test]
    fn the_word_tells_what_waits_and_what_is_in_use() {
        let mut memory = [[0usize; 2]; 6];
        let all = memory.as_mut_ptr();
        let block = |n: usize| all.wrapping_add(n).cast::<Block>();
        let stack = RemoteStack::<Block>::constant();
        // SAFETY: the blocks are this thread's alone.
        unsafe {
            let follow = |mut at: *mut Block| {
                let mut seen = std::vec::Vec::new();
                while !at.is_null() {
                    seen.push((0..6).find(|&n| block(n) == at).unwrap());
                    at = Block::next(at);
                }
                seen
            };
            assert!((stack.waiting(), stack.orphan_in_use(), stack.has_chain()) == (0, None, false));
            assert!(stack.is_armed());
            assert_eq!(stack.push(block(0), block(0), 1), (Pushed::Publish, 1));
            assert!(stack.has_chain() && !stack.is_armed());
            Block::set_next(block(1), block(2));
            assert_eq!(stack.push(block(1), block(2), 2), (Pushed::Queued, 3));
            assert_eq!((stack.waiting(), stack.orphan_in_use()), (3, None));
            assert_eq!((stack.arm(), stack.arm()), (3, 3));
            assert!(stack.is_armed() && stack.waiting() == 3 && !stack.orphan(9));
            let chain = stack.take_chain();
            assert_eq!((follow(chain.head), chain.count), ([1, 2, 0].into(), 3));
            assert!(stack.is_armed() && !stack.has_chain());
            // An orphan with more blocks in use than come back.
            assert!(stack.orphan(5) && !stack.orphan(5) && !stack.is_armed());
            assert_eq!((stack.waiting(), stack.orphan_in_use(), stack.has_chain()), (0, Some(5), false));
            assert_eq!(stack.push(block(3), block(3), 1).0, Pushed::Queued);
            assert_eq!(stack.push(block(1), block(2), 2).0, Pushed::Queued);
            assert_eq!((stack.waiting(), stack.orphan_in_use()), (0, Some(2)));
            let (chain, used) = stack.adopt().unwrap();
            assert_eq!((follow(chain.head), chain.count, used), ([1, 2, 3].into(), 0, 2));
            assert!(stack.adopt().is_none() && !stack.is_armed() && !stack.has_chain());
            assert_eq!(stack.push(block(4), block(4), 1), (Pushed::Queued, 1));
            let chain = stack.rearm();
            assert_eq!((follow(chain.head), chain.count, stack.is_armed()), ([4].into(), 1, true));
            // One of which all come back.
            for last in [2, 3] {
                assert!(stack.orphan(last));
                assert_eq!(stack.push(block(3), block(3), last - 2 + 1).0, Pushed::Queued);
                assert_eq!(stack.orphan_in_use(), Some(1));
                assert_eq!(stack.push(block(4), block(4), 1).0, Pushed::Emptied);
                assert!(stack.is_armed() && !stack.has_chain() && stack.adopt().is_none());
            }
        }
    }
}
