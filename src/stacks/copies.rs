//! Copies of the parts of unwind tables that were read last. A copy costs a system call, most of which is not
//! for the bytes: so a whole page is copied, and what is needed of it next is there.
//!
//! One thread at a time uses them, and one that comes meanwhile goes without. They hold for as long as no
//! module with a table has gone, as everything that is remembered.

use crate::os::futex::{Guard, Inherit, Lock};
use crate::os::{SMALLEST_PAGE, peek};

/// Bytes of a copy: no more than a page, so that all of it is there, or nothing.
const LINE: usize = SMALLEST_PAGE;
/// How many there are.
const LINES: usize = 128;
/// Bytes that are copied at once by who goes without.
pub(super) const ALONE: usize = 512;

/// What a line is a copy of: an address, 0 for none, and how many modules had gone.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag {
    address: usize,
    gone: u32,
}

const NONE: Tag = Tag { address: 0, gone: 0 };

#[repr(C, align(4096))]
struct Line([u8; LINE]);

/// Untouched, and so not resident, until a stack is walked.
struct Copies {
    lines: [Line; LINES],
    tags: [Tag; LINES],
    /// For each pair of lines a bit: which of them was used last.
    last: u64,
}

const _: () = assert!(LINES / 2 <= u64::BITS as usize);

static COPIES: Lock<Copies> =
    Lock::new(Copies { lines: [const { Line([0; LINE]) }; LINES], tags: [NONE; LINES], last: 0 });

impl Inherit for Copies {
    fn inherit(&mut self, torn: bool) {
        if torn {
            self.tags = [NONE; LINES];
        }
    }
}

/// In the child of a fork: see [`crate::os::futex`].
pub(super) fn inherit() {
    COPIES.inherit();
}

impl Copies {
    /// The copy of the page at an address.
    fn line(&mut self, address: usize, gone: u32) -> Option<&[u8; LINE]> {
        let hash = (address / LINE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - LINES.ilog2());
        // One of two lines, of which the other one was used last if it is not there.
        let is_it = |&at: &usize| self.tags[at % LINES] == Tag { address, gone } && address != 0;
        let [one, other] = [hash, hash ^ 1];
        let known = [one, other].into_iter().find(is_it);
        let at = known.unwrap_or(if self.last >> (one / 2) & 1 == 0 { one | 1 } else { one & !1 });
        self.last = self.last & !(1 << (at / 2)) | ((at & 1) as u64) << (at / 2);
        let line = &mut self.lines[at % LINES].0;
        if known.is_none() {
            let tag = &mut self.tags[at % LINES];
            *tag = NONE;
            if peek::copy(address, line) != LINE {
                return None;
            }
            *tag = Tag { address, gone };
        }
        Some(line)
    }
}

/// Reads unwind tables: for one frame.
pub(super) struct Reader {
    copies: Option<Guard<'static, Copies>>,
    gone: u32,
    has_failed: bool,
}

impl Reader {
    /// For what holds while so many modules have [gone](super::modules::gone).
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn new(gone: u32) -> Self {
        Self { copies: COPIES.try_lock(), gone, has_failed: false }
    }

