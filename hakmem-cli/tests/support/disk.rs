//! A small file system in memory, which fills up soon.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Mounted as long as this lives.
pub struct Disk(TempDir);

impl Disk {
    /// Of so many bytes, such as "8M". `None`, which is said, where none can be mounted.
    pub fn new(size: &str) -> Option<Self> {
        Self::of("tmpfs", size)
    }

    /// The same, of this kind.
    pub fn of(kind: &str, size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", &format!("size={size}"), "none"]).arg(folder.path());
        if !mount.status().is_ok_and(|status| status.success()) {
            super::skips::skip("no file system can be mounted here");
            return None;
        }
        Some(Self(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes until there is no room left.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.path().join("fill")).unwrap();
        std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Busy while a child that another test starts has not become its program yet: it has our files.
        super::eventually("nobody uses it", || {
            Command::new("umount").arg(self.path()).output().unwrap().status.success()
        });
    }
}
