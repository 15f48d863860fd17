//! The files that a run writes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid, fchown, geteuid};

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

/// Makes the folder, and what it is in. Whether it was not there before.
fn make(folder: &Path) -> io::Result<bool> {
    folder.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    match std::fs::create_dir(folder) {
        Ok(()) => Ok(true),
        Err(_) if folder.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens the folder. One that was `made` just now is no link, unless somebody who may write beside it has put
/// one in its place since.
fn open(folder: &Path, made: bool) -> io::Result<File> {
    let mut options = File::options();
    if !made {
        return options.read(true).open(folder);
    }
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    // A slash at the end would have a link followed all the same.
    options.read(true).custom_flags(flags).open(folder.components().collect::<PathBuf>())
}

/// Gives a folder that was made just now to somebody else. Who may write beside it may have put another one
/// in its place: not what is somebody's already, or has something in it.
fn give(folder: &File, (user, group): (Uid, Gid)) -> io::Result<()> {
    let ours = folder.metadata()?.uid() == geteuid().as_raw();
    let mut entries = std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
    if ours && entries.next().is_none() {
        fchown(folder, Some(user), Some(group))?;
    }
    Ok(())
}

/// The files of one run: those of its folder that were not there before.
#[derive(Clone)]
pub struct Files {
    folder: PathBuf,
    name: String,
    /// What the allocator makes its files' names of.
    pub prefix: PathBuf,
    before: BTreeMap<PathBuf, Option<SystemTime>>,
    /// Whether the folder was not there before.
    made: bool,
    /// The lock of the folder, which ends with this command.
    _turn: Option<Arc<Flock<File>>>,
}

impl Files {
    /// The files that a run will write to a folder. Their names begin with `name`, and where another run
    /// writes there at the time with a number as well: each takes for its own what has appeared under its
    /// name. `heir` gets a folder that was not there before.
    pub fn new(folder: &Path, name: &str, heir: Option<(Uid, Gid)>) -> anyhow::Result<Self> {
        let context = || format!("cannot write profiles to {}", folder.display());
        if folder.exists() && !folder.is_dir() {
            bail!("{}: it is no folder; name another with --out", context());
        }
        let advice = || format!("{}; name another folder with --out", context());
        let made = make(folder).with_context(advice)?;
        let opened = open(folder, made).with_context(advice)?;
        if let Some(heir) = heir.filter(|_| made) {
            // Who asked for it finds out whether that user can write there.
            let _ = give(&opened, heir);
        }
        let (name, turn) = match Flock::lock(opened, LOCK) {
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
        let files = Self { prefix: PathBuf::new(), folder, name, before: BTreeMap::new(), made, _turn: turn };
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
            // "NAME.PID.": another name may begin with this one and a dot.
            let middle = file.strip_prefix(&*self.name).and_then(|rest| rest.strip_suffix(EXTENSION));
            let pid = middle.and_then(|middle| middle.strip_prefix('.')?.strip_suffix('.'));
            pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
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

    /// Removes the folder if nothing is in it, and it was not there before.
    pub fn leave(&self) {
        if self.made {
            let _ = std::fs::remove_dir(&self.folder);
        }
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

    #[test]
    fn a_link_is_followed_only_where_the_folder_was_there() {
        let place = tempfile::tempdir().unwrap();
        let (theirs, link) = (place.path().join("theirs"), place.path().join("link"));
        std::fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let files = Files::new(&link, "x", None).unwrap();
        assert!(!files.made && files.prefix == theirs.canonicalize().unwrap().join("x"));
        // Of these it was found that they were not there, and then they were.
        for name in [link.clone(), link.join(""), link.join(".")] {
            assert!(open(&name, false).is_ok() && open(&name, true).is_err(), "{name:?}");
        }
        let deep = place.path().join("a/b/");
        assert!(Files::new(&deep, "x", None).unwrap().made && !Files::new(&deep, "x", None).unwrap().made);
    }

    #[test]
    fn a_folder_that_was_there_stays() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("profiles");
        let [made, there] = [(); 2].map(|()| Files::new(&folder, "x", None).unwrap());
        there.leave();
        assert!(folder.is_dir());
        made.leave();
        assert!(!folder.exists());
    }

    #[test]
    fn only_files_of_this_name_and_a_process_are_a_runs_own() {
        let place = tempfile::tempdir().unwrap();
        let files = Files::new(place.path(), "python3", None).unwrap();
        for name in
            ["python3.500", "python3.11.500", "python3.11-77.500", "python3.", "python3.x", "python3-2.7"]
        {
            std::fs::write(place.path().join(format!("{name}.{EXTENSION}")), "").unwrap();
        }
        assert_eq!(files.written(), [place.path().join(format!("python3.500.{EXTENSION}"))]);
        assert!(files.renamed(|name| name).unwrap().taken("500").is_some());
    }

    #[test]
    fn only_a_folder_of_ours_with_nothing_in_it_is_given_away() {
        if !geteuid().is_root() {
            println!("SKIPPED: only root may give files away");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let new = |name: &str, id: u32| {
            let folder = place.path().join(name);
            drop(Files::new(&folder, "x", Some((id.into(), id.into()))).unwrap());
            folder
        };
        let owner = |folder: &Path| folder.metadata().map(|data| (data.uid(), data.gid())).unwrap();
        let made = new("made", 65534);
        assert_eq!(owner(&made), (65534, 65534));
        // It is there now.
        new("made", 1);
        assert_eq!(owner(&made), (65534, 65534));
        let give_to = |folder: &Path| give(&open(folder, true).unwrap(), (1.into(), 1.into()));
        give_to(&made).unwrap();
        assert_eq!(owner(&made), (65534, 65534));
        let ours = place.path().join("ours");
        std::fs::create_dir_all(ours.join("something")).unwrap();
        give_to(&ours).unwrap();
        assert_eq!(owner(&ours).0, 0);
        std::fs::remove_dir(ours.join("something")).unwrap();
        give_to(&ours).unwrap();
        assert_eq!(owner(&ours), (1, 1));
    }
}
