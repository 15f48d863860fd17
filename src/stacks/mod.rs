//! Who called: the return addresses on the calling thread's stack, from inside an allocation.
//!
//! A walk goes from frame to frame by the unwind tables that compilers write for exceptions, which nearly all
//! code has (`cfi.rs`, `rows.rs`, `expressions.rs`); code that has none, such as what a program compiles at
//! run time, by its frame pointers. What was found for a pc is remembered as a rule of one word (`rules.rs`).
//! Nothing is believed: stacks are read where the kernel says that they can be (`frame.rs`), the tables are
//! copied by system call (`modules.rs`, `elf.rs`, `cfi.rs`), and a walk has an end.
//!
//! Nothing here allocates, waits, or calls the C library but for system calls.

mod cfi;
mod copies;
mod elf;
mod expressions;
mod frame;
mod list;
mod maps;
pub(crate) mod modules;
mod rows;
mod rules;
#[cfg(test)]
mod tests;

use crate::os::{self, peek};
use cfi::Found;
use frame::{EXTRA, Frame, SP, Stack};
use list::Code;
use rules::{Known, Step, Table};

/// Frames that are walked at most.
pub(crate) const DEEPEST: usize = 128;

/// How a walk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At the outermost frame.
    Complete,
    /// There is no room for more frames.
    Full,
    /// It could not be told what the next frame is.
    Stopped,
    /// There was no walk: not on this system, or the process has given up the system calls for it.
    None,
}

/// What a walk has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Captured {
    /// How many return addresses.
    pub depth: usize,
    /// Why not more.
    pub end: End,
}

/// What was found out about code so far.
static KNOWN: Table = Table::new();

/// Writes the return addresses on the stack to `pcs`, the innermost first: that of the call of this function.
/// The call is in front of the address; of code that a signal has interrupted the address is one more than
/// that of the next instruction.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn capture(pcs: &mut [usize]) -> Captured {
    let Some(frame) = own().filter(|_| !os::is_confined()) else {
        return Captured { depth: 0, end: End::None };
    };
    peek::begin();
    let mut go = || walk(frame, Stack::at(frame.registers[SP]), pcs);
    let captured = go();
    // Perhaps a module has been replaced by another one.
    if captured.end == End::Stopped && modules::reread(false) { go() } else { captured }
}

/// The same for code that a signal has interrupted at `pc`: writes the return addresses on its stack. The
/// `registers` are its stack pointer, its frame pointer, and `rbx` or the link register.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn capture_interrupted(pc: usize, registers: [usize; 3], pcs: &mut [usize]) -> Captured {
    if pc == 0 || os::is_confined() {
        return Captured { depth: 0, end: End::None };
    }
    peek::begin();
    let frame = Frame { pc, registers, is_exact: true, is_sp_a_guess: false };
    walk(frame, Stack::at(registers[SP]), pcs)
}

