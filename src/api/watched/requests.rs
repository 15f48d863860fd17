//! What is said to the tools. To ASan by calls that the program has if it was built for it; to valgrind by
//! instructions that do nothing elsewhere: its "client requests", as its manual describes them. Nobody has to
//! be there. All inlined, so that the stacks in reports begin with the caller.

/// The program and the allocator may not touch these bytes. Part of the last eight may stay open.
#[inline(always)]
pub(super) fn close(from: *mut u8, bytes: usize) {
    #[cfg(feature = "asan")]
    asan::poison(from, bytes);
    #[cfg(feature = "valgrind")]
    memcheck::noaccess(from, bytes);
    let _ = (from, bytes);
}

/// The allocator may use these bytes, whatever they are.
#[inline(always)]
pub(super) fn open(from: *mut u8, bytes: usize) {
    #[cfg(feature = "asan")]
    asan::unpoison(from, bytes);
    #[cfg(feature = "valgrind")]
    memcheck::defined(from, bytes);
    let _ = (from, bytes);
}

/// The program has got these bytes.
#[inline(always)]
pub(super) fn allocated(block: *mut u8, bytes: usize, zeroed: bool) {
    #[cfg(feature = "asan")]
    asan::unpoison(block, bytes);
    #[cfg(feature = "valgrind")]
    memcheck::allocated(block, bytes, zeroed);
    let _ = (block, bytes, zeroed);
}

/// The program has freed the block. Its bytes still have to be closed.
#[inline(always)]
pub(super) fn freed(block: *mut u8) {
    #[cfg(feature = "valgrind")]
    memcheck::freed(block);
    let _ = block;
}

#[cfg(feature = "asan")]
mod asan {
    // ASan's interface (`sanitizer/asan_interface.h`), if the program has it: in one that was built without,
    // these do nothing. Stable Rust has no weak references to functions.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    macro_rules! if_there {
        ($ours:literal, $theirs:literal) => {
            core::arch::global_asm!(
                concat!(".pushsection .text.", $ours, ",\"ax\",@progbits"),
                concat!(".weak ", $theirs),
                concat!(".weak ", $ours),
                concat!(".hidden ", $ours),
                concat!(".type ", $ours, ", @function"),
                concat!($ours, ":"),
                concat!("mov rax, qword ptr [rip + ", $theirs, "@GOTPCREL]"),
                "test rax, rax",
                "je 2f",
                "jmp rax",
                "2: ret",
                concat!(".size ", $ours, ", . - ", $ours),
                ".popsection",
            );
        };
    }

    #[cfg(all(target_arch = "aarch64", not(miri)))]
    macro_rules! if_there {
        ($ours:literal, $theirs:literal) => {
            core::arch::global_asm!(
                concat!(".pushsection .text.", $ours, ",\"ax\",@progbits"),
                concat!(".weak ", $theirs),
                concat!(".weak ", $ours),
                concat!(".hidden ", $ours),
                concat!(".type ", $ours, ", @function"),
                concat!($ours, ":"),
                concat!("adrp x9, :got:", $theirs),
                concat!("ldr x9, [x9, :got_lo12:", $theirs, "]"),
                "cbz x9, 2f",
                "br x9",
                "2: ret",
                concat!(".size ", $ours, ", . - ", $ours),
                ".popsection",
            );
        };
    }

    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    mod calls {
        if_there!("hakmem_asan_poison", "__asan_poison_memory_region");
        if_there!("hakmem_asan_unpoison", "__asan_unpoison_memory_region");
        unsafe extern "C" {
            pub(super) fn hakmem_asan_poison(from: *const u8, bytes: usize);
            pub(super) fn hakmem_asan_unpoison(from: *const u8, bytes: usize);
        }
    }

    #[inline(always)]
    pub(super) fn poison(from: *const u8, bytes: usize) {
        // SAFETY: notes that the program has no business there, and touches none of it.
        #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
        unsafe {
            calls::hakmem_asan_poison(from, bytes)
        }
        let _ = (from, bytes);
    }

    #[inline(always)]
    pub(super) fn unpoison(from: *const u8, bytes: usize) {
        // SAFETY: notes that the program may go there, and touches none of it.
        #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
        unsafe {
            calls::hakmem_asan_unpoison(from, bytes)
        }
        let _ = (from, bytes);
    }
}

#[cfg(feature = "valgrind")]
mod memcheck {
    /// Requests of every tool: a block was allocated (address, bytes, what is closed around it, whether it is
    /// zero), or freed (address, what is closed around it).
    const MALLOCLIKE: usize = 0x1301;
    const FREELIKE: usize = 0x1302;
    /// Memcheck's own have its letters in the upper half. Each takes an address and a number of bytes.
    const MEMCHECK: usize = ((b'M' as usize) << 24) | ((b'C' as usize) << 16);
    const NOACCESS: usize = MEMCHECK;
    const DEFINED: usize = MEMCHECK + 2;

    #[inline(always)]
    pub(super) fn noaccess(from: *const u8, bytes: usize) {
        request([NOACCESS, from.addr(), bytes, 0, 0, 0]);
    }

    #[inline(always)]
    pub(super) fn defined(from: *const u8, bytes: usize) {
        request([DEFINED, from.addr(), bytes, 0, 0, 0]);
    }

    #[inline(always)]
    pub(super) fn allocated(block: *const u8, bytes: usize, zeroed: bool) {
        request([MALLOCLIKE, block.addr(), bytes, 16, zeroed as usize, 0]);
    }

    #[inline(always)]
    pub(super) fn freed(block: *const u8) {
        request([FREELIKE, block.addr(), 16, 0, 0, 0]);
    }

    /// A request: its number and its arguments. The rotations turn a register by 128 bits, and the last
    /// instruction leaves a register as it is; valgrind knows the sequence.
    #[inline(always)]
    fn request(arguments: [usize; 6]) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: changes nothing but the answer's register. Where valgrind runs the program, it reads the
        // arguments.
        unsafe {
            core::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") &raw const arguments,
                inout("rdx") 0usize => _,
                options(nostack)
            );
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: changes nothing but the answer's register; the arguments are there to be read.
        unsafe {
            core::arch::asm!(
                "ror x12, x12, #3",
                "ror x12, x12, #13",
                "ror x12, x12, #51",
                "ror x12, x12, #61",
                "orr x10, x10, x10",
                in("x4") &raw const arguments,
                inout("x3") 0usize => _,
                options(nostack)
            );
        }
        let _ = arguments;
    }
}
