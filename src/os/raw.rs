//! System calls by the processor's instruction.
//!
//! Not by the C library's `syscall`: that is a name in whose place others put a function of theirs (torsocks
//! does), which may allocate, or wait for something that the allocating thread holds. And it writes `errno`,
//! which belongs to the program. What is called by the C library's names all the same, and why, is in
//! docs/decisions/041.
//!
//! On machines whose instruction is not known here, and under Miri, it is the C library's `syscall`.

pub(super) use made::*;

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod made {
    use core::arch::asm;

    /// `call!(SYS_name, argument, ...)` makes a system call: the result, or the error, which is not put into
    /// `errno`. No cancellation point.
    ///
    /// # Safety
    ///
    /// It is an unsafe function, as the C library's of that name would be: what the kernel reads and writes
    /// at the pointers is there, for as many bytes as the call says, and nobody minds; no memory that is in
    /// use goes away. And none of the calls that need the C library's help: those that start or end a thread
    /// or process, or return from a signal handler.
    macro_rules! call {
        ($number:ident $(, $argument:expr)* $(,)?) => {
            $crate::os::raw::enter(libc::$number, [$($crate::os::raw::Word::word($argument)),*])
        };
    }
    pub(in crate::os) use call;

    /// What goes into one register.
    pub(in crate::os) trait Word {
        fn word(self) -> usize;
    }

    macro_rules! numbers {
        ($($number:ty)*) => {
            $(impl Word for $number {
                #[inline(always)]
                fn word(self) -> usize {
                    // A negative one keeps its sign: the kernel may look at the whole register.
                    self as usize
                }
            })*
        };
    }
    numbers!(i32 u32 i64 u64 isize usize);

    impl<T> Word for *const T {
        #[inline(always)]
        fn word(self) -> usize {
            // What is there is reached by way of the number.
            self.expose_provenance()
        }
    }

    impl<T> Word for *mut T {
        #[inline(always)]
        fn word(self) -> usize {
            self.expose_provenance()
        }
    }

    /// The call.
    ///
    /// # Safety
    ///
    /// As [`call!`].
    // The upper parts of the wide registers that SVE has are lost. No list of clobbers says so without the
    // lower ones, which are not; that a function may lose them is in the rules of calls.
    #[cfg_attr(target_feature = "sve", inline(never))]
    #[cfg_attr(not(target_feature = "sve"), inline(always))]
    pub(in crate::os) unsafe fn enter<const N: usize>(
        number: libc::c_long,
        arguments: [usize; N],
    ) -> Result<usize, i32> {
        const { assert!(N <= 6, "the kernel takes six") };
        let mut words = [0; 6];
        words.iter_mut().zip(arguments).for_each(|(word, argument)| *word = argument);
        let [a, b, c, d, e, f] = words;
        let result: isize;
        // SAFETY: the kernel does what the call is for, to which this function's contract has the clauses: it
        // may read and write memory, so none of `nomem`, `readonly` and `pure` is said. Of the registers it
        // changes that of the result, and the two in which the instruction keeps where to go on and the
        // flags. It uses a stack of its own, and a signal handler leaves the red zone alone.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") a,
                in("rsi") b,
                in("rdx") c,
                in("r10") d,
                in("r8") e,
                in("r9") f,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        // SAFETY: as for the other machine. It changes the register of the result only.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "svc 0",
                in("x8") number,
                inlateout("x0") a => result,
                in("x1") b,
                in("x2") c,
                in("x3") d,
                in("x4") e,
                in("x5") f,
                options(nostack),
            );
        }
        // No result is one of these: addresses of the kernel's own half.
        if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as usize) }
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod made {
    use crate::os::errno;

    /// `call!(SYS_name, argument, ...)`: see the other one.
    macro_rules! call {
        ($number:ident $(, $argument:expr)* $(,)?) => {
            // With the types that the arguments have: Miri looks at those, and at where pointers come from.
            $crate::os::raw::result_of(|| libc::syscall(libc::$number $(, $argument)*))
        };
    }
    pub(in crate::os) use call;

    /// What the C library's `syscall` says, and what it says in `errno`, which stays as it is.
    pub(in crate::os) fn result_of(call: impl FnOnce() -> libc::c_long) -> Result<usize, i32> {
        errno::keep_errno(|| match call() {
            -1 => Err(errno::errno()),
            result => Ok(result as usize),
        })
    }
}

/// `prctl`, for the program.
///
/// # Safety
///
/// What the option asks for.
pub(crate) unsafe fn prctl(option: i32, rest: [usize; 4]) -> Result<usize, i32> {
    let [a, b, c, d] = rest;
    // SAFETY: this function's contract is the same.
    unsafe { call!(SYS_prctl, libc::c_long::from(option), a, b, c, d) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{errno, set_errno};
    use std::os::fd::AsRawFd;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_call_has_a_result_or_an_error_and_leaves_errno_alone() {
        set_errno(77);
        // SAFETY: neither call touches memory.
        let (process, none) = unsafe { (call!(SYS_getpid), call!(SYS_close, -1)) };
        assert_eq!((process, none), (Ok(std::process::id() as usize), Err(libc::EBADF)));
        // SAFETY: nothing is written to the null pointer.
        let nowhere = unsafe { call!(SYS_getcwd, core::ptr::null_mut::<u8>(), 100usize) };
        assert_eq!(nowhere, Err(libc::EFAULT));
        assert_eq!(errno::errno(), 77);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn all_six_arguments_arrive() {
        // A file of two kinds of pages of 64 KiB, so that any page size divides them.
        let path = std::env::temp_dir().join(std::format!("hakmem-raw-{}", std::process::id()));
        std::fs::write(&path, [[1u8; 1 << 16], [2; 1 << 16]].concat()).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (fd, offset, len) = (file.as_raw_fd(), 1usize << 16, 1usize << 16);
        let nowhere = core::ptr::null_mut::<u8>();
        // SAFETY: a new mapping, which is unmapped again.
        unsafe {
            let at = call!(SYS_mmap, nowhere, len, libc::PROT_READ, libc::MAP_PRIVATE, fd, offset).unwrap();
            let bytes = core::ptr::with_exposed_provenance::<u8>(at);
            assert_eq!((*bytes, *bytes.add(len - 1)), (2, 2));
            assert_eq!(call!(SYS_munmap, at, len), Ok(0));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_the_kernel_writes_is_seen() {
        let mut name = [0u8; 16];
        // SAFETY: the kernel writes 16 bytes at most.
        assert_eq!(unsafe { call!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) }, Ok(0));
        let own = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert_eq!(name.split(|&byte| byte == 0).next(), Some(own.trim_end().as_bytes()));
    }
}
