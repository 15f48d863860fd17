//! What a row says of a frame's caller: as a rule to remember, or at once, by DWARF's expressions.

use crate::stacks::frame::{EXTRA, FP, Frame, Stack};
use crate::stacks::rows::{Bytes, Row, place};
use crate::stacks::rules::{From, Rule, Saved, return_address};
use gimli::{CfaRule, EhFrame, Encoding, Operation, RegisterRule, UnwindExpression};

/// DWARF's number of the program counter, which expressions refer to; of no register on AArch64.
#[cfg(target_arch = "x86_64")]
const PC_NUMBER: u16 = 16;
#[cfg(not(target_arch = "x86_64"))]
const PC_NUMBER: u16 = u16::MAX;

/// DWARF expressions of a section.
pub(super) struct Expressions<'a> {
    pub(super) section: &'a EhFrame<Bytes<'a>>,
    pub(super) encoding: Encoding,
}

impl<'a> Expressions<'a> {
    fn operations(&self, expression: &UnwindExpression<usize>) -> Option<gimli::OperationIter<Bytes<'a>>> {
        Some(expression.get(self.section).ok()?.operations(self.encoding))
    }

    /// The row as a rule, if it is as simple as that.
    pub(super) fn simple(&self, row: &Row, is_signal: bool) -> Option<Rule> {
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
    pub(super) fn caller(
        &self,
        row: &Row,
        frame: &Frame,
        stack: &mut Stack,
        is_signal: bool,
    ) -> Option<Frame> {
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
