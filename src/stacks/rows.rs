//! The rows of unwind tables: the rules at an address, found by running the instructions of an entry. The
//! state machine is ours: it follows three registers only, and so needs little stack.

use crate::stacks::frame::{EXTRA, FP};
use gimli::{
    BaseAddresses, CallFrameInstruction as Instruction, CfaRule, CommonInformationEntry, EhFrame,
    EndianSlice, FrameDescriptionEntry, NativeEndian, Register, RegisterRule,
};

/// What gimli reads.
pub(super) type Bytes<'a> = EndianSlice<'a, NativeEndian>;

/// The place of a register in [`Frame::registers`], by DWARF's number.
pub(super) fn place(register: Register) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    let numbers = [7, 6, 3];
    #[cfg(not(target_arch = "x86_64"))]
    let numbers = [31, 29, 30];
    numbers.iter().position(|&number| number == register.0)
}

/// One row of the table: the rules at an address.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) cfa: CfaRule<usize>,
    /// The frame pointer, the register by [`EXTRA`], the pc.
    pub(super) saved: [RegisterRule<usize>; 3],
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
pub(super) struct Broken;

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

/// The row for a pc. Not inlined, as others here and in `cfi.rs`, because each of them takes some stack.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn row<'a>(
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
