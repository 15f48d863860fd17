//! The unwind tables of compilers: DWARF call frame information in `.eh_frame`.
//!
//! gimli reads the entries, from copies of them. The state machine is here: it follows three registers only,
//! and so needs little stack.

use crate::os::peek;
use crate::stacks::frame::{EXTRA, FP, Frame, SP, Stack};
use crate::stacks::modules::{self, Code, ENTRY, TABLE_HEADER};
use crate::stacks::rules::{From, Known, Rule, Saved, Step, return_address};
use gimli::{
    BaseAddresses, CallFrameInstruction as Instruction, CfaRule, CommonInformationEntry, EhFrame, Encoding,
    EndianSlice, FrameDescriptionEntry, NativeEndian, Operation, Register, RegisterRule, UnwindExpression,
    UnwindSection,
};

type Bytes<'a> = EndianSlice<'a, NativeEndian>;

/// DWARF's number of the program counter, which expressions refer to; of no register on AArch64.
#[cfg(target_arch = "x86_64")]
const PC_NUMBER: u16 = 16;
#[cfg(not(target_arch = "x86_64"))]
const PC_NUMBER: u16 = u16::MAX;

/// The place of a register in [`Frame::registers`], by DWARF's number.
fn place(register: Register) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    let numbers = [7, 6, 3];
    #[cfg(not(target_arch = "x86_64"))]
    let numbers = [31, 29, 30];
    numbers.iter().position(|&number| number == register.0)
}

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

/// One row of the table: the rules at an address.
#[derive(Clone)]
struct Row {
    cfa: CfaRule<usize>,
    /// The frame pointer, the register by [`EXTRA`], the pc.
    saved: [RegisterRule<usize>; 3],
}

/// The places of registers in [`Row::saved`].
const ROW_FP: usize = 0;
const ROW_EXTRA: usize = 1;
const ROW_PC: usize = 2;

/// Rows that can be remembered. Compilers remember one.
const DEEPEST: usize = 2;

/// What is needed to run instructions.
struct Machine {
    row: Row,
    initial: [RegisterRule<usize>; 3],
    remembered: [Row; DEEPEST],
    depth: usize,
    return_address: Register,
    data_factor: i64,
    code_factor: u64,
}

/// Why instructions came to no end.
struct Broken;

impl Machine {
    fn new(cie: &CommonInformationEntry<Bytes<'_>>) -> Self {
        let saved = || [const { RegisterRule::SameValue }; 3];
        let row = || Row {
            cfa: CfaRule::RegisterAndOffset { register: Register(u16::MAX), offset: 0 },
            saved: saved(),
        };
        Self {
            row: row(),
            initial: saved(),
            remembered: [row(), row()],
            depth: 0,
            return_address: cie.return_address_register(),
            data_factor: cie.data_alignment_factor(),
            code_factor: cie.code_alignment_factor(),
        }
    }

    /// The rule of a register that is followed.
    fn place(&self, register: Register) -> Option<usize> {
        if register == self.return_address {
            return Some(ROW_PC);
        }
        match place(register) {
            Some(FP) => Some(ROW_FP),
            Some(EXTRA) => Some(ROW_EXTRA),
            _ => None,
        }
    }

    fn set(&mut self, register: Register, rule: RegisterRule<usize>) {
        if let Some(saved) = self.place(register).and_then(|place| self.row.saved.get_mut(place)) {
            *saved = rule;
        }
    }

    fn set_offset(&mut self, to: i64) -> Result<(), Broken> {
        let CfaRule::RegisterAndOffset { offset, .. } = &mut self.row.cfa else { return Err(Broken) };
        *offset = to;
        Ok(())
    }

