//! The files that a run writes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::report;

/// How files of profiles end; the allocator appends it.
pub const EXTENSION: &str = "hakprof";

/// The longest path that the allocator takes, before its own end of the name.
const PREFIX: usize = 255;

/// Bytes of a program's name that files and a folder are called by. Such a name may have 255, and so may that
/// of a file, which has the process and the ending as well; and the folder's is in the allocator's path.
const NAME: usize = 80;

/// `name`, as far as files are called by it.
pub fn short(name: &str) -> &str {
    let end = (0..=NAME.min(name.len())).rev().find(|&end| name.is_char_boundary(end));
    &name[..end.unwrap_or(0)]
}

/// Of the folder itself, where no file is needed for it.
const LOCK: FlockArg = FlockArg::LockExclusiveNonblock;

/// The files of one run: those of its folder that were not there before.
#[derive(Clone)]
pub struct Files {
    folder: PathBuf,
    name: String,
    /// What the allocator makes its files' names of.
    pub prefix: PathBuf,
    before: BTreeMap<PathBuf, Option<SystemTime>>,
    /// The lock of the folder, which ends with this command.
    _turn: Option<Arc<Flock<File>>>,
}

impl Files {
    /// The files that a run will write to a folder. Their names begin with `name`, and where another run
    /// writes there at the time with a number as well: each takes for its own what has appeared under its
    /// name.
    pub fn new(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let context = || format!("cannot write profiles to {}", folder.display());
        if folder.exists() && !folder.is_dir() {
            bail!("{}: it is no folder; name another with --out", context());
        }
        let advice = || format!("{}; name another folder with --out", context());
        std::fs::create_dir_all(folder).with_context(advice)?;
        let (name, turn) = match Flock::lock(File::open(folder).with_context(advice)?, LOCK) {
            Ok(turn) => (name.to_string(), Some(Arc::new(turn))),
            Err((_, Errno::EWOULDBLOCK)) => {
                let own = format!("{name}-{}", std::process::id());
                report::say(&format!(
                    "hakmem: another profile is being written to {}; this one goes to {own}.*.{EXTENSION}",
                    folder.display()
                ));
                (own, None)
            }
            // Where there are no locks, nobody is kept away.
            Err(_) => (name.to_string(), None),
        };
        // Absolute, for programs that go elsewhere.
        let folder = folder.canonicalize().with_context(advice)?;
        tempfile::tempfile_in(&folder).with_context(advice)?;
        let files = Self { prefix: PathBuf::new(), folder, name, before: BTreeMap::new(), _turn: turn };
        files.renamed(|name| name)
    }

    /// The same, with names that begin otherwise.
    pub fn renamed(mut self, rename: impl FnOnce(String) -> String) -> anyhow::Result<Self> {
        self.name = rename(self.name);
        self.prefix = self.folder.join(&self.name);
        let length = self.prefix.as_os_str().len();
        ensure!(
            length <= PREFIX,
            "cannot write profiles to {}: its path is too long; name another with --out",
            self.folder.display()
        );
        self.before = self.all();
        Ok(self)
    }

    /// What the files' names begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn all(&self) -> BTreeMap<PathBuf, Option<SystemTime>> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ours = |path: &PathBuf| {
            let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let middle = file.strip_prefix(&*self.name).and_then(|rest| rest.strip_suffix(EXTENSION));
            middle.is_some_and(|middle| middle.starts_with('.') && middle.ends_with('.'))
        };
        let changed = |path: PathBuf| {
            let time = path.metadata().and_then(|meta| meta.modified()).ok();
            (path, time)
        };
        entries.map(|entry| entry.path()).filter(ours).map(changed).collect()
    }

    /// The file of process `pid`, if it was there before.
    pub fn taken(&self, pid: &str) -> Option<PathBuf> {
        let file = self.folder.join(format!("{}.{pid}.{EXTENSION}", self.name));
        self.before.contains_key(&file).then_some(file)
    }

    /// What the run has written so far.
    pub fn written(&self) -> Vec<PathBuf> {
        self.all()
            .into_iter()
            .filter(|(path, time)| self.before.get(path) != Some(time))
            .map(|(path, _)| path)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!((short(""), short("sh"), short("é")), ("", "sh", "é"));
        assert_eq!(short(&"x".repeat(80)), "x".repeat(80));
        assert_eq!(short(&"x".repeat(255)), "x".repeat(80));
        assert_eq!(short(&("x".repeat(79) + "é")), "x".repeat(79));
    }
}
