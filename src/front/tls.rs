//! One word of thread-local storage: the calling thread's heap.
//!
//! * It starts as the address of a constant empty heap, so no path has to check whether it is set.
//! * Its TLS model is initial-exec, so reading it takes two instructions even in a shared library. It is a
//!   single word, so that the library can still be loaded with `dlopen`. Stable Rust has no attribute for the
//!   model, hence the assembly.
//! * The symbol is named after one of Rust's, whose name differs in every copy of the crate. So several
//!   versions of the crate, or the crate and `libhakmem.a`, can be linked together, each with a word of its
//!   own.
//! * The read is `readonly`, not `nomem`: the compiler must not keep the pointer across a call, in which a
//!   slow path may set it or a green thread may move to another thread.

use crate::front::heap::Heap;

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri)))]
mod imp {
    use super::Heap;
    use crate::front::heap::EMPTY;
    use core::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tdata.{empty}.tls,\"awT\",@progbits",
        ".globl {empty}.tls",
        ".hidden {empty}.tls",
        ".type {empty}.tls, @object",
        ".size {empty}.tls, 8",
        ".p2align 3",
        "{empty}.tls:",
        ".quad {empty}",
        ".popsection",
        empty = sym EMPTY,
    );

    /// The calling thread's heap, or a placeholder.
    #[inline(always)]
    pub(crate) fn get() -> *mut Heap {
        let heap: *mut Heap;
        // SAFETY: reads the calling thread's own word, which exists from the start of the thread; changes
        // nothing else.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "mov {0}, qword ptr [rip + {empty}.tls@GOTTPOFF]",
                "mov {0}, qword ptr fs:[{0}]",
                out(reg) heap,
                empty = sym EMPTY,
                options(pure, readonly, nostack, preserves_flags)
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "mrs {1}, tpidr_el0",
                "adrp {0}, :gottprel:{empty}.tls",
                "ldr {0}, [{0}, :gottprel_lo12:{empty}.tls]",
                "ldr {0}, [{1}, {0}]",
                out(reg) heap,
                out(reg) _,
                empty = sym EMPTY,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        heap
    }

    /// Sets the calling thread's heap, which is a record that the thread owns, or a placeholder.
    pub(crate) fn set(heap: *mut Heap) {
        // SAFETY: writes the calling thread's own word, which no other thread touches, and changes nothing
        // else.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "mov {0}, qword ptr [rip + {empty}.tls@GOTTPOFF]",
                "mov qword ptr fs:[{0}], {1}",
                out(reg) _,
                in(reg) heap,
                empty = sym EMPTY,
                options(nostack, preserves_flags)
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "mrs {1}, tpidr_el0",
                "adrp {0}, :gottprel:{empty}.tls",
                "ldr {0}, [{0}, :gottprel_lo12:{empty}.tls]",
                "str {2}, [{1}, {0}]",
                out(reg) _,
                out(reg) _,
                in(reg) heap,
                empty = sym EMPTY,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(any(miri, not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))))]
mod imp {
    extern crate std;
    use super::Heap;
    use crate::front::heap::EMPTY;
    use core::cell::Cell;

    std::thread_local! {
        // Constant and without a destructor: reading it never allocates.
        static HEAP: Cell<*mut Heap> = const { Cell::new((&raw const EMPTY).cast_mut()) };
    }

    /// The calling thread's heap, or a placeholder.
    #[inline(always)]
    pub(crate) fn get() -> *mut Heap {
        HEAP.with(Cell::get)
    }

    /// Sets the calling thread's heap, which is a record that the thread owns, or a placeholder.
    pub(crate) fn set(heap: *mut Heap) {
        HEAP.with(|word| word.set(heap));
    }
}

pub(crate) use imp::{get, set};
