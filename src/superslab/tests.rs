//! What follows from a place in a SuperSlab, for every place: slabs of every class at every slice, every
//! offset in them, every granule; every slice of SuperSlabs at the ends of the address space; and the index
//! over SuperSlabs beside a plain model of it.

use super::desc::{CHUNK, Desc, DescRef, all_descs, bytes_of_descriptors};
use super::granules::{Granules, Run};
use super::layout::{HEADER, MAX_SPAN, SLICE, SLICES, SUPERSLAB};
use super::pagemap::{self, FOREIGN, HARDENED, RUN};
use super::slab::{FULL, LEFT, Owner, Slab, VISITED};
use super::span::{BEHIND_FIRST, usable};
use super::span_index::State;
use crate::lockfree::slice_sets::{Sets, span_mask};
use crate::os;
use crate::sync::Ordering::Relaxed;
// For tests only: classes lie above this folder.
#[cfg(test)]
use crate::tiny::classes::{CLASSES, slices, stride};
use core::ptr;

/// Memory for a SuperSlab.
fn superslab() -> *mut u8 {
    let base = os::map_aligned(ptr::null_mut(), SUPERSLAB, SUPERSLAB);
    assert!(!base.is_null() && pagemap::prepare(base));
    base
}

/// Runs `f` with a slab of each class at each slice where it may lie, or only in the first and the last
/// place and slice 0.
fn each_slab(everywhere: bool, mut f: impl FnMut(*mut Slab, usize, u8)) {
    let (base, owner) = (superslab(), ptr::without_provenance_mut::<Owner>(4096));
    let desc = Desc::stand_in(base);
    for class in 1..=CLASSES as u8 {
        let slices = slices(class);
        for index in 0..=SLICES - slices {
            let fits = usable(slices, class) & span_mask(index, slices) == span_mask(index, slices);
            assert_eq!(fits, index > 0 || slices == 1);
            if fits && (everywhere || index < 2 || index == SLICES - slices) {
                // SAFETY: the SuperSlab was mapped for this, and nobody else knows it. The owner is never
                // followed.
                let slab = unsafe { Slab::claim(desc, index, slices, class) };
                // SAFETY: claimed just now, and nobody else knows it.
                unsafe { Slab::make(slab, stride(class as usize), true, owner) };
                f(slab, index, class);
            }
        }
    }
    // SAFETY: mapped above, and not used any more.
    unsafe { os::discard(base, SUPERSLAB) };
}

#[test]
#[cfg_attr(miri, ignore)]
fn every_slab_is_found_from_all_of_its_slices() {
    each_slab(true, |slab, index, class| {
        let (base, slices, stride) = (Slab::base(slab), slices(class), stride(class as usize) as usize);
        assert!(base.addr() % SUPERSLAB == 0 && slab == Slab::at(base, index) && Slab::index(slab) == index);
        assert_eq!(Slab::address(slab), base.wrapping_add(index * SLICE));
        for offset in (0..slices * SLICE).step_by(SLICE).flat_map(|from| [from, from + 1, from + SLICE - 1]) {
            // SAFETY: the slab was made just now.
            assert_eq!(unsafe { Slab::of(Slab::address(slab).wrapping_add(offset)) }, slab);
        }
        // SAFETY: the slab was made just now.
        let (start, end, last) = unsafe { ((*slab).start, (*slab).end, (*slab).last as usize) };
        let (header, span) = (if index == 0 { HEADER } else { 0 }, slices * SLICE);
        assert_eq!(start, Slab::address(slab).wrapping_add(header));
        assert_eq!(end.addr(), start.addr() + last + stride);
        assert!(end.addr() <= Slab::address(slab).addr() + span, "{class}: beyond the span");
        assert!(end.addr() + stride > Slab::address(slab).addr() + span, "{class}: room for one more");
    });
}

/// The division by a product, for every byte of slabs of every class, and some before and behind.
#[test]
#[cfg_attr(miri, ignore)]
fn a_block_is_known_by_its_first_byte_only() {
    each_slab(false, |slab, index, class| {
        let stride = stride(class as usize) as usize;
        // SAFETY: the slab was made just now.
        let (start, last) = unsafe { ((*slab).start, (*slab).last as usize) };
        // SAFETY: as above; nobody asks whether a block is in use.
        let is_block = |offset: usize| unsafe { Slab::is_block(slab, start.wrapping_add(offset)) };
        let mut next = 0;
        for offset in 0..slices(class) * SLICE {
            let expected = offset == next && offset <= last;
            assert_eq!(is_block(offset), expected, "class {class} slice {index} offset {offset}");
            next += if offset == next { stride } else { 0 };
        }
        let others = [1, 8, stride, 16 * stride, HEADER, SUPERSLAB].map(usize::wrapping_neg);
        assert!(!others.into_iter().chain([last + stride, SUPERSLAB, usize::MAX / 2 + 1]).any(is_block));
    });
}

