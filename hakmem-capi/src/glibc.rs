//! glibc's functions for looking at and tuning the heap.

use core::ffi::c_int;
use hakmem_core::__c as core_c;

/// glibc's `malloc_trim`: 1 if bytes came back, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    let _ = pad;
    (core_c::purge() > 0) as c_int
}

/// glibc's `malloc_stats`: the statistics as a table on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    core_c::print_stats(false);
}

/// glibc's `mallopt`. Its tunables have no counterpart here; accepted, without effect.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    let _ = (parameter, value);
    1
}

/// glibc's `struct mallinfo2`. Fields that have no meaning here are 0.
#[repr(C)]
#[derive(Default)]
pub struct Mallinfo2 {
    /// Bytes of address space in SuperSlabs.
    pub arena: usize,
    /// 0.
    pub ordblks: usize,
    /// 0.
    pub smblks: usize,
    /// Blocks in use with a mapping of their own.
    pub hblks: usize,
    /// Bytes in them.
    pub hblkhd: usize,
    /// 0.
    pub usmblks: usize,
    /// 0.
    pub fsmblks: usize,
    /// Bytes in all other blocks in use.
    pub uordblks: usize,
    /// Bytes in SuperSlabs that are in no block in use.
    pub fordblks: usize,
    /// Bytes that a trim could give back now.
    pub keepcost: usize,
}

/// glibc's `mallinfo2`.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> Mallinfo2 {
    let info = core_c::info();
    Mallinfo2 {
        arena: info.arena,
        hblks: info.mapped_blocks,
        hblkhd: info.mapped_bytes,
        uordblks: info.in_use,
        fordblks: info.free,
        keepcost: info.releasable,
        ..Mallinfo2::default()
    }
}

/// glibc's `struct mallinfo`: [`Mallinfo2`] in fields that are too small.
#[repr(C)]
pub struct Mallinfo {
    fields: [c_int; 10],
}

/// glibc's `mallinfo`. What does not fit reads as the largest number that does.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> Mallinfo {
    let m = mallinfo2();
    let all = [
        m.arena, m.ordblks, m.smblks, m.hblks, m.hblkhd, m.usmblks, m.fsmblks, m.uordblks, m.fordblks,
        m.keepcost,
    ];
    Mallinfo { fields: all.map(|n| n.min(c_int::MAX as usize) as c_int) }
}

/// glibc's `malloc_info`: free bytes, blocks with a mapping of their own, and the bytes mapped in all, as
/// XML, on a stream. 0, or `EINVAL` for `options` other than 0.
///
/// # Safety
///
/// `stream` is open for writing.
#[unsafe(no_mangle)]
#[unsafe(link_section = "hakmem_rare")]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    let m = core_c::info();
    let format = c"<malloc version=\"1\">\n\
        <total type=\"rest\" size=\"%zu\"/>\n\
        <total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n\
        <system type=\"current\" size=\"%zu\"/>\n\
        <aspace type=\"total\" size=\"%zu\"/>\n\
        </malloc>\n";
    let (blocks, bytes) = (m.mapped_blocks, m.mapped_bytes);
    // SAFETY: the caller's stream; five numbers of the type that the format names.
    unsafe { libc::fprintf(stream, format.as_ptr(), m.free, blocks, bytes, m.mapped, m.mapped) };
    0
}
