//! Clears short blocks, and looks whether blocks are clear: 32 bytes at a time, and what is left over by
//! steps that overlap with the ones before. No function of the C library is called for so little.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use core::arch::x86_64::{
    __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_setzero_si128,
    _mm_storeu_si128,
};

/// Bytes that are done at a time.
const STEP: usize = 32;

/// Up to three words, of which some may be the same, that cover `len` bytes, a multiple of 8 below [`STEP`].
#[inline(always)]
fn words(at: *mut u8, len: usize) -> [*mut u64; 3] {
    [0, (len / 2) & !7, len - 8].map(|offset| at.wrapping_add(offset).cast())
}

/// Two words that are read and written at once.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
type Two = [u64; 2];
/// The same.
#[cfg(all(target_arch = "x86_64", not(miri)))]
type Two = __m128i;

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn zero() -> Two {
    // SAFETY: every processor of this architecture has it.
    let mut zero = unsafe { _mm_setzero_si128() };
    // The compiler shall not know that it is zero: it would make a call of the loop.
    // SAFETY: does nothing.
    unsafe {
        core::arch::asm!("/* {0} */", inout(xmm_reg) zero, options(pure, nomem, nostack, preserves_flags));
    }
    zero
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn zero() -> Two {
    core::hint::black_box([0; 2])
}

/// # Safety
///
/// 16 bytes from `at` on, a multiple of 8, are the caller's.
#[inline(always)]
unsafe fn write(at: *mut u8, two: Two) {
    // SAFETY: by the caller's clause.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        _mm_storeu_si128(at.cast(), two);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        at.cast::<Two>().write(two);
    }
}

/// # Safety
///
/// As [`write`].
#[inline(always)]
unsafe fn or(at: *const u8, two: Two) -> Two {
    // SAFETY: by the caller's clause.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return _mm_or_si128(two, _mm_loadu_si128(at.cast()));
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            let [a, b] = at.cast::<Two>().read();
            [two[0] | a, two[1] | b]
        }
    }
}

/// # Safety
///
/// As [`write`].
#[inline(always)]
unsafe fn read(at: *const u8) -> Two {
    // SAFETY: by the caller's clause.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return _mm_loadu_si128(at.cast());
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        at.cast::<Two>().read()
    }
}

#[inline(always)]
fn is_zero_two(two: Two) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this architecture has it.
    return unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(two, _mm_setzero_si128())) } == 0xffff;
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    return two == [0; 2];
}

/// Clears `len` bytes, a multiple of 8 and not 0.
///
/// # Safety
///
/// They are the caller's, and `at` is a multiple of 8.
#[inline(always)]
pub(super) unsafe fn clear(at: *mut u8, len: usize) {
    let end = at.wrapping_add(len);
    // SAFETY: by the caller's clause, for nothing is written outside `at` to `end`.
    unsafe {
        if len < STEP {
            return words(at, len).into_iter().for_each(|word| word.write(0));
        }
        let (zero, last) = (zero(), end.wrapping_sub(STEP));
        let write = |at: *mut u8| {
            write(at, zero);
            write(at.wrapping_add(16), zero);
        };
        write(at);
        let mut at = at.wrapping_add(STEP);
        while at < last {
            write(at);
            at = at.wrapping_add(STEP);
        }
        write(last);
    }
}

/// Whether `len` bytes, a multiple of 8 and not 0, are zero.
///
/// # Safety
///
/// As [`clear`].
#[inline(always)]
pub(super) unsafe fn is_zero(at: *mut u8, len: usize) -> bool {
    let end = at.wrapping_add(len);
    // SAFETY: by the caller's clause, for nothing is read outside `at` to `end`.
    unsafe {
        if len < STEP {
            return words(at, len).into_iter().fold(0, |all, word| all | word.read()) == 0;
        }
        let last = end.wrapping_sub(STEP);
        let mut all = or(at.wrapping_add(16), read(at));
        let mut at = at.wrapping_add(STEP);
        while at < last {
            all = or(at.wrapping_add(16), or(at, all));
            at = at.wrapping_add(STEP);
        }
        is_zero_two(or(last.wrapping_add(16), or(last, all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_counts_and_none_beyond() {
        for len in (8..600).step_by(8) {
            let mut bytes = vec![0xffu64; len / 8 + 2];
            let at = bytes.as_mut_ptr().wrapping_add(1).cast::<u8>();
            // SAFETY: of these bytes the first and the last eight are left out.
            unsafe {
                clear(at, len);
                assert!(is_zero(at, len), "{len}");
                for byte in 0..len {
                    at.wrapping_add(byte).write(1);
                    assert!(!is_zero(at, len), "{byte} of {len}");
                    at.wrapping_add(byte).write(0);
                }
            }
            assert!(bytes[0] == 0xff && bytes[len / 8 + 1] == 0xff);
        }
    }
}
