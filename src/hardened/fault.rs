//! What hardened mode says about a block before it ends the process.

use crate::base::misuse::{self, Fault};
use crate::hardened::place::Place;
use crate::hardened::slab::{FREE, FRESH, HELD, Slab};
use crate::sync::Ordering::Relaxed;
use core::fmt;

/// What is said of a block that was not handed out yet.
const NEVER: &str = "never allocated";

/// A block of a slab, described.
struct Described<'a>(Place<'a>);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.0;
        let state = match place.state().load(Relaxed) {
            FRESH => NEVER,
            FREE => "free",
            HELD => "freed, in quarantine",
            _ => "in use",
        };
        write!(f, "; block {:p} of {} bytes, {state}", place.block, place.slab.stride())?;
        match place.fields(place.mix()) {
            // It has no trailer.
            _ if state == NEVER => {}
            Some(fields) if !fields.free => {
                write!(f, ", {} asked for", place.room() - fields.room.min(place.room()))?;
            }
            Some(_) => {}
            None => write!(f, ", its size is overwritten")?,
        }
        let slab = place.slab;
        let first = slab.nth(0).block;
        write!(f, "; number {} of {} in slab {first:p}", place.index, slab.blocks())?;
        write!(f, ", last allocated from by thread {:#x}", slab.thread.load(Relaxed))
    }
}

/// A large block, described.
struct Large(usize);

impl fmt::Display for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "; a large block, {} bytes asked for", self.0)
    }
}

/// Reports misuse that concerns a block. Returns where [`misuse::report`] does.
#[inline(always)]
pub(super) fn small(function: &str, fault: Fault, place: Place<'_>) {
    /// By the parts of the place: one that had an address would never be in registers alone.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    fn small(function: &str, fault: Fault, slab: &Slab, index: usize) {
        let place = slab.nth(index);
        misuse::report_about(function, place.block, fault, &Described(place));
    }
    small(function, fault, place.slab, place.index);
}

/// Reports misuse of `address` that concerns a large block of `size` bytes.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn large(function: &str, address: *const u8, fault: Fault, size: usize) {
    misuse::report_about(function, address, fault, &Large(size));
}

/// Reports that `address` lies in memory of ours, but is the start of no block.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn interior(function: &str, address: *const u8) {
    misuse::report(function, address, Fault::Interior);
}