/// Every run of granules: the blocks that touch it are those of its window. And the granules of every block.
#[test]
#[cfg_attr(miri, ignore)]
fn every_block_touches_the_granules_that_it_lies_in() {
    each_slab(false, |slab, index, class| {
        let stride = stride(class as usize) as usize;
        // SAFETY: the slab was made just now.
        let granules = unsafe { Granules::of(slab) };
        let size = 1 << granules.shift;
        assert!(granules.span == Slab::address(slab) && granules.count <= 64);
        assert!(size >= os::page_size() && size * granules.count == slices(class) * SLICE);
        assert!(size == os::page_size() || granules.count > 32, "granules are no larger than they must be");
        // SAFETY: the slab was made just now.
        let (start, blocks) = unsafe { ((*slab).start, (*slab).last as usize / stride + 1) };
        // For each granule, how many blocks end before it begins, and how many begin before it does.
        let (mut before, mut begun) = ([0; 65], [0; 65]);
        for block in 0..blocks {
            let from = start.addr() - granules.span.addr() + block * stride;
            let (first, last) = (from / size, (from + stride - 1) / size);
            before[last + 1..].iter_mut().for_each(|count| *count += 1);
            begun[first + 1..].iter_mut().for_each(|count| *count += 1);
            let at = granules.span.wrapping_add(from);
            let expected = (first..=last).fold(0u64, |mask, granule| mask | 1 << granule);
            assert_eq!(granules.touching(at, at.wrapping_add(stride)), expected, "{class} {index} {block}");
        }
        for (first, end) in
            (0..granules.count).flat_map(|first| (first + 1..=granules.count).map(move |end| (first, end)))
        {
            let run = Run { first: first as u32, count: (end - first) as u32 };
            let range = granules.range(run);
            assert_eq!(range.0, granules.span.wrapping_add(first * size));
            assert_eq!(range.1, granules.span.wrapping_add(end * size));
            let (from, to) = granules.window(run);
            let number = |at: *mut u8| (at.addr() - start.addr()) / stride;
            assert!((from.addr() - start.addr()) % stride == 0 && (to.addr() - start.addr()) % stride == 0);
            let expected = before[first]..begun[end].max(before[first]);
            assert_eq!(number(from)..number(to).max(number(from)), expected, "{class} {index} {run:?}");
        }
    });
}

#[test]
fn runs_of_granules_are_separate_and_together_the_mask() {
    for mask in
        (0..=u16::MAX as u64).flat_map(|mask| [mask, mask << 48, mask << 24 | 1, mask | u64::MAX << 16])
    {
        let mut end = 0;
        let all = Run::each(mask).fold(0, |all, run| {
            // Between two runs there is a gap.
            assert!(run.count > 0 && (run.first > end || (run.first == 0 && end == 0)), "{mask:#x}");
            end = run.first + run.count;
            all | run.mask()
        });
        assert_eq!(all, mask);
    }
}

/// Each slice of SuperSlabs at the ends of what addresses there are, and of leaves of the map, by itself and
/// in every group.
#[test]
#[cfg_attr(miri, ignore)]
fn the_page_map_changes_exactly_the_slices_that_it_is_told() {
    let leaf = 1 << 39;
    for base in
        [3 * SUPERSLAB, leaf - SUPERSLAB, leaf + 3 * SUPERSLAB, (1 << 47) - SUPERSLAB, (1 << 48) - SUPERSLAB]
    {
        let slice =
            |index: usize| ptr::without_provenance::<u8>(base.wrapping_add(index.wrapping_mul(SLICE)));
        assert!(pagemap::prepare(slice(0)));
        let all = |expected: &dyn Fn(usize) -> u8| {
            for index in 0..SLICES {
                for at in [slice(index), slice(index).wrapping_add(1), slice(index).wrapping_add(SLICE - 1)] {
                    let kinds = (pagemap::kind(at), pagemap::kind_published(at), pagemap::kind_index(at));
                    let kind = expected(index);
                    assert_eq!(kinds, (kind, kind, kind as usize), "{at:p}");
                }
            }
            let outside = [slice(0).wrapping_sub(1), slice(SLICES)];
            assert!(outside.into_iter().all(|at| pagemap::kind(at) == FOREIGN));
        };
        all(&|_| FOREIGN);
        (0..SLICES).for_each(|index| pagemap::set(slice(index), 1, 1 + index as u8));
        all(&|index| 1 + index as u8);
        for index in 0..SLICES {
            assert!(!pagemap::claim(slice(index), 40) && pagemap::claim(slice(index), 1 + index as u8));
            assert!(!pagemap::claim(slice(index), 1 + index as u8));
        }
        for (first, end) in (0..SLICES).flat_map(|first| (first + 1..=SLICES).map(move |end| (first, end))) {
            pagemap::set(slice(first), end - first, RUN);
            all(&|index| if (first..end).contains(&index) { RUN } else { FOREIGN });
            pagemap::set(slice(first), end - first, FOREIGN);
        }
        all(&|_| FOREIGN);
    }
}

