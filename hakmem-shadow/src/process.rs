//! What concerns the process: forks, thread-specific data, the size of a page.

use crate::block::{self, Block};
use crate::functions::Functions;
use crate::hand::{self, Hand};
use crate::operations::{self, Free};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// Bytes of a system page.
pub(crate) fn page_size() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// From how many bytes on every request is refused. With `vm.overcommit_memory` at 1 the system gives a
/// tebibyte as it gives a page, and who writes to parts of it here and there, in huge pages, has soon all
/// memory.
pub(crate) fn absurd() -> usize {
    const TEBIBYTE: usize = 1 << 40;
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        if cfg!(miri) {
            return TEBIBYTE;
        }
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which is taken back untouched.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), TEBIBYTE, access, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return TEBIBYTE;
            }
            libc::munmap(at, TEBIBYTE);
        }
        // More than there are addresses.
        1 << 48
    })
}

struct Late {
    functions: Functions,
    blocks: Vec<Block>,
}

/// Has the calling thread free these blocks, and allocate, when it has ended but for its keys' destructors.
pub(crate) fn free_at_exit(functions: Functions, blocks: Vec<Block>) {
    extern "C" fn destructor(late: *mut c_void) {
        // SAFETY: a box that `free_at_exit` has leaked, and the destructor runs once.
        let late = unsafe { Box::from_raw(late.cast::<Late>()) };
        for block in late.blocks {
            let size = block.layout.size().clamp(1, 5000);
            hand::free(&late.functions, block, Free::Plain);
            // SAFETY: any size, and what it gives.
            unsafe { (late.functions.free)((late.functions.malloc)(size)) };
        }
    }
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a local variable and a destructor.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(destructor)) }, 0);
        key
    });
    let late = Box::into_raw(Box::new(Late { functions, blocks }));
    // SAFETY: a key of ours; a thread ends once, so there is no box yet.
    unsafe { libc::pthread_setspecific(key, late.cast()) };
}

/// Forks. The child looks at all blocks of the thread, does what `bytes` say, and ends.
pub(crate) fn fork(hand: &mut Hand, bytes: &[u8]) {
    // SAFETY: the child uses the allocator, the C library's own, and no lock of this program.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: only a child that hangs is ended by it; other handlers of the signal are the parent's.
        unsafe {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(60);
        }
        block::forget_map();
        let work = || {
            hand.blocks.iter().for_each(Block::check);
            let at = hand.blocks.len() / 2;
            for block in hand.blocks.split_off(at) {
                hand.free(block, Free::Plain);
            }
            hand.run_in_child(&operations::operations(bytes, 40));
            for block in std::mem::take(&mut hand.blocks) {
                hand.free(block, Free::Plain);
            }
        };
        let fine = catch_unwind(AssertUnwindSafe(work)).is_ok();
        // SAFETY: ends the child.
        unsafe { libc::_exit(if fine { 0 } else { 9 }) };
    }
    assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: a child of ours and a local variable. A signal may interrupt the wait.
    while unsafe { libc::waitpid(pid, &mut status, 0) } != pid {}
    assert_eq!(status, 0, "a child's status");
}
