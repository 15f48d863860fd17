//! Tables of figures beside call sites, as wide as there is room.

use std::rc::Rc;

use comfy_table::{CellAlignment, Table, presets};
use hakmem_profile::symbols::Frame;

use super::units::elide;
use crate::report::printable;

/// The width that the column which names call sites should have, and the least that it has.
const SITE: (usize, usize) = (36, 24);

/// Lines for a call site's callers.
const CALLERS: usize = 2;

/// A column of figures.
pub struct Column {
    pub title: &'static str,
    pub cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.chars().count()).max();
        cells.unwrap_or(0).max(self.title.chars().count())
    }
}

/// A table of the `columns` that `width` has room for, beside one that names things; those that come last
/// are left out first.
pub fn fitted(
    mut columns: Vec<Column>,
    name: &str,
    names: impl Fn(usize) -> Vec<String>,
    width: usize,
) -> Table {
    // Each has a space on both sides and a line before it, and the last a line behind it.
    let taken = |columns: &[Column]| columns.iter().map(|column| column.width() + 3).sum::<usize>() + 4;
    while columns.len() > 1 && taken(&columns) + SITE.0 > width {
        columns.pop();
    }
    let left = width.saturating_sub(taken(&columns)).max(SITE.1);
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(columns.iter().map(|column| column.title).chain([name]));
    for column in table.column_iter_mut().take(columns.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (i, name) in names(left).into_iter().enumerate() {
        table.add_row(columns.iter().map(|column| column.cells[i].clone()).chain([name]));
    }
    table
}

/// A function, where it is, and who called it.
pub fn site(function: &str, location: &str, callers: &[Rc<Frame>], width: usize) -> String {
    // Names come from the program, and may hold what a terminal obeys.
    let [label, location] = &[function, location].map(|text| printable(text.as_ref()));
    let mut lines = Vec::new();
    let both = format!("{label}  {location}");
    if both.chars().count() <= width || location.is_empty() {
        lines.push(elide(both.trim_end(), width));
    } else {
        lines.extend([elide(label, width), format!("  {}", elide(location, width.saturating_sub(2)))]);
    }
    let (mut line, mut left) = (String::new(), CALLERS);
    let mut last = function;
    for caller in callers.iter().filter(|caller| !caller.is_plumbing()) {
        // Recursion, or parts of one function.
        if caller.function == std::mem::replace(&mut last, &caller.function) {
            continue;
        }
        let next =
            format!(" ← {}", elide(&printable(caller.function.as_ref()), width.saturating_sub(5).min(50)));
        if line.chars().count() + next.chars().count() + 1 > width {
            lines.push(format!(" {}", std::mem::take(&mut line)));
            left -= 1;
            if left == 0 {
                return lines.join("\n");
            }
        }
        line += &next;
    }
    if !line.is_empty() {
        lines.push(format!(" {line}"));
    }
    lines.join("\n")
}
