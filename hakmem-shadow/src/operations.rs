//! From bytes to operations. Any bytes are a program.
//!
//! The first byte is about the whole; after that, each operation is one byte, whose lower five bits say which
//! it is and whose upper three are its first parameter, and the parameters' bytes. Where bytes are missing
//! the program ends. `docs/verification.md` has the table.

use crate::faults;

/// A function that allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Each is what its name says.
pub enum Request {
    Rust,
    RustZeroed,
    Malloc,
    Calloc,
    /// `realloc` of null.
    Realloc,
    ReallocArray,
    PosixMemalign,
    AlignedAlloc,
    Memalign,
    Valloc,
    Pvalloc,
    New,
    NewNothrow,
    NewAligned,
}

impl Request {
    fn of(number: u8) -> Self {
        use Request::*;
        const ALL: [Request; 16] = [
            Rust,
            Malloc,
            Rust,
            Malloc,
            RustZeroed,
            Calloc,
            Realloc,
            ReallocArray,
            PosixMemalign,
            AlignedAlloc,
            Memalign,
            Valloc,
            Pvalloc,
            New,
            NewNothrow,
            NewAligned,
        ];
        ALL[usize::from(number) % ALL.len()]
    }
}

/// How a block is freed; what does not fit its family is taken for the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// `free`, `delete`, `dealloc`.
    Plain,
    /// With the size, and the alignment where it has a special one.
    Sized,
    /// `realloc` to 0 bytes, in C.
    ByRealloc,
}

/// What one thread does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One block.
    Allocate(Request, usize, usize),
    /// Blocks of one size.
    Many(Request, usize, usize),
    /// The block of that number, modulo those that the thread has.
    Free(usize, Free),
    /// Each block of which the number is a multiple of the first, of the last so many.
    FreeMany(usize, usize, Free),
    /// Another size for a block.
    Resize(usize, usize),
    /// Steps by which a block grows.
    Grow(usize, u8),
    /// Looks at what is in a block, and at how large it says it is.
    Touch(usize),
    /// Hands the last so many blocks to another thread.
    Give(usize, usize),
    /// Frees, or keeps, what others have handed over.
    Take(bool),
    /// Gives memory back.
    Purge,
    /// Asks for the figures, and checks them if nobody else is at work.
    Figures,
    /// Soft and hard limit: SuperSlabs above what is held; 0 for none.
    Limits(u8, u8),
    /// Starts or stops the background thread.
    Background(bool),
    /// Starts (by rate), stops or writes a profile.
    Profile(Profile),
    /// Charges what comes to one of some tags; 0 for none.
    Scope(u8),
    /// Forks; the child does the same as a thread with these bytes.
    Fork(Vec<u8>),
    /// Calls of these kinds fail, after so many, for so many.
    Fail(u8, u16, u16),
    /// Waits a moment.
    Wait,
    /// The thread ends; a new one takes its place and its blocks. If so, blocks are freed as late as it goes.
    Exit(bool),
}

/// What is done with the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One sample in so many bytes.
    Start(usize),
    /// Stops it.
    Stop,
    /// Writes it to a file.
    Write,
}

/// The most threads of a program, with the one that runs it.
pub const THREADS: usize = 4;

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// One thread at a time does its operations, in order: a run can be repeated.
    pub in_turn: bool,
    /// The thread of each part, and what it does.
    pub parts: Vec<(usize, Vec<Operation>)>,
}

/// Bytes that are read one after the other.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
    fn two(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) | usize::from(self.byte()?) << 8)
    }
    fn some(&mut self, n: usize) -> Vec<u8> {
        let (some, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        some.to_vec()
    }

    /// A size: mostly small, all borders, now and then large, or larger than there can be.
    fn size(&mut self) -> Option<usize> {
        let kind = self.byte()?;
        let more = usize::from(kind >> 3);
        Some(match kind & 7 {
            0..=2 => usize::from(self.byte()?),
            3 => more * 256 + usize::from(self.byte()?),
            4 => self.two()?,
            5 => ((1 << (more % 24)) + usize::from(self.byte()?) % 5).saturating_sub(2),
            6 => self.two()? << 6,
            _ => match more {
                0 => usize::MAX - usize::from(self.byte()?),
                1 => (isize::MAX as usize).saturating_add(usize::from(self.byte()?)) - 128,
                2 => 1 << (40 + self.byte()? % 20),
                _ => self.two()? << 9,
            },
        })
    }

    /// An alignment: mostly the usual one.
    fn align(&mut self) -> Option<usize> {
        let byte = self.byte()?;
        Some(if byte < 128 { 8 << (byte % 2) } else { 1 << (byte % 23) })
    }
}

