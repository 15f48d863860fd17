//! System calls about memory that fail when they are told to.
//!
//! A binary that says `hakmem_shadow::interpose!()` has `mmap`, `munmap`, `mremap`, `madvise` and `mprotect`
//! of its own, which the allocator in it calls instead of the C library's. A thread that has [planned](plan)
//! so gets errors from them.

use std::cell::Cell;

/// `mmap`.
pub const MAP: u8 = 1;
/// `munmap`.
pub const UNMAP: u8 = 2;
/// `mremap`.
pub const REMAP: u8 = 4;
/// `madvise`.
pub const ADVISE: u8 = 8;
/// `mprotect`.
pub const PROTECT: u8 = 16;

#[derive(Clone, Copy)]
struct Plan {
    kinds: u8,
    pass: u16,
    fail: u16,
}

thread_local! {
    static PLAN: Cell<Plan> = const { Cell::new(Plan { kinds: 0, pass: 0, fail: 0 }) };
}

/// Of the next calls of `kinds` that this thread makes, `pass` succeed, and the `fail` after those fail.
pub fn plan(kinds: u8, pass: u16, fail: u16) {
    PLAN.set(Plan { kinds, pass, fail });
}

/// Whether calls of this thread are still to fail.
pub fn are_planned() -> bool {
    PLAN.get().fail > 0
}

/// Whether this call is to fail.
pub fn hits(kind: u8) -> bool {
    let mut plan = PLAN.get();
    if plan.kinds & kind == 0 || plan.fail == 0 {
        return false;
    }
    let passes = plan.pass > 0;
    if passes {
        plan.pass -= 1
    } else {
        plan.fail -= 1
    }
    PLAN.set(plan);
    !passes
}

/// Sets the error of a call that fails.
pub fn refuse(kind: u8) {
    // As where the memory of the whole process is locked, which refuses madvise; the others lack memory.
    let error = if kind == ADVISE { libc::EINVAL } else { libc::ENOMEM };
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = error };
}

/// Puts the functions that can be made to fail into the binary. Not under Miri, which has its own.
#[macro_export]
macro_rules! interpose {
    () => {
        #[cfg(not(miri))]
        mod interposed {
            use $crate::faults::*;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn mmap(
                at: usize,
                len: usize,
                rights: i32,
                flags: i32,
                fd: i32,
                from: i64,
            ) -> isize {
                if hits(MAP) {
                    refuse(MAP);
                    return -1;
                }
                // SAFETY: the clauses are those of the call.
                unsafe { libc::syscall(libc::SYS_mmap, at, len, rights, flags, fd, from) as isize }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn munmap(at: usize, len: usize) -> i32 {
                if hits(UNMAP) {
                    refuse(UNMAP);
                    return -1;
                }
                // SAFETY: the clauses are those of the call.
                unsafe { libc::syscall(libc::SYS_munmap, at, len) as i32 }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn mremap(at: usize, old: usize, new: usize, flags: i32, to: usize) -> isize {
                if hits(REMAP) {
                    refuse(REMAP);
                    return -1;
                }
                // SAFETY: the clauses are those of the call.
                unsafe { libc::syscall(libc::SYS_mremap, at, old, new, flags, to) as isize }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn madvise(at: usize, len: usize, advice: i32) -> i32 {
                if hits(ADVISE) {
                    refuse(ADVISE);
                    return -1;
                }
                // SAFETY: the clauses are those of the call.
                unsafe { libc::syscall(libc::SYS_madvise, at, len, advice) as i32 }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn mprotect(at: usize, len: usize, rights: i32) -> i32 {
                if hits(PROTECT) {
                    refuse(PROTECT);
                    return -1;
                }
                // SAFETY: the clauses are those of the call.
                unsafe { libc::syscall(libc::SYS_mprotect, at, len, rights) as i32 }
            }
        }
    };
}
