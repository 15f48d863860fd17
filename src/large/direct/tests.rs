use crate::large::direct::*;

/// Frees a mapping, as a program's free does. False if it has been freed.
///
/// # Safety
///
/// As [`claim`].
unsafe fn free(address: *mut u8) -> bool {
    // SAFETY: this function's contract is the same, and what is claimed is ours alone.
    unsafe { claim(address).map(|kept| cache::keep(kept)).is_some() }
}

/// Every place within a slice, with lengths at both ends: nothing of one runs into another.
#[test]
fn an_entry_keeps_the_length_and_the_place() {
    let page = os::page_size();
    let lengths = [SLICE, SLICE + page, 1 << 30, (1 << 47) - page, isize::MAX as usize & !(page - 1)];
    for (place, len) in (0..SLICE).step_by(UNIT).flat_map(|place| lengths.map(|len| (place, len))) {
        for (huge, fresh) in [(false, 0), (true, 0), (false, FRESH as u64), (true, FRESH as u64)] {
            let block = ptr::without_provenance_mut((1 << 40) + place);
            let entry = entry(Mapping { block, len, huge, clean: false }) | fresh;
            let read = mapping(block, entry);
            assert_eq!((read.block, read.len, read.huge), (block, len, huge), "{place:#x} {len:#x}");
            assert_eq!(entry as usize & (HUGE - 1), place / UNIT);
            assert_eq!(entry & FRESH as u64, fresh);
        }
    }
}

#[test]
fn huge_pages_are_aligned_where_one_fits_in() {
    for (len, huge, least) in [
        (SLICE, false, 1),
        (SLICE, true, 1),
        (HUGE_PAGE - 1, true, 1),
        (HUGE_PAGE, false, 1),
        (HUGE_PAGE, true, HUGE_PAGE),
        (HUGE_PAGE + SLICE, true, HUGE_PAGE),
    ] {
        for align in [1, SLICE, HUGE_PAGE, 2 * HUGE_PAGE] {
            assert_eq!(alignment_for(len, align, huge), align.max(least), "{len:#x} {align:#x} {huge}");
        }
    }
}

#[test]
fn huge_pages_stay_whole_when_moved_from_a_multiple_of_their_size() {
    for (place, whole) in [(0, true), (UNIT, false), (SLICE, false), (HUGE_PAGE / 2, false)] {
        let block = ptr::without_provenance_mut((1 << 40) + HUGE_PAGE + place);
        let mapping = |huge| Mapping { block, len: 2 * HUGE_PAGE, huge, clean: false };
        assert!(keeps_huge_pages_when_moved(mapping(false)));
        assert_eq!(keeps_huge_pages_when_moved(mapping(true)), whole, "{place:#x}");
    }
}

/// New, kept and extended mappings: each where and as long as asked for, zero where it says so.
#[test]
#[cfg_attr(miri, ignore)]
fn blocks_are_what_was_asked_for() {
    // Hardly touched, and so purged rather than cleared. At first: dense ones are soon given huge pages.
    for _ in 0..8 {
        let mut allocation = alloc_kept(12 << 20, 1, true, false);
        if allocation.ptr.is_null() {
            allocation = alloc(12 << 20, 1, true, false);
        }
        // SAFETY: ours, with so many bytes; freed once.
        unsafe {
            assert!(!allocation.zeroed || (0..4096).all(|i| allocation.ptr.add(i).read() == 0));
            allocation.ptr.write_bytes(0x5a, 4096);
            assert!(free(allocation.ptr));
        }
    }
    let mut blocks = Vec::new();
    for round in 0..96 {
        let size = ((1 + round % 5) << 20) + round * 1000;
        let align = [1, 1 << 12, 1 << 16, 1 << 20, 1 << 24][round / 3 % 5];
        let clear = round % 2 == 0;
        let mut allocation = alloc_kept(size, align, clear, round % 7 == 0);
        if allocation.ptr.is_null() {
            allocation = alloc(size, align, clear, false);
        }
        let block = allocation.ptr;
        assert!(!block.is_null() && block.addr() % align == 0, "{size:#x} {align:#x}");
        assert!(usable(block) >= size && usable(block) < size + (2 << 20), "{size:#x}");
        assert_eq!((pagemap::kind(block), is_start(block)), (DIRECT, true));
        let inside = block.wrapping_add(UNIT);
        assert!(inside.addr() % SLICE == 0 || !is_start(inside));
        // SAFETY: ours, with so many bytes.
        unsafe {
            if allocation.zeroed {
                let words = core::slice::from_raw_parts(block.cast::<u64>(), size / 8);
                assert!(words.iter().step_by(64).all(|&word| word == 0), "{size:#x} {clear}");
            }
            block.write_bytes(0x5a, size);
        }
        blocks.push(block);
        if round % 3 != 0 {
            let block = blocks.swap_remove(round % blocks.len());
            // SAFETY: ours, and not used any more.
            assert!(unsafe { free(block) });
        }
    }
    // SAFETY: as in the loop: ours, and not used any more.
    assert!(blocks.into_iter().all(|block| unsafe { free(block) }));
}

