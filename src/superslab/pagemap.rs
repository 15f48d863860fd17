//! The page map: from any address to what lives there, in two loads.
//!
//! One byte per 64 KiB slice. The root is a static array indexed by the address bits 39 to 47; a leaf covers
//! 512 GiB and is mapped when the first SuperSlab or direct mapping falls into it. Absent leaves share one
//! that is all zero, and the root points at it from the start: so a lookup has no branch and needs no
//! initialisation, even for null and foreign pointers. Each root entry is biased by its index in the root, so
//! that the slice number, of 32 bits, indexes the leaf directly.

use crate::os;
use crate::superslab::layout::{SLICE, SLICE_SHIFT};
use crate::sync::{AtomicPtr, AtomicU8, AtomicUsize, Ordering, reads, wrote};
use core::cell::UnsafeCell;
use core::ptr;

mod figures;
mod reserve;

pub(crate) use figures::figures;
pub(crate) use reserve::Reserve;

/// log2 of the entries of a leaf. A leaf is touched only where something lives, but each entry of the root is
/// a pointer that the dynamic linker has to relocate when a process starts. With leaves a quarter as long,
/// the root's 2,048 entries and their relocations would take 64 KiB.
const LEAF_SHIFT: u32 = 23;
const LEAF: usize = 1 << LEAF_SHIFT;
const ROOT: usize = 1 << (48 - SLICE_SHIFT - LEAF_SHIFT);

/// Kind of a slice: not ours. Kinds 1 to 60 are size classes.
pub(crate) const FOREIGN: u8 = 0;
/// Kind of the first slice of a run of slices that is one large block.
pub(crate) const RUN: u8 = 61;
/// Kind of the slice in which a direct mapping begins.
pub(crate) const DIRECT: u8 = 62;
/// Kind of a slice of the hardened heap: of a slab there, or the slice in which a large block begins.
pub(crate) const HARDENED: u8 = 63;
/// How many kinds there are, for tables indexed by them.
pub(crate) const KINDS: usize = 64;

/// Stands in for every absent leaf. Never written, so it costs no memory. Used as `AtomicU8`s: one cell
/// around all of them spares the compiler, and Miri, looking at each.
static ZERO_LEAF: Zeros = Zeros(UnsafeCell::new([0; LEAF]));

/// See [`ZERO_LEAF`].
struct Zeros(#[allow(dead_code)] UnsafeCell<[u8; LEAF]>);

// SAFETY: nobody writes there.
unsafe impl Sync for Zeros {}

static ROOT_TABLE: [AtomicPtr<AtomicU8>; ROOT] = {
    let mut table = [const { AtomicPtr::new(ptr::null_mut()) }; ROOT];
    let mut i = 0;
    while i < ROOT {
        table[i] = AtomicPtr::new(absent(i));
        i += 1;
    }
    table
};

/// log2 of the entries of a leaf of the side table. It is looked up next to a system call, so it can afford
/// three levels. None of them takes much address space, which may be limited.
const DIRECT_SHIFT: u32 = 13;
/// log2 of the entries of a branch of the side table, the level between root and leaves.
const BRANCH_SHIFT: u32 = 11;

/// A leaf of the side table: entries for 512 MiB. Numbers, or pointers to records of the hardened heap.
type DirectLeaf = [AtomicPtr<u8>; 1 << DIRECT_SHIFT];
/// Pointers to leaves, or null, for 1 TiB.
type Branch = [AtomicPtr<DirectLeaf>; 1 << BRANCH_SHIFT];

/// The side table for direct mappings: what [`set_direct`] has stored for each slice. Touched only where such
/// mappings begin.
static DIRECT_ROOT: [AtomicPtr<Branch>; 1 << (48 - SLICE_SHIFT - DIRECT_SHIFT - BRANCH_SHIFT)] =
    [const { AtomicPtr::new(ptr::null_mut()) }; 1 << (48 - SLICE_SHIFT - DIRECT_SHIFT - BRANCH_SHIFT)];

/// How many leaves the map has. Relaxed, as the next two: these are figures.
static LEAVES: AtomicUsize = AtomicUsize::new(0);
/// How many leaves the side table has.
static DIRECT_LEAVES: AtomicUsize = AtomicUsize::new(0);
/// How many branches the side table has.
static BRANCHES: AtomicUsize = AtomicUsize::new(0);

/// The root's entry `index` for a leaf: see above.
const fn biased(leaf: *mut AtomicU8, index: usize) -> *mut AtomicU8 {
    leaf.wrapping_sub(index << LEAF_SHIFT)
}

/// The root's entry `index` where there is no leaf.
const fn absent(index: usize) -> *mut AtomicU8 {
    biased((&raw const ZERO_LEAF).cast::<AtomicU8>().cast_mut(), index)
}

/// The slice number of an address, without the upper bits, which no user address has.
#[inline(always)]
fn slice_number(address: *const u8) -> u32 {
    (address.addr() >> SLICE_SHIFT) as u32
}

/// [`kind`], as an index.
///
/// In assembly, because this is on the path of every C `free`, and the compiler needs two more instructions
/// to cut off the upper bits and one to widen the answer.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn kind_index(address: *const u8) -> usize {
    const { assert!(SLICE_SHIFT == 16) };
    let kind: usize;
    // SAFETY: reads one entry of the root and one byte of a leaf, both of which exist for every address: see
    // `kind`. Plain loads of these sizes are atomic on this architecture.
    unsafe {
        core::arch::asm!(
            "shr {slice}, 16",
            "mov {index:e}, {slice:e}",
            "shr {slice:e}, {leaf}",
            "mov {slice}, qword ptr [{root} + {slice} * 8]",
            "movzx {index:e}, byte ptr [{slice} + {index}]",
            slice = inout(reg) address => _,
            index = out(reg) kind,
            root = in(reg) &raw const ROOT_TABLE,
            leaf = const LEAF_SHIFT,
            options(pure, readonly, nostack)
        );
    }
    kind
}