#[test]
fn a_full_slabs_count_is_negative() {
    assert!((FULL as i32) == i32::MIN && FULL & 8192 == 0 && LEFT & VISITED == 0 && LEFT | VISITED == 3);
}

#[test]
#[cfg_attr(miri, ignore)]
fn slices_of_the_hardened_heap_have_their_record() {
    let slice = |index: usize| ptr::without_provenance::<u8>(0x3456_7800_0000 + index * SLICE);
    let record: *const u8 = ptr::without_provenance(0x1230);
    assert!(pagemap::prepare_direct(slice(0)));
    pagemap::set_hardened(slice(3), 5, record);
    for index in 0..SLICES {
        let expected = if (3..8).contains(&index) { (HARDENED, record) } else { (FOREIGN, ptr::null()) };
        assert_eq!((pagemap::kind(slice(index)), pagemap::hardened(slice(index)).cast_const()), expected);
    }
    pagemap::set(slice(3), 5, FOREIGN);
}

#[test]
fn descriptors_lie_in_what_is_counted_for_them() {
    let span = super::pool::take_span(1, RUN, |_| None).unwrap();
    let bytes = bytes_of_descriptors();
    assert!(bytes % CHUNK == 0 && bytes >= CHUNK && bytes >= all_descs().count() * size_of::<Desc>());
    // SAFETY: our own span, given back once.
    unsafe { super::pool::give_span(span.slab, 0) };
}

/// A model of the index: what each SuperSlab's sets are, and in which order they came to be dirty.
struct Model {
    descs: [DescRef; 3],
    dirty: Vec<usize>,
}

impl Model {
    /// The state of all, against what can be counted.
    fn check(&mut self, state: &State, what: &str) {
        let sets: Vec<Sets> = self.descs.iter().map(|desc| desc.slices.get()).collect();
        let dirty: usize = sets.iter().map(|sets| sets.purgeable().count_ones() as usize).sum();
        assert_eq!(state.dirty_slices, dirty, "{what}");
        for free in 0..=SLICES {
            let mut listed: Vec<usize> = state.bucket(free).map(|desc| self.number(desc)).collect();
            listed.sort_unstable();
            let expected: Vec<usize> =
                (0..3).filter(|&i| sets[i].free.count_ones() as usize == free).collect();
            assert_eq!(listed, expected, "{what}: {free} free");
            assert_eq!(state.filled >> free & 1 != 0, !expected.is_empty(), "{what}: {free} free");
        }
        // One that has nothing dirty any more leaves the list; one that has joins at its end.
        self.dirty.retain(|&i| sets[i].purgeable() != 0);
        let new: Vec<usize> =
            (0..3).filter(|i| sets[*i].purgeable() != 0 && !self.dirty.contains(i)).collect();
        assert!(new.len() <= 1, "{what}");
        self.dirty.extend(new);
        assert_eq!(state.dirty().map(|desc| self.number(desc)).collect::<Vec<_>>(), self.dirty, "{what}");
    }

    fn number(&self, desc: DescRef) -> usize {
        self.descs.iter().position(|&other| ptr::eq(desc, other)).unwrap()
    }

    /// Where a span is taken: in the fullest SuperSlab that has room, which is one of several.
    fn places(&self, slices: usize, room: usize, among: u32) -> Vec<*mut u8> {
        let fits =
            |set: u32| (0..=SLICES - room).find(|&i| set & among & span_mask(i, room) == span_mask(i, room));
        let place = |desc: &DescRef| {
            let sets = desc.slices.get();
            let index = fits(sets.purgeable()).or_else(|| fits(sets.free))?;
            assert!(slices <= room);
            Some((sets.free.count_ones(), desc.base().wrapping_add(index * SLICE)))
        };
        let found: Vec<_> = self.descs.iter().filter_map(place).collect();
        let fullest = found.iter().map(|&(free, _)| free).min();
        found.into_iter().filter(|&(free, _)| Some(free) == fullest).map(|(_, at)| at).collect()
    }
}

