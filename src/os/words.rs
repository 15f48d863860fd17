//! Words of memory that may not be there, looked at without a fault.

use crate::os::raw;
use core::ptr;

/// Whether the word at an address, a multiple of 4, has this value. The kernel compares, so that it need not
/// be mapped. `None` if it cannot be read, or the kernel does not say.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn is_word(address: usize, value: u32) -> Option<bool> {
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
