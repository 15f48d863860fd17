//! Blocks of the slabs of the hardened heap: what becomes of them, and what stands in them.

use crate::base::prefetch::prefetch;
use crate::hardened::slab::{FREE, FRESH, HELD, Slab, USED};
use crate::hardened::trailer::{self, Fields, TRAILER};
use crate::hardened::wide;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicU8, AtomicU64};
use core::ptr;

/// Blocks of up to so many bytes are cleared by a loop of ours.
const SHORT: usize = 512;
/// A block of a slab.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) slab: &'a Slab,
    pub(super) index: usize,
    /// Its first byte.
    pub(super) block: *mut u8,
}

impl Slab {
    /// The block that begins at `address`; `None` if none does. The address lies in the slab.
    #[inline(always)]
    pub(super) fn at(&self, address: *mut u8) -> Option<Place<'_>> {
        let offset = address.addr().wrapping_sub(self.base().addr());
        // What lies before the slab is as far behind it as no slab is long.
        let product = offset as u128 * self.inverse as u128;
        let index = (product >> 64) as usize;
        // The lower half is the remainder of the division by the stride, times `inverse`, and a little more,
        // less than that: Lemire, Kaser and Kurz, "Faster remainder by direct computation".
        let is_start = index < self.blocks() && (product as u64) < self.inverse;
        is_start.then_some(Place { slab: self, index, block: address })
    }

    /// The block of this number, which is below [`Slab::blocks`].
    #[inline(always)]
    pub(super) fn nth(&self, index: usize) -> Place<'_> {
        Place { slab: self, index, block: self.base().wrapping_add(index * self.stride()) }
    }
}

