//! `libhakmem_record.so`: preloaded by `hakmem record`, it writes down every allocation that a program makes.
//!
//! The malloc family is glibc's, reached by its `__libc_` names, so that nothing has to be looked up and the
//! very first call of a process is served like any other. Around each call `write` puts an event into the
//! shared file that HAKMEM_RECORD_FILE names; its layout, and why the times order events rightly, is in
//! `raw`.
//!
//! Built as it ships, with `panic = "abort"`, it is without std.
#![cfg_attr(panic = "abort", no_std)]

mod attach;
mod entry;
#[path = "../../hakmem-trace/src/raw.rs"]
#[allow(dead_code)] // The reader uses the rest.
mod raw;
mod tls;
mod write;

#[cfg(panic = "abort")]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

// Rust's libraries refer to the function that says what an exception means to a Rust frame. Ours mean nothing
// to any: 8 is "go on unwinding".
#[cfg(panic = "abort")]
mod personality {
    macro_rules! go_on {
        ($answer:literal) => {
            core::arch::global_asm!(
                ".pushsection .text.rust_eh_personality,\"ax\",@progbits",
                ".weak rust_eh_personality",
                ".hidden rust_eh_personality",
                ".type rust_eh_personality, @function",
                "rust_eh_personality:",
                $answer,
                "ret",
                ".size rust_eh_personality, . - rust_eh_personality",
                ".popsection",
            );
        };
    }
    #[cfg(target_arch = "x86_64")]
    go_on!("mov eax, 8");
    #[cfg(target_arch = "aarch64")]
    go_on!("mov w0, #8");
}
