//! Flame graphs as SVG, drawn by inferno.

use inferno::flamegraph::{self, Options};

use crate::collapsed::{Folded, lines};

/// The flame graph of these stacks.
pub fn plain(folded: &Folded, title: &str) -> anyhow::Result<Vec<u8>> {
    draw(&lines(folded), title)
}

/// The flame graph of `after`: what has grown is red, what has shrunk is blue. `None` if there is nothing of
/// it to draw, as nothing lives.
pub fn differential(before: &Folded, after: &Folded, title: &str) -> anyhow::Result<Option<Vec<u8>>> {
    if !after.values().any(|bytes| bytes.round() > 0.0) {
        return Ok(None);
    }
    let value = |folded: &Folded, stack: &String| folded.get(stack).copied().unwrap_or(0.0).round();
    let mut stacks: Vec<&String> = before.keys().chain(after.keys()).collect();
    stacks.sort();
    stacks.dedup();
    let line = |stack: &String| format!("{stack} {:.0} {:.0}", value(before, stack), value(after, stack));
    draw(&stacks.into_iter().map(line).collect::<Vec<_>>(), title).map(Some)
}

fn draw(lines: &[String], title: &str) -> anyhow::Result<Vec<u8>> {
    anyhow::ensure!(!lines.is_empty(), "there is nothing to draw: no sampled block");
    let mut options = Options::default();
    options.title = title.into();
    options.count_name = "bytes".into();
    // Equal input gives an equal picture.
    options.deterministic = true;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    Ok(svg)
}
