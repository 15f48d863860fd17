//! What was counted, and its table.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::lab::model::{Missing, Subject};

/// All figures.
#[derive(Debug, Serialize)]
pub struct Experiment {
    /// What the figures are.
    pub what: &'static str,
    /// The processor that the instructions are of.
    pub architecture: &'static str,
    /// The patterns, the order of the figures.
    pub patterns: Vec<String>,
    /// What was counted, by allocator.
    pub allocators: Vec<Row>,
    /// What the others are compared with.
    pub baseline: String,
    /// Not installed.
    pub missing: Vec<Missing>,
}

/// One allocator.
#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub subject: Subject,
    /// By pattern; none where it failed.
    pub figures: Vec<Option<Figure>>,
    /// Why it failed, the first time.
    pub failure: Option<String>,
}

/// One pattern under one allocator, instructions per operation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// In the allocator and what it calls: all but the worker's own program.
    pub allocator: f64,
    /// And in the loop and everything else. Depends on how the hakmem command was compiled.
    pub total: f64,
}

impl Experiment {
    /// Pattern and instructions per operation inside `allocator`.
    pub fn figures<'a>(&'a self, allocator: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let rows = self.allocators.iter().filter(move |row| row.subject.name == allocator);
        rows.flat_map(|row| self.patterns.iter().zip(&row.figures))
            .filter_map(|(name, figure)| Some((name.as_str(), figure.as_ref()?.allocator)))
    }

    /// Why not all patterns were counted under `allocator`, if so.
    pub fn failure(&self, allocator: &str) -> Option<&str> {
        self.allocators.iter().find(|row| row.subject.name == allocator)?.failure.as_deref()
    }

    /// As a table.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        let names = self.allocators.iter().map(|row| row.subject.name.clone());
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        table.set_header(["pattern".to_string()].into_iter().chain(names));
        for (i, pattern) in self.patterns.iter().enumerate() {
            let figures = self.allocators.iter().map(|row| match row.figures[i] {
                Some(figure) => format!("{:.1}", figure.allocator),
                None => "-".into(),
            });
            table.add_row([pattern.clone()].into_iter().chain(figures));
        }
        if self.allocators.len() > 1 {
            let ratios = self.allocators.iter().map(|row| match self.ratio(&row.subject.name) {
                Some(ratio) => format!("{ratio:.3}"),
                None => "-".into(),
            });
            table.add_row([format!("mean ratio to {}", self.baseline)].into_iter().chain(ratios));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!(
            "Instructions per operation in the allocator and what it calls, {}, counted by callgrind\n{table}\n",
            self.architecture
        );
        for row in &self.allocators {
            if let Some(why) = &row.failure {
                text += &format!("FAILED: {}: {why}\n", row.subject.name);
            }
        }
        for missing in &self.missing {
            text += &format!("missing: {}: {}\n", missing.name, missing.hint);
        }
        text
    }

    /// The geometric mean of the ratios to the baseline, over the patterns that both were counted in.
    fn ratio(&self, allocator: &str) -> Option<f64> {
        let base: Vec<_> = self.figures(&self.baseline).collect();
        let logarithms: Vec<f64> = self
            .figures(allocator)
            .filter_map(|(name, figure)| {
                let (_, base) = base.iter().find(|(other, _)| *other == name)?;
                Some((figure / base).ln())
            })
            .collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        (!logarithms.is_empty()).then(|| mean.exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_over_what_both_were_counted_in() {
        let figure = |allocator: f64| Some(Figure { allocator, total: allocator });
        let row = |name: &str, figures: &[Option<Figure>], failure: Option<&str>| Row {
            subject: Subject { name: name.into(), ..Subject::default() },
            figures: figures.to_vec(),
            failure: failure.map(Into::into),
        };
        let experiment = Experiment {
            what: "",
            architecture: "",
            patterns: ["a", "b", "c"].map(Into::into).into(),
            allocators: vec![
                row("base", &[figure(10.0), figure(20.0), figure(30.0)], None),
                row("half", &[figure(10.0), figure(5.0), None], Some("c: it crashed")),
                row("gone", &[None; 3], Some("no such file")),
            ],
            baseline: "base".into(),
            missing: Vec::new(),
        };
        assert_eq!(experiment.ratio("half"), Some(0.5), "the geometric mean of 1 and 1/4");
        assert_eq!(experiment.ratio("gone"), None);
        assert_eq!(experiment.figures("half").collect::<Vec<_>>(), [("a", 10.0), ("b", 5.0)]);
        let text = experiment.render();
        assert!(text.contains("FAILED: half: c: it crashed\nFAILED: gone: no such file\n"), "{text}");
        let line = text.lines().find(|line| line.contains("mean ratio to base")).unwrap();
        assert!(line.contains("0.500") && line.contains('-'), "{line}");
    }
}
