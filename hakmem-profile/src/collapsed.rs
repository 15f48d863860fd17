//! Collapsed stacks: a line for each call stack, the outermost function first, and its bytes.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::model::{By, Moment, Profile, What};
use crate::symbols::Frame;

/// Different stacks and their values; names as they are in a line.
pub type Folded = BTreeMap<String, f64>;

/// The stacks of a profile at a moment.
pub fn fold(profile: &Profile, moment: &Moment, what: What) -> Folded {
    let mut folded = Folded::new();
    for group in profile.groups(moment, By::Stack) {
        let frames = group.stack.map_or(&[][..], |stack| &profile.stacks[stack]);
        *folded.entry(line(frames)).or_default() += group.figures.bytes(what);
    }
    folded
}

/// One stack, whose innermost function comes first in `frames`.
pub fn line(frames: &[Rc<Frame>]) -> String {
    let names: Vec<String> = frames
        .iter()
        .rev()
        .map(|frame| frame.function.replace(';', ":").replace(['\n', '\r'], " "))
        .collect();
    if names.is_empty() { "(stack unknown)".into() } else { names.join(";") }
}

/// The lines, with whole bytes; those with none are left out.
pub fn lines(folded: &Folded) -> Vec<String> {
    let line = |(stack, bytes): (&String, &f64)| {
        let bytes = bytes.round();
        (bytes >= 1.0).then(|| format!("{stack} {bytes:.0}"))
    };
    folded.iter().filter_map(line).collect()
}