/// [`kind`], as an index.
#[inline(always)]
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn kind_index(address: *const u8) -> usize {
    kind(address) as usize
}

/// The leaf of a slice, minus the [bias](biased).
#[inline(always)]
fn leaf(slice: u32) -> *mut AtomicU8 {
    // Relaxed: whoever holds one of our pointers got it after the entry was written, by the program's own
    // synchronisation. For other pointers the answer does not matter.
    ROOT_TABLE[(slice >> LEAF_SHIFT) as usize].load(Ordering::Relaxed)
}

/// The entry of a slice. Writable only where the slice was [`prepare`]d.
#[inline(always)]
fn entry(slice: u32) -> &'static AtomicU8 {
    // SAFETY: the root's entry points at a leaf, the shared one if no other, minus the bias: so this is an
    // entry of the leaf. Leaves are unmapped only when nobody calls the library any more.
    unsafe { &*leaf(slice).wrapping_add(slice as usize) }
}

/// What lives at `address`: [`FOREIGN`], a size class, [`RUN`], [`DIRECT`] or [`HARDENED`].
#[inline]
pub(crate) fn kind(address: *const u8) -> u8 {
    // Relaxed: as in `entry`.
    entry(slice_number(address)).load(Ordering::Relaxed)
}

/// [`kind`], for a caller that then reads a record which another thread has written before it set the entry.
pub(crate) fn kind_published(address: *const u8) -> u8 {
    // Acquire: pairs with the release in `set`.
    entry(slice_number(address)).load(Ordering::Acquire)
}

/// Makes sure that the map has a leaf for `address`. False if there is no memory for one.
pub(crate) fn prepare(address: *const u8) -> bool {
    prepare_by(address, &mut os::map_uncounted)
}

/// [`prepare`], with memory from `map`.
#[inline(always)]
fn prepare_by(address: *const u8, map: &mut impl FnMut(usize) -> *mut u8) -> bool {
    let index = (slice_number(address) >> LEAF_SHIFT) as usize;
    let slot = &ROOT_TABLE[index];
    // Acquire, here and below: pairs with the release below. The caller will write into the leaf.
    let mut at = slot.load(Ordering::Acquire);
    if at == absent(index) {
        let leaf = map(LEAF);
        if leaf.is_null() {
            return false;
        }
        // Few entries of a leaf are used, and huge pages would make all of it resident.
        // SAFETY: mapped just now with this length.
        unsafe { os::advise_huge(leaf, LEAF, false) };
        // The system has cleared it.
        wrote(leaf);
        at = biased(leaf.cast(), index);
        // Release: pairs with the acquires here, and through the program's own synchronisation with the loads
        // in `kind`.
        if let Err(other) = slot.compare_exchange(absent(index), at, Ordering::Release, Ordering::Acquire) {
            // SAFETY: another thread was first, so nobody else knows ours; it was mapped with this length.
            unsafe { os::discard_uncounted(leaf, LEAF) };
            at = other;
        } else {
            LEAVES.fetch_add(1, Ordering::Relaxed);
        }
    }
    reads(at.wrapping_add(index << LEAF_SHIFT));
    true
}

