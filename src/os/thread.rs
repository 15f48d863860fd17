//! Threads: their ids, and one of our own.

use crate::os::signals::Blocked;
use crate::os::{calls, raw};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use core::arch::asm;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;

/// Identifies the calling thread as long as it lives: the address of its control block. Never 0; a multiple
/// of 8.
#[inline(always)]
pub(crate) fn id() -> usize {
    #[cfg(loom)]
    if let number @ 1.. = crate::sync::loom::thread_number() {
        return number << 3;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let id;
        // SAFETY: reads one word. By the ABI the first word of the thread's control block is its own address.
        unsafe { asm!("mov {}, fs:[0]", out(reg) id, options(pure, readonly, nostack, preserves_flags)) };
        id
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let id;
        // SAFETY: reads the thread pointer register only.
        unsafe { asm!("mrs {}, tpidr_el0", out(reg) id, options(pure, readonly, nostack, preserves_flags)) };
        id
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        // Twice a multiple of 4 is one of 8.
        calls::address() << 1
    }
}

/// Whether the calling thread is the first one of its process. Assumed where it cannot be asked.
pub(crate) fn is_first() -> bool {
    #[cfg(loom)]
    if let number @ 1.. = crate::sync::loom::thread_number() {
        return number == 1;
    }
    if cfg!(miri) || calls::is_confined() {
        return true;
    }
    system_id() == Some(super::process_id())
}

/// The system's number for the calling thread. `None` where the process may not ask for it.
pub(crate) fn system_id() -> Option<u32> {
    if calls::is_confined() {
        return None;
    }
    if cfg!(miri) {
        return Some(super::process_id());
    }
    // SAFETY: the call has no preconditions, and cannot fail.
    Some(unsafe { raw::call!(SYS_gettid) }.map_or(u32::MAX, |id| id as u32))
}

/// Whether the thread of this process that had this [number](system_id) has ended. False where it cannot be
/// asked.
pub(crate) fn has_ended(id: u32) -> bool {
    if cfg!(miri) || calls::is_confined() {
        return false;
    }
    // SAFETY: the call only asks: signal 0 is none.
    let asked = unsafe { raw::call!(SYS_tgkill, super::process_id(), id, 0) };
    asked == Err(libc::ESRCH)
}

/// Whether the C library has nothing left to run in the calling thread but the end of that. False where that
/// is not known.
///
/// From 2.35 on glibc blocks all signals then, so also one of its own that it lets no program block.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn is_past_destructors() -> bool {
    /// What `pthread_cancel` sends.
    const CANCEL: u32 = 32;
    if cfg!(any(miri, loom, not(target_env = "gnu"))) || calls::is_confined() {
        return false;
    }
    let mut blocked = 0u64;
    // SAFETY: without a new mask the call only writes the current one, which has 8 bytes.
    let asked = unsafe {
        let none = ptr::null::<u64>();
        raw::call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, none, &raw mut blocked, size_of::<u64>())
    };
    asked.is_ok() && blocked >> (CANCEL - 1) & 1 != 0
}

/// Whether no other thread of the process runs, seen from one that is not its first: that one has ended, too,
/// though the system lists it as long as there is another. False where it cannot be asked.
pub(crate) fn is_last() -> bool {
    if cfg!(any(miri, loom)) || calls::is_confined() {
        return false;
    }
    let (mut about, mut path) = (MaybeUninit::<libc::stat>::zeroed(), [0u8; 1]);
    // SAFETY: the call writes to `about`, which all zeros are valid for.
    let threads = unsafe {
        let folder = c"/proc/self/task".as_ptr();
        let _ = raw::call!(SYS_newfstatat, libc::AT_FDCWD, folder, about.as_mut_ptr(), 0);
        // One link for each, and two as any folder has them.
        about.assume_init().st_nlink
    };
    if threads != 2 + 2 {
        return false;
    }
    // A first thread that has ended has no program any more.
    let program = c"/proc/self/exe".as_ptr();
    // SAFETY: the call writes one byte at most.
    let read = unsafe { raw::call!(SYS_readlinkat, libc::AT_FDCWD, program, path.as_mut_ptr(), 1) };
    read == Err(libc::ENOENT)
}

/// The calling thread's name, ended by a zero unless it has 16 bytes; empty where it cannot be asked.
pub(crate) fn own_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    if !(cfg!(miri) || calls::is_confined()) {
        // SAFETY: the call writes 16 bytes at most.
        let _ = unsafe { raw::call!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    }
    name
}

/// The function that a thread runs.
pub(crate) type Main = extern "C" fn(*mut c_void) -> *mut c_void;

/// Bytes of the thread's stack: its calls do not go deep.
const STACK: usize = 128 << 10;