impl Place<'_> {
    /// What has become of it.
    #[inline(always)]
    pub(super) fn state(self) -> &'static AtomicU8 {
        // SAFETY: records stay mapped.
        unsafe { &*ptr::from_ref(self.slab.state(self.index)) }
    }

    /// What its trailer and canary are made from.
    #[inline(always)]
    pub(super) fn mix(self) -> u64 {
        trailer::mix(self.block.addr(), self.slab.secret())
    }

    /// Bytes before the trailer.
    #[inline(always)]
    pub(super) fn room(self) -> usize {
        self.slab.stride() - TRAILER
    }

    /// The trailer's place. Its accesses are relaxed: who reads that of a neighbour finds one or another
    /// valid trailer.
    #[inline(always)]
    pub(super) fn trailer(self) -> &'static AtomicU64 {
        // SAFETY: the last word of a block, aligned, since strides are multiples of 8. The memory stays
        // mapped while a block of the slab is in use or held, which the callers see to.
        unsafe { &*self.block.wrapping_add(self.room()).cast::<AtomicU64>() }
    }

    /// What the trailer says; `None` if somebody has written over it. `mix` is the block's.
    #[inline(always)]
    pub(super) fn fields(self, mix: u64) -> Option<Fields> {
        trailer::decode(mix, self.trailer().load(Relaxed))
    }

    /// Whether the trailer is that of a free block.
    #[inline(always)]
    pub(super) fn is_sealed_free(self, mix: u64) -> bool {
        self.trailer().load(Relaxed) == trailer::encode(mix, Fields::FREE)
    }

    /// Writes the trailer of a block that is handed out for `size` bytes, and with `canary` that.
    ///
    /// # Safety
    ///
    /// The block is the caller's; `size` is at most [`Place::room`].
    #[inline(always)]
    pub(super) unsafe fn seal(self, mix: u64, size: usize, align: u32, canary: bool) {
        let room = self.room() - size;
        if canary {
            // The trailer has none of it, not even for a moment: whoever has the block behind this one may be
            // looking.
            // SAFETY: bytes between those asked for and the trailer. If there are fewer than eight, but some,
            // they are the last of a word that lies before the trailer.
            unsafe {
                if room >= size_of::<u64>() {
                    self.block.wrapping_add(size).cast::<u64>().write_unaligned(trailer::canary(mix));
                } else if room != 0 {
                    let word = self.block.wrapping_add(self.room() - size_of::<u64>()).cast::<u64>();
                    word.write(trailer::with_canary(mix, word.read(), room));
                }
            }
        }
        self.trailer().store(trailer::encode(mix, Fields { room, align, free: false }), Relaxed);
    }

    /// Writes the trailer of a free block. Returns what was there.
    #[inline(always)]
    pub(super) fn swap_free(self, mix: u64) -> u64 {
        self.trailer().swap(trailer::encode(mix, Fields::FREE), Relaxed)
    }

    /// Writes the trailer of a free block.
    #[inline(always)]
    pub(super) fn seal_free(self, mix: u64) {
        self.trailer().store(trailer::encode(mix, Fields::FREE), Relaxed);
    }

    /// Whether the canary behind `size` bytes is as [`Place::seal`] has written it.
    ///
    /// # Safety
    ///
    /// The block is the caller's, and was sealed for `size` bytes.
    #[inline(always)]
    pub(super) unsafe fn is_intact(self, mix: u64, size: usize) -> bool {
        let room = self.room() - size;
        // SAFETY: the eight bytes behind the ones asked for lie in the block.
        let found = unsafe { self.block.wrapping_add(size).cast::<u64>().read_unaligned() };
        trailer::is_intact(mix, found, room)
    }

    /// Whether the trailer of the block before this one is intact, if there is one and it has one.
    #[inline(always)]
    pub(super) fn is_neighbour_intact(self) -> bool {
        let Some(index) = self.index.checked_sub(1) else { return true };
        let before = Place { index, block: self.block.wrapping_sub(self.slab.stride()), ..self };
        trailer::is_valid(before.mix(), before.trailer().load(Relaxed)) || is_untouched(before.slab, index)
    }

    /// Whether the block has no trailer, because it was never handed out; or has one after all.
    fn is_untouched(self) -> bool {
        // Acquire: pairs with the release in `take`, which follows the first trailer. If that came between,
        // it is looked at again.
        if self.state().load(Acquire) == FRESH && self.trailer().load(Relaxed) == 0 {
            return true;
        }
        trailer::is_valid(self.mix(), self.trailer().load(Relaxed))
    }

    /// Clears all bytes before the trailer.
    ///
    /// # Safety
    ///
    /// The block is the caller's.
    #[inline(always)]
    pub(super) unsafe fn clear(self) {
        let room = self.room();
        // SAFETY: the caller's block; strides are multiples of 8 and at least 16.
        unsafe { if room > SHORT { self.block.write_bytes(0, room) } else { wide::clear(self.block, room) } }
    }

    /// Makes the block the program's: one that can be handed out, and that the caller has taken the bit of.
    #[inline(always)]
    pub(super) fn take(self) {
        // Release: pairs with the acquires in `look`, `hold` and `is_neighbour_intact`.
        self.state().store(USED, Release);
    }

    /// What has become of it, for who may go on to look at it.
    #[inline(always)]
    pub(super) fn look(self) -> u8 {
        // Acquire: pairs with the release in `take`, whatever thread did that.
        self.state().load(Acquire)
    }

    /// Makes a block of the program's one that is held. Else what it is: of several threads that try,
    /// exactly one succeeds.
    #[inline(always)]
    pub(super) fn hold(self) -> Result<(), u8> {
        // Acquire: pairs with the release in `take`, whatever thread did that. Who fails reports that, and
        // reads nothing of the block.
        self.state().compare_exchange(USED, HELD, Acquire, Relaxed).map(drop)
    }

    /// Lets a held block be handed out again: by whoever takes its bit.
    #[inline(always)]
    pub(super) fn give(self) {
        self.state().store(FREE, Relaxed);
        self.slab.put_bits(self.index / 64, 1 << (self.index % 64));
    }

    /// [`Place::give`] for a slab that need not be the thread's current one. Returns how many free blocks the
    /// slab has now.
    #[inline(always)]
    pub(super) fn let_go(self) -> i32 {
        // In this order, so that a slab of which all blocks are counted has no bit on its way.
        self.give();
        // Release: pairs with the acquires of who finds all blocks free, and gives the memory back. Acquire:
        // pairs with the release in `recount`: either that counts this block, or this one, and what it does
        // next, sees what was stored before.
        self.slab.free.fetch_add(1, AcqRel) + 1
    }

    /// Fetches what [`Place::let_go`] writes to.
    #[inline(always)]
    pub(super) fn prefetch_marks(self) {
        prefetch(&raw const self.slab.free);
        prefetch(self.slab.word(self.index / 64));
        prefetch(self.slab.state(self.index));
    }

    /// Whether all bytes before the trailer are zero.
    ///
    /// # Safety
    ///
    /// The block is the caller's.
    #[inline(always)]
    pub(super) unsafe fn is_zero(self) -> bool {
        // SAFETY: the caller's block; strides are multiples of 8 and at least 16.
        unsafe { wide::is_zero(self.block, self.room()) }
    }
}

