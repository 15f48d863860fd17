//! What is said about misuse of a sampled block: one line that says what has happened, then who has allocated
//! the block, and who has freed it.

use crate::base::misuse::{self, Fault};
use crate::guard::slots::{self, About, FREE, Slot};
use crate::guard::trace::Trace;
use crate::os::faults::{self, Access, Whose};
use crate::os::{self, futex, message, process, thread};
use crate::sync::Ordering::SeqCst;
use crate::sync::{AtomicBool, AtomicU32};
use core::fmt;

/// The thread that reports something by which the process ends; 0 if there is none.
static REPORTING: AtomicU32 = AtomicU32::new(0);
/// Who has touched a page that is not accessible. Whoever reports it writes here.
static TOUCHED: Trace = Trace::none();
/// How often another thread waits for that: as long as a report may take.
const WAITS: u32 = 200;

/// Lets one thread report, and not twice: whether the caller is the first, comes later than another thread,
/// or is here again.
fn turn() -> Whose {
    // Where that may not be asked for, what tells it from other threads at this moment.
    let me = thread::system_id().unwrap_or_else(|| thread::id() as u32 | 1);
    let mut before = 0;
    while let Err(other) = REPORTING.compare_exchange(before, me, SeqCst, SeqCst) {
        if other == me {
            return Whose::Again;
        }
        // A child of `vfork` has reported in its parent's memory, or a child of a fork has inherited this.
        if thread::has_ended(other) {
            before = other;
        } else {
            (0..WAITS).for_each(|_| futex::pause());
            return Whose::Later;
        }
    }
    Whose::First
}

/// Whether the caller is to report something by which the process ends.
fn is_first() -> bool {
    turn() == Whose::First
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.state == FREE { "free" } else { "in use" };
        write!(f, "block {:#x} of {} bytes, {state}, between guard pages", self.start, self.size)
    }
}

/// Prints who has allocated the slot's block, and freed it.
#[unsafe(link_section = "hakmem_rare")]
fn print_stacks(slot: &Slot) {
    slot.allocated.print("allocated");
    slot.freed.print("freed");
}

/// Reports that `function` was called with `address`, which lies in `slot` if in any, and aborts; or returns
/// as [`misuse::report`] does.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn report(function: &str, address: *const u8, fault: Fault, slot: Option<&Slot>) {
    struct Behind(About);
    impl fmt::Display for Behind {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "; {}", self.0)
        }
    }
    let Some(slot) = slot.filter(|slot| slot.about().start != 0) else {
        return misuse::report(function, address, fault);
    };
    if misuse::is_fatal(fault) && !is_first() {
        message::abort();
    }
    misuse::say(function, address, fault, &Behind(slot.about()));
    print_stacks(slot);
    misuse::end(fault);
}

/// Reports that a byte has been written at `distance` from a block that is being freed.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn overwritten(function: &str, address: *const u8, distance: isize, slot: &Slot) {
    struct Where(About, isize);
    impl fmt::Display for Where {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, ": {}; {}", Offset(self.1, self.0.size), self.0)
        }
    }
    let fault = if distance < 0 { Fault::Underflow } else { Fault::Overflow };
    if !is_first() {
        message::abort();
    }
    misuse::say(function, address, fault, &Where(slot.about(), distance));
    print_stacks(slot);
    misuse::end(fault);
}

/// Where a byte is that lies so far from the beginning of a block, and how long the block is.
struct Offset(isize, usize);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(at, size) = *self;
        if at == -1 || at == size as isize {
            write!(f, "the byte {}", if at < 0 { "before it" } else { "behind its end" })
        } else if at < 0 {
            write!(f, "{} bytes before it", at.unsigned_abs())
        } else if at as usize >= size {
            write!(f, "{} bytes behind its end", at as usize - size + 1)
        } else {
            write!(f, "at its byte {at}")
        }
    }
}

/// The slot whose block lies nearest to an address that is not accessible.
#[unsafe(link_section = "hakmem_rare")]
fn nearest(address: usize) -> Option<(&'static Slot, About, isize)> {
    let index = slots::index(address)?;
    let near = (index.saturating_sub(1)..=index + 1).filter_map(slots::at);
    let known = near.map(|slot| (slot, slot.about())).filter(|(_, about)| about.start != 0);
    let far = |about: &About| {
        let (before, behind) = (about.start.saturating_sub(address), address.saturating_sub(about.start));
        before.max((behind + 1).saturating_sub(about.size))
    };
    let (slot, about) = known.min_by_key(|(_, about)| (far(about), about.state == FREE))?;
    Some((slot, about, address.wrapping_sub(about.start) as isize))
}

