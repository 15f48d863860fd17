//! The page. (Being written.)

use std::path::Path;

use crate::lab::model::Experiment;

/// Writes the page.
pub fn write(_experiment: &Experiment, _dir: &Path) -> anyhow::Result<()> {
    anyhow::bail!("--report is not there yet")
}