/// Starts a thread that receives no signals and needs little stack. The error is an `errno` value.
///
/// The C library allocates for it, so the caller must hold no lock of the allocator.
pub(crate) fn spawn(main: Main) -> Result<libc::pthread_t, i32> {
    #[cfg(loom)]
    if crate::sync::loom::thread_number() != 0 {
        return Ok(crate::sync::loom::spawn(move || _ = main(ptr::null_mut())) as libc::pthread_t);
    }
    calls::keep_errno(|| {
        // The new thread inherits the mask.
        let _signals = Blocked::except(&[])?;
        match with_stack(main, STACK) {
            // The program's thread-local variables lie on the stack, too, and may leave too little of a small
            // one.
            Err(libc::EINVAL) => with_stack(main, 0),
            result => result,
        }
    })
}

/// As [`spawn`], with the stack that the program's own threads have by default.
pub(crate) fn spawn_ample(main: Main) -> Result<libc::pthread_t, i32> {
    calls::keep_errno(|| {
        let _signals = Blocked::except(&[])?;
        with_stack(main, 0)
    })
}

/// Starts a thread with a stack of `stack` bytes, or of the default size for 0.
fn with_stack(main: Main, stack: usize) -> Result<libc::pthread_t, i32> {
    let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: all arguments are local variables. The attributes are used only after `pthread_attr_init` has
    // succeeded, and `thread` is read only after `pthread_create` has.
    unsafe {
        let error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error != 0 {
            return Err(error);
        }
        if stack != 0 {
            // Refused where a stack must be larger; then it has the default size.
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack);
        }
        let error = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), main, ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if error == 0 { Ok(thread.assume_init()) } else { Err(error) }
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// Waits until a thread has ended, even if the calling thread is cancelled meanwhile.
///
/// # Safety
///
/// `thread` was started by [`spawn`], and this is the only call that ever joins it.
pub(crate) unsafe fn join(thread: libc::pthread_t) {
    #[cfg(loom)]
    if crate::sync::loom::thread_number() != 0 {
        return crate::sync::loom::join(thread as usize);
    }
    /// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
    const DISABLE: i32 = 1;
    let mut before = 0;
    // SAFETY: by this function's contract the thread is joinable and is joined only once; `before` is a local
    // variable.
    calls::keep_errno(|| unsafe {
        pthread_setcancelstate(DISABLE, &mut before);
        libc::pthread_join(thread, ptr::null_mut());
        pthread_setcancelstate(before, &mut before);
    });
}

/// Names the calling thread, for tools that show the process. By the C library's function, in whose place
/// ThreadSanitizer has one, from which it knows the name.
pub(crate) fn name(name: &core::ffi::CStr) {
    // SAFETY: `name` is a C string, of which the kernel copies what fits.
    calls::keep_errno(|| unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) });
}

/// The CPUs that the process may use, one bit each; all 0 while they are not known. No system has more of
/// them. Relaxed: each word is valid by itself, and a thread that reads too early does without.
static CPUS: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// Records the CPUs that the process's first thread may run on now, unless they are known already.
pub(crate) fn note_cpus() {
    if cfg!(loom) || CPUS.iter().any(|word| word.load(Relaxed) != 0) {
        return;
    }
    let mut words = [0u64; 128];
    // SAFETY: writes at most the given number of bytes, which `words` has. Not by the C library's wrapper:
    // its set has a fixed size, which may be too small for the system.
    let bytes = unsafe {
        raw::call!(SYS_sched_getaffinity, super::process_id(), size_of_val(&words), words.as_mut_ptr())
    };
    if bytes.is_ok() {
        for (known, word) in CPUS.iter().zip(words) {
            known.store(word, Relaxed);
        }
    }
}

/// Makes the calling thread an ordinary one, whatever thread has started it: not real-time, and on all CPUs
/// that [`note_cpus`] has recorded. If the system refuses, it stays as it is.
pub(crate) fn be_ordinary() {
    if cfg!(loom) {
        return;
    }
    let mut words = [0u64; 128];
    for (word, known) in words.iter_mut().zip(&CPUS) {
        *word = known.load(Relaxed);
    }
    let known = words.iter().any(|&word| word != 0);
    // SAFETY: all zeros is a valid sched_param, and the priority of an ordinary thread.
    let parameter: libc::sched_param = unsafe { core::mem::zeroed() };
    // SAFETY: the calls only read `words` and `parameter`, which outlive them.
    unsafe {
        if known {
            let _ = raw::call!(SYS_sched_setaffinity, 0, size_of_val(&words), words.as_ptr());
        }
        // By system call: musl's function does nothing.
        let policy = raw::call!(SYS_sched_getscheduler, 0).map_or(-1, |policy| policy as i32);
        if matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR) {
            let _ = raw::call!(SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const parameter);
        }
    }
}