/// The frame of the function that this is inlined into.
#[inline(always)]
fn own() -> Option<Frame> {
    #[cfg_attr(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))), allow(unused_macros))]
    macro_rules! frame {
        ($($copy:literal),*) => {{
            let (pc, sp, fp, extra);
            // SAFETY: copies registers.
            unsafe {
                core::arch::asm!(
                    $($copy,)*
                    pc = out(reg) pc,
                    sp = out(reg) sp,
                    fp = out(reg) fp,
                    extra = out(reg) extra,
                    options(nomem, nostack, preserves_flags),
                );
            }
            Some(Frame { pc, registers: [sp, fp, extra], is_exact: true, is_sp_a_guess: false })
        }};
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return frame!("lea {pc}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp", "mov {extra}, rbx");
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    return frame!("adr {pc}, .", "mov {sp}, sp", "mov {fp}, x29", "mov {extra}, x30");
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    None
}

/// How often a walk may go to a lower address: to the stack that a signal has interrupted, or another one
/// that a program has changed from.
const BACK: usize = 8;

/// Walks from a frame on.
#[unsafe(link_section = "hakmem_rare")]
fn walk(mut frame: Frame, mut stack: Stack, pcs: &mut [usize]) -> Captured {
    let most = pcs.len().min(DEEPEST);
    let (mut depth, mut back) = (0, 0);
    let mut checked = Checked::default();
    let end = loop {
        let step = match KNOWN.get(frame.instruction(), modules::gone()) {
            Some(word) => match rules::caller_by_word(word, &frame, &mut stack) {
                Some(caller) => Step::Caller(caller),
                None => apply(Known::unpack(word), &frame, &mut stack),
            },
            None => look_up(&frame, &mut stack, &mut checked),
        };
        let caller = match step {
            Step::Caller(caller) => caller,
            Step::Outermost => break End::Complete,
            Step::Lost => break End::Stopped,
        };
        if caller.pc == 0 {
            // Where coroutines start. But a rule of a module that has gone may have led to a wrong word.
            break if modules::is_still_at(frame.instruction()) { End::Complete } else { End::Stopped };
        }
        let (from, to) = (frame.registers[SP], caller.registers[SP]);
        if caller.is_exact {
            stack.go_to(to);
        }
        back += usize::from(to < from);
        if back > BACK || (to == from && caller.pc == frame.pc) {
            break End::Stopped;
        }
        frame = caller;
        let Some(place) = pcs.get_mut(depth).filter(|_| depth < most) else { break End::Full };
        *place = frame.pc.wrapping_add(frame.is_exact as usize);
        depth += 1;
    };
    Captured { depth, end }
}

/// The modules that were found to be [what they were](modules::is_still) in one walk.
#[derive(Default)]
struct Checked {
    modules: [(usize, usize); 4],
    next: usize,
}

impl Checked {
    /// Whether what is mapped at a module's address is still that module, or was a moment ago.
    fn is_still(&mut self, code: &Code) -> bool {
        let module = (code.base, code.fingerprint);
        if self.modules.contains(&module) {
            return true;
        }
        let is_still = modules::is_still(code);
        if is_still {
            self.modules[self.next % 4] = module;
            self.next += 1;
        }
        is_still
    }
}

/// The step from a frame whose pc was not seen before, or not for long.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn look_up(frame: &Frame, stack: &mut Stack, checked: &mut Checked) -> Step {
    let pc = frame.instruction();
    // Before the module is looked up: see there.
    let mut gone = modules::gone();
    let Some(mut code) = modules::find_or_reread(pc) else { return by_frame_pointer(frame, stack) };
    if code.table != 0 && !checked.is_still(&code) {
        modules::reread(false);
        // What was copied of the tables that were there before does not hold any more.
        gone = modules::gone();
        match modules::find(pc) {
            Some(now) if checked.is_still(&now) => code = now,
            _ => return by_frame_pointer(frame, stack),
        }
    }
    if code.table == 0 {
        // Not remembered: what a program compiles comes and goes.
        return by_frame_pointer(frame, stack);
    }
    let known = match cfi::look_up(&code, gone, frame, stack) {
        Found::Known(known) => known,
        Found::Step(step) => return step,
        // Perhaps it can be read the next time: not remembered.
        Found::Unreadable => return by_frame_pointer(frame, stack),
    };
    KNOWN.put(pc, gone, known);
    apply(known, frame, stack)
}

/// The step from a frame by what is known of its pc.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn apply(known: Known, frame: &Frame, stack: &mut Stack) -> Step {
    match known {
        Known::Rule(rule) => rule.apply(frame, stack),
        Known::Outermost => Step::Outermost,
        Known::NoTable => by_frame_pointer(frame, stack),
    }
}

/// The step from a frame of code without unwind tables, if it keeps the frame pointer: it points at the
/// caller's, and behind that is the return address.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn by_frame_pointer(frame: &Frame, stack: &mut Stack) -> Step {
    const WORD: usize = size_of::<usize>();
    let [sp, fp, _] = frame.registers;
    if fp == 0 {
        // By convention, in the code that starts a program or a thread (musl's).
        let is_file = modules::find(frame.instruction()).is_some_and(|code| code.base != 0);
        return if is_file { Step::Outermost } else { Step::Lost };
    }
    if fp % WORD != 0 || !stack.reaches(sp, fp) {
        return Step::Lost;
    }
    stack.guess();
    let (Some(callers), Some(pc)) = (stack.load(fp), stack.load(fp.wrapping_add(WORD))) else {
        return Step::Lost;
    };
    let pc = rules::return_address(pc);
    // It must lie in code: what was taken for a frame pointer may be anything.
    if pc != 0 && modules::find_or_reread(pc.wrapping_sub(1)).is_none() {
        return Step::Lost;
    }
    let mut registers = [fp.wrapping_add(2 * WORD), callers, frame.registers[EXTRA]];
    let is_sp_a_guess = cfg!(not(target_arch = "x86_64"));
    if is_sp_a_guess {
        registers[EXTRA] = pc;
    }
    Step::Caller(Frame { pc, registers, is_exact: false, is_sp_a_guess })
}
