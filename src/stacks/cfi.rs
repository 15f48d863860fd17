//! The unwind tables of compilers: DWARF call frame information in `.eh_frame`.
//!
//! gimli reads the entries, from copies of them; `rows.rs` and `expressions.rs` find out what they say.

use crate::os::peek;
use crate::stacks::elf::{ENTRY, TABLE_HEADER};
use crate::stacks::expressions::Expressions;
use crate::stacks::frame::{Frame, SP, Stack};
use crate::stacks::list::Code;
use crate::stacks::modules;
use crate::stacks::rows::{Bytes, row};
use crate::stacks::rules::{From, Known, Rule, Saved, Step};
use gimli::{BaseAddresses, EhFrame, FrameDescriptionEntry, NativeEndian, RegisterRule, UnwindSection};

/// Entries of the table that are read at once.
const WINDOW: usize = 64;

/// The entry in `.eh_frame` that may describe the pc: the last one in the table that begins before it.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn find(code: &Code, pc: usize) -> Option<usize> {
    let header = code.table.checked_sub(TABLE_HEADER)?;
    let mut bytes = [0u8; WINDOW * ENTRY];
    let (mut low, mut high) = (0, code.entries);
    // Where the function of `low` and that of `high` are: both only to guess by.
    let (mut from, mut to) = (code.start, code.end);
    let mut is_guess = true;
    while low < high {
        let len = high - low;
        // By where the pc lies between the two, in turn with the middle, which makes sure of an end.
        let part = pc.checked_sub(from).filter(|_| is_guess && to > from);
        let near = part.map_or(len / 2, |part| (len as u128 * part as u128 / (to - from) as u128) as usize);
        is_guess = !is_guess;
        let start = low + near.min(len).saturating_sub(WINDOW / 2).min(len.saturating_sub(WINDOW));
        let count = len.min(WINDOW);
        let window = bytes.get_mut(..count * ENTRY)?;
        if peek::copy(code.table.wrapping_add(start * ENTRY), window) != count * ENTRY {
            return None;
        }
        let word = |entry: &[u8], at: usize| {
            let offset = entry.get(at..at + 4)?.iter().rev().fold(0u32, |n, &byte| n << 8 | u32::from(byte));
            Some(header.wrapping_add_signed(offset as i32 as isize))
        };
        let entries = || window.chunks_exact(ENTRY);
        let before = entries().take_while(|entry| word(entry, 0).is_some_and(|at| at <= pc)).count();
        if before == 0 {
            (high, to) = (start, word(window, 0)?);
        } else if before == count && start + count < high {
            let last = window.get((count - 1) * ENTRY..)?;
            // The last one may be the one.
            (low, from) = (start + count - 1, word(last, 0)?);
            if high - low == 1 {
                return word(last, 4);
            }
        } else {
            return word(entries().nth(before - 1)?, 4);
        }
    }
    None
}

/// Bytes of an entry that are copied to the stack. One in a thousand is longer.
const LONGEST: usize = 640;
/// Bytes of the entry that several have in common (CIE).
const LONGEST_COMMON: usize = 128;

/// What was found for a frame.
pub(super) enum Found {
    /// What holds for its pc.
    Known(Known),
    /// What holds for this frame only.
    Step(Step),
}

/// What the tables of the module say about a frame.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn look_up(code: &Code, frame: &Frame, stack: &mut Stack) -> Found {
    let pc = frame.instruction();
    if cfg!(target_arch = "aarch64") && is_signal_return(frame.pc) {
        return Found::Known(Known::Rule(SIGNAL));
    }
    let found = find(code, pc).and_then(|entry| read(entry, frame, pc, stack));
    match found {
        Some(found) => found,
        None if is_signal_return(frame.pc) => Found::Known(Known::Rule(SIGNAL)),
        None => Found::Known(Known::NoTable),
    }
}

/// A number of 4 bytes, little-endian.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(bytes.get(at..at.checked_add(4)?)?.iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte)))
}

/// What an entry says. `None` if it is not about this pc.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn read(entry: usize, frame: &Frame, pc: usize, stack: &mut Stack) -> Option<Found> {
    let mut bytes = [0u8; LONGEST_COMMON + LONGEST];
    let lost = Some(Found::Step(Step::Lost));
    match copy(entry, &mut bytes)? {
        true => read_copy(entry, &bytes, frame, pc, stack),
        false => modules::with_buffer(|bytes| match copy(entry, bytes)? {
            true => read_copy(entry, bytes, frame, pc, stack),
            false => None,
        })
        .unwrap_or(lost),
    }
}

