//! The handler of SIGSEGV, for faults in memory of ours. Every other fault is whose it was before.
//!
//! We are a guest: the handler calls the one that was there before for all that is not ours, as the kernel
//! would have called it (on the same stack, too), and when a fault was ours, puts that one back and returns,
//! so that the instruction faults again and the process ends as it would have without us. A program that sets
//! a handler later replaces ours: faults are its own then.

use crate::os::calls;
use crate::os::signals::Blocked;
use crate::sync::Ordering::SeqCst;
use crate::sync::{AtomicBool, AtomicUsize};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::{MaybeUninit, transmute};
use core::ptr;

/// What touched memory that it cannot.
pub(crate) struct Access {
    /// The address.
    pub(crate) address: usize,
    /// The instruction.
    pub(crate) pc: usize,
    /// The registers from which a walk of the stack can begin: stack pointer, frame pointer, and `rbx` or the
    /// link register.
    #[cfg_attr(not(feature = "profile"), allow(dead_code))]
    pub(crate) registers: [usize; 3],
    /// Whether it writes, where that is known.
    pub(crate) writes: Option<bool>,
}

/// What is known of a fault when somebody has looked at it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// It is none of ours.
    NotOurs,
    /// It is ours, and the thread is the first that has one.
    First,
    /// It is ours, and another thread had one before.
    Later,
    /// It is ours, and the thread had one before.
    Again,
}

/// Whom [`handle_faults`] has been called with; 0 for nobody.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// How often a fault was ours.
static OURS: AtomicUsize = AtomicUsize::new(0);
/// How often at most, if it is not the thread that was first. It waits each time: this takes minutes.
const MOST: usize = 1000;

/// The stack on which we look at a fault. An alternate stack may be as small as the system allows, and hold
/// little more than what the kernel puts there.
static STACK: OwnStack = OwnStack(UnsafeCell::new([0; 64 << 10]));
/// Whether a thread is there.
static ON_STACK: AtomicBool = AtomicBool::new(false);

/// See [`STACK`].
#[repr(align(64))]
struct OwnStack(UnsafeCell<[u8; 64 << 10]>);

// SAFETY: who swaps `ON_STACK` to true has it.
unsafe impl Sync for OwnStack {}

/// What the program does about SIGSEGV without us. Written by [`handle_faults`] before the handler is set.
static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::zeroed()));

/// See [`BEFORE`].
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before anybody reads it: see `handle_faults`.
unsafe impl Sync for Before {}

/// Has `f` called with each fault of the process, in the thread that it happens in. It says whose fault it
/// is. To be called once.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn handle_faults(f: fn(&Access) -> Whose) {
    if cfg!(miri) || calls::is_confined() {
        return;
    }
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid action; the first call fills in what is in force, or fails, and then
    // nothing is set. Nobody reads `BEFORE` until the second call succeeds. The handler never unwinds.
    calls::keep_errno(|| unsafe {
        if libc::sigaction(libc::SIGSEGV, ptr::null(), action.as_mut_ptr()) != 0 {
            return;
        }
        let before = action.assume_init();
        *BEFORE.0.get() = MaybeUninit::new(before);
        ASKED.store(f as usize, SeqCst);
        let mut ours = before;
        ours.sa_sigaction = on_fault as *const () as usize;
        // What the handler before wants blocked, and whether it may be interrupted by itself, stays as it
        // was. So does the stack, since we call it on the one that we have been given: a thread's alternate
        // stack may be meant for something else, and too small for a handler that never asked for it.
        // Without such a handler an alternate stack is as good as any, and a stack that has no room left is
        // none.
        let kept = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK;
        let is_none = matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        let anywhere = if is_none { libc::SA_ONSTACK } else { 0 };
        ours.sa_flags = (before.sa_flags & kept) | anywhere | libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &raw const ours, ptr::null_mut());
    });
}

/// Takes the handler back, if it is the one in force.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn unhandle_faults() {
    if is_in_force() {
        put_back();
    }
}

/// Whether our handler is the one in force.
#[unsafe(link_section = "hakmem_rare")]
fn is_in_force() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid action, into which the call writes.
    calls::keep_errno(|| unsafe {
        libc::sigaction(libc::SIGSEGV, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init_ref().sa_sigaction == on_fault as *const () as usize
    })
}

/// What there was before our handler.
#[unsafe(link_section = "hakmem_rare")]
fn before() -> libc::sigaction {
    // SAFETY: whoever asks has found our handler set, and it was written before that. All zeros is valid.
    unsafe { (*BEFORE.0.get()).assume_init() }
}

/// Puts back what there was before.
#[unsafe(link_section = "hakmem_rare")]
fn put_back() {
    let before = before();
    // SAFETY: an action that was in force.
    calls::keep_errno(|| unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) });
}

