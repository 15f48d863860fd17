//! Who has done something with a block: a thread, and its stack.

use crate::os::faults::Access;
use crate::os::{message, thread};
use crate::sync::Ordering::SeqCst;
use crate::sync::{AtomicU32, AtomicUsize};

/// Return addresses that are kept.
const FRAMES: usize = 40;

/// The number of a thread that may not ask for it.
const UNKNOWN: u32 = u32::MAX;

/// A thread and its stack at some moment. All zero is none. Written by whoever holds the slot, or the record;
/// read by whoever reports something, perhaps meanwhile, so all of it is atomic. SeqCst throughout: this is
/// rare.
pub(super) struct Trace {
    /// The thread's number in the system, or [`UNKNOWN`]; 0 for none.
    thread: AtomicU32,
    depth: AtomicU32,
    addresses: [AtomicUsize; FRAMES],
}

impl Trace {
    /// Notes the calling thread and its stack.
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn note(&self) {
        let mut addresses = [0; FRAMES];
        let depth = capture(&mut addresses);
        self.set(&addresses, depth);
    }

    /// Notes the calling thread and the stack of the code of it that a fault has interrupted.
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn note_access(&self, access: &Access) {
        let mut addresses = [0; FRAMES];
        if let Some((first, rest)) = addresses.split_first_mut() {
            // As if it were a return address.
            *first = access.pc.wrapping_add(1);
            let depth = 1 + capture_interrupted(access, rest);
            self.set(&addresses, depth);
        }
    }

    /// Notes the calling thread, with a stack.
    #[unsafe(link_section = "hakmem_rare")]
    fn set(&self, addresses: &[usize; FRAMES], depth: usize) {
        self.thread.store(thread::system_id().unwrap_or(UNKNOWN), SeqCst);
        self.depth.store(depth as u32, SeqCst);
        let found = addresses.iter().take(depth);
        self.addresses.iter().zip(found).for_each(|(to, from)| to.store(*from, SeqCst));
    }

    /// None.
    pub(super) const fn none() -> Self {
        let addresses = [const { AtomicUsize::new(0) }; FRAMES];
        Self { thread: AtomicU32::new(0), depth: AtomicU32::new(0), addresses }
    }

    /// Forgets it.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn clear(&self) {
        self.thread.store(0, SeqCst);
    }

    /// Whether it is none.
    pub(super) fn is_none(&self) -> bool {
        self.thread.load(SeqCst) == 0
    }

    /// Prints it, if there is one; `what` the thread has done.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn print(&self, what: &str) {
        let thread = self.thread.load(SeqCst);
        if thread == 0 {
            return;
        }
        let depth = self.depth.load(SeqCst) as usize;
        match (thread, depth) {
            (UNKNOWN, 0) => message::line(format_args!("  {what} by a thread that is not known")),
            (UNKNOWN, _) => message::line(format_args!("  {what} by a thread that is not known, at")),
            (_, 0) => message::line(format_args!("  {what} by thread {thread}; its stack is not known")),
            _ => message::line(format_args!("  {what} by thread {thread} at")),
        }
        for address in self.addresses.iter().take(depth) {
            // Of a call: the return address may be that of the next line.
            place(address.load(SeqCst).wrapping_sub(1));
        }
    }
}

/// Prints where the instruction at an address is, as `addr2line` takes it.
#[unsafe(link_section = "hakmem_rare")]
fn place(pc: usize) {
    #[cfg(feature = "profile")]
    {
        use crate::os::message::Shown;
        let line = |path: &[u8], at: usize| message::line(format_args!("    {}+{at:#x}", Shown(path)));
        if crate::stacks::modules::place(pc, line).is_some() {
            return;
        }
    }
    message::line(format_args!("    {pc:#x}"));
}

/// The calling thread's stack: how many addresses, innermost first.
#[cfg_attr(not(feature = "profile"), allow(unused_variables))]
fn capture(addresses: &mut [usize]) -> usize {
    #[cfg(feature = "profile")]
    return crate::stacks::capture(addresses).depth;
    #[cfg(not(feature = "profile"))]
    0
}

/// The stack of code that a fault has interrupted, in the same way.
#[cfg_attr(not(feature = "profile"), allow(unused_variables))]
fn capture_interrupted(access: &Access, addresses: &mut [usize]) -> usize {
    #[cfg(feature = "profile")]
    return crate::stacks::capture_interrupted(access.pc, access.registers, addresses).depth;
    #[cfg(not(feature = "profile"))]
    0
}