    /// Runs instructions up to the row for `pc`, or all of them.
    #[unsafe(link_section = "hakmem_rare")]
    fn run(
        &mut self,
        mut instructions: gimli::CallFrameInstructionIter<'_, Bytes<'_>>,
        start: u64,
        pc: u64,
    ) -> Result<(), Broken> {
        let mut at = start;
        let signed = |offset: u64| i64::try_from(offset).map_err(|_| Broken);
        while let Some(instruction) = instructions.next().map_err(|_| Broken)? {
            let factor = self.data_factor;
            let factored = |offset: i64| offset.wrapping_mul(factor);
            match instruction {
                Instruction::SetLoc { address } => at = address,
                Instruction::AdvanceLoc { delta } => {
                    at = at.wrapping_add(u64::from(delta).wrapping_mul(self.code_factor));
                }
                Instruction::DefCfa { register, offset } => {
                    self.row.cfa = CfaRule::RegisterAndOffset { register, offset: signed(offset)? };
                }
                Instruction::DefCfaSf { register, factored_offset } => {
                    self.row.cfa = CfaRule::RegisterAndOffset { register, offset: factored(factored_offset) };
                }
                Instruction::DefCfaRegister { register: to } => {
                    let CfaRule::RegisterAndOffset { register, .. } = &mut self.row.cfa else {
                        return Err(Broken);
                    };
                    *register = to;
                }
                Instruction::DefCfaOffset { offset } => self.set_offset(signed(offset)?)?,
                Instruction::DefCfaOffsetSf { factored_offset } => {
                    self.set_offset(factored(factored_offset))?
                }
                Instruction::DefCfaExpression { expression } => {
                    self.row.cfa = CfaRule::Expression(expression)
                }
                Instruction::Undefined { register } => self.set(register, RegisterRule::Undefined),
                Instruction::SameValue { register } => self.set(register, RegisterRule::SameValue),
                Instruction::Offset { register, factored_offset } => {
                    self.set(register, RegisterRule::Offset(factored(signed(factored_offset)?)));
                }
                Instruction::OffsetExtendedSf { register, factored_offset } => {
                    self.set(register, RegisterRule::Offset(factored(factored_offset)));
                }
                Instruction::ValOffset { register, factored_offset } => {
                    self.set(register, RegisterRule::ValOffset(factored(signed(factored_offset)?)));
                }
                Instruction::ValOffsetSf { register, factored_offset } => {
                    self.set(register, RegisterRule::ValOffset(factored(factored_offset)));
                }
                Instruction::Register { dest_register, src_register } => {
                    self.set(dest_register, RegisterRule::Register(src_register));
                }
                Instruction::Expression { register, expression } => {
                    self.set(register, RegisterRule::Expression(expression));
                }
                Instruction::ValExpression { register, expression } => {
                    self.set(register, RegisterRule::ValExpression(expression));
                }
                Instruction::Restore { register } => {
                    let initial = self.place(register).and_then(|place| self.initial.get(place)).cloned();
                    self.set(register, initial.unwrap_or(RegisterRule::SameValue));
                }
                Instruction::RememberState => {
                    let place = self.remembered.get_mut(self.depth).ok_or(Broken)?;
                    place.clone_from(&self.row);
                    self.depth += 1;
                }
                Instruction::RestoreState => {
                    self.depth = self.depth.checked_sub(1).ok_or(Broken)?;
                    self.row.clone_from(self.remembered.get(self.depth).ok_or(Broken)?);
                }
                _ => {}
            }
            if at > pc {
                return Ok(());
            }
        }
        Ok(())
    }
}

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

// Functions of their own, not inlined, because each of them takes some stack.

/// The row for a pc.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn row<'a>(
    entry: &FrameDescriptionEntry<Bytes<'a>>,
    section: &EhFrame<Bytes<'a>>,
    bases: &BaseAddresses,
    pc: u64,
) -> Result<Row, Broken> {
    let mut machine = Machine::new(entry.cie());
    machine.run(entry.cie().instructions(section, bases), 0, u64::MAX)?;
    machine.initial.clone_from(&machine.row.saved);
    machine.run(entry.instructions(section, bases), entry.initial_address(), pc)?;
    Ok(machine.row)
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

/// DWARF expressions of a section.
struct Expressions<'a> {
    section: &'a EhFrame<Bytes<'a>>,
    encoding: Encoding,
}

