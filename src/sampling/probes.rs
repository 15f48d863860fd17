//! Static probes (USDT) for tracers, as the OpenTelemetry eBPF profiler expects them:
//! `otel_memory:alloc(ptr, size, weight)` when a block is sampled, `otel_memory:free(ptr)` when a sampled
//! block is freed.
//!
//! A probe is a `nop` and a note (`.note.stapsdt`) that says where it is, in which registers its arguments
//! are, and where its *semaphore* is: a counter of 16 bits that tracers increment, by the kernel or
//! themselves, while they listen. The first versions of that profiler do not read which registers the note
//! names but take those of a call's first arguments, so these it is.

use crate::sync::AtomicU32;
use crate::sync::Ordering::Relaxed;

/// Who listens. All accesses are relaxed: who sees a change late begins late.
#[repr(C)]
struct Tracers {
    /// The semaphores of `alloc` (the first 16 bits in memory) and `free`.
    attached: AtomicU32,
    /// What `attached` was when that was last looked into.
    seen: AtomicU32,
}

/// In a section that is in the file, though all zero: the kernel finds semaphores by their place in it.
#[cfg_attr(all(target_os = "linux", not(miri)), unsafe(link_section = ".probes"))]
static TRACERS: Tracers = Tracers { attached: AtomicU32::new(0), seen: AtomicU32::new(0) };

/// Whether tracers have come or gone since [`look`].
#[inline(always)]
pub(crate) fn has_changed() -> bool {
    cfg!(feature = "profile") && TRACERS.attached.load(Relaxed) != TRACERS.seen.load(Relaxed)
}

/// Whether some tracer listens; [`has_changed`] compares with this answer.
pub(super) fn look() -> bool {
    let attached = TRACERS.attached.load(Relaxed);
    TRACERS.seen.store(attached, Relaxed);
    attached != 0
}

/// A probe of this name whose semaphore is at this offset in [`TRACERS`].
#[cfg(all(
    feature = "profile",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
))]
macro_rules! probe {
    ($name:literal, $semaphore:literal, $format:expr, $($register:tt = $value:expr),+) => {
        // SAFETY: a `nop`. What is put elsewhere is a note, which is not loaded.
        unsafe {
            core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt, \"?\", \"note\"",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                concat!(".8byte {tracers} + ", $semaphore),
                ".asciz \"otel_memory\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $format, "\""),
                "994: .balign 4",
                ".popsection",
                tracers = sym TRACERS,
                $(in($register) $value,)+
                options(nomem, nostack, preserves_flags),
            );
        }
    };
}

// From its address tools find out by how much the file was moved after it was linked. `R`: lld sees that
// nothing that is loaded refers to it.
#[cfg(all(feature = "profile", target_os = "linux", not(miri)))]
core::arch::global_asm!(
    ".pushsection .stapsdt.base, \"aGR\", \"progbits\", .stapsdt.base, comdat",
    ".weak _.stapsdt.base",
    ".hidden _.stapsdt.base",
    "_.stapsdt.base: .space 1",
    ".size _.stapsdt.base, 1",
    ".popsection",
);

/// A block of `size` bytes was sampled, and stands for `weight` bytes that were allocated.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn alloc(address: usize, size: u64, weight: u64) {
    #[cfg(all(feature = "profile", target_os = "linux", target_arch = "x86_64", not(miri)))]
    probe!("alloc", 0, "8@%rdi 8@%rsi 8@%rdx", "rdi" = address, "rsi" = size, "rdx" = weight);
    #[cfg(all(feature = "profile", target_os = "linux", target_arch = "aarch64", not(miri)))]
    probe!("alloc", 0, "8@x0 8@x1 8@x2", "x0" = address, "x1" = size, "x2" = weight);
    let _ = (address, size, weight);
}

/// A sampled block is freed.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn free(address: usize) {
    #[cfg(all(feature = "profile", target_os = "linux", target_arch = "x86_64", not(miri)))]
    probe!("free", 2, "8@%rdi", "rdi" = address);
    #[cfg(all(feature = "profile", target_os = "linux", target_arch = "aarch64", not(miri)))]
    probe!("free", 2, "8@x0", "x0" = address);
    let _ = address;
}