/// Reports that a page of a slot was touched that is not accessible, if it is one, and if this thread is the
/// first.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn touched(access: &Access) -> Whose {
    if slots::index(access.address).is_none() {
        return Whose::NotOurs;
    }
    let turn = turn();
    if turn != Whose::First {
        return turn;
    }
    let how = match access.writes {
        Some(true) => "a write",
        Some(false) => "a read",
        None => "an access",
    };
    let address = access.address;
    match nearest(address) {
        None => {
            message::line(format_args!("guard page: {how} at {address:#x}, where no block was"));
            TOUCHED.note_access(access);
            TOUCHED.print("touched");
        }
        Some((slot, about, at)) => {
            let what = if about.state == FREE {
                "use after free"
            } else if at < 0 {
                "underflow"
            } else {
                "overflow"
            };
            let offset = Offset(at, about.size);
            message::line(format_args!("guard page: {what}: {how} at {address:#x}, {offset}; {about}"));
            TOUCHED.note_access(access);
            TOUCHED.print("touched");
            print_stacks(slot);
        }
    }
    turn
}

/// Whether the handler of SIGSEGV has been set, and not taken back.
static SET: AtomicBool = AtomicBool::new(false);
/// The process whose memory this is; 0 where no handler will be needed.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Notes that this is the process's own memory: when the options are known, and in the child of a fork.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn note_process() {
    PROCESS.store(os::process_id(), SeqCst);
}

/// Whether this memory is another process's: the caller is a child of `vfork`.
#[unsafe(link_section = "hakmem_rare")]
fn is_borrowed() -> bool {
    PROCESS.load(SeqCst) != os::process_id() && !process::is_unnoticed()
}

/// Sets the handler of SIGSEGV, once: when the first block is put into a slot, so that those that a program
/// sets when it starts are called after it.
///
/// A child of `vfork` has handlers of its own, in memory that it shares. It does without, so that `SET` says
/// what is so in its parent.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn install() {
    if !SET.load(SeqCst) && !is_borrowed() && !SET.swap(true, SeqCst) {
        faults::handle_faults(touched);
    }
}

/// Takes the handler back.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn uninstall() {
    if SET.swap(false, SeqCst) {
        faults::unhandle_faults();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    extern crate std;
    use crate::guard::slots::{find, init, take};
    use crate::os::child;
    use std::format;

    #[test]
    fn where_a_byte_is_is_said_from_the_block() {
        let said = |at, size| format!("{}", Offset(at, size));
        assert_eq!([said(-1, 10), said(-2, 10)], ["the byte before it", "2 bytes before it"]);
        assert_eq!([said(0, 10), said(9, 10)], ["at its byte 0", "at its byte 9"]);
        assert_eq!([said(10, 10), said(11, 10)], ["the byte behind its end", "2 bytes behind its end"]);
        let about = |state| format!("{}", About { state, class: 1, start: 0x1230, size: 5 });
        assert_eq!(about(FREE), "block 0x1230 of 5 bytes, free, between guard pages");
        assert_eq!(about(slots::USED), "block 0x1230 of 5 bytes, in use, between guard pages");
    }

    /// In the child of a fork, because slots are the process's.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn what_was_touched_belongs_to_the_nearest_block() {
        assert!(child::is_so(|| {
            init(1, 4);
            assert!(nearest(4096).is_none());
            let page = os::page_size();
            // At the right side of its slot, at both of theirs, and no block.
            let [first, second, third] = [32, 0, 32].map(|side| take(99, 2, 1, side));
            let told = |at| nearest(at).map(|(_, about, offset)| (about.start, offset));
            let [one, two, three] = [first, second, third].map(<*mut u8>::addr);
            assert_eq!(told(one + 100), Some((one, 100)));
            assert_eq!(told(two - 1), Some((two, -1)));
            // The guard page between them.
            let middle = (one + 100).midpoint(two);
            assert_eq!(told(middle - 60), Some((one, (middle - 60 - one) as isize)));
            assert_eq!(told(middle + 60), Some((two, middle as isize + 60 - two as isize)));
            assert_eq!(told(three + 2 * page), Some((three, 2 * page as isize)), "a slot without a block");
            let base = one + 100 - slots::stride();
            assert_eq!(told(base), Some((one, base as isize - one as isize)));
            // Of two that are as near the one in use.
            let slot = find(first).unwrap();
            assert!(slot.hold(first));
            // SAFETY: the block is held, and nobody uses it.
            unsafe { slot.close(first) };
            let tie = page / 2 + 1;
            let block = |far: usize| nearest(one + 98 + far).map(|near| near.1.start);
            (block(tie - 1), block(tie)) == (Some(one), Some(two))
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn one_thread_reports() {
        assert!(child::is_so(|| {
            assert!(is_first() && turn() == Whose::Again && !is_first());
            // Nobody has this number, so whoever had it has ended.
            REPORTING.store(u32::MAX >> 2, SeqCst);
            turn() == Whose::First
        }));
    }
}