impl<'a> Expressions<'a> {
    fn operations(&self, expression: &UnwindExpression<usize>) -> Option<gimli::OperationIter<Bytes<'a>>> {
        Some(expression.get(self.section).ok()?.operations(self.encoding))
    }

    /// The row as a rule, if it is as simple as that.
    fn simple(&self, row: &Row, is_signal: bool) -> Option<Rule> {
        let (register, offset, is_loaded) = match &row.cfa {
            CfaRule::RegisterAndOffset { register, offset } => (place(*register)?, *offset, false),
            CfaRule::Expression(expression) => self.register_and_offset(expression)?,
        };
        let [fp, extra, pc] = &row.saved;
        let mut from = From::Cfa;
        let mut saved = |rule: &RegisterRule<usize>| match rule {
            RegisterRule::SameValue => Some(Saved::Same),
            RegisterRule::Offset(offset) => Some(Saved::At(*offset)),
            RegisterRule::Expression(expression) => match self.register_and_offset(expression)? {
                (FP, offset, false) => {
                    from = From::Fp;
                    Some(Saved::At(offset))
                }
                _ => None,
            },
            _ => None,
        };
        let (saved_fp, saved_extra) = (saved(fp)?, saved(extra)?);
        // Where one of them counts from the frame pointer, all must.
        if from == From::Fp && [fp, extra].iter().any(|rule| matches!(rule, RegisterRule::Offset(_))) {
            return None;
        }
        let saved_pc = match pc {
            RegisterRule::Offset(offset) => Saved::At(*offset),
            RegisterRule::SameValue if cfg!(not(target_arch = "x86_64")) => Saved::Same,
            _ => return None,
        };
        Some(Rule {
            register,
            offset,
            is_loaded,
            from,
            pc: saved_pc,
            fp: saved_fp,
            extra: saved_extra,
            is_signal,
        })
    }

    /// An expression that is a register plus an offset, or the word there.
    fn register_and_offset(&self, expression: &UnwindExpression<usize>) -> Option<(usize, i64, bool)> {
        let mut operations = self.operations(expression)?;
        let Ok(Some(Operation::RegisterOffset { register, offset, .. })) = operations.next() else {
            return None;
        };
        let is_loaded = match operations.next() {
            Ok(None) => return Some((place(register)?, offset, false)),
            Ok(Some(Operation::Deref { size: 8, space: false, .. })) => true,
            _ => return None,
        };
        matches!(operations.next(), Ok(None)).then_some((place(register)?, offset, is_loaded))
    }

    /// The caller of a frame by a row.
    fn caller(&self, row: &Row, frame: &Frame, stack: &mut Stack, is_signal: bool) -> Option<Frame> {
        let cfa = match &row.cfa {
            CfaRule::RegisterAndOffset { register, offset } => {
                frame.registers.get(place(*register)?)?.wrapping_add_signed(*offset as isize)
            }
            CfaRule::Expression(expression) => self.evaluate(expression, None, frame, stack)?,
        };
        let mut value = |rule: &RegisterRule<usize>, same: usize| match rule {
            RegisterRule::SameValue => Some(same),
            RegisterRule::Offset(offset) => stack.load(cfa.wrapping_add_signed(*offset as isize)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset as isize)),
            RegisterRule::Register(register) => frame.registers.get(place(*register)?).copied(),
            RegisterRule::Expression(expression) => {
                let at = self.evaluate(expression, Some(cfa), frame, stack)?;
                stack.load(at)
            }
            RegisterRule::ValExpression(expression) => self.evaluate(expression, Some(cfa), frame, stack),
            _ => None,
        };
        let [fp, extra, pc] = &row.saved;
        let pc = value(pc, frame.registers[EXTRA])?;
        let fp = value(fp, frame.registers[FP])?;
        let extra = value(extra, frame.registers[EXTRA])?;
        let pc = if is_signal { pc } else { return_address(pc) };
        Some(Frame { pc, registers: [cfa, fp, extra], is_exact: is_signal, is_sp_a_guess: false })
    }

    /// The value of an expression, which begins with the CFA on its stack if there is one.
    #[unsafe(link_section = "hakmem_rare")]
    fn evaluate(
        &self,
        expression: &UnwindExpression<usize>,
        cfa: Option<usize>,
        frame: &Frame,
        stack: &mut Stack,
    ) -> Option<usize> {
        let mut values = Values { values: [0; 8], len: 0 };
        if let Some(cfa) = cfa {
            values.push(cfa)?;
        }
        let mut operations = self.operations(expression)?;
        while let Some(operation) = operations.next().ok()? {
            let value = match operation {
                Operation::RegisterOffset { register, offset, .. } => {
                    let value = match place(register) {
                        Some(place) => *frame.registers.get(place)?,
                        None if register.0 == PC_NUMBER => frame.pc,
                        None => return None,
                    };
                    value.wrapping_add_signed(offset as isize)
                }
                Operation::UnsignedConstant { value } => value as usize,
                Operation::SignedConstant { value } => value as usize,
                Operation::PlusConstant { value } => values.pop()?.wrapping_add(value as usize),
                Operation::Deref { size: 8, space: false, .. } => {
                    let at = values.pop()?;
                    stack.load(at)?
                }
                Operation::Pick { index } => values.pick(index.into())?,
                Operation::Nop => continue,
                _ => {
                    let (b, a) = (values.pop()?, values.pop()?);
                    let (x, y) = (a as isize, b as isize);
                    match operation {
                        Operation::And => a & b,
                        Operation::Or => a | b,
                        Operation::Xor => a ^ b,
                        Operation::Plus => a.wrapping_add(b),
                        Operation::Minus => a.wrapping_sub(b),
                        Operation::Mul => a.wrapping_mul(b),
                        Operation::Shl => a.checked_shl(b as u32).unwrap_or(0),
                        Operation::Shr => a.checked_shr(b as u32).unwrap_or(0),
                        Operation::Eq => (x == y).into(),
                        Operation::Ne => (x != y).into(),
                        Operation::Ge => (x >= y).into(),
                        Operation::Gt => (x > y).into(),
                        Operation::Le => (x <= y).into(),
                        Operation::Lt => (x < y).into(),
                        _ => return None,
                    }
                }
            };
            values.push(value)?;
        }
        values.pop()
    }
}

/// The stack of an expression.
struct Values {
    values: [usize; 8],
    len: usize,
}

impl Values {
    fn push(&mut self, value: usize) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<usize> {
        self.len = self.len.checked_sub(1)?;
        self.values.get(self.len).copied()
    }

    /// The value that lies below so many others.
    fn pick(&self, index: usize) -> Option<usize> {
        self.values.get(self.len.checked_sub(index + 1)?).copied()
    }
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
