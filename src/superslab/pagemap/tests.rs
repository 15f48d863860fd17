//! Tests of the page map.

use super::figures::figures_of;
use super::*;

#[test]
fn every_address_has_a_kind() {
    for bits in 0..64 {
        for base in [0usize, 1, 8, 0xdead_beef] {
            let address = ptr::without_provenance(base | 1 << bits);
            assert_eq!((kind(address), kind_index(address)), (FOREIGN, 0));
        }
    }
    assert_eq!(kind(ptr::without_provenance(usize::MAX)), FOREIGN);
    assert_eq!(kind(ptr::null()), FOREIGN);
}

/// Every slice of a leaf, of every branch, and of every place in the root: no two have the same place.
#[test]
fn the_side_tables_places_are_the_slices() {
    let slices = (0..1u32 << DIRECT_SHIFT).chain((0..1 << 19).map(|i| i << DIRECT_SHIFT | i & 0x1fff));
    for slice in slices.chain([u32::MAX]) {
        let (root, branch, leaf) = direct_place(ptr::without_provenance((slice as usize) << SLICE_SHIFT));
        assert!(root < DIRECT_ROOT.len() && branch < 1 << BRANCH_SHIFT && leaf < 1 << DIRECT_SHIFT);
        assert_eq!((root << BRANCH_SHIFT | branch) << DIRECT_SHIFT | leaf, slice as usize);
    }
}

#[test]
fn what_the_map_takes() {
    if os::page_size() == 4096 {
        let (superslabs, direct) = ((4 * 4096 + 1) * SLICE + 5, 4096 * SLICE);
        let space = 2 * LEAF + 2 * (64 << 10) + 3 * (16 << 10);
        assert_eq!(figures_of(2, 2, 3, superslabs, direct), (space, 7 * 4096 + 10 * 4096 + 3 * 4096));
    }
    assert_eq!(figures_of(0, 0, 0, 1 << 40, 1 << 40), (0, 0));
    assert!(prepare_direct(ptr::without_provenance(0x3456_7890_0000)) && figures(0, 0).0 > LEAF);
}

#[test]
fn a_direct_mapping_is_claimed_once() {
    let base: *const u8 = ptr::without_provenance(0x2345_6789_0000);
    assert!(prepare_direct(base));
    set_direct(base, 42);
    assert_eq!((kind(base), direct(base)), (DIRECT, 42));
    assert!(!clear_direct(base, 41));
    assert!(clear_direct(base, 42));
    assert!(!clear_direct(base, 42));
    assert_eq!(kind(base), FOREIGN);
}

/// Also where nothing has been described before; and what is not needed goes back.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_reserve_is_enough_for_any_address() {
    assert!(crate::os::child::is_so(|| {
        // Of 512 GiB in which there is nothing.
        let far = ptr::without_provenance::<u8>(0x3456_789a_0000);
        let mapped = || os::MAPPED.load(Ordering::Relaxed);
        let (kind_before, before) = (kind(far), mapped());
        Reserve::new().unwrap().prepare_direct(far);
        let first = mapped() - before;
        set_direct(far, 0x7000);
        let described = (kind(far), direct(far)) == (DIRECT, 0x7000);
        Reserve::new().unwrap().prepare_direct(far);
        let all = LEAF + bytes_of::<Branch>() + bytes_of::<DirectLeaf>();
        drop(Reserve::new());
        kind_before == FOREIGN && described && first == all && mapped() - before == all
    }));
}
