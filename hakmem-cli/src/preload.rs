//! The value of LD_PRELOAD for the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::sys::interrupt::Folder;

/// A value of LD_PRELOAD, and the folder that has to exist as long as the program runs.
pub struct Preload {
    value: OsString,
    _folder: Option<Folder>,
}

impl Preload {
    /// Our library first, then what was there before.
    pub fn new(library: &Path, existing: Option<OsString>) -> anyhow::Result<Self> {
        let (path, folder) =
            if is_plain(library) { (library.to_path_buf(), None) } else { link(library, &link_folders())? };
        let mut value = path.into_os_string();
        if let Some(existing) = existing.filter(|list| !list.is_empty()) {
            value.push(":");
            value.push(existing);
        }
        Ok(Self { value, _folder: folder })
    }

    /// What to set LD_PRELOAD to.
    pub fn value(&self) -> &OsStr {
        &self.value
    }
}

/// Whether the loader takes `path` from LD_PRELOAD as it stands: it splits the list at ':' and white space,
/// knows no escape, and replaces `$ORIGIN` and the like.
pub fn is_plain(path: &Path) -> bool {
    !path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|&b| b == b':' || b == b'$' || b.is_ascii_whitespace() || b == 0x0b)
}

/// Where a link may be put.
fn link_folders() -> Vec<PathBuf> {
    let mut folders = vec![std::env::temp_dir()];
    folders.extend(["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from));
    folders
}

/// A link to the library, under a plain name, in a fresh folder in the first of `folders` that allows it.
fn link(library: &Path, folders: &[PathBuf]) -> anyhow::Result<(PathBuf, Option<Folder>)> {
    for parent in folders.iter().filter(|folder| is_plain(folder)) {
        let make = || tempfile::Builder::new().prefix("hakmem-").tempdir_in(parent);
        let Ok(folder) = Folder::new(make) else { continue };
        let path = folder.path().join(crate::library::NAME);
        // Also for a program that changes its user id.
        let open = std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755));
        if open.is_ok() && symlink(library, &path).is_ok() {
            return Ok((path, Some(folder)));
        }
    }
    bail!(
        "{}: the loader cannot take a path with white space, ':' or '$' in it from LD_PRELOAD, and no temporary \
         folder takes a link to it",
        library.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_comes_first() {
        let value = |existing: Option<&str>| {
            let preload = Preload::new(Path::new("/lib/libhakmem.so"), existing.map(OsString::from)).unwrap();
            preload.value().to_str().unwrap().to_string()
        };
        assert_eq!(value(None), "/lib/libhakmem.so");
        assert_eq!(value(Some("")), "/lib/libhakmem.so");
        assert_eq!(value(Some("/a.so /b.so:/c.so")), "/lib/libhakmem.so:/a.so /b.so:/c.so");
    }

    #[test]
    fn an_awkward_path_gets_a_link_that_goes_away() {
        let home = tempfile::tempdir().unwrap();
        for name in ["with space", "with:colon", "with\ttab", "with$dollar"] {
            let library = home.path().join(name);
            std::fs::write(&library, "here").unwrap();
            let preload = Preload::new(&library, None).unwrap();
            let link = PathBuf::from(preload.value());
            assert!(is_plain(&link), "{link:?}");
            assert_eq!(std::fs::read_to_string(&link).unwrap(), "here");
            drop(preload);
            assert!(!link.exists());
        }
    }

    #[test]
    fn says_so_when_no_folder_takes_the_link() {
        let folders = ["/does/not/exist".into(), "/tmp/with space".into()];
        let error = link(Path::new("/a b/libhakmem.so"), &folders).unwrap_err().to_string();
        assert!(error.contains("/a b/libhakmem.so") && error.contains("white space"), "{error}");
    }
}
