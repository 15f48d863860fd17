//! How many instructions Hakmem may need: the file, and the comparison.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::report;

/// Per cent above its budget that a pattern may be: what another version of the compiler easily makes.
pub const LEEWAY: f64 = 2.0;
/// Per cent below its budget from which on the budget should be made lower, so that it guards what was
/// reached.
const SLACK: f64 = 5.0;

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budgets {
    /// What the figures are, for readers of the file.
    what: String,
    /// The processor that the instructions are of.
    architecture: String,
    /// The budget of each pattern.
    instructions_per_operation: BTreeMap<String, f64>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            what: "Instructions in libhakmem.so, and in libc where it calls that, per operation of each pattern. `hakmem instructions --bless` \
                   writes this file; more than 2% above fails."
                .into(),
            architecture: std::env::consts::ARCH.into(),
            instructions_per_operation: BTreeMap::new(),
        }
    }
}

impl Budgets {
    /// Reads them; refuses those of another kind of processor.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let name = || format!("budgets {}", file.display());
        let text = std::fs::read(file).with_context(name)?;
        let budgets: Self = serde_json::from_slice(&text).with_context(name)?;
        if budgets.architecture != std::env::consts::ARCH {
            bail!(
                "{}: they are for {}, and this is {}",
                name(),
                budgets.architecture,
                std::env::consts::ARCH
            );
        }
        Ok(budgets)
    }

    /// Finds out before anything is counted whether they can be written.
    pub fn prepare(file: &Path) -> anyhow::Result<()> {
        report::can_write(file).with_context(|| format!("budgets {}", file.display()))
    }

    /// Writes them.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(file, text).with_context(|| format!("budgets {}", file.display()))
    }

    /// Takes over `figures`; where those are `all` there are, budgets of other patterns go.
    pub fn bless<'a>(&mut self, figures: impl Iterator<Item = (&'a str, f64)>, all: bool) {
        if all {
            self.instructions_per_operation.clear();
        }
        for (pattern, figure) in figures {
            // Two digits are less than anybody cares for, and keep differences between two files readable.
            self.instructions_per_operation.insert(pattern.into(), (figure * 100.0).round() / 100.0);
        }
    }

    /// What is wrong with `figures`, a line for each.
    pub fn complaints<'a>(&self, figures: impl Iterator<Item = (&'a str, f64)>, all: bool) -> Vec<String> {
        let mut unused: Vec<&str> = self.instructions_per_operation.keys().map(String::as_str).collect();
        let mut complaints = Vec::new();
        for (pattern, figure) in figures {
            unused.retain(|name| *name != pattern);
            match self.instructions_per_operation.get(pattern) {
                None => complaints.push(format!("{pattern} has no budget; --bless gives it one")),
                Some(budget) if figure > budget * (1.0 + LEEWAY / 100.0) => complaints.push(format!(
                    "{pattern} needs {figure:.2} instructions per operation; its budget is {budget}"
                )),
                Some(_) => {}
            }
        }
        if all {
            complaints
                .extend(unused.iter().map(|name| format!("there is a budget for {name}, but no figure")));
        }
        complaints
    }

    /// The budgets that are too generous, a line for each.
    pub fn hints<'a>(&self, figures: impl Iterator<Item = (&'a str, f64)>) -> Vec<String> {
        let hint = |(pattern, figure): (&str, f64)| {
            let budget = *self.instructions_per_operation.get(pattern)?;
            let line = || format!("{pattern} needs only {figure:.2} of its budget of {budget}");
            (figure < budget * (1.0 - SLACK / 100.0)).then(line)
        };
        figures.filter_map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets(figures: &[(&str, f64)]) -> Budgets {
        let mut budgets = Budgets::default();
        budgets.bless(figures.iter().copied(), true);
        budgets
    }

    #[test]
    fn over_and_under() {
        let budgets = budgets(&[("a", 100.0), ("b", 10.0)]);
        let complaints =
            |figures: &[(&str, f64)], all| budgets.complaints(figures.iter().copied(), all).join("; ");
        assert_eq!(complaints(&[("a", 101.9), ("b", 1.0)], true), "");
        assert_eq!(
            complaints(&[("a", 102.1), ("b", 1.0)], true),
            "a needs 102.10 instructions per operation; its budget is 100"
        );
        assert!(complaints(&[("c", 1.0)], false).contains("c has no budget"));
        assert_eq!(complaints(&[("a", 1.0)], false), "");
        assert!(complaints(&[("a", 1.0)], true).contains("a budget for b, but no figure"));
        assert_eq!(
            budgets.hints([("a", 94.9), ("b", 9.6)].into_iter()),
            ["a needs only 94.90 of its budget of 100"]
        );
    }

    #[test]
    fn some_or_all_can_be_blessed() {
        let mut budgets = budgets(&[("a", 1.0), ("b", 2.0)]);
        budgets.bless([("b", 2.71499)].into_iter(), false);
        assert_eq!(budgets.instructions_per_operation, [("a".into(), 1.0), ("b".into(), 2.71)].into());
        budgets.bless([("b", 4.0)].into_iter(), true);
        assert_eq!(budgets.instructions_per_operation, [("b".into(), 4.0)].into());
    }

    #[test]
    fn files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        budgets(&[("a", 1.5)]).write(file.path()).unwrap();
        assert_eq!(Budgets::read(file.path()).unwrap().complaints([("a", 1.5)].into_iter(), true), [""; 0]);
        let error = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            format!("{:#}", Budgets::read(file.path()).unwrap_err())
        };
        assert!(error("hello").contains(&format!("budgets {}: ", file.path().display())));
        let other = r#"{"what": "", "architecture": "z80", "instructions_per_operation": {}}"#;
        assert!(error(other).ends_with(&format!("they are for z80, and this is {}", std::env::consts::ARCH)));
    }
}
