//! Words of memory that may not be there, looked at without a fault.

use crate::os::memory::SMALLEST_PAGE;
use crate::os::raw;
use core::ptr;

/// How many words of a page are looked at, until one is not zero.
const WORDS: usize = 8;

/// Whether a page of the smallest size, of memory that was zero when it was mapped, is known to have been
/// written to: it holds something other than zeros, as far as a few of its words tell, another few for each
/// `look`. `None` if it cannot be read, or the kernel does not say, or is not asked. Makes the page resident.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn is_written(page: *mut u8, look: usize) -> Option<bool> {
    if cfg!(feature = "valgrind") {
        // It would report that the kernel reads what the program has not written, or has freed.
        return None;
    }
    let (page, words) = (page.addr(), SMALLEST_PAGE / size_of::<u32>());
    for word in 0..WORDS {
        // The first one, and others anywhere.
        let place = if word == 0 { 0 } else { scattered(page, look.wrapping_add(word)) % words };
        if !is_word(page + place * size_of::<u32>(), 0)? {
            return Some(true);
        }
    }
    Some(false)
}

/// A hash of place and look. It differs from look to look, even at the same place, where a mapping that comes
/// and goes may lie every time. So the places that are looked at follow no pattern that could coincide with
/// one of the program.
pub(crate) fn scattered(place: usize, look: usize) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (place as u64 ^ look as u64).wrapping_mul(ODD);
    ((mixed ^ mixed >> 32).wrapping_mul(ODD) >> 40) as usize
}

/// Whether the word at an address, a multiple of 4, has this value. The kernel compares, so that it need not
/// be mapped. `None` if it cannot be read, or the kernel does not say.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn is_word(address: usize, value: u32) -> Option<bool> {
    if cfg!(miri) {
        return None;
    }
    let (word, other): (*const u32, u32) = (ptr::with_exposed_provenance(address), 0);
    let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: nobody is woken, and nobody put into another queue: the kernel reads the word if it can.
    match unsafe { raw::call!(SYS_futex, word, operation, 0, 0usize, &raw const other, value) } {
        Ok(_) => Some(true),
        Err(libc::EAGAIN) => Some(false),
        Err(_) => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::page_size;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn words_are_compared_where_there_are_any() {
        let words = [5u32, 6];
        let at = (&raw const words).expose_provenance();
        assert_eq!(
            [(at, 5), (at + 4, 6), (at, 6)].map(|(at, value)| is_word(at, value)),
            [Some(true), Some(true), Some(false)]
        );
        assert_eq!((is_word(0, 0), is_word(page_size(), 0)), (None, None));
    }
}