/// Sets the kind of `slices` slices from `address` on, one at least, which were [`prepare`]d and lie in the
/// same 2 MiB.
pub(crate) fn set(address: *const u8, slices: usize, kind: u8) {
    let first = slice_number(address);
    debug_assert!(slices != 0 && first >> LEAF_SHIFT == first.wrapping_add(slices as u32 - 1) >> LEAF_SHIFT);
    let entries = leaf(first).wrapping_add(first as usize);
    // Release: pairs with the acquire in `kind_published`.
    // SAFETY: as in `entry`; slices of the same 2 MiB have entries in the same leaf.
    let set = |slice| unsafe { &*entries.wrapping_add(slice) }.store(kind, Ordering::Release);
    // Most have one, for which the loop would take longer to begin.
    set(0);
    (1..slices).for_each(set);
}

/// [`set`] for slices that may lie anywhere.
pub(crate) fn set_all(address: *const u8, slices: usize, kind: u8) {
    (0..slices).for_each(|slice| set(address.wrapping_add(slice * SLICE), 1, kind));
}

/// Makes the slice of `address`, which was [`prepare`]d, foreign if it is of kind `kind`. Of several threads
/// that try, exactly one gets true.
pub(crate) fn claim(address: *const u8, kind: u8) -> bool {
    // Relaxed: what happened to the slice before reaches this thread with the pointer, by the program's own
    // synchronisation.
    let entry = entry(slice_number(address));
    entry.compare_exchange(kind, FOREIGN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// The place of the side table's entry for the slice of `address`: the indices into the root, a branch and a
/// leaf.
#[inline(always)]
fn direct_place(address: *const u8) -> (usize, usize, usize) {
    let slice = slice_number(address) as usize;
    let branch = slice >> DIRECT_SHIFT & ((1 << BRANCH_SHIFT) - 1);
    (slice >> (DIRECT_SHIFT + BRANCH_SHIFT), branch, slice & ((1 << DIRECT_SHIFT) - 1))
}

/// The side table's entry for the slice of `address`, if there is one. Not inlined, because its callers
/// rarely get here.
#[inline(never)]
fn direct_slot(address: *const u8) -> Option<&'static AtomicPtr<u8>> {
    slot(address)
}

/// [`direct_slot`], for the hardened heap, which asks for each block.
#[inline(always)]
fn slot(address: *const u8) -> Option<&'static AtomicPtr<u8>> {
    let (root, branch, leaf) = direct_place(address);
    // Here are no references to whole tables, since Miri would look at each of their entries.
    // Acquire, twice: pairs with the release in `grown`.
    let branches = DIRECT_ROOT[root].load(Ordering::Acquire);
    if branches.is_null() {
        return None;
    }
    reads(branches);
    // SAFETY: a branch that `grown` has mapped. It is zero at first, consists of atomics, and is unmapped
    // only when nobody calls the library any more.
    let leaves = unsafe { &(*branches)[branch] }.load(Ordering::Acquire);
    if leaves.is_null() {
        return None;
    }
    reads(leaves);
    // SAFETY: as for the branch.
    Some(unsafe { &(*leaves)[leaf] })
}