/// Random spans of three SuperSlabs, taken and given back, hidden and put back: each step is the one that a
/// plain search over all slices takes, and all that is counted and listed agrees.
#[test]
#[cfg_attr(miri, ignore)]
fn the_index_is_what_a_plain_search_finds() {
    let bases = [(); 3].map(|()| superslab());
    let mut state = State::new();
    let mut model = Model { descs: bases.map(Desc::stand_in), dirty: Vec::new() };
    for desc in model.descs {
        desc.fill(desc.base(), false, false);
        state.enter(desc, 0);
    }
    assert_eq!(state.superslabs, 3);
    let (mut spans, mut used) = (Vec::<(*mut Slab, usize)>::new(), 0);
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) as usize % below
    };
    for step in 0..20_000 {
        let now = step / 16;
        // Now mostly full, now mostly empty.
        if random(100) < if step / 2000 % 2 == 0 { 65 } else { 35 } {
            let most = 1 + random(MAX_SPAN);
            let slices = 1 + random(most);
            let room = (slices + random(3)).min(MAX_SPAN);
            let among = if random(4) == 0 { u32::MAX } else { BEHIND_FIRST };
            let places = model.places(slices, room, among);
            let span = state.take_span(slices, room, RUN, among, usize::MAX, now);
            let at = span.as_ref().map(|span| Slab::address(span.slab));
            assert_eq!(at.is_none(), places.is_empty(), "step {step}");
            if let Some(span) = span {
                assert!(at.is_some_and(|at| places.contains(&at)), "step {step}: {at:?} of {places:?}");
                let index = Slab::index(span.slab);
                // SAFETY: a span that we have.
                let sets = unsafe { Slab::desc(span.slab) }.slices.get();
                assert_eq!(span.zero, sets.dirty & span_mask(index, slices) == 0);
                assert_eq!(sets.free & span_mask(index, slices), 0);
                used += slices;
                spans.push((span.slab, slices));
            }
        } else if !spans.is_empty() {
            let (slab, slices) = spans.swap_remove(random(spans.len()));
            // SAFETY: a span that we have.
            let desc = unsafe { Slab::desc(slab) };
            let mask = span_mask(Slab::index(slab), slices);
            let touched = mask & random(1 << 31) as u32 & random(1 << 31) as u32;
            state.give_span(desc, mask, slices, |dirty| dirty & !mask | touched, now);
            assert_eq!(desc.slices.get().dirty & mask, touched);
            used -= slices;
        }
        assert_eq!(state.used_slices, used, "step {step}");
        model.check(&state, "taken or given");
        if random(20) == 0 {
            let desc = model.descs[random(3)];
            // What was in a huge page is dirty, used or not; of what is unmapped nobody asks.
            desc.huge.store(random(8) == 0, Relaxed);
            let mut before = desc.slices.get();
            let soiled = desc.huge.load(Relaxed) && !desc.has_job() && before.free != u32::MAX;
            before.dirty |= if soiled { u32::MAX } else { 0 };
            let hidden = if before.free == u32::MAX { u32::MAX } else { before.purgeable() };
            assert_eq!(state.hide(desc), hidden != 0, "step {step}");
            assert_eq!((desc.job.load(Relaxed), desc.slices.get().free), (hidden, before.free & !hidden));
            model.check(&state, "hidden");
            if hidden != 0 {
                assert!(!state.hide(desc), "hidden twice");
                assert!(!state.take_these(desc, 1 << hidden.trailing_zeros(), 1, now));
                let clean = hidden & random(1 << 32) as u32;
                let after = desc.end_job(clean);
                assert_eq!(after, Sets { free: before.free, dirty: before.dirty & !clean });
                state.reindex(desc, hidden, after, now);
                model.check(&state, "put back");
            }
        }
        if random(500) == 0 {
            let desc = model.descs[random(3)];
            let free = desc.slices.get().free;
            state.soil(desc);
            assert_eq!(desc.slices.get(), Sets { free, dirty: u32::MAX });
            model.check(&state, "soiled");
        }
        if random(50) == 0 {
            let desc = model.descs[random(3)];
            let free = desc.slices.get().free;
            let slice = random(SLICES);
            assert_eq!(state.take_these(desc, 1 << slice, 1, now), free & 1 << slice != 0, "step {step}");
            model.check(&state, "one taken");
            if free & 1 << slice != 0 {
                state.give_span(desc, 1 << slice, 1, |dirty| dirty, now);
                model.check(&state, "one given");
            }
        }
    }
    // A SuperSlab that goes leaves nothing in the lists, even if it still counts as dirty, and its descriptor
    // is the next one that is used.
    state.forget(model.descs[1]);
    assert!(
        state.superslabs == 2
            && state.bucket(SLICES).chain(state.dirty()).all(|desc| model.number(desc) != 1)
    );
    let dirty = [0, 2].map(|i| model.descs[i].slices.get().purgeable().count_ones() as usize);
    assert_eq!(state.dirty_slices, dirty[0] + dirty[1]);
    assert!(state.take_spare().is_some_and(|desc| model.number(desc) == 1) && state.take_spare().is_none());
    for base in bases {
        pagemap::set(base, SLICES, FOREIGN);
        // SAFETY: mapped above, and not used any more.
        unsafe { os::discard(base, SUPERSLAB) };
    }
}