    /// Whether something could not be read.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The bytes of a piece of memory that an address is in, and where they begin: at a multiple of
    /// [`ALONE`], as they end. `alone` is where they are if need be.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn around<'a>(
        &'a mut self,
        at: usize,
        alone: &'a mut [u8; ALONE],
    ) -> Option<(usize, &'a [u8])> {
        if let Some(copies) = &mut self.copies {
            let start = at & !(LINE - 1);
            let line = copies.line(start, self.gone);
            self.has_failed |= line.is_none();
            return Some((start, line?));
        }
        let start = at & !(ALONE - 1);
        let is_there = peek::copy(start, alone) == ALONE;
        self.has_failed |= !is_there;
        is_there.then_some((start, alone))
    }

    /// Copies bytes from an address on; how many could be read.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn copy(&mut self, from: usize, to: &mut [u8]) -> usize {
        let wanted = to.len();
        let done = self.copy_part(from, to);
        self.has_failed |= done != wanted;
        done
    }

    fn copy_part(&mut self, from: usize, to: &mut [u8]) -> usize {
        let Some(copies) = &mut self.copies else { return peek::copy(from, to) };
        let mut done = 0;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = from.wrapping_add(done);
            let Some(line) = copies.line(at & !(LINE - 1), self.gone) else { break };
            let piece = line.get(at % LINE..).unwrap_or_default();
            rest.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            done += piece.len().min(rest.len());
        }
        done
    }

    /// Copies an entry of `.eh_frame`, which begins with its length in 4 bytes, and returns that, these bytes
    /// included. `None` if it cannot be read; more than there is room for if that is too little.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn entry(&mut self, at: usize, to: &mut [u8]) -> Option<usize> {
        // Who goes without makes one call for all of it, as far as there is room.
        let first = if self.copies.is_some() { 4 } else { to.len() };
        let copied = self.copy(at, to.get_mut(..first)?);
        let length = to.first_chunk::<4>().filter(|_| copied >= 4)?;
        // 4 bytes that are all ones say that the length has 8 bytes: nobody writes such a section.
        let len = (u32::from_le_bytes(*length) as usize).checked_add(4)?;
        if len <= copied || len > to.len() {
            return Some(len);
        }
        let rest = to.get_mut(copied..len)?;
        (self.copy(at.wrapping_add(copied), rest) == rest.len()).then_some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn copies_hold_until_a_module_has_gone() {
        let page = os::page_size();
        let pages = os::map_uncounted(3 * page);
        let (from, end) = (pages.expose_provenance(), pages.expose_provenance() + 2 * page);
        // SAFETY: the mapping just made; its last page is not used again.
        unsafe {
            pages.write_bytes(1, 2 * page);
            assert_eq!(libc::mprotect(pages.add(2 * page).cast(), page, libc::PROT_NONE), 0);
        }
        // Numbers that no other test counts to. The first reader holds the copies, the second goes without.
        let gone = u32::MAX - 1;
        let mut one = Reader::new(gone);
        while one.copies.is_none() {
            one = Reader::new(gone);
        }
        let mut other = Reader::new(gone);
        assert!(other.copies.is_none());
        for reader in [&mut one, &mut other] {
            let (mut bytes, mut alone) = ([0; 100], [0; ALONE]);
            // Across the end of a page, and up to where nothing can be read.
            assert_eq!(reader.copy(from + page - 50, &mut bytes), 100);
            assert_eq!(bytes, [1; 100]);
            assert!(!reader.has_failed());
            assert_eq!(reader.copy(end - 7, &mut bytes), 7);
            assert!(reader.has_failed());
            assert_eq!(reader.copy(end, &mut bytes), 0);
            let (start, around) = reader.around(from + page + 3, &mut alone).unwrap();
            assert!(start <= from + page + 3 && from + page + 3 < start + around.len());
            reader.has_failed = false;
            assert!(reader.around(end, &mut alone).is_none() && reader.has_failed());
        }
        // An entry of 4 + 80 bytes, the first of which are the last ones of a page.
        // SAFETY: within the two pages that can be written to.
        unsafe { pages.add(page - 2).cast::<u32>().write_unaligned(80) };
        let mut entry = [0; 128];
        assert_eq!(other.entry(from + page - 2, &mut entry), Some(84));
        // The copy is the old one, but not for who knows that a module has gone.
        assert_eq!(one.entry(from + page - 2, &mut entry), Some(0x0101_0105));
        drop(one);
        let mut later = Reader::new(gone + 1);
        while later.copies.is_none() {
            later = Reader::new(gone + 1);
        }
        assert_eq!(later.entry(from + page - 2, &mut entry), Some(84));
        assert_eq!(entry[..6], [80, 0, 0, 0, 1, 1]);
        assert_eq!(later.entry(from + page - 2, &mut [0; 50]), Some(84));
        drop(later);
        // SAFETY: mapped above. Its last page cannot be touched, as what is kept after a refusal must be.
        assert!(unsafe { os::unmap_uncounted(pages, 3 * page) } == os::Unmapped::Gone);
    }
}
