//! Size classes. [`class_of`] defines which one a size and alignment get; the fast paths have the same
//! mapping as tables, and [`medium`].
//!
//! Steps of 8 bytes to 64, of 16 to 128, then 8 classes per doubling to 1 KiB and 4 per doubling to 64 KiB.

use crate::superslab::pagemap::KINDS;

/// Number of classes; they are numbered from 1.
pub(crate) const CLASSES: usize = 60;
/// The largest class.
pub(crate) const MAX_SMALL: usize = 64 << 10;
/// The largest size that the table covers.
pub(crate) const MAX_TABLE: usize = 1024;

/// Bytes of a block, by class; 0 for class 0 and for those beyond the last.
const STRIDES: [u32; KINDS] = {
    let mut strides = [0; KINDS];
    let mut class = 1;
    let mut stride = 0u32;
    while class <= CLASSES {
        stride += if stride < 64 {
            8
        } else if stride < 128 {
            16
        } else if stride < 1024 {
            (1 << stride.ilog2()) / 8
        } else {
            (1 << stride.ilog2()) / 4
        };
        strides[class] = stride;
        class += 1;
    }
    strides
};

/// Bytes of a block of a class; 0 for a number that is no class.
#[inline(always)]
pub(crate) const fn stride(class: usize) -> u32 {
    STRIDES[class & (KINDS - 1)]
}

/// Whether blocks of 56 bytes lie at multiples of 16, in the class of 64 bytes. Of that size is the exception
/// that Rust's panics allocate, at a multiple of 8, and the unwinder that comes with musl takes it to be at
/// one of 16: on x86-64 it writes there with an instruction that traps at any other address. Rust asks for 16
/// itself since August 2026 (rust-lang/rust#161368).
pub(crate) const ALIGNS_EXCEPTIONS: bool = cfg!(all(target_arch = "x86_64", target_env = "musl"));

/// The smallest class that holds `8 * index` bytes, but for [`ALIGNS_EXCEPTIONS`].
pub(crate) static TABLE: [u8; MAX_TABLE / 8 + 1] = {
    let mut table = [1; MAX_TABLE / 8 + 1];
    let mut index = 1;
    let mut class = 1;
    while index < table.len() {
        while (STRIDES[class] as usize) < index * 8 {
            class += 1;
        }
        table[index] = class as u8;
        index += 1;
    }
    if ALIGNS_EXCEPTIONS {
        table[56 / 8] = table[64 / 8];
    }
    table
};

/// The same for blocks at multiples of 16, as all of C's `malloc` are.
pub static C_TABLE: [u8; MAX_TABLE / 8 + 1] = {
    let mut table = TABLE;
    let mut index = 0;
    while index < table.len() {
        // The smallest class that is large enough and a multiple of 16.
        let mut class = table[index] as usize;
        while STRIDES[class] % 16 != 0 {
            class += 1;
        }
        table[index] = class as u8;
        index += 1;
    }
    table
};

/// The class for a size above [`MAX_TABLE`], up to [`MAX_SMALL`].
///
/// The stride of every such class is a multiple of 256.
#[inline(always)]
pub(crate) const fn medium(size: usize) -> usize {
    medium_with(size - 1)
}

/// [`medium`] by the place of a block's last byte.
#[inline(always)]
const fn medium_with(last: usize) -> usize {
    // `ilog2`, in a form that becomes one instruction. The quarter of a power of two that `last` is in comes
    // with its topmost bit, which counts as four.
    let log = 63 ^ (last as u64).leading_zeros() as usize;
    FIRST_MEDIUM + 4 * log + (last >> (log - 2)) - (4 * 10 + 4)
}

/// The first class above [`MAX_TABLE`].
const FIRST_MEDIUM: usize = TABLE[MAX_TABLE / 8] as usize + 1;

/// The class for `size` bytes at a multiple of `align` (a power of two), or 0 if that is a large block.
#[inline(always)]
pub(crate) const fn class_of(size: usize, align: usize) -> u8 {
    if align <= 8 && size <= MAX_TABLE {
        return TABLE[size.div_ceil(8)];
    }
    if align <= 16 && size <= MAX_TABLE {
        // For no bytes, too, it has a class of the alignment.
        return C_TABLE[size.div_ceil(8)];
    }
    class_of_rest(size, align)
}

