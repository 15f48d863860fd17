//! The unwind tables of compilers: DWARF call frame information in `.eh_frame`.
//!
//! gimli reads the entries, from copies of them; `rows.rs` and `expressions.rs` find out what they say.

use crate::os::peek;
use crate::stacks::copies::{ALONE, Reader};
use crate::stacks::elf::{ENTRY, TABLE_HEADER};
use crate::stacks::expressions::Expressions;
use crate::stacks::frame::{Frame, SP, Stack};
use crate::stacks::list::Code;
use crate::stacks::modules;
use crate::stacks::rows::{Bytes, row};
use crate::stacks::rules::{From, Known, Rule, Saved, Step};
use gimli::{BaseAddresses, EhFrame, FrameDescriptionEntry, NativeEndian, RegisterRule, UnwindSection};

/// The entry in `.eh_frame` that may describe the pc: the last one in the table that begins before it.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn find(code: &Code, pc: usize, reader: &mut Reader) -> Option<usize> {
    let header = code.table.checked_sub(TABLE_HEADER)?;
    let mut alone = [0u8; ALONE];
    // Functions before `low` begin before the pc, those from `high` on do not.
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
        let guess = code.table.wrapping_add((low + near.min(len - 1)) * ENTRY);
        let (start, bytes) = reader.around(guess, &mut alone)?;
        // The entries whose first half is there: an entry may begin in the last bytes.
        let first = low.max(start.saturating_sub(code.table).div_ceil(ENTRY));
        let entries = bytes.get(code.table.wrapping_add(first * ENTRY).wrapping_sub(start)..)?;
        let count = entries.len().div_ceil(ENTRY).min(high - first);
        let function = |n: usize| {
            let offset = number(entries, n * ENTRY)?;
            Some(header.wrapping_add_signed(offset as i32 as isize))
        };
        let (mut before, mut behind) = (0, count);
        while before < behind {
            let middle = before.midpoint(behind);
            if function(middle)? <= pc { before = middle + 1 } else { behind = middle }
        }
        if before == 0 {
            (high, to) = (first, function(0)?);
        } else {
            (low, from) = (first + before, function(before - 1)?);
            if before < count {
                high = low;
            }
        }
    }
    let mut offset = [0; 4];
    let place = code.table.wrapping_add(low.checked_sub(1)? * ENTRY + 4);
    (reader.copy(place, &mut offset) == 4)
        .then(|| header.wrapping_add_signed(i32::from_le_bytes(offset) as isize))
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
    /// Nothing: a part of the tables could not be read.
    Unreadable,
}

/// What the tables of the module say about a frame.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn look_up(code: &Code, gone: u32, frame: &Frame, stack: &mut Stack) -> Found {
    let pc = frame.instruction();
    if cfg!(target_arch = "aarch64") && is_signal_return(frame.pc) {
        return Found::Known(Known::Rule(SIGNAL));
    }
    let mut reader = Reader::new(gone);
    let found = find(code, pc, &mut reader).and_then(|entry| read(entry, &mut reader, frame, pc, stack));
    match found {
        Some(found) => found,
        None if is_signal_return(frame.pc) => Found::Known(Known::Rule(SIGNAL)),
        None if reader.has_failed() => Found::Unreadable,
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
fn read(entry: usize, reader: &mut Reader, frame: &Frame, pc: usize, stack: &mut Stack) -> Option<Found> {
    let mut bytes = [0u8; LONGEST_COMMON + LONGEST];
    let lost = Some(Found::Step(Step::Lost));
    match copy(entry, reader, &mut bytes)? {
        true => read_copy(entry, &bytes, frame, pc, stack),
        false => modules::with_buffer(|bytes| match copy(entry, reader, bytes)? {
            true => read_copy(entry, bytes, frame, pc, stack),
            false => None,
        })
        .unwrap_or(lost),
    }
}

/// Copies an entry and the part that it has in common with others, as a section in which the latter comes
/// first and the entry is at [`LONGEST_COMMON`]. False if there is too little room.
fn copy(entry: usize, reader: &mut Reader, bytes: &mut [u8]) -> Option<bool> {
    let (common, own) = bytes.split_at_mut_checked(LONGEST_COMMON)?;
    if reader.entry(entry, own)? > own.len() {
        return Some(false);
    }
    // The common part is this far before the field that says so.
    let back = number(own, 4)? as usize;
    if reader.entry(entry.wrapping_add(4).wrapping_sub(back), common)? > common.len() {
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
