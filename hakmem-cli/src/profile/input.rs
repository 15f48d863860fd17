//! Opens profiles; what is none is refused in one line that says what to do.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use hakmem_profile::diff::Side;
use hakmem_profile::model::{Moment, Profile, What};
use hakmem_profile::symbols::Symbols;
use hakmem_profile::{file, pprof};

/// A profile that has at least one snapshot.
pub struct Input {
    /// The profile.
    pub profile: Profile,
}

/// The bytes of the file at `path`.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    std::fs::read(path).map_err(|error| match error.kind() {
        ErrorKind::IsADirectory => anyhow!("{shown}: it is a folder: give a profile in it"),
        ErrorKind::NotFound => anyhow!("{shown}: there is no such file"),
        ErrorKind::PermissionDenied => {
            anyhow!("{shown}: permission denied: read it as the user whose program it was")
        }
        _ => anyhow!("{shown}: {error}"),
    })
}

/// Opens a file that the allocator has written.
pub fn open(path: &Path, symbols: &mut Symbols) -> anyhow::Result<Input> {
    let bytes = read(path)?;
    if pprof::is_gzip(&bytes) {
        bail!(
            "{}: it is in pprof's format: give the .hakprof file, or use `go tool pprof` or `hakmem diff`",
            path.display()
        );
    }
    parse(&bytes, symbols).with_context(|| path.display().to_string())
}

fn parse(bytes: &[u8], symbols: &mut Symbols) -> anyhow::Result<Input> {
    let raw = file::read(bytes)?;
    if raw.snapshots.is_empty() {
        bail!(
            "it holds no snapshot: the process ended before the first, so take one with a shorter --interval"
        );
    }
    Ok(Input { profile: Profile::new(raw, symbols) })
}

impl Input {
    /// The profile at `time`, or at its end.
    pub fn moment(&self, time: Option<u64>) -> anyhow::Result<Moment> {
        let first = || super::units::time(self.profile.raw.snapshots[0].time as f64);
        self.profile.moment(time).with_context(|| format!("--at: the first snapshot is at {}", first()))
    }
}

/// One side of a comparison: a file of ours at its end, or one in pprof's format.
pub fn side(path: &Path, what: What) -> anyhow::Result<(Side, Vec<String>)> {
    let bytes = read(path)?;
    let side = || -> anyhow::Result<(Side, Vec<String>)> {
        // Others do not always compress them.
        if pprof::is_gzip(&bytes) || (!bytes.starts_with(&file::MAGIC[..7]) && pprof::decode(&bytes).is_ok())
        {
            return Ok((Side::of_pprof(&pprof::decode(&bytes)?, what)?, Vec::new()));
        }
        let mut symbols = Symbols::new();
        let input = parse(&bytes, &mut symbols)?;
        let moment = input.moment(None)?;
        Ok((Side::of_profile(&input.profile, &moment, what), symbols.notes().to_vec()))
    };
    side().with_context(|| path.display().to_string())
}
