//! Memory is mapped. First of what the system has not taken back: see `left.rs`.

use crate::os::memory::{ACCESSIBLE, count_map, map_raw, page_size, trim, try_unmap};
use crate::os::{held, left};
use core::ptr;

/// Maps `len` bytes (a multiple of the page size) of zeroed, private memory for blocks, at a multiple of
/// `align` (a power of two). Asks for the address `hint`, if that is not null. Null when the system or a
/// limit refuses.
pub(crate) fn map_aligned(hint: *mut u8, len: usize, align: usize) -> *mut u8 {
    map_held(hint, len, align, ACCESSIBLE)
}

/// Like [`map_aligned`], but nothing of it can be touched until [`protect`](super::protect) says otherwise.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn reserve_aligned(len: usize, align: usize) -> *mut u8 {
    map_held(ptr::null_mut(), len, align, libc::PROT_NONE)
}

fn map_held(hint: *mut u8, len: usize, align: usize, access: libc::c_int) -> *mut u8 {
    if !held::reserve(len) {
        return ptr::null_mut();
    }
    let p = map_aligned_at(hint, len, align, access);
    if p.is_null() {
        held::release(len);
    }
    p
}

/// Maps `len` bytes of zeroed, private memory that no limit counts: for the allocator's own records, or for
/// bytes that are reserved already. Null when the system refuses.
pub(crate) fn map_uncounted(len: usize) -> *mut u8 {
    let left = left::take(len, page_size(), true);
    if left.is_null() { counted(map_raw(ptr::null_mut(), len, ACCESSIBLE), len) } else { left }
}

fn counted(p: *mut u8, len: usize) -> *mut u8 {
    if !p.is_null() {
        count_map(len);
    }
    p
}

/// Whether the system would map `len` bytes now, regardless of our limits.
pub(crate) fn could_map(len: usize) -> bool {
    let len = len.next_multiple_of(page_size());
    let p = map_raw(ptr::null_mut(), len, ACCESSIBLE);
    if p.is_null() {
        return false;
    }
    // SAFETY: just mapped; no other code has the address.
    if !unsafe { try_unmap(p, len) } {
        left::put(counted(p, len), len, true);
    }
    true
}

/// Like [`map_uncounted`], at a multiple of `align` (a power of two).
pub(crate) fn map_aligned_uncounted(len: usize, align: usize) -> *mut u8 {
    map_aligned_at(ptr::null_mut(), len, align, ACCESSIBLE)
}

fn map_aligned_at(hint: *mut u8, len: usize, align: usize, access: libc::c_int) -> *mut u8 {
    let is_open = access == ACCESSIBLE;
    let left = left::take(len, align.max(page_size()), is_open);
    if !left.is_null() {
        return left;
    }
    let first = counted(map_raw(hint, len, access), len);
    if first.is_null() || first.addr() & (align - 1) == 0 {
        return first;
    }
    // SAFETY: the mapping just made; no other code has the address.
    unsafe { drop_fresh(first, len, is_open) };
    let Some(total) = len.checked_add(align) else { return ptr::null_mut() };
    let base = counted(map_raw(ptr::null_mut(), total, access), total);
    if base.is_null() {
        return base;
    }
    // The upper one of two: systems map downwards, so the new range lies against the one before it, and is
    // one mapping with that for the system, which limits their number.
    let head = align - (base.addr() & (align - 1));
    let start = base.wrapping_add(head);
    let end = start.wrapping_add(len);
    // SAFETY: parts of our new mapping, below and above the aligned range, together `align` bytes, or all
    // that is left of it; no other code has their addresses.
    unsafe {
        // At its limit of mappings the system refuses what would leave a hole. Where what is beside the block
        // is lost then, nobody gets that: all of it can still be unmapped as it was mapped.
        if !drop_fresh(end, align - head, is_open) {
            drop_fresh(base, total, is_open);
            return ptr::null_mut();
        }
        if !drop_fresh(base, head, is_open) {
            drop_fresh(base, head + len, is_open);
            return ptr::null_mut();
        }
    }
    start
}

