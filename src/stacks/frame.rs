//! The state of a walk: the registers of one frame, and the stack that they are read from.

use crate::os::{SMALLEST_PAGE, peek};
use core::ptr;

/// The registers that rules refer to, by their place in [`Frame::registers`].
pub(super) const SP: usize = 0;
/// The frame pointer.
pub(super) const FP: usize = 1;
/// x86-64: rbx, from which glibc's loader counts. AArch64: the link register.
pub(super) const EXTRA: usize = 2;

/// What a walk knows of a frame.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub pc: usize,
    pub registers: [usize; 3],
    /// The pc is the next instruction of interrupted code, not the one behind a call.
    pub is_exact: bool,
    /// The stack pointer is only a lower bound: on AArch64, behind a frame without CFI.
    pub is_sp_a_guess: bool,
}

impl Frame {
    /// An address in the instruction that the frame is at.
    pub(super) fn instruction(&self) -> usize {
        self.pc.wrapping_sub(!self.is_exact as usize)
    }
}

/// Bytes between a frame and the next one found by its frame pointer at most.
const FAR: usize = 256 << 10;
/// Bytes that the unwind tables may be believed to have skipped: a large frame.
const VERY_FAR: usize = 1 << 20;
/// Words that are copied at once.
const WINDOW: usize = 32;

/// The memory of the stacks that a walk reads.
///
/// What the calling thread's stack pointer and unwind tables lead to is its own stack, which nobody unmaps
/// while it walks. That is read directly, but from no page that the kernel has not called readable in the
/// same walk: a pointer may be wrong. Once the walk has guessed, only the pages that follow one another are
/// taken for that stack. Everything else is copied by system call, because other memory may go away between
/// a look and a read.
pub(super) struct Stack {
    /// What is read directly, in whole pages.
    from: usize,
    to: usize,
    /// Whether pages that do not follow may be.
    is_own: bool,
    /// What was copied, and from where.
    window: [usize; WINDOW],
    window_from: usize,
    window_len: usize,
}

impl Stack {
    /// The stack of the calling thread, whose stack pointer this is.
    pub(super) fn at(sp: usize) -> Self {
        let from = page_of(sp);
        let to = from.saturating_add(SMALLEST_PAGE);
        Self { from, to, is_own: true, window: [0; WINDOW], window_from: 0, window_len: 0 }
    }

    /// The walk goes on where a signal has interrupted the thread, with this stack pointer.
    #[cold]
    pub(super) fn go_to(&mut self, sp: usize) {
        if self.is_own && !self.knows(sp) && peek::is_readable(sp & !(WORD - 1)) {
            self.from = page_of(sp);
            self.to = self.from.saturating_add(SMALLEST_PAGE);
        }
    }

    /// The walk goes on by a guess.
    pub(super) fn guess(&mut self) {
        self.is_own = false;
    }

    /// The word at an address of a stack.
    #[inline(always)]
    pub(super) fn load(&mut self, at: usize) -> Option<usize> {
        if at % WORD != 0 {
            return None;
        }
        if !self.knows(at) && !self.look(at) {
            return self.copied(at);
        }
        // SAFETY: the word is in a page of the thread's own stack (see the type), and the page is readable:
        // the stack pointer was in it, or the kernel has said so in this walk. Should the tables be wrong, it
        // is readable all the same, unless another thread unmaps it just now. Volatile, because other frames'
        // variables are nothing that the compiler knows of.
        Some(unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() })
    }

    /// Whether an address on another page may be read directly.
    #[cold]
    #[inline(never)]
    fn look(&mut self, at: usize) -> bool {
        let page = page_of(at);
        let most = if self.is_own { VERY_FAR } else { 1 };
        if page.checked_sub(self.to).is_none_or(|far| far >= most) || !peek::is_readable(at) {
            return false;
        }
        if page != self.to {
            self.from = page;
        }
        self.to = page.saturating_add(SMALLEST_PAGE);
        true
    }

    /// The word at an address, copied with some that follow.
    #[cold]
    #[inline(never)]
    fn copied(&mut self, at: usize) -> Option<usize> {
        let place = |stack: &Self| {
            let place = at.checked_sub(stack.window_from)? / WORD;
            stack.window.get(..stack.window_len)?.get(place).copied()
        };
        place(self).or_else(|| {
            self.window_from = at;
            self.window_len = peek::copy_words(at, &mut self.window);
            place(self)
        })
    }

    /// Whether all is readable from one address to a higher one that is not far.
    pub(super) fn reaches(&mut self, from: usize, to: usize) -> bool {
        let Some(far) = to.checked_sub(from) else { return false };
        far <= FAR
            && (page_of(from)..=to).step_by(SMALLEST_PAGE).all(|at| self.knows(at) || peek::is_readable(at))
    }

    fn knows(&self, at: usize) -> bool {
        self.from <= at && at < self.to
    }
}

const WORD: usize = size_of::<usize>();

fn page_of(address: usize) -> usize {
    address & !(SMALLEST_PAGE - 1)
}