/// Decodes what one thread does, up to `most` operations.
pub fn operations(bytes: &[u8], most: usize) -> Vec<Operation> {
    let mut bytes = Bytes(bytes);
    let mut all = Vec::new();
    while all.len() < most {
        let Some(Step::Do(operation)) = next(&mut bytes) else {
            if bytes.0.is_empty() {
                break;
            }
            continue;
        };
        all.push(operation);
    }
    all
}

enum Step {
    Do(Operation),
    /// Another thread is next.
    To(usize),
}

fn next(bytes: &mut Bytes) -> Option<Step> {
    let byte = bytes.byte()?;
    let (kind, more) = (byte & 31, byte >> 5);
    let how = |n: u8| match n {
        0..=3 => Free::Plain,
        4..=6 => Free::Sized,
        _ => Free::ByRealloc,
    };
    Some(Step::Do(match kind {
        0..=3 => {
            let request = Request::of(more | (kind & 1) << 3);
            Operation::Allocate(request, bytes.size()?, bytes.align()?)
        }
        4..=6 => {
            let request = Request::of(more | (kind & 1) << 3);
            Operation::Many(request, bytes.size()?, 1 + usize::from(bytes.byte()?) * 8)
        }
        7..=9 => Operation::Free(bytes.two()?, how(more)),
        10..=12 => {
            let most = 1 + usize::from(bytes.byte()?) * 8;
            Operation::FreeMany(1 + usize::from(more & 3), most, how(more))
        }
        13 | 14 => Operation::Resize(bytes.two()?, bytes.size()?),
        15 => Operation::Grow(bytes.two()?, more),
        16 => Operation::Touch(bytes.two()?),
        17 | 18 => Operation::Give(usize::from(more), 1 + usize::from(bytes.byte()?) * 4),
        19 => Operation::Take(more & 1 != 0),
        20 => Operation::Purge,
        21 => Operation::Figures,
        22 => Operation::Limits(bytes.byte()?, bytes.byte()?),
        23 => Operation::Background(more & 1 != 0),
        24 => Operation::Profile(match more {
            0..=4 => Profile::Start(1 + (bytes.two()? << more)),
            5 | 6 => Profile::Write,
            _ => Profile::Stop,
        }),
        25 => Operation::Scope(more),
        26 => {
            let n = bytes.byte()?;
            Operation::Fork(bytes.some(usize::from(n % 64)))
        }
        27 | 28 => {
            let kinds = if more == 0 { faults::MAP } else { (more << 1) & 15 | more >> 2 };
            let (pass, fail) = (bytes.byte()?, bytes.byte()?);
            Operation::Fail(kinds, u16::from(pass & 15), u16::from(fail % 32))
        }
        29 => {
            if more == 7 {
                Operation::Wait
            } else {
                Operation::Exit(more & 1 != 0)
            }
        }
        _ => return Some(Step::To(usize::from(more) % THREADS)),
    }))
}

/// Decodes a whole program.
pub fn program(bytes: &[u8]) -> Program {
    /// More of them only take longer.
    const MOST: usize = 500;
    let mut bytes = Bytes(bytes);
    let in_turn = bytes.byte().is_none_or(|byte| byte & 1 == 0);
    let mut parts = vec![(0, Vec::new())];
    for _ in 0..MOST {
        match next(&mut bytes) {
            None => break,
            Some(Step::To(thread)) => parts.push((thread, Vec::new())),
            Some(Step::Do(operation)) => {
                let (thread, operations) = parts.last_mut().unwrap();
                let ends = matches!(operation, Operation::Exit(_));
                let thread = *thread;
                operations.push(operation);
                if ends {
                    // What follows is done by its successor.
                    parts.push((thread, Vec::new()));
                }
            }
        }
    }
    parts.retain(|(_, operations)| !operations.is_empty());
    Program { in_turn, parts }
}