/// Unmaps what was just mapped, or keeps it for whoever maps memory next. False if it is neither: then it is
/// lost, unless it goes with what is beside it.
///
/// # Safety
///
/// As [`unmap_uncounted`](super::unmap_uncounted), and nothing of it was touched.
unsafe fn drop_fresh(p: *mut u8, len: usize, is_open: bool) -> bool {
    // SAFETY: this function's contract has that of `trim`.
    len == 0 || unsafe { trim(p, len) } || left::put(p, len, is_open)
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests {
    use super::*;
    use crate::os::child::{is_alone, is_so, skip};
    use crate::os::file::File;
    use crate::os::{MAPPED, Unmapped, advise_huge, give_back_left, split_huge_page, unmap, unmap_uncounted};
    use crate::sync::Ordering::Relaxed;

    /// Pages of the process's address space, and of ours, and bytes held.
    fn figures() -> (usize, usize, usize) {
        if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
            // Under an emulator with a page size of its own, the file counts what the emulator has.
            return (0, MAPPED.load(Relaxed) / page_size(), held::bytes());
        }
        let mut text = [0; 32];
        let all = File::read_only(c"/proc/self/statm").unwrap().read(&mut text);
        let digits = all.iter().take_while(|byte| byte.is_ascii_digit());
        let pages = digits.fold(0, |pages, digit| pages * 10 + usize::from(digit - b'0'));
        (pages, MAPPED.load(Relaxed) / page_size(), held::bytes())
    }

    /// So many pages and bytes more.
    fn more(before: (usize, usize, usize), pages: usize, bytes: usize) -> (usize, usize, usize) {
        let known = if before.0 == 0 { 0 } else { before.0 + pages };
        (known, before.1 + pages, before.2 + bytes)
    }

    #[test]
    fn an_aligned_mapping_leaves_nothing_beside_it() {
        assert!(is_so(|| {
            let (page, before) = (page_size(), figures());
            let len = 3 * page;
            for round in 0..300 {
                let align = [1, page, 2 * page, 64 * page, 1 << 26][round % 5];
                let counts = round % 2 == 0;
                let p = if counts {
                    map_aligned(ptr::null_mut(), len, align)
                } else {
                    map_aligned_uncounted(len, align)
                };
                assert!(!p.is_null() && p.addr() & (align - 1) == 0, "{align}");
                assert_eq!(figures(), more(before, 3, if counts { len } else { 0 }));
                // SAFETY: mapped just now.
                unsafe {
                    assert!((0..len).all(|at| *p.add(at) == 0));
                    p.write_bytes(1, len);
                    let unmapped = if counts { unmap(p, len) } else { unmap_uncounted(p, len) };
                    assert!(unmapped == Unmapped::Gone);
                }
            }
            figures() == before
        }));
    }

    #[test]
    fn a_mapping_lies_where_it_is_asked_for() {
        assert!(is_so(|| {
            let page = page_size();
            let around = map_aligned_uncounted(16 * page, 16 * page);
            // SAFETY: mapped just now, and not used.
            assert!(unsafe { unmap_uncounted(around, 16 * page) } == Unmapped::Gone);
            [1, 2, 3, 4, 6, 8].into_iter().all(|at: usize| {
                let (hint, align) = (around.wrapping_add(at * page), page << at.trailing_zeros());
                let p = map_aligned(hint, page, align);
                // SAFETY: mapped just now, and not used.
                p == hint && unsafe { unmap(p, page) } == Unmapped::Gone
            })
        }));
    }

    /// Bytes in huge pages of the mappings from `from` on.
    fn in_huge_pages(from: *mut u8, len: usize) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let (mut inside, mut bytes) = (false, 0);
        for line in smaps.lines() {
            if let Some(start) =
                line.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok())
            {
                inside = (from.addr()..from.addr() + len).contains(&start);
            } else if let Some(kib) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
                bytes += kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
            }
        }
        bytes
    }

    /// Where the system gives huge pages: else there is nothing to see. Alone: what the child of another
    /// test's fork shares is not split.
    #[test]
    fn a_huge_page_is_split() {
        const HUGE_PAGE: usize = 2 << 20;
        if !is_alone() {
            return;
        }
        let (len, half) = (4 * HUGE_PAGE, HUGE_PAGE / 2);
        // Without neighbours.
        let around = map_aligned_uncounted(6 * HUGE_PAGE, HUGE_PAGE);
        let p = around.wrapping_add(HUGE_PAGE);
        // SAFETY: mapped just now.
        unsafe {
            advise_huge(p, len, true);
            p.write_bytes(1, len);
            // At once, where no huge page was at hand: MADV_COLLAPSE, from Linux 6.1 on.
            libc::madvise(p.cast(), len, 25);
            if in_huge_pages(p, len) != 4 * HUGE_PAGE {
                return skip("the system has no huge pages to give");
            }
            // What is huge stays so, but the system puts no small ones together behind our back.
            advise_huge(p, len, false);
            for (at, before) in [(0, 4), (HUGE_PAGE + half, 3), (4 * HUGE_PAGE - page_size(), 2)] {
                assert_eq!(in_huge_pages(p, len), before * HUGE_PAGE, "{at:#x}");
                split_huge_page(p.add(at));
                assert_eq!(in_huge_pages(p, len), (before - 1) * HUGE_PAGE, "{at:#x}");
            }
            assert!((0..len).all(|at| *p.add(at) == 1), "it holds what it held");
            assert!(unmap_uncounted(around, 6 * HUGE_PAGE) == Unmapped::Gone);
        }
    }

    #[test]
    fn what_cannot_be_mapped_counts_nowhere() {
        const MUCH: usize = 1 << 60;
        assert!(is_so(|| {
            let (page, before) = (page_size(), figures());
            assert!(
                map_aligned(ptr::null_mut(), MUCH, page).is_null() && reserve_aligned(MUCH, page).is_null()
            );
            assert!(map_uncounted(MUCH).is_null() && map_aligned_uncounted(page, MUCH).is_null());
            assert!(could_map(1) && could_map(page) && !could_map(MUCH));
            figures() == before
        }));
    }

    /// It is there for whoever needs memory with the same access, and goes back when somebody asks for that.
    #[test]
    fn what_is_left_is_used_first() {
        assert!(is_so(|| {
            let (page, before) = (page_size(), figures());
            let [open, closed] = [map_uncounted(4 * page), reserve_aligned(4 * page, page)];
            assert!(left::put(open, 4 * page, true) && left::put(closed, 4 * page, false));
            assert_eq!(map_uncounted(page), open.wrapping_add(3 * page));
            assert_eq!(map_aligned(ptr::null_mut(), page, 1), open.wrapping_add(2 * page));
            assert_eq!(reserve_aligned(page, 1), closed.wrapping_add(3 * page));
            assert_eq!(figures(), more(before, 8, 6 * page));
            give_back_left();
            assert_eq!(figures(), more(before, 3, 6 * page));
            // SAFETY: taken just now.
            unsafe { *open.add(3 * page) == 0 }
        }));
    }
}