/// Makes the next SIGSEGV end the process.
#[unsafe(link_section = "hakmem_rare")]
fn end_at_next() {
    // SAFETY: all zeros is a valid action, the default.
    calls::keep_errno(|| unsafe {
        let action = MaybeUninit::<libc::sigaction>::zeroed();
        libc::sigaction(libc::SIGSEGV, action.as_ptr(), ptr::null_mut())
    });
}

/// The handler. When it returns, the instruction is executed again.
#[unsafe(link_section = "hakmem_rare")]
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both. A signal that somebody has sent says nothing of an address.
    let (is_sent, address) = unsafe { ((*info).si_code <= 0, (*info).si_addr().addr()) };
    let f = ASKED.load(SeqCst);
    if !is_sent && f != 0 {
        // SAFETY: what `handle_faults` has stored.
        let f = unsafe { transmute::<usize, fn(&Access) -> Whose>(f) };
        // SAFETY: the kernel passes the registers of the instruction.
        let (pc, registers, writes) = unsafe { instruction(context) };
        // Another signal's handler would begin where ours has, if it runs on the alternate stack.
        let signals = Blocked::all();
        let whose = with_room(f, &Access { address, pc, registers, writes });
        drop(signals);
        if whose != Whose::NotOurs {
            let times = OURS.fetch_add(1, SeqCst);
            if times == 0 || whose == Whose::First {
                // A handler that was set later, and calls ours, has seen to it that it is called again.
                if is_in_force() {
                    put_back();
                }
            } else if whose == Whose::Again || times > MOST {
                // Such a handler would be called for ever.
                end_at_next();
            }
            // Another thread has put back what there was before, or is about to. That may be a handler of the
            // program, which is running by now: it must not be ended by this thread.
            return;
        }
    }
    let before = before();
    let is_none = matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    if is_none || before.sa_flags & libc::SA_RESETHAND != 0 {
        if is_sent && before.sa_sigaction == libc::SIG_IGN {
            return;
        }
        put_back();
        if is_sent {
            // SAFETY: sends this thread a signal, which is blocked until the handler returns.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    // SAFETY: a handler of the program, of the kind that its flags say, called as the kernel would.
    unsafe {
        if before.sa_flags & libc::SA_SIGINFO != 0 {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void);
            transmute::<usize, Handler>(before.sa_sigaction)(signal, info, context);
        } else {
            transmute::<usize, extern "C" fn(libc::c_int)>(before.sa_sigaction)(signal);
        }
    }
}

/// Calls `f` on a stack of our own, unless another thread is there.
#[unsafe(link_section = "hakmem_rare")]
fn with_room(f: fn(&Access) -> Whose, access: &Access) -> Whose {
    struct Call<'a>(fn(&Access) -> Whose, &'a Access, Whose);
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    extern "C" fn call(call: &mut Call<'_>) {
        call.2 = call.0(call.1);
    }
    if ON_STACK.swap(true, SeqCst) {
        return f(access);
    }
    let mut what = Call(f, access, Whose::NotOurs);
    let top = STACK.0.get().wrapping_add(1).cast::<u8>();
    // SAFETY: nobody else is on that stack, whose end is aligned as every call asks for. The stack pointer is
    // kept in a register that the function called preserves. It never unwinds.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, rsi",
            "call rax",
            "mov rsp, r12",
            out("r12") _,
            inlateout("rax") call as *const () => _,
            inlateout("rdi") &raw mut what => _,
            inlateout("rsi") top => _,
            clobber_abi("C"),
        );
    }
    // SAFETY: nobody else is on that stack; the rest is as for the other machine.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "mov sp, x1",
            "blr x2",
            "mov sp, x20",
            out("x20") _,
            inlateout("x0") &raw mut what => _,
            inlateout("x1") top => _,
            inlateout("x2") call as *const () => _,
            clobber_abi("C"),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = top;
        call(&mut what);
    }
    ON_STACK.store(false, SeqCst);
    what.2
}

/// The address of the instruction, the [registers](Access::registers), and whether it writes, where the
/// machine tells.
///
/// # Safety
///
/// `context` is what the kernel has passed to a handler of SIGSEGV.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn instruction(context: *mut c_void) -> (usize, [usize; 3], Option<bool>) {
    let _context = context.cast::<libc::ucontext_t>();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    // SAFETY: the caller's clause. Bit 1 of the error code says that it was a write.
    return unsafe {
        let registers = &(*_context).uc_mcontext.gregs;
        let error = registers[libc::REG_ERR as usize];
        let register = |at: libc::c_int| registers[at as usize] as usize;
        let walk = [register(libc::REG_RSP), register(libc::REG_RBP), register(libc::REG_RBX)];
        (register(libc::REG_RIP), walk, Some(error & 2 != 0))
    };
    #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
    // SAFETY: the caller's clause.
    return unsafe {
        let machine = &(*_context).uc_mcontext;
        let walk = [machine.sp, machine.regs[29], machine.regs[30]].map(|register| register as usize);
        (machine.pc as usize, walk, None)
    };
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux")))]
    (0, [0; 3], None)
}