/// [`class_of`] off the fast path.
#[inline(always)]
pub(crate) const fn class_of_rest(size: usize, align: usize) -> u8 {
    if is_medium(size) && align <= 256 { medium(size) as u8 } else { class_of_aligned(size, align) }
}

/// Whether [`medium`] has a class for this size.
#[inline(always)]
const fn is_medium(size: usize) -> bool {
    size.wrapping_sub(MAX_TABLE + 1) < MAX_SMALL - MAX_TABLE
}

/// [`class_of`] for all sizes and alignments.
const fn class_of_aligned(size: usize, align: usize) -> u8 {
    // Where the last byte of a multiple of the alignment is, which is at least one.
    let last = size.saturating_sub(1) | (align - 1);
    if last >= MAX_SMALL {
        return 0;
    }
    // A multiple of the alignment, too: where classes are closer than that, this size is one itself.
    if last < MAX_TABLE { TABLE[last / 8 + 1] } else { medium_with(last) as u8 }
}

/// Slices of a slab of this class: enough for 16 blocks, or for 8 blocks of more than 16 KiB. Behind the
/// first slice, a SuperSlab has 31: slabs of one class leave at most 3 of them, because in huge pages what
/// they leave is resident memory.
pub(crate) const fn slices(class: u8) -> usize {
    match stride(class as usize) {
        0..=4096 => 1,
        4097..=8192 => 2,
        8193..=32768 => 4,
        32769..=40960 => 5,
        40961..=49152 => 6,
        _ => 10,
    }
}

/// The numbers of the bits that are set in `mask`, in ascending order.
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit as usize)
    })
}

/// The classes of which a thread has needed shared slabs once and twice since the last sign that others free
/// what it takes, or that it frees what others take, a bit each. One that it needs again is in a burst.
#[derive(Clone, Copy)]
pub(crate) struct Bursts {
    once: u64,
    twice: u64,
}

impl Bursts {
    /// No class was needed.
    pub(crate) const NONE: Self = Self { once: 0, twice: 0 };

    /// Notes that a slab of `class` is needed. Whether that is in a burst.
    pub(crate) fn note(&mut self, class: usize) -> bool {
        let (class, before) = (1 << class, *self);
        *self = Self { once: before.once | class, twice: before.twice | before.once & class };
        before.twice & class != 0
    }

