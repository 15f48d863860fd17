//! Looks at memory that may not be there, or may go away at any moment, without a fault.

use crate::os::memory::SMALLEST_PAGE;
use crate::os::{info, raw};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicU32};
use core::ptr;

/// The process may not use `process_vm_readv`: it is filtered, or an emulator does not know it.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The process, if [`copy`] has asked for it lately; else 0. Relaxed: any thread's answer will do.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Before a row of [`copy`] calls: this may be another process than at the last one, by a fork that nobody
/// tells us of.
pub(crate) fn begin() {
    PROCESS.store(0, Relaxed);
}

/// The process, which is asked for once in such a row.
fn process() -> u32 {
    match PROCESS.load(Relaxed) {
        0 => {
            let process = info::process_id();
            PROCESS.store(process, Relaxed);
            process
        }
        process => process,
    }
}

/// Whether the word at an address can be read now. The address is a multiple of the size of a word.
///
/// The kernel copies the new signal mask before it finds that `-1` says nothing about what to do with it.
pub(crate) fn is_readable(address: usize) -> bool {
    let mask: *const usize = ptr::with_exposed_provenance(address);
    let old: *mut usize = ptr::null_mut();
    // SAFETY: the kernel reads a word if it can, and changes nothing: there is no such operation.
    let result = unsafe { raw::call!(SYS_rt_sigprocmask, -1, mask, old, size_of::<u64>()) };
    // It succeeds with no mask, at address 0.
    matches!(result, Err(error) if error != libc::EFAULT)
}

/// Copies bytes from an address on; how many there were before the first one that cannot be read.
pub(crate) fn copy(from: usize, to: &mut [u8]) -> usize {
    if REFUSED.load(Relaxed) {
        return copy_looking(from, to);
    }
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(from), iov_len: to.len() };
    let from_process = |process: u32| {
        let (local, remote) = (&raw const local, &raw const remote);
        // SAFETY: writes to `to` at most. The kernel reads the other side as it reads another process.
        unsafe { raw::call!(SYS_process_vm_readv, process, local, 1usize, remote, 1usize, 0usize) }
    };
    let process = process();
    let mut copied = from_process(process);
    if copied.is_err_and(|error| error != libc::EFAULT) && process != info::process_id() {
        // What a child of `vfork` has found out, which shared this memory and is gone.
        copied = from_process(info::process_id());
    }
    if matches!(copied, Err(libc::ENOSYS | libc::EPERM)) {
        REFUSED.store(true, Relaxed);
        return copy_looking(from, to);
    }
    copied.unwrap_or(0).min(to.len())
}

/// Like [`copy`], of whole words.
pub(crate) fn copy_words(from: usize, to: &mut [usize]) -> usize {
    // SAFETY: the bytes of the words, which are valid with any value.
    let bytes = unsafe { core::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), size_of_val(to)) };
    copy(from, bytes) / size_of::<usize>()
}

/// [`copy`] where the system call is refused: looks before it reads a page, in which another thread may unmap
/// it.
#[cold]
fn copy_looking(from: usize, to: &mut [u8]) -> usize {
    let mut done = 0;
    for byte in to {
        let Some(at) = from.checked_add(done) else { break };
        if (done == 0 || at % SMALLEST_PAGE == 0) && !is_readable(at & !7) {
            break;
        }
        // SAFETY: the page was readable a moment ago. Volatile, because it is nobody's memory that the
        // compiler knows of.
        *byte = unsafe { ptr::with_exposed_provenance::<u8>(at).read_volatile() };
        done += 1;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_is_there_is_copied_and_what_is_not_is_no_fault() {
        let page = os::page_size();
        let pages = os::map_uncounted(2 * page);
        let end = pages.expose_provenance() + page;
        // SAFETY: the mapping just made; the second page is not used again.
        unsafe {
            pages.add(page - 3).write(7);
            assert_eq!(libc::mprotect(pages.add(page).cast(), page, libc::PROT_NONE), 0);
        }
        for copy in [copy, copy_looking] {
            let mut bytes = [1; 16];
            assert_eq!(copy(end - 3, &mut bytes), 3);
            assert_eq!(bytes[..4], [7, 0, 0, 1]);
            assert_eq!(copy(end, &mut bytes), 0);
            assert_eq!(copy(8, &mut bytes), 0);
            assert_eq!(copy(usize::MAX - 7, &mut bytes), 0);
        }
        assert!(
            is_readable(end - 8) && !is_readable(end) && !is_readable(0) && !is_readable(usize::MAX & !7)
        );
        // SAFETY: mapped above. Its last page cannot be touched, as what is kept after a refusal must be.
        assert!(unsafe { os::unmap_uncounted(pages, 2 * page) } == os::Unmapped::Gone);
    }
}
