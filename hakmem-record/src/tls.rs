//! What a thread knows: where in its chunk it is. Initial-exec, so that reading it is two instructions and
//! never allocates; stable Rust has no attribute for that, hence the assembly (as in the core's
//! `front/tls.rs`).

/// A thread's part of the recording. A fresh one is all zeros.
#[repr(C)]
pub(crate) struct Local {
    /// Where the next event goes.
    pub(crate) cursor: *mut u64,
    /// The end of the chunk.
    pub(crate) end: *mut u64,
    /// The process that claimed the chunk: a forked child finds its parent's number here.
    pub(crate) process: u32,
    /// This thread's number in that process.
    pub(crate) thread: u32,
}

core::arch::global_asm!(
    ".pushsection .tbss.__hakmem_record_local,\"awT\",@nobits",
    ".globl __hakmem_record_local",
    ".hidden __hakmem_record_local",
    ".type __hakmem_record_local, @object",
    ".size __hakmem_record_local, {size}",
    ".p2align 3",
    "__hakmem_record_local:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<Local>(),
);

/// The calling thread's.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn local() -> *mut Local {
    let at: *mut Local;
    // SAFETY: computes the address of the thread's own variable; its first word is the thread pointer (the
    // ABI says so).
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + __hakmem_record_local@GOTTPOFF]",
            out(reg) at,
            options(pure, readonly, nostack)
        );
    }
    at
}

/// The calling thread's.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn local() -> *mut Local {
    let at: *mut Local;
    // SAFETY: computes the address of the thread's own variable.
    unsafe {
        core::arch::asm!(
            "mrs {1}, tpidr_el0",
            "adrp {0}, :gottprel:__hakmem_record_local",
            "ldr {0}, [{0}, :gottprel_lo12:__hakmem_record_local]",
            "add {0}, {1}, {0}",
            out(reg) at,
            out(reg) _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    at
}