    /// Others free blocks of `class`.
    pub(crate) fn end(&mut self, class: u8) {
        let others = !(1 << class);
        *self = Self { once: self.once & others, twice: self.twice & others };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_a_mask() {
        for mask in [0, 1, 1 << 63, 0b1011_0000, u64::MAX] {
            assert_eq!(bits(mask).fold(0, |all, bit| all | 1 << bit), mask);
            assert!(bits(mask).zip(bits(mask).skip(1)).all(|(a, b)| a < b));
        }
    }

    /// The right answers of [`class_of`] for every size to past the threshold: the smallest class that holds
    /// the size and is a multiple of the alignment.
    fn expected(align: usize) -> impl Iterator<Item = (usize, u8)> {
        let is_used = |&class: &usize| !ALIGNS_EXCEPTIONS || stride(class) != 56;
        let classes = (1..=CLASSES).filter(is_used);
        let mut classes = classes.filter(move |&c| stride(c) as usize % align == 0).peekable();
        (0..=MAX_SMALL + 4096).map(move |size| {
            while classes.next_if(|&class| (stride(class) as usize) < size.max(1)).is_some() {}
            (size, classes.peek().map_or(0, |&class| class as u8))
        })
    }

    #[test]
    fn strides_are_as_the_module_says() {
        let steps = |from: usize, to: usize, step: usize| (from + step..=to).step_by(step);
        let doublings = |from: usize, to: usize, steps_of| {
            (0..(to / from).ilog2()).map(move |i| (from << i, (from << i) / steps_of))
        };
        let mut expected: Vec<usize> = steps(0, 64, 8).chain(steps(64, 128, 16)).collect();
        expected.extend(doublings(128, 1024, 8).flat_map(|(from, step)| steps(from, 2 * from, step)));
        expected.extend(doublings(1024, MAX_SMALL, 4).flat_map(|(from, step)| steps(from, 2 * from, step)));
        assert_eq!((1..=CLASSES).map(|class| stride(class) as usize).collect::<Vec<_>>(), expected);
        assert!((CLASSES + 1..KINDS).chain([0]).all(|class| stride(class) == 0));
    }

    #[test]
    fn every_size_to_past_the_threshold_at_every_alignment() {
        for align in (0..=20).map(|shift| 1 << shift) {
            for (size, class) in expected(align) {
                assert_eq!(class_of_rest(size, align), class, "size {size} align {align}");
                assert_eq!(class_of(size, align), class, "size {size} align {align}");
            }
        }
    }

    #[test]
    fn the_tables_and_the_formula_agree_with_the_search() {
        for ((size, class), (_, aligned)) in expected(1).zip(expected(16)) {
            if size <= MAX_TABLE {
                assert_eq!(TABLE[size.div_ceil(8)], class, "size {size}");
                assert_eq!(C_TABLE[size.div_ceil(8)], aligned, "size {size}");
            } else if size <= MAX_SMALL {
                assert_eq!(medium(size) as u8, class, "size {size}");
            }
        }
        // From a class to its size and back.
        for class in (1..=CLASSES).filter(|&class| !ALIGNS_EXCEPTIONS || stride(class) != 56) {
            assert_eq!(class_of(stride(class) as usize, 1) as usize, class);
            let next = if ALIGNS_EXCEPTIONS && stride(class) == 48 { class + 2 } else { class + 1 };
            assert!(class == CLASSES || class_of(stride(class) as usize + 1, 1) as usize == next);
        }
    }

    /// Around every power of two, and at the end of all sizes.
    #[test]
    fn no_edge_has_a_class() {
        for size in
            (17..64).flat_map(|shift| (0..5).map(move |i| (1usize << shift) - 2 + i)).chain([usize::MAX])
        {
            for align in (0..64).map(|shift| 1 << shift) {
                assert_eq!(class_of(size, align), 0, "size {size:#x} align {align:#x}");
            }
        }
        for (size, shift) in
            (0..=MAX_SMALL).step_by(997).flat_map(|size| (17..64).map(move |shift| (size, shift)))
        {
            assert_eq!(class_of(size, 1 << shift), 0, "size {size} align 1 << {shift}");
        }
    }

    #[test]
    fn large_sizes_have_no_class() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..1_000_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let size = (x >> (x & 47)) as usize;
            if size > MAX_SMALL {
                assert_eq!(class_of(size, 1 << (x % 32)), 0);
            }
        }
        assert_eq!(class_of(usize::MAX, 1), 0);
        assert_eq!(class_of(1, 1 << 63), 0);
    }

    #[test]
    fn c_blocks_are_aligned() {
        for size in 0..=MAX_TABLE {
            let class = C_TABLE[size.div_ceil(8)] as usize;
            assert!(stride(class) as usize >= size);
            assert!(stride(class) % 16 == 0);
            assert_eq!(class as u8, class_of(size, 16));
        }
    }

    #[test]
    fn slabs_hold_enough_blocks() {
        for class in 1..=CLASSES as u8 {
            let stride = super::stride(class as usize) as usize;
            let blocks = (slices(class) << 16) / stride;
            assert!(slices(class) == 1 || blocks < 32, "class {class}: twice as many slices as it needs");
            assert!(
                slices(class) <= 10 && 31 % slices(class) <= 3,
                "class {class}: a SuperSlab is not filled"
            );
            assert!(blocks >= if stride <= 16 << 10 { 16 } else { 8 }, "class {class}");
        }
        assert_eq!(stride(CLASSES) as usize, MAX_SMALL);
    }

    #[test]
    fn little_is_wasted() {
        for size in 65..=MAX_SMALL {
            let stride = super::stride(class_of(size, 1) as usize) as usize;
            assert!(stride - size < size / 4 + 16, "size {size} stride {stride}");
        }
    }

    /// Each class has a count of its own.
    #[test]
    fn a_class_needed_more_than_twice_since_the_last_sign_is_in_a_burst() {
        let mut bursts = Bursts::NONE;
        for class in [1, 2, 59, 60] {
            assert_eq!([(); 5].map(|()| bursts.note(class)), [false, false, true, true, true], "{class}");
        }
        bursts.end(59);
        bursts.end(3);
        let mut note_all = || [1, 2, 3, 59, 60].map(|class| bursts.note(class));
        for expected in [[true, true, false, false, true], [true, true, false, false, true], [true; 5]] {
            assert_eq!(note_all(), expected);
        }
    }
}