/// What `slot` points at. Maps it by `map` and counts it if there is nothing yet; null if there is no memory
/// for it.
#[inline(always)]
fn grown<T>(slot: &AtomicPtr<T>, count: &AtomicUsize, map: &mut impl FnMut(usize) -> *mut u8) -> *mut T {
    // Acquire, here and below: pairs with the release below.
    let mut at = slot.load(Ordering::Acquire);
    if at.is_null() {
        let fresh = map(bytes_of::<T>()).cast::<T>();
        if fresh.is_null() {
            return fresh;
        }
        // The system has cleared it.
        wrote(fresh);
        at = fresh;
        if let Err(other) =
            slot.compare_exchange(ptr::null_mut(), fresh, Ordering::Release, Ordering::Acquire)
        {
            // SAFETY: another thread was first, so nobody else knows ours; it was mapped with this length.
            unsafe { os::discard_uncounted(fresh.cast(), bytes_of::<T>()) };
            at = other;
        } else {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    reads(at);
    at
}

/// Bytes that are mapped for a `T`.
fn bytes_of<T>() -> usize {
    size_of::<T>().next_multiple_of(os::page_size())
}

/// Prepares both the map and the side table for a direct mapping at `address`.
pub(crate) fn prepare_direct(address: *const u8) -> bool {
    prepare_direct_by(address, &mut os::map_uncounted)
}

/// [`prepare_direct`], with memory from `map`, in whole pages, zeroed, and unmapped like what
/// [`os::map_uncounted`] returns.
#[inline(always)]
fn prepare_direct_by(address: *const u8, map: &mut impl FnMut(usize) -> *mut u8) -> bool {
    let (root, branch, _) = direct_place(address);
    if !prepare_by(address, map) {
        return false;
    }
    let branches = grown(&DIRECT_ROOT[root], &BRANCHES, map);
    // SAFETY: a branch that `grown` has mapped, as in `slot`.
    !branches.is_null() && !grown(unsafe { &(*branches)[branch] }, &DIRECT_LEAVES, map).is_null()
}

/// Enters a direct mapping, for which [`direct`] will return `entry`. Needs [`prepare_direct`].
pub(crate) fn set_direct(address: *const u8, entry: u64) {
    if let Some(slot) = direct_slot(address) {
        // Relaxed, here, in `direct` and in `clear_direct`: whoever holds the block's address got it after
        // this store, by the program's own synchronisation. For others the entry is a hint.
        slot.store(ptr::without_provenance_mut(entry as usize), Ordering::Relaxed);
        set(address, 1, DIRECT);
    }
}

/// What [`set_direct`] has stored for the slice of `address`, where [`kind`] says [`DIRECT`].
pub(crate) fn direct(address: *const u8) -> u64 {
    direct_slot(address).map_or(0, |slot| slot.load(Ordering::Relaxed).addr() as u64)
}

/// Enters slices of the hardened heap, for which [`hardened`] will return `record`. Needs [`prepare_direct`]
/// for the first one, and all lie in the same 2 MiB.
pub(crate) fn set_hardened(address: *const u8, slices: usize, record: *const u8) {
    for slice in 0..slices {
        if let Some(slot) = direct_slot(address.wrapping_add(slice * SLICE)) {
            // Relaxed, here and in `hardened`: as in `set_direct`.
            slot.store(record.cast_mut(), Ordering::Relaxed);
        }
    }
    set(address, slices, HARDENED);
}

/// The record that [`set_hardened`] has stored for the slice of `address`, where [`kind`] says [`HARDENED`].
#[inline(always)]
pub(crate) fn hardened(address: *const u8) -> *mut u8 {
    slot(address).map_or(ptr::null_mut(), |slot| slot.load(Ordering::Relaxed))
}

/// Gives all leaves back to the system. Nobody calls the library any more.
pub(crate) fn unmap() {
    unmap_but(|_| ptr::null_mut(), |_| ptr::null_mut());
}

/// [`unmap`], but for the leaf and the branch that `kept` names for each slot. (Models name some.)
pub(crate) fn unmap_but(
    kept: impl Fn(&AtomicPtr<AtomicU8>) -> *mut AtomicU8,
    kept_branch: impl Fn(&AtomicPtr<Branch>) -> *mut Branch,
) {
    for (index, slot) in ROOT_TABLE.iter().enumerate() {
        let leaf = slot.load(Ordering::Relaxed);
        if leaf != absent(index) && leaf != kept(slot) {
            slot.store(absent(index), Ordering::Relaxed);
            // SAFETY: a leaf that `prepare` has mapped with this length, without the bias; nobody uses it any
            // more.
            unsafe { os::discard_uncounted(leaf.wrapping_add(index << LEAF_SHIFT).cast(), LEAF) };
        }
    }
    for slot in &DIRECT_ROOT {
        let branch = slot.load(Ordering::Relaxed);
        if branch == kept_branch(slot) {
            continue;
        }
        slot.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: null, or a branch that `grown` has mapped, as it has the leaves; nobody uses them any more.
        unsafe {
            let Some(leaves) = branch.as_ref() else { continue };
            let leaves = leaves.iter().map(|slot| slot.load(Ordering::Relaxed));
            for leaf in leaves.filter(|leaf| !leaf.is_null()) {
                os::discard_uncounted(leaf.cast(), bytes_of::<DirectLeaf>());
            }
            os::discard_uncounted(branch.cast(), bytes_of::<Branch>());
        }
    }
}

/// Removes a direct mapping whose side table entry is `entry`. Of several threads that try, exactly one gets
/// true.
pub(crate) fn clear_direct(address: *const u8, entry: u64) -> bool {
    let Some(slot) = direct_slot(address) else { return false };
    let entry = ptr::without_provenance_mut(entry as usize);
    if slot.compare_exchange(entry, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return false;
    }
    set(address, 1, FOREIGN);
    true
}

#[cfg(test)]
mod tests;
