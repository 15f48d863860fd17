//! Sampled guard pages: a few allocations of small blocks, chosen at random, lie between pages that cannot be
//! touched, and become such pages when they are freed. What is written behind them, or after their free, is
//! found at the instruction, and said with the stacks of the allocation and of the free.
//!
//! Which allocations, the [gate](crate::front::gate) counts, by [`draw`]. The page map says of the slots'
//! memory what it says of the hardened heap's, which no process has besides: so C's `free` finds it on its
//! way to large blocks, and Rust's, which in a heap that is armed always takes the slow path, because layout
//! and page map do not agree.
//!
//! In hardened mode no block has guard pages; of those that would, stacks are kept.
//!
//! What is where: `slots.rs` the slots and what is known of them, `trace.rs` stacks, `fault.rs` what is said
//! and what happens when a guard page is touched, `history.rs` what is kept in hardened mode.

mod fault;
mod figures;
mod history;
mod slots;
mod trace;

pub(crate) use figures::Figures;
pub(crate) use slots::{in_use, is_on};

use crate::base::misuse::{self, Fault, Said};
use crate::base::options::{Hardened, Options};
use crate::guard::fault::report;
use crate::guard::slots::{FREE, USED};
use crate::os;
use crate::sampling;
use core::cell::Cell;
use core::ptr;

/// Takes the options over, before the first heap is made.
pub(crate) fn init(options: &Options) {
    if options.guard == 0 || cfg!(miri) {
        return;
    }
    if options.hardened == Hardened::OFF {
        slots::init(options.guard, options.guard_slots);
        // A confined process takes no samples.
        if !options.few_syscalls {
            fault::note_process();
        }
    } else if history::init(options.guard_slots) {
        slots::init(options.guard, 0);
        misuse::tell_more(history::tell);
    }
}

/// How many allocations to pass over until the next one that is to be in a slot. `state` is that of
/// [`sampling::draw`].
pub(crate) fn draw(state: &Cell<u64>) -> u64 {
    sampling::draw_at(state, 1, slots::rate() as u64)
}

/// Counts an allocation in hardened mode, by what a thread has for that: how many to pass over until the next
/// one that is sampled, and the state of its generator of random numbers. Whether it is to be sampled.
fn is_due([left, random]: &[Cell<u64>; 2]) -> bool {
    if random.get() == 0 {
        random.set(sampling::seed());
        left.set(draw(random));
    }
    let now = left.get();
    left.set(if now == 0 { draw(random) } else { now - 1 });
    now == 0
}

/// In hardened mode a block of `size` bytes was allocated, by the thread that has `sampler`.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn allocated(block: *mut u8, size: usize, sampler: &[Cell<u64>; 2]) {
    history::allocated(block.addr(), size, is_due(sampler) && !os::is_confined());
}

/// In hardened mode a block is about to be freed.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn freed(block: *mut u8) {
    history::freed(block.addr());
}

/// A block of `size` bytes at a multiple of `align`, in a slot. It is zero. Null if there is no free slot, or
/// the block does not fit into one. `class` is the size class that the block would have had; `in_rust` says
/// who asks.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn alloc(size: usize, align: usize, class: u8, in_rust: bool) -> *mut u8 {
    if os::is_confined() {
        return ptr::null_mut();
    }
    let block = slots::take(size, align, class, sampling::seed());
    // Rust's standard library makes its first allocations between looking whether there is a handler and
    // setting its own, which would replace ours.
    let after = if in_rust { 16 / slots::rate().max(1) } else { 0 };
    if !block.is_null() && slots::samples() > after as u64 {
        fault::install();
    }
    block
}

/// Frees a block on behalf of `function`, of which the program says `said`.
///
/// # Safety
///
/// The page map says that the address is ours. If a block begins there, the program does not use it any more.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn free(block: *mut u8, said: Said, function: &str) {
    let Some(slot) = slots::find(block) else {
        return report(function, block, Fault::Foreign, None);
    };
    let about = slot.about();
    if about.state == USED && about.start != block.addr() {
        return report(function, block, Fault::Interior, Some(slot));
    }
    // Of two threads that free the same block exactly one gets it here.
    if !slot.hold(block) {
        let fault = if about.start == block.addr() { Fault::DoubleFree } else { Fault::Interior };
        return report(function, block, fault, Some(slot));
    }
    // SAFETY: held by this call, so ours, and still accessible.
    if let Some(broken) = unsafe { slot.broken(block) } {
        fault::overwritten(function, block, broken, slot);
    }
    let right = match said {
        Said::Nothing => true,
        // `calloc` of fewer bytes than the smallest block has asks for a whole one.
        Said::Size(said) => said.max(16) == about.size.max(16),
        Said::Class(said) => said == about.class,
    };
    if !right {
        report(function, block, Fault::FreedSize, Some(slot));
    }
    // SAFETY: held by this call, and by the caller's clause nobody uses it any more.
    unsafe { slot.close(block) };
}

/// The bytes that were asked for when the block was allocated. `None` after reporting misuse on behalf of
/// `function`, when no block in use begins there.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn usable(block: *mut u8, function: &str) -> Option<usize> {
    let Some(slot) = slots::find(block) else {
        report(function, block, Fault::Foreign, None);
        return None;
    };
    let about = slot.about();
    if about.start == block.addr() && about.state == USED {
        return Some(about.size);
    }
    let freed = about.state == FREE && about.start == block.addr();
    report(function, block, if freed { Fault::UsedAfterFree } else { Fault::Interior }, Some(slot));
    None
}

/// In the child of a fork, by its only thread.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn inherit() {
    slots::inherit();
    history::inherit();
}

/// In the child of a fork: whoever has noticed it.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn forked() {
    if !os::is_confined() {
        fault::note_process();
    }
}

/// Leaves nothing behind that could be called. When nobody uses the library any more.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn uninstall() {
    fault::uninstall();
}

/// Gives all memory back, when no slot is in use and no other thread can be here.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn unmap() {
    slots::unmap();
    history::unmap();
}

/// The figures of this moment.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn figures() -> Figures {
    let figures = slots::figures();
    let known = history::bytes() as u64;
    let samples = figures.samples + history::samples();
    Figures { samples, mapped: figures.mapped + known, records: figures.records + known, ..figures }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// In the child of a fork, because the rate is the process's.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn one_allocation_is_due_after_so_many_that_are_not() {
        assert!(os::child::is_so(|| {
            let sampler = [Cell::new(3), Cell::new(5)];
            let due = || is_due(&sampler);
            assert_eq!([due(), due(), due(), due(), due()], [false, false, false, true, false]);
            assert!(sampler[0].get() > u64::MAX / 2, "no rate");
            slots::init(1, 0);
            sampler[0].set(1);
            assert_eq!([due(), due(), due()], [false, true, true]);
            let fresh = [const { Cell::new(0) }; 2];
            slots::init(1 << 40, 0);
            // One that was not due at once, drawn with a state of its own.
            let dues = (0..100).filter(|_| is_due(&fresh)).count();
            dues == 0 && fresh[1].get() != 0
        }));
    }
}
