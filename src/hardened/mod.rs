//! Hardened mode: another heap, for programs that want misuse of memory to be stopped. All blocks come from
//! it then, and none without it.
//!
//! No hit path knows of it. Threads have heaps without magazines, so that every call takes a slow path, and
//! those ask whether hardened mode is on. The page map has a kind for its memory, which is no size class, so
//! that C's `free` and `realloc` find it on their way to large blocks.
//!
//! What is where: `slab.rs` and `place.rs` small blocks, `large.rs`, `blocks.rs` and `mappings.rs` large
//! ones, `moved.rs` how their pages move, `reused.rs` how those of freed ones serve others, `unmapping.rs`
//! how they go back, `kept.rs` what is kept of them, `trailer.rs` what stands behind the bytes of small ones,
//! `wide.rs` clears them, `state.rs` what a thread has, `source.rs` where its blocks come from, `shared.rs`
//! where those above 4 KiB do, `pace.rs` whether they do, `quarantined.rs` a block in quarantine, `lists.rs`
//! slabs that wait for a thread, `spans.rs` and `regions.rs` address space, `growth.rs` how much of it a slab
//! gets, `records.rs` memory for what describes all this, `aged.rs` what goes back after a while, `fault.rs`
//! what is said, `parts.rs` what is on.

mod aged;
mod blocks;
#[cfg(test)]
mod child;
mod fault;
mod growth;
mod kept;
mod large;
mod lists;
mod mappings;
#[cfg(all(test, loom))]
mod model;
mod moved;
mod pace;
mod parts;
mod place;
mod quarantined;
mod records;
mod regions;
mod reused;
mod shared;
mod slab;
mod source;
mod spans;
mod state;
mod trailer;
mod unmapping;
mod wide;

pub(crate) use parts::{init, is_on};
pub(crate) use state::State;

use crate::base::misuse::{Fault, Said};
use crate::base::options::Hardened;
use crate::base::prefetch::prefetch;
use crate::hardened::parts::Parts;
use crate::hardened::place::Place;
use crate::hardened::records::{Header, LARGE};
use crate::hardened::slab::{FRESH, Slab, USED};
pub(crate) use crate::hardened::trailer::{C_CLASSES, class_with_trailer};
use crate::superslab::pagemap;
use crate::superslab::slab::Allocation;
use crate::tiny::classes::class_of;

/// What begins at an address in our memory.
enum Found {
    Small(Place<'static>),
    Large(&'static large::Large),
    Nothing,
}

/// What begins at `address`, whose kind the page map says is [`HARDENED`](pagemap::HARDENED).
#[inline(always)]
fn find(address: *mut u8) -> Found {
    let record = pagemap::hardened(address).cast::<Header>();
    // SAFETY: null, or a record, which stays mapped. Its list says what it is.
    unsafe {
        let Some(header) = record.as_ref() else { return Found::Nothing };
        if header.list() == LARGE {
            large::of(record, address).map_or(Found::Nothing, Found::Large)
        } else {
            (*record.cast::<Slab>()).at(address).map_or(Found::Nothing, Found::Small)
        }
    }
}

/// A block of `size` bytes, at most `isize::MAX`, at a multiple of `align`, for the thread that has `state`.
/// It has room to grow in if it `grows`.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn alloc(state: &State, size: usize, align: usize, grows: bool) -> Allocation {
    state.alloc(size, align).unwrap_or_else(|| {
        let allocation = blocks::alloc(size, align, grows);
        aged::tick();
        allocation
    })
}

/// Frees a block on behalf of `function`, of which the program says `said`. A thread without memory for a
/// heap has no `state`.
///
/// # Safety
///
/// The page map says that the address is [`HARDENED`](pagemap::HARDENED). If a block begins there, the
/// program does not use it any more.
#[inline(always)]
pub(crate) unsafe fn free(state: Option<&State>, block: *mut u8, said: Said, function: &str) {
    // The trailer of the block before this one: nothing that `hold` has to wait for shall delay it.
    prefetch(block.wrapping_sub(trailer::TRAILER));
    let place = match find(block) {
        Found::Small(place) => place,
        Found::Large(large) => {
            if let (Some(size), Said::Size(_) | Said::Class(_)) = (large.size(), said) {
                let right = match said {
                    Said::Size(said) => said.max(1) == size.max(1),
                    Said::Class(class) => class == class_of(size.max(1), large.align()),
                    Said::Nothing => true,
                };
                if !right {
                    fault::large(function, block, Fault::FreedSize, size);
                }
            }
            // SAFETY: by the caller's clause.
            unsafe { large.free(block, function) };
            return aged::tick();
        }
        Found::Nothing => return fault::interior(function, block),
    };
    prefetch(block.wrapping_add(place.room()));
    if let Err(was) = place.hold() {
        let fault = if was == FRESH { Fault::Interior } else { Fault::DoubleFree };
        return fault::small(function, fault, place);
    }
    let (mix, parts) = (place.mix(), parts::now());
    // SAFETY: held by this call, so ours.
    unsafe {
        check(place, mix, parts, said, function);
        if parts.has(Hardened::ZERO) {
            place.clear();
        }
    }
    place.seal_free(mix);
    match state {
        Some(state) => state.hold(place),
        None => lists::freed(place.slab, place.let_go()),
    }
}

/// Checks what stands behind a block, and before it, and what the program says of it. Returns its size, as
/// it was asked for.
///
/// # Safety
///
/// The block is the caller's, and was sealed.
#[inline(always)]
unsafe fn check(place: Place<'_>, mix: u64, parts: Parts, said: Said, function: &str) -> usize {
    let canary = parts.has(Hardened::CANARY);
    let Some(fields) = place.fields(mix).filter(|fields| fields.is_of_used(place.room())) else {
        if canary {
            fault::small(function, Fault::Overflow, place);
        }
        return place.room();
    };
    let size = place.room() - fields.room;
    if canary {
        // SAFETY: the caller's block, and this is its size.
        if !unsafe { place.is_intact(mix, size) } {
            fault::small(function, Fault::Overflow, place);
        }
        if !place.is_neighbour_intact() {
            fault::small(function, Fault::Underflow, place);
        }
    }
    let right = match said {
        Said::Nothing => true,
        Said::Size(said) => said.max(1) == size.max(1),
        Said::Class(class) => class == class_of(size.max(1), 1 << fields.align),
    };
    if !right {
        fault::small(function, Fault::FreedSize, place);
    }
    size
}

/// The bytes that were asked for when the block was allocated. `None` after reporting misuse on behalf of
/// `function`, when no block in use begins there.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn usable(block: *mut u8, function: &str) -> Option<usize> {
    match find(block) {
        Found::Small(place) => match place.look() {
            // SAFETY: in use, and the program asks on behalf of who has it.
            USED => Some(unsafe { check(place, place.mix(), parts::now(), Said::Nothing, function) }),
            state => {
                let fault = if state == FRESH { Fault::Interior } else { Fault::UsedAfterFree };
                fault::small(function, fault, place);
                None
            }
        },
        Found::Large(large) => {
            let size = large.size();
            if size.is_none() {
                fault::large(function, block, Fault::UsedAfterFree, large.freed_size());
            }
            size
        }
        Found::Nothing => {
            fault::interior(function, block);
            None
        }
    }
}

