//! What stands behind the bytes that were asked for: the canary, and the trailer in the last word of the
//! block, which says how many bytes these are.
//!
//! ```text
//!   [ bytes asked for | canary, up to 8 bytes | zeros, if there is more room | trailer, 8 bytes ]
//! ```
//!
//! Both are made from the block's address and the slab's secret, so that nobody who does not know that can
//! write them. Every block that was ever handed out has a trailer, a free one too: whoever frees a block also
//! checks that of the block before it.

use crate::tiny::classes::{MAX_TABLE, class_of};

/// Bytes of the trailer.
pub(super) const TRAILER: usize = 8;

/// The class of a block for `size` bytes and the trailer, or 0 if that is a large block.
#[inline(always)]
pub(crate) const fn class_with_trailer(size: usize, align: usize) -> usize {
    // A block of no bytes has a word for its canary, as each has. Rust's programs must not ask for one, but
    // some do, and shall not write over their neighbour's trailer.
    let room = if size == 0 { TRAILER + 1 } else { size + TRAILER };
    // Above 256 bytes whole lines of the cache, though there are classes between: what a program has arranged
    // in lines stays so, while the trailer makes each block a little longer than the program has thought.
    let room = if room.wrapping_sub(257) < 256 { room.next_multiple_of(64) } else { room };
    class_of(room, align) as usize
}

/// [`class_with_trailer`] for C's `malloc`, by size in words.
pub(crate) const C_CLASSES: [u8; MAX_TABLE / 8 + 1] = {
    let mut classes = [0; MAX_TABLE / 8 + 1];
    let mut words = 0;
    while words < classes.len() {
        classes[words] = class_with_trailer(words * 8, 16) as u8;
        words += 1;
    }
    classes
};

/// Bits of the check, which are the lower ones: whoever writes one byte too many writes over these. The
/// fields have 16 bits for the room between the bytes asked for and the trailer, 5 for the alignment, and one
/// that says that the block is free.
const CHECK: u32 = 42;
const ALIGN_SHIFT: u32 = 16;
const FREE: u64 = 1 << 21;

/// What a trailer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fields {
    /// Bytes between those that were asked for and the trailer.
    pub(super) room: usize,
    /// log2 of the alignment that was asked for.
    pub(super) align: u32,
    /// Whether the block is free.
    pub(super) free: bool,
}

impl Fields {
    /// Of a block that is free.
    pub(super) const FREE: Fields = Fields { room: 0, align: 0, free: true };

    /// Whether they can be those of a block in use with so much room before its trailer.
    #[inline(always)]
    pub(super) fn is_of_used(self, room: usize) -> bool {
        !self.free && self.room <= room
    }
}

/// What the trailers and canaries of a slab are made from, besides the addresses: random, both words.
#[derive(Clone, Copy)]
pub(super) struct Secret(pub(super) usize, pub(super) usize);

/// What address and secret make: all bits depend on both words of the secret, since both halves of the
/// product are used.
#[inline(always)]
pub(super) fn mix(block: usize, secret: Secret) -> u64 {
    let product = (block ^ secret.0) as u128 * secret.1 as u128;
    product as u64 ^ (product >> 64) as u64
}

/// The check of these bits: its lowest bit is 0.
#[inline(always)]
fn check(mix: u64, bits: u64) -> u64 {
    (bits + 1).wrapping_mul(mix | 1) >> (64 - CHECK) & !1
}

/// The trailer with these bits of the fields, of which the check depends, too: whoever changes only them is
/// found out. Its first byte is odd, as the canary's: a string's end that is written over it is noticed.
#[inline(always)]
fn seal(mix: u64, bits: u64) -> u64 {
    (mix | 1) ^ (bits << CHECK | check(mix, bits))
}

/// The trailer with these fields.
#[inline(always)]
pub(super) fn encode(mix: u64, fields: Fields) -> u64 {
    let bits = fields.room as u64 | (fields.align as u64) << ALIGN_SHIFT;
    seal(mix, if fields.free { bits | FREE } else { bits })
}

/// Whether nobody has written over a trailer: whether it is what [`seal`] makes of its bits.
#[inline(always)]
pub(super) fn is_valid(mix: u64, trailer: u64) -> bool {
    let found = (mix | 1) ^ trailer;
    (found ^ check(mix, found >> CHECK)) << (64 - CHECK) == 0
}

/// What a trailer says; `None` if somebody has written over it.
#[inline(always)]
pub(super) fn decode(mix: u64, trailer: u64) -> Option<Fields> {
    let bits = ((mix | 1) ^ trailer) >> CHECK;
    is_valid(mix, trailer).then_some(Fields {
        room: (bits & ((1 << ALIGN_SHIFT) - 1)) as usize,
        align: (bits >> ALIGN_SHIFT) as u32 & 31,
        free: bits & FREE != 0,
    })
}

/// The canary. No byte of it is 0: the most frequent overflow is a string's end.
#[inline(always)]
pub(super) fn canary(mix: u64) -> u64 {
    mix.rotate_left(23) | 0x0101_0101_0101_0101
}

