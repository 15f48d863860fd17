//! Where the kernel's function is.

use super::Clock;
use crate::os::errno::keep_errno;
use crate::sync::AtomicPtr;
use crate::sync::Ordering::Relaxed;
use core::mem::transmute;
use core::ptr;

/// The function, or null until it has been looked for.
static CLOCK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// The kernel's function, or the C library's where the kernel has none: valgrind hides it.
#[inline(always)]
pub(super) fn function() -> Clock {
    // Relaxed, with itself: the code has been there since the process began.
    let mut function = CLOCK.load(Relaxed);
    if function.is_null() {
        function = look();
    }
    // SAFETY: `look` has stored a function of this type.
    unsafe { transmute::<*mut (), Clock>(function) }
}

#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn look() -> *mut () {
    let own = find().filter(|found| !found.is_null());
    let function = own.unwrap_or(libc::clock_gettime as Clock as *mut ());
    CLOCK.store(function, Relaxed);
    function
}

/// The symbol in the kernel's image.
#[unsafe(link_section = "hakmem_rare")]
fn find() -> Option<*mut ()> {
    // It sets `errno` where there is none.
    // SAFETY: `getauxval` takes any number.
    let base = keep_errno(|| unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) }) as usize;
    if base == 0 { None } else { Image(ptr::with_exposed_provenance(base)).clock() }
}

/// The image: an ELF file in memory, which the kernel has made.
#[derive(Clone, Copy)]
struct Image(*const u8);

/// Names of the two tables by which symbols are counted. An image has one of them or both.
const HASH: usize = 4;
const GNU_HASH: usize = 0x6fff_fef5;

impl Image {
    /// The function, as far as its symbol is there.
    #[unsafe(link_section = "hakmem_rare")]
    fn clock(self) -> Option<*mut ()> {
        const NAME: &[u8] = if cfg!(target_arch = "x86_64") {
            b"__vdso_clock_gettime\0"
        } else {
            b"__kernel_clock_gettime\0"
        };
        const LOAD: u32 = 1;
        const DYNAMIC: u32 = 2;
        const STRINGS: usize = 5;
        const SYMBOLS: usize = 6;
        let headers = self.get::<usize>(32);
        let (mut lies, mut dynamic) = (None, None);
        for n in 0..usize::from(self.get::<u16>(56)) {
            let at = headers + n * usize::from(self.get::<u16>(54));
            match self.get::<u32>(at) {
                LOAD if lies.is_none() => lies = Some(self.get::<usize>(at + 16)),
                DYNAMIC => dynamic = Some(self.get::<usize>(at + 8)),
                _ => {}
            }
        }
        // Addresses in the image, less that of its first byte, are offsets.
        let (lies, mut at) = (lies?, dynamic?);
        let offset = |address: usize| address.wrapping_sub(lies);
        let (mut hash, mut gnu_hash, mut strings, mut symbols) = (None, None, None, None);
        loop {
            let (tag, value) = (self.get::<usize>(at), self.get::<usize>(at + 8));
            match tag {
                0 => break,
                HASH => hash = Some(offset(value)),
                GNU_HASH => gnu_hash = Some(offset(value)),
                STRINGS => strings = Some(offset(value)),
                SYMBOLS => symbols = Some(offset(value)),
                _ => {}
            }
            at += 16;
        }
        let count = match (hash, gnu_hash) {
            (Some(hash), _) => self.get::<u32>(hash + 4) as usize,
            (None, Some(table)) => self.count_of_gnu_hash(table),
            (None, None) => 0,
        };
        let (strings, symbols) = (strings?, symbols?);
        let named = |&at: &usize| {
            let name = strings + self.get::<u32>(at) as usize;
            self.get::<u16>(at + 6) != 0
                && NAME.iter().enumerate().all(|(n, &byte)| self.get::<u8>(name + n) == byte)
        };
        let symbol = (0..count).map(|n| symbols + n * 24).find(named)?;
        Some(self.0.wrapping_add(offset(self.get::<usize>(symbol + 8))).cast_mut().cast())
    }

    /// The number at an offset that the image itself names.
    fn get<T: Copy>(self, at: usize) -> T {
        // SAFETY: the kernel has mapped the whole image, for as long as the process lives, and what it says
        // of itself is right. All types asked for are integers.
        unsafe { self.0.wrapping_add(at).cast::<T>().read_unaligned() }
    }

    /// How many symbols there are, by a table that has chains of them: the last of the last chain is marked.
    #[unsafe(link_section = "hakmem_rare")]
    fn count_of_gnu_hash(self, table: usize) -> usize {
        let [buckets, first, words] = [0, 4, 8].map(|at| self.get::<u32>(table + at) as usize);
        let lists = table + 16 + words * 8;
        let chains = lists + buckets * 4;
        let last = (0..buckets).map(|n| self.get::<u32>(lists + n * 4) as usize).max().unwrap_or(0);
        if last < first {
            return first;
        }
        let end = (last..).find(|n| self.get::<u32>(chains + (n - first) * 4) & 1 == 1);
        end.map_or(0, |end| end + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_clock_is_found_and_is_the_same() {
        // SAFETY: `getauxval` takes any number.
        if unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } == 0 {
            return;
        }
        let found = find().unwrap();
        assert_ne!(found, libc::clock_gettime as Clock as *mut ());
        let ns = |t: libc::timespec| t.tv_sec as i128 * 1_000_000_000 + t.tv_nsec as i128;
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_COARSE, libc::CLOCK_REALTIME] {
            // SAFETY: all zeros is a valid timespec.
            let mut theirs: libc::timespec = unsafe { core::mem::zeroed() };
            let before = super::super::read(clock);
            // SAFETY: `theirs` is a local variable that the call writes to.
            assert_eq!(unsafe { libc::clock_gettime(clock, &mut theirs) }, 0);
            let after = super::super::read(clock);
            assert!(clock == libc::CLOCK_REALTIME || (ns(before) <= ns(theirs) && ns(theirs) <= ns(after)));
            assert_ne!(ns(after), 0);
        }
    }

    /// Kernels build their image with one table, the other, or both.
    #[test]
    fn either_table_says_how_many_symbols_there_are() {
        // SAFETY: `getauxval` takes any number.
        let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        if base == 0 {
            return;
        }
        let kernels = Image(ptr::with_exposed_provenance(base));
        let at = |function: *mut (), image: Image| function.addr() - image.0.addr();
        let clock = at(kernels.clock().unwrap(), kernels);
        // All of it is in the first segment, which begins the file.
        let len = kernels.get::<usize>(kernels.get::<usize>(32) + 40);
        let mut bytes: std::vec::Vec<u8> = (0..len).map(|n| kernels.get(n)).collect();
        let tags = |bytes: &[u8], tag: usize| -> std::vec::Vec<usize> {
            let tag = tag.to_ne_bytes();
            (0..len - 8).step_by(8).filter(|&n| bytes[n..n + 8] == tag).collect()
        };
        // Other numbers of 64 bits may be the same, but none that the search looks at.
        let both = [HASH, GNU_HASH].map(|tag| tags(&bytes, tag));
        for (n, places) in both.iter().enumerate() {
            if both[1 - n].is_empty() {
                continue;
            }
            let without: std::vec::Vec<u8> = bytes.clone();
            for &place in places {
                bytes[place..place + 8].copy_from_slice(&0x6000_0000usize.to_ne_bytes());
            }
            let copy = Image(bytes.as_ptr());
            assert_eq!(copy.clock().map(|function| at(function, copy)), Some(clock), "without table {n}");
            bytes = without;
        }
    }
}