/// [`Place::is_untouched`], by the parts of the place, which so stays in registers.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn is_untouched(slab: &Slab, index: usize) -> bool {
    slab.nth(index).is_untouched()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardened::child;
    use crate::hardened::regions::guard_bytes;
    use crate::hardened::slab::DEAD;
    use crate::superslab::layout::SLICE;
    use crate::superslab::pagemap::{self, FOREIGN};
    use crate::tiny::classes;

    #[test]
    fn blocks_are_found_by_their_first_byte_only() {
        let usual = (2..=classes::CLASSES).map(|class| Slab::make_usual(class).unwrap());
        let big = [2, 3, 30, 31, classes::CLASSES].map(|class| Slab::make_big(class).unwrap());
        for slab in usual.chain(big) {
            let class = slab.class();
            assert_eq!(slab.nth(0).room() + TRAILER, slab.stride());
            for index in 0..slab.blocks() {
                let block = slab.nth(index).block;
                assert_eq!(slab.at(block).unwrap().index, index);
                for offset in [1, 8, slab.stride() / 2, slab.stride() - 1] {
                    assert!(
                        slab.at(block.wrapping_add(offset)).is_none(),
                        "class {class}, {index} + {offset}"
                    );
                }
            }
            let behind = slab.base().wrapping_add(slab.blocks() * slab.stride());
            assert!(slab.at(behind).is_none());
            // Behind a big slab the guard is no part of it.
            let guard = if slab.is_big() { 0 } else { guard_bytes() };
            assert!(slab.blocks() * slab.stride() <= slab.slices() * SLICE - guard);
            let bits: u32 = (0..slab.words()).map(|word| slab.word(word).load(Relaxed).count_ones()).sum();
            assert_eq!(bits as usize, slab.blocks());
            release(slab);
        }
    }

    /// Gives back a slab of which no block was handed out.
    fn release(slab: &Slab) {
        slab.place.store(DEAD, Relaxed);
        // SAFETY: dead, and no block was handed out.
        unsafe { slab.release() };
    }

    /// In a child: next to other tests another slab may be there by then.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn what_was_released_is_foreign() {
        let each = |make: fn(usize) -> Option<&'static Slab>| {
            (2..=classes::CLASSES).all(|class| {
                let slab = make(class).unwrap();
                let (from, slices) = (slab.base(), slab.slices());
                let is_ours = |i| pagemap::kind(from.wrapping_add(i * SLICE)) != FOREIGN;
                let was_ours = is_ours(0);
                release(slab);
                was_ours && !(0..slices).any(is_ours)
            })
        };
        assert!(child::is_so(|| each(Slab::make_usual) && each(Slab::make_big)));
    }

    #[test]
    fn a_block_is_held_once() {
        let slab = Slab::make(4).unwrap();
        let place = slab.nth(3);
        let mix = place.mix();
        assert_eq!((place.hold(), place.look()), (Err(FRESH), FRESH));
        place.take();
        assert_eq!(place.look(), USED);
        // SAFETY: a block of this test alone.
        unsafe {
            place.seal(mix, 5, 3, true);
            assert!(place.is_intact(mix, 5) && !place.is_zero());
            place.block.add(5).write(0);
            assert!(!place.is_intact(mix, 5));
        }
        assert_eq!(place.fields(mix), Some(Fields { room: place.room() - 5, align: 3, free: false }));
        assert_eq!(place.hold(), Ok(()));
        assert_eq!(place.hold(), Err(HELD));
        assert!(!place.is_sealed_free(mix));
        place.seal_free(mix);
        assert_eq!(place.fields(mix), Some(Fields::FREE));
        assert!(place.is_sealed_free(mix) && !place.is_sealed_free(slab.nth(4).mix()));
    }

    #[test]
    fn what_is_let_go_can_be_taken() {
        let slab = Slab::make(4).unwrap();
        let words = slab.words();
        (0..words).for_each(|word| _ = slab.take_bits(word));
        slab.count(-(slab.blocks() as i32));
        for (free, index) in [3, 64, 65, slab.blocks() - 1].into_iter().enumerate() {
            let place = slab.nth(index);
            place.take();
            assert_eq!(place.hold(), Ok(()));
            assert_eq!(place.let_go(), free as i32 + 1);
            assert_eq!(place.look(), FREE);
            let bits: Vec<_> = (0..words).map(|word| slab.take_bits(word)).collect();
            let expected = |word| if word == index / 64 { 1 << (index % 64) } else { 0 };
            assert!(bits.into_iter().eq((0..words).map(expected)));
        }
    }

    #[test]
    fn a_neighbour_is_intact_if_it_is_sealed_or_untouched() {
        let slab = Slab::make(4).unwrap();
        assert!(slab.nth(0).is_neighbour_intact(), "there is none");
        let (before, place) = (slab.nth(6), slab.nth(7));
        assert!(place.is_neighbour_intact(), "it is fresh");
        before.trailer().store(1, Relaxed);
        assert!(!place.is_neighbour_intact(), "it was, until somebody wrote there");
        before.seal_free(before.mix());
        assert!(place.is_neighbour_intact(), "it is about to be handed out");
        before.take();
        // SAFETY: a block of this test alone.
        unsafe { before.seal(before.mix(), 9, 4, true) };
        assert!(place.is_neighbour_intact());
        before.trailer().store(0, Relaxed);
        assert!(!place.is_neighbour_intact(), "zero is right for fresh ones only");
    }
}
