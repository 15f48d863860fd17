//! The shape of every public entry: how many loads, stores and branches stand between its first instruction
//! and its return, checked in as `entries.txt`. Slow paths are jumped to, so what an entry's own body holds
//! is its hit path.
//!
//! The test fails when a figure grows, and when an entry that must not have them has locked instructions,
//! calls or system calls. `HAKMEM_BLESS=1` writes the figures down. They are those of x86-64.
#![cfg(target_arch = "x86_64")]

mod support;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Entries whose whole body is a hit path: nothing in them may be locked, call or enter the kernel.
const HIT_PATHS: [&str; 10] = [
    "malloc",
    "free",
    "hak_malloc",
    "hak_free",
    "cfree",
    "_ZdlPv",
    "_ZdaPv",
    "_Znwm",
    "_Znam",
    "_ZdlPvSt11align_val_t",
];
/// Entries with more to do, listed beside them.
const OTHERS: [&str; 6] =
    ["calloc", "realloc", "aligned_alloc", "posix_memalign", "malloc_usable_size", "free_sized"];

/// What an entry's body holds.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Shape {
    instructions: usize,
    loads: usize,
    stores: usize,
    branches: usize,
    calls: usize,
    locked: usize,
    syscalls: usize,
}

const COLUMNS: [&str; 7] = ["instructions", "loads", "stores", "branches", "calls", "locked", "syscalls"];

impl Shape {
    fn figures(&self) -> [usize; 7] {
        [self.instructions, self.loads, self.stores, self.branches, self.calls, self.locked, self.syscalls]
    }

    fn add(&mut self, instruction: &Instruction, factory: &mut InstructionInfoFactory) {
        self.instructions += 1;
        for memory in factory.info(instruction).used_memory() {
            let access = memory.access();
            let reads = [OpAccess::Read, OpAccess::CondRead, OpAccess::ReadWrite, OpAccess::ReadCondWrite];
            let writes = [OpAccess::Write, OpAccess::CondWrite, OpAccess::ReadWrite, OpAccess::ReadCondWrite];
            self.loads += reads.contains(&access) as usize;
            self.stores += writes.contains(&access) as usize;
            // An exchange with memory is locked without saying so.
            self.locked += (instruction.mnemonic() == Mnemonic::Xchg) as usize;
        }
        self.locked += instruction.has_lock_prefix() as usize;
        self.syscalls += (instruction.mnemonic() == Mnemonic::Syscall) as usize;
        match instruction.flow_control() {
            FlowControl::ConditionalBranch => self.branches += 1,
            FlowControl::Call | FlowControl::IndirectCall => self.calls += 1,
            _ => {}
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().iter().try_for_each(|figure| write!(f, "{figure:>14}"))
    }
}

/// The shapes of the library's entries.
fn shapes() -> BTreeMap<String, Shape> {
    let bytes = std::fs::read(support::lib()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let code = text.data().unwrap();
    let mut factory = InstructionInfoFactory::new();
    let mut shapes = BTreeMap::new();
    for symbol in file.dynamic_symbols() {
        let name = symbol.name().unwrap();
        if !HIT_PATHS.contains(&name) && !OTHERS.contains(&name) {
            continue;
        }
        let from = (symbol.address() - text.address()) as usize;
        let body = &code[from..from + symbol.size() as usize];
        let mut shape = Shape::default();
        for instruction in Decoder::with_ip(64, body, symbol.address(), DecoderOptions::NONE) {
            shape.add(&instruction, &mut factory);
        }
        shapes.insert(name.to_string(), shape);
    }
    shapes
}

#[test]
fn entries_keep_their_shape() {
    if std::env::var_os("HAKMEM_LIB").is_some() {
        return;
    }
    let shapes = shapes();
    for name in HIT_PATHS {
        let shape = shapes.get(name).unwrap_or_else(|| panic!("{name} is not exported"));
        assert_eq!((shape.locked, shape.syscalls), (0, 0), "{name} has locked instructions or system calls");
        assert_eq!(shape.calls, 0, "{name} calls something instead of jumping to it");
    }
    let header =
        COLUMNS.iter().fold(format!("{:<22}", "entry"), |line, column| line + &format!("{column:>14}"));
    let lines = shapes.iter().map(|(name, shape)| format!("{name:<22}{shape}\n")).collect::<String>();
    let listing = format!("{header}\n{lines}");
    println!("{listing}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/entries.txt");
    if std::env::var_os("HAKMEM_BLESS").is_some() {
        std::fs::write(&file, &listing).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap();
    let mut complaints = String::new();
    for line in known.lines().skip(1) {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap();
        let limits: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
        let shape = shapes.get(name).unwrap_or_else(|| panic!("{name} has gone"));
        for (i, figure) in shape.figures().into_iter().enumerate() {
            if figure > limits[i] {
                complaints += &format!("{name}: {figure} {}, at most {}\n", COLUMNS[i], limits[i]);
            }
        }
    }
    assert_eq!(known.lines().count(), shapes.len() + 1, "entries.txt does not list the same entries");
    assert!(complaints.is_empty(), "{complaints}");
}