/// `word` with the first `room` bytes of the canary as its last ones. `room` is 1 to 7.
#[inline(always)]
pub(super) fn with_canary(mix: u64, word: u64, room: usize) -> u64 {
    let swap = |word: u64| if cfg!(target_endian = "little") { word } else { word.swap_bytes() };
    let kept = 64 - 8 * (room & 7);
    swap(swap(word) & ((1 << kept) - 1) | swap(canary(mix)) << kept)
}

/// Whether the first `room` bytes of `found` are the canary's.
#[inline(always)]
pub(super) fn is_intact(mix: u64, found: u64, room: usize) -> bool {
    let wrong = found ^ canary(mix);
    if room >= size_of::<u64>() {
        return wrong == 0;
    }
    let wrong = if cfg!(target_endian = "little") { wrong } else { wrong.swap_bytes() };
    room == 0 || wrong << (64 - 8 * room) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::classes::{ALIGNS_EXCEPTIONS, stride};

    /// Each size gets the smallest class that has room for it and the trailer, of those that are whole lines
    /// where classes are close beside their size.
    #[test]
    fn classes_of_long_blocks_are_whole_lines() {
        for (size, align) in (0..=70_000).flat_map(|size| [1, 16, 32, 64, 512].map(|align| (size, align))) {
            let class = class_with_trailer(size, align);
            let fits = |&class: &usize| {
                let stride = stride(class) as usize;
                let lines = stride <= 256 || stride % 64 == 0;
                let lines = lines && !(ALIGNS_EXCEPTIONS && stride == 56);
                lines
                    && stride >= size.max(1) + TRAILER
                    && stride % align == 0
                    && (align <= 16 || stride >= align)
            };
            let least = (1..=60).find(fits).unwrap_or(0);
            assert!(align > 16 || class == least, "{size} {align}: {class}, not {least}");
            assert!(class == 0 || fits(&class), "{size} {align}: {class}");
            if align == 16 && size <= MAX_TABLE {
                assert_eq!(C_CLASSES[size.div_ceil(8)] as usize, class, "{size}");
            }
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else() {
        let secret = Secret(0xdead_beef_1234_5678, 0x9e37_79b9_7f4a_7c15);
        for block in (0x7f12_3456_7800..).step_by(16).take(16) {
            let m = mix(block, secret);
            for room in [0, 1, 7, 8, 65535] {
                for align in [0, 3, 4, 16, 31] {
                    for free in [false, true] {
                        let fields = Fields { room, align, free };
                        assert_eq!(decode(m, encode(m, fields)), Some(fields));
                        assert_eq!(encode(m, fields) & 1, 1, "the first byte may be that of a string's end");
                        for bit in 0..64 {
                            assert_eq!(decode(m, encode(m, fields) ^ 1 << bit), None);
                        }
                        assert_eq!(decode(mix(block ^ 0xa00, secret), encode(m, fields)), None);
                    }
                }
            }
        }
    }

    #[test]
    fn a_mix_depends_on_each_bit() {
        let secret = Secret(0xdead_beef_1234_5678, 0x9e37_79b9_7f4a_7c15);
        let (mut ones, mut changed) = (0, [0u64; 64]);
        for n in 0..1000usize {
            let block = 0x7f00_0000_0000 + n * 4112;
            let m = mix(block, secret);
            ones += m.count_ones();
            for (bit, changed) in changed.iter_mut().enumerate() {
                let others = [
                    mix(block ^ 1 << bit, secret),
                    mix(block, Secret(secret.0 ^ 1 << bit, secret.1)),
                    mix(block, Secret(secret.0, secret.1 ^ 1 << bit)),
                ];
                assert!(others.iter().all(|&other| (other ^ m).count_ones() > 1), "{block:x}, bit {bit}");
                *changed |= others[0] ^ m;
            }
        }
        assert!((30_000..34_000).contains(&ones), "{ones} of 64,000 bits");
        // Of those that addresses have.
        assert!(changed[..47].iter().all(|bits| bits.count_ones() > 40), "{changed:x?}");
    }

    #[test]
    fn a_canary_has_no_zero_and_each_byte_counts() {
        for n in 0..10_000usize {
            let m = mix(n << 4, Secret(0xdead_beef_1234_5678, 0x9e37_79b9_7f4a_7c15));
            let good = canary(m);
            assert!(good.to_ne_bytes().iter().all(|&byte| byte != 0));
            for byte in 0..8 {
                let mut bytes = good.to_ne_bytes();
                bytes[byte] = 0;
                let bad = u64::from_ne_bytes(bytes);
                for room in 0..=8 {
                    assert_eq!(is_intact(m, bad, room), byte >= room, "byte {byte}, room {room}");
                    assert!(is_intact(m, good, room));
                }
                if byte != 0 {
                    let word = with_canary(m, bad, byte).to_ne_bytes();
                    assert_eq!(word[..8 - byte], bytes[..8 - byte]);
                    assert_eq!(word[8 - byte..], good.to_ne_bytes()[..byte]);
                }
                assert!(!is_intact(m, bad, 1000));
            }
        }
    }
}