/// Resizes a block to `size` bytes where it is, if it can stay there.
///
/// # Safety
///
/// Only the caller uses the block, which [`usable`] has said is in use.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn resize(block: *mut u8, old: usize, size: usize, align: usize) -> bool {
    let place = match find(block) {
        Found::Small(place) => place,
        Found::Large(large) => {
            let stays_large = class_with_trailer(size, align) == 0;
            // SAFETY: in use, and only the caller uses it.
            return stays_large && unsafe { large.resize(old, size, false) };
        }
        Found::Nothing => return false,
    };
    if class_with_trailer(size, align) != place.slab.class() {
        return false;
    }
    // SAFETY: the caller's block, of a class that has room for both sizes. What stood behind the old size is
    // not part of the contents.
    unsafe {
        if size > old {
            block.wrapping_add(old).write_bytes(0, (place.room() - old).min(8));
        }
        place.seal(place.mix(), size, align.trailing_zeros(), parts::has(Hardened::CANARY));
    }
    true
}

/// Makes a block of `old` bytes shorter where it is, as it must where there is no other memory. False if it
/// is gone, which has been reported.
///
/// # Safety
///
/// As [`resize`].
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn shorten(block: *mut u8, old: usize, size: usize, align: usize) -> bool {
    match find(block) {
        Found::Large(large) => {
            large.realign(align);
            // SAFETY: in use, and only the caller uses it.
            unsafe { large.resize(old, size, true) }
        }
        Found::Small(place) => {
            // SAFETY: the caller's block, of a class that has room for more.
            unsafe {
                block.wrapping_add(size).write_bytes(0, place.room() - size);
                let canary = parts::has(Hardened::CANARY);
                place.seal(place.mix(), size, align.trailing_zeros(), canary);
            }
            true
        }
        Found::Nothing => false,
    }
}

/// Moves a block of `old` bytes that grows to `size`, with its pages, on behalf of `function`. Null, and
/// nothing has changed, where it has to be copied.
///
/// # Safety
///
/// As [`resize`]. After success the caller uses the result instead.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn grow(block: *mut u8, old: usize, size: usize, align: usize, function: &str) -> *mut u8 {
    match find(block) {
        Found::Large(large) if size > old && class_with_trailer(size, align) == 0 => {
            // SAFETY: by the caller's clause.
            let block = unsafe { moved::grow(large, old, size, align, function) };
            aged::tick();
            block
        }
        _ => core::ptr::null_mut(),
    }
}

/// What memory the hardened heap has, in bytes.
pub(crate) struct Figures {
    /// Mapped for records, and how much of that has been used.
    pub(crate) records: (usize, usize),
    /// Mapped for slabs.
    pub(crate) slabs: usize,
    /// Mapped for large blocks, and how much of that is freed and resident.
    pub(crate) large: (usize, usize),
}

/// Calls `f` with the figures of each slab, and returns those of all memory.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn figures(mut f: impl FnMut(slab::Figures)) -> Figures {
    Slab::each(|slab| f(slab.figures()));
    Figures { records: records::bytes(), slabs: spans::mapped(), large: unmapping::mapped() }
}

/// Bytes that [`purge`] would give back, about.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn spare() -> usize {
    lists::spare() + unmapping::spare()
}

/// Gives memory back that nobody uses. Returns how many bytes.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn purge() -> usize {
    lists::purge() + regions::purge() + unmapping::purge()
}

/// Gives memory back that nobody has wanted for the purge delay. With no lock held.
pub(crate) fn tick() {
    aged::tick();
}

/// Milliseconds until [`tick`] may have something to give back, after a delay of `delay`. `None` if there is
/// nothing that anybody could want.
pub(crate) fn due_in(now: u32, delay: u32) -> Option<u32> {
    aged::due_in(now, delay)
}

/// In the child of a fork, by its only thread.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn inherit() {
    parts::inherit();
    records::inherit();
    regions::inherit();
    lists::inherit();
    shared::inherit();
    unmapping::inherit();
}
