//! A frame of the profile's file: a kind, a length, what is in it, a check.

use crate::sampling::grown::Grown;

/// Puts numbers and bytes at the end of `out`. What finds no memory is missing, and the frame is refused.
pub(super) struct Frame<'a> {
    out: &'a mut Grown<u8>,
    start: usize,
    good: bool,
}

impl<'a> Frame<'a> {
    /// Begins a frame.
    pub(super) fn new(out: &'a mut Grown<u8>, kind: u32) -> Self {
        let start = out.len();
        let mut frame = Self { out, start, good: true };
        frame.u32(kind);
        frame.u32(0);
        frame
    }

    /// Adds bytes, and below numbers.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.good &= self.out.append(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Where a number stands that is not known yet, 0 until [`Frame::set`].
    pub(super) fn later(&mut self) -> usize {
        let at = self.out.len();
        self.u32(0);
        at
    }

    /// Fills in a number.
    pub(super) fn set(&mut self, at: usize, value: usize) {
        if let Some(to) = self.out.get_mut(at..at + 4) {
            to.iter_mut().zip((value as u32).to_le_bytes()).for_each(|(to, byte)| *to = byte);
        }
    }

    /// Ends the frame, or takes it back if it is not whole.
    pub(super) fn end(mut self) -> bool {
        let payload = self.out.len().saturating_sub(self.start + 8);
        self.set(self.start + 4, payload);
        // Until `seal` puts the check there.
        self.u64(0);
        if !self.good {
            self.out.truncate(self.start);
        }
        self.good
    }
}

/// Puts the checks into frames, which begin behind `head` bytes. It takes as long as all else that makes
/// them, and need not be done while others wait for what the frames tell.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn seal(frames: &mut [u8], head: usize) {
    let mut rest = frames.get_mut(head..).unwrap_or_default();
    while let Some(&[a, b, c, d]) = rest.get(4..8) {
        let whole = u32::from_le_bytes([a, b, c, d]) as usize + 8;
        let Some((frame, others)) = rest.split_at_mut_checked(whole + 8) else { return };
        let check = frame.get(..whole).map_or(0, fnv).to_le_bytes();
        frame.iter_mut().skip(whole).zip(check).for_each(|(to, byte)| *to = byte);
        rest = others;
    }
}

/// FNV-1a, of 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
