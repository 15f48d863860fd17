//! No panic is reachable from an entry of the library: its code is searched for calls and jumps that lead to
//! one. They are those of x86-64; calls through pointers are not followed, and there are none on these paths
//! but into the C library.
#![cfg(target_arch = "x86_64")]

mod support;

use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
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

/// A function of the library: where it ends, its name, and what it calls or jumps to.
struct Function {
    name: String,
    targets: BTreeSet<u64>,
}

/// The functions by address, and those that are exported.
fn functions() -> (BTreeMap<u64, Function>, Vec<u64>) {
    let bytes = std::fs::read(support::lib()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let code = text.data().unwrap();
    let mut functions = BTreeMap::new();
    for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.size() > 0) {
        let Some(from) = symbol.address().checked_sub(text.address()) else { continue };
        let Some(body) = code.get(from as usize..(from + symbol.size()) as usize) else { continue };
        let mut targets = BTreeSet::new();
        for instruction in Decoder::with_ip(64, body, symbol.address(), DecoderOptions::NONE) {
            let leaves = matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            );
            if leaves && instruction.op0_kind() == OpKind::NearBranch64 {
                targets.insert(instruction.near_branch_target());
            }
        }
        functions.insert(symbol.address(), Function { name: symbol.name().unwrap().to_string(), targets });
    }
    let exported = file.dynamic_symbols().filter(|s| s.is_definition() && s.kind() == SymbolKind::Text);
    let exported = exported.map(|s| s.address()).filter(|at| functions.contains_key(at)).collect();
    (functions, exported)
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
    let (functions, exported) = functions();
    assert!(exported.len() > 50, "{} exported functions", exported.len());
    assert!(
        functions.values().any(|f| is_panic(&f.name)),
        "not even the printing can panic: is this the library?"
    );
    // By address, from where each was reached first.
    let mut from: BTreeMap<u64, u64> = exported.iter().map(|&at| (at, at)).collect();
    let mut queue: VecDeque<u64> = exported.into_iter().collect();
    let mut complaints = String::new();
    while let Some(at) = queue.pop_front() {
        if PRINT.iter().chain(&CHECKED).any(|part| functions[&at].name.contains(part)) {
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
    println!("{} functions are reachable", from.len());
    assert!(complaints.is_empty(), "{complaints}");
}
