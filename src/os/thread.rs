//! A thread of our own.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// A number that is the calling thread's while it lives: the address of its control block. Never 0; a multiple of 8.
#[inline(always)]
pub(crate) fn id() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    {
        let id;
        // SAFETY: by the ABI the first word of the control block is its own address.
        unsafe {
            core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) id, options(pure, readonly, nostack, preserves_flags))
        };
        id
    }
    #[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
    {
        let id;
        // SAFETY: reads the thread pointer.
        unsafe {
            core::arch::asm!("mrs {}, tpidr_el0", out(reg) id, options(pure, readonly, nostack, preserves_flags))
        };
        id
    }
    #[cfg(any(miri, not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))))]
    {
        // SAFETY: no preconditions. The address is a multiple of 4.
        unsafe { super::errno_location() }.addr() << 1
    }
}

/// Whether the calling thread is the one that its process began with. Taken for granted where that cannot be asked.
pub(crate) fn is_first() -> bool {
    if cfg!(miri) || super::is_confined() {
        return true;
    }
    // SAFETY: no preconditions, and they cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
}

/// What a thread runs.
pub(crate) type Main = extern "C" fn(*mut c_void) -> *mut c_void;

/// Bytes of its stack: it calls nothing deep.
const STACK: usize = 128 << 10;

/// Starts a thread that gets no signals. The error is the system's number.
///
/// The C library allocates for it, so the caller holds no lock of ours.
pub(crate) fn spawn(main: Main) -> Result<libc::pthread_t, i32> {
    super::keep_errno(|| {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both sets are writable; the first is initialised by the first call, the second by the second, when
        // that succeeds, as it must with these arguments. A thread inherits the mask of the one that starts it.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            let error = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(error);
            }
            let result = with_stack(main, STACK);
            // Thread-local variables of the program lie on the stack too, and may leave too little of a small one.
            let result = if result == Err(libc::EINVAL) { with_stack(main, 0) } else { result };
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            result
        }
    })
}

/// Starts a thread with a stack of so many bytes, or of the usual size for 0.
fn with_stack(main: Main, stack: usize) -> Result<libc::pthread_t, i32> {
    let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the attributes are initialised before they are used, and the thread's name is read only when there is one.
    unsafe {
        let error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error != 0 {
            return Err(error);
        }
        if stack != 0 {
            // Refused where a stack must be larger: then it has the usual size.
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack);
        }
        let error = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), main, ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if error == 0 { Ok(thread.assume_init()) } else { Err(error) }
    }
}

unsafe extern "C" {
    #[cfg(not(target_os = "android"))]
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// Android has none.
#[cfg(target_os = "android")]
unsafe fn pthread_setcancelstate(_state: i32, _before: *mut i32) -> i32 {
    0
}

/// Waits until a thread is gone, even if the calling thread is to be cancelled meanwhile.
///
/// # Safety
///
/// It was started by [`spawn`], and nobody else waits for it, or has.
pub(crate) unsafe fn join(thread: libc::pthread_t) {
    /// `PTHREAD_CANCEL_DISABLE`, with glibc and musl.
    const DISABLE: i32 = 1;
    let mut before = 0;
    // SAFETY: passed on.
    super::keep_errno(|| unsafe {
        pthread_setcancelstate(DISABLE, &mut before);
        libc::pthread_join(thread, ptr::null_mut());
        pthread_setcancelstate(before, &mut before);
    });
}

/// Names the calling thread, for those who look at the process.
pub(crate) fn name(name: &core::ffi::CStr) {
    // SAFETY: a C string; the kernel copies what fits.
    super::keep_errno(|| unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) });
}

/// The CPUs that the process may use, a bit for each; all 0 when they are not known. More than any system has.
static CPUS: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// Remembers the CPUs that the first thread of the process may run on now, unless they are known.
pub(crate) fn note_cpus() {
    if CPUS.iter().any(|word| word.load(Relaxed) != 0) {
        return;
    }
    let mut words = [0u64; 128];
    // SAFETY: writes no more than there is room for. The wrapper has a fixed size, which the system may find too small.
    let bytes = super::keep_errno(|| unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, libc::getpid(), size_of_val(&words), words.as_mut_ptr())
    });
    if bytes > 0 {
        for (known, word) in CPUS.iter().zip(words) {
            known.store(word, Relaxed);
        }
    }
}

/// Makes the calling thread an ordinary one, whatever the one was that started it: not a real-time thread, and on all CPUs that
/// [`note_cpus`] has seen. Where the system refuses it stays what it is.
pub(crate) fn be_ordinary() {
    let mut words = [0u64; 128];
    for (word, known) in words.iter_mut().zip(&CPUS) {
        *word = known.load(Relaxed);
    }
    let known = words.iter().any(|&word| word != 0);
    // SAFETY: all zeros is such a struct, and the priority that an ordinary thread has.
    let parameter: libc::sched_param = unsafe { core::mem::zeroed() };
    // SAFETY: reads the mask and the struct.
    super::keep_errno(|| unsafe {
        if known {
            libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&words), words.as_ptr());
        }
        // The system call: musl's function does nothing.
        let policy = libc::syscall(libc::SYS_sched_getscheduler, 0) as i32;
        if matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR) {
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const parameter);
        }
    });
}