/// What is left of a batch need not be cleared, nor purged. In a child, as below.
#[cfg(not(loom))]
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_nobody_has_touched_is_zero() {
    assert!(crate::large::child::is_so(|| {
        cache::drain(true);
        let len = 1 << 20;
        let first = batch::alloc(len, 3 * len).unwrap();
        let [plain, zero] = [false, true].map(|clear| alloc_kept(len, 1, clear, false));
        assert!(plain.ptr == first.block.wrapping_add(len) && zero.ptr == plain.ptr.wrapping_add(len));
        assert!(
            is_start(zero.ptr) && usable(zero.ptr) == len && pagemap::direct(zero.ptr) as usize & HUGE != 0
        );
        // SAFETY: ours, and of this length; freed once.
        unsafe {
            zero.ptr.write_bytes(1, len);
            assert!(free(zero.ptr));
        }
        let used = alloc_kept(len, 1, true, false);
        plain.zeroed && zero.zeroed && used.ptr == zero.ptr && !used.zeroed
    }));
}

/// A kept mapping that is too short is made longer, and holds what it held. In a child: other tests use the
/// cache as well.
#[cfg(not(loom))]
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_kept_mapping_is_made_longer() {
    let is_longer = |round: usize| {
        let size = (8 << 20) + round * SLICE;
        let short = alloc(size, 1, false, false).ptr;
        assert!(!short.is_null());
        // SAFETY: ours, with more bytes than one; not used any more after that.
        unsafe {
            short.write(round as u8);
            assert!(free(short));
        }
        let long = alloc(size + size / 2, 1, false, false);
        assert!(!long.ptr.is_null() && usable(long.ptr) >= size + size / 2);
        // SAFETY: ours, and not used any more after that.
        unsafe {
            let kept = !long.zeroed && long.ptr.read() == round as u8;
            assert!(free(long.ptr));
            kept
        }
    };
    // Each in a child of its own, since the next one has what this one kept.
    assert!((1..=8).all(|round| crate::large::child::is_so(|| is_longer(round))));
}

/// Around each power of two and at the end of all sizes.
#[test]
fn a_length_is_the_next_of_whole_pages() {
    let page = os::page_size();
    for size in
        (0..64).flat_map(|shift| (0..5).map(move |i| (1usize << shift).wrapping_sub(2).wrapping_add(i)))
    {
        // Without a division, in wider numbers.
        let least = (size as u128).max(SLICE as u128);
        let expected = (least + page as u128 - 1) >> page.trailing_zeros() << page.trailing_zeros();
        assert_eq!(
            length_for(size).map(|len| len as u128),
            Some(expected).filter(|&len| len < 1 << 64),
            "{size:#x}"
        );
    }
    assert_eq!(length_for(usize::MAX), None);
    assert_eq!(length_for(usize::MAX - page + 1), Some(usize::MAX - page + 1));
    assert_eq!(length_for(usize::MAX - page + 2), None);
}

/// What was filled is cut off to be kept, whatever its place in a slice; what was never touched, or is too
/// short, is left to the system.
#[test]
#[cfg_attr(miri, ignore)]
fn what_was_filled_is_cut_off() {
    let page = os::page_size();
    for (filled, size, is_cut) in [
        (8 << 20, 5 << 20, true),
        (8 << 20, (5 << 20) + page, true),
        (7 << 20, 5 << 20, true),
        (8 << 20, (8 << 20) - SLICE, true),
        (8 << 20, (8 << 20) - SLICE + page, false),
        (7 << 20, 6 << 20, true),
        (8 << 20, 8 << 20, false),
        (5 << 20, 5 << 20, false),
        (6 << 20, 5 << 20, false),
    ] {
        // Not out of the cache, where other tests leave what is touched.
        let block = alloc(8 << 20, 2 * page, false, false).ptr;
        assert!(!block.is_null());
        // SAFETY: ours, and at least as long.
        unsafe { block.write_bytes(7, filled) };
        let whole = usable(block);
        // SAFETY: ours, and nobody uses what is cut off.
        let tail = unsafe { cut(block, size) };
        assert_eq!(tail.is_some(), is_cut, "{filled:#x} {size:#x}");
        if let Some(tail) = tail {
            assert_eq!((tail.block, tail.len), (block.wrapping_add(size), whole - size));
            assert_eq!((usable(block), is_start(block)), (size, true));
            // SAFETY: ours alone, and whole pages.
            unsafe { cache::keep(tail) };
        }
        // SAFETY: ours, and not used any more.
        assert!(unsafe { free(block) });
    }
}

#[cfg(not(loom))]
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_a_mapping_loses_has_gone_back() {
    assert!(crate::large::child::is_so(|| {
        let block = os::map_aligned(ptr::null_mut(), 4 << 20, os::page_size());
        let before = os::PURGED.load(crate::sync::Ordering::Relaxed);
        // SAFETY: a mapping of this test alone.
        let shrunk = unsafe { os::remap(block, 4 << 20, 1 << 20) };
        shrunk.is_ok() && os::PURGED.load(crate::sync::Ordering::Relaxed) - before == 3 << 20
    }));
}