/// Copies an entry and the part that it has in common with others, as a section in which the latter comes
/// first and the entry is at [`LONGEST_COMMON`]. False if there is too little room.
fn copy(entry: usize, bytes: &mut [u8]) -> Option<bool> {
    let (common, own) = bytes.split_at_mut_checked(LONGEST_COMMON)?;
    let copied = peek::copy(entry, own);
    // 4 bytes that are all ones say that the length has 8 bytes: nobody writes such a section.
    let len = (number(own, 0)? as usize).checked_add(4)?;
    if len > copied {
        return if copied == own.len() { Some(false) } else { None };
    }
    // The common part is this far before the field that says so.
    let back = number(own, 4)? as usize;
    let n = peek::copy(entry.wrapping_add(4).wrapping_sub(back), common);
    if (number(common, 0)? as usize).checked_add(4)? > n {
        return None;
    }
    own.get_mut(4..8)?.copy_from_slice(&(LONGEST_COMMON as u32 + 4).to_le_bytes());
    Some(true)
}

/// What the copy of an entry says.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn read_copy(entry: usize, bytes: &[u8], frame: &Frame, pc: usize, stack: &mut Stack) -> Option<Found> {
    let section = EhFrame::new(bytes, NativeEndian);
    let bases = BaseAddresses::default().set_eh_frame(entry.wrapping_sub(LONGEST_COMMON) as u64);
    let entry = parse(&section, &bases)?;
    if !entry.contains(pc as u64) {
        return None;
    }
    if entry.is_signal_trampoline() && is_signal_return(frame.pc) {
        return Some(Found::Known(Known::Rule(SIGNAL)));
    }
    let Ok(row) = row(&entry, &section, &bases, pc as u64) else {
        return Some(Found::Step(Step::Lost));
    };
    if matches!(row.saved, [.., RegisterRule::Undefined]) {
        return Some(Found::Known(Known::Outermost));
    }
    let expressions = Expressions { section: &section, encoding: entry.cie().encoding() };
    if let Some(rule) = expressions.simple(&row, entry.is_signal_trampoline()) {
        return Some(Found::Known(Known::Rule(rule)));
    }
    let caller = expressions.caller(&row, frame, stack, entry.is_signal_trampoline());
    Some(Found::Step(caller.map_or(Step::Lost, Step::Caller)))
}

/// The entry that [`read`] has copied.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn parse<'a>(
    section: &EhFrame<Bytes<'a>>,
    bases: &BaseAddresses,
) -> Option<FrameDescriptionEntry<Bytes<'a>>> {
    section.fde_from_offset(bases, LONGEST_COMMON.into(), EhFrame::cie_from_offset).ok()
}

/// The code that a signal handler returns to.
#[cfg(target_arch = "x86_64")]
const SIGNAL_RETURN: &[u8] = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05";
#[cfg(not(target_arch = "x86_64"))]
const SIGNAL_RETURN: &[u8] = b"\x68\x11\x80\xd2\x01\x00\x00\xd4";

/// Where the kernel has saved the registers of what a signal has interrupted: in `uc_mcontext`, counted from
/// the stack pointer after the handler's return.
const SIGNAL: Rule = {
    #[cfg(target_arch = "x86_64")]
    let [sp, fp, extra, pc] = [160, 120, 128, 168];
    #[cfg(not(target_arch = "x86_64"))]
    let [sp, fp, extra, pc] = [560, 544, 552, 568];
    Rule {
        register: SP,
        offset: sp,
        is_loaded: true,
        from: From::Sp,
        pc: Saved::At(pc),
        fp: Saved::At(fp),
        extra: Saved::At(extra),
        is_signal: true,
    }
};

/// Whether the code there returns from a signal handler. C libraries describe it in different ways or not at
/// all (musl).
fn is_signal_return(pc: usize) -> bool {
    let mut bytes = [0; SIGNAL_RETURN.len()];
    peek::copy(pc, &mut bytes) == bytes.len() && bytes == SIGNAL_RETURN
}
