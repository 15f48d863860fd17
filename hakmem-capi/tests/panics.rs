//! No panic is reachable from an entry of the library: its code is searched for calls and jumps that lead to
//! one, of x86-64. A function whose address is taken counts as called there: threads, handlers and callbacks
//! begin so. One whose address lies in a table (of options, of a closure) counts as an entry.
#![cfg(target_arch = "x86_64")]

mod support;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Functions that end the process after a line on standard error, or print for whoever asked for that: what
/// formats text may panic for all that the compiler knows. A panic there aborts, too. And what ends it when
/// an exception of C++ cannot go on.
const PRINT: [&str; 5] =
    ["misuse6report", "message4line", "stats5print5write", "internal_error", "panic_cannot_unwind"];

/// Functions of gimli's that are called only with what was checked before: `parse_encoded_value` with the
/// encodings of pointers that `parse_pointer_encoding` lets pass.
const CHECKED: [&str; 1] = ["parse_encoded_value"];

/// Functions of the rare code, which has a section of its own, that allocations reach.
const RARE: [&str; 4] =
    ["hardened6blocks5alloc", "guard4free", "sampling7sampled", "sampling15allocated_large"];

/// A function of the library: its name, and what it calls, jumps to, or takes the address of.
struct Function {
    name: String,
    targets: BTreeSet<u64>,
}

/// What formats text is found in tables only, by what [`PRINT`] names.
fn formats(name: &str) -> bool {
    name.contains("core..fmt..") || name.contains("4core3fmt")
}

/// The functions by address, of all sections that hold code, and those that are exported or lie in tables.
fn functions() -> (BTreeMap<u64, Function>, Vec<u64>) {
    let bytes = std::fs::read(support::lib()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut functions = BTreeMap::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data().unwrap();
        for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.size() > 0) {
            let Some(from) = symbol.address().checked_sub(section.address()) else { continue };
            let Some(body) = code.get(from as usize..(from + symbol.size()) as usize) else { continue };
            let mut targets = BTreeSet::new();
            for instruction in Decoder::with_ip(64, body, symbol.address(), DecoderOptions::NONE) {
                let leaves = matches!(
                    instruction.flow_control(),
                    FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
                );
                if leaves && instruction.op0_kind() == OpKind::NearBranch64 {
                    targets.insert(instruction.near_branch_target());
                } else if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
                    targets.insert(instruction.ip_rel_memory_address());
                }
            }
            functions
                .insert(symbol.address(), Function { name: symbol.name().unwrap().to_string(), targets });
        }
    }
    let exported = file.dynamic_symbols().filter(|s| s.is_definition() && s.kind() == SymbolKind::Text);
    let exported: Vec<u64> = exported.map(|s| s.address()).filter(|at| functions.contains_key(at)).collect();
    assert!(exported.len() > 50, "{} exported functions", exported.len());
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let listed = relocations.map(|(_, relocation)| relocation.addend() as u64);
    let listed = listed.filter(|at| functions.get(at).is_some_and(|f| !formats(&f.name)));
    let entries = exported.iter().copied().chain(listed).collect();
    (functions, entries)
}

fn is_panic(name: &str) -> bool {
    ["panicking", "panic_", "slice_index_fail", "unwrap_failed", "expect_failed"]
        .iter()
        .any(|part| name.contains(part))
}

#[test]
fn no_entry_reaches_a_panic() {
    if std::env::var_os("HAKMEM_LIB").is_some() {
        return;
    }
    let (functions, entries) = functions();
    assert!(
        functions.values().any(|f| is_panic(&f.name)),
        "not even the printing can panic: is this the library?"
    );
    // By address, from where each was reached first.
    let mut from: BTreeMap<u64, u64> = entries.iter().map(|&at| (at, at)).collect();
    let mut queue: VecDeque<u64> = entries.into_iter().collect();
    let (mut complaints, mut printing) = (String::new(), false);
    while let Some(at) = queue.pop_front() {
        if PRINT.iter().chain(&CHECKED).any(|part| functions[&at].name.contains(part)) {
            // These do lead to panics: so the search would see those of others.
            printing |=
                functions[&at].targets.iter().any(|at| functions.get(at).is_some_and(|f| is_panic(&f.name)));
            continue;
        }
        for &target in functions[&at].targets.iter().filter(|target| functions.contains_key(target)) {
            let name = &functions[&target].name;
            if is_panic(name) && !PRINT.iter().any(|part| name.contains(part)) {
                let path = std::iter::successors(Some(at), |at| (from[at] != *at).then_some(from[at]));
                let mut names: Vec<_> = path.map(|at| functions[&at].name.as_str()).collect();
                names.reverse();
                complaints += &format!("{} -> {}\n", names.join(" -> "), name);
            } else if let Entry::Vacant(place) = from.entry(target) {
                place.insert(at);
                queue.push_back(target);
            }
        }
    }
    println!("{} of {} functions are reachable", from.len(), functions.len());
    for rare in RARE {
        assert!(
            from.keys().any(|at| functions[at].name.contains(rare)),
            "{rare} is not among what is reached"
        );
    }
    assert!(printing, "no panic was found where some are known to be");
    assert!(complaints.is_empty(), "{complaints}");
}
