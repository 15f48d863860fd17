//! Where libhakmem.so is, and the library that records.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::{elf, workspace};

/// The library's file name.
pub const NAME: &str = "libhakmem.so";

/// A library of this workspace.
pub struct Library {
    /// Its file name.
    pub name: &'static str,
    /// The package it is built from.
    pub package: &'static str,
    /// Whether users can name another with --lib or HAKMEM_LIB.
    replaceable: bool,
}

/// The allocator.
const HAKMEM: Library = Library { name: NAME, package: "hakmem-capi", replaceable: true };
/// What `hakmem record` preloads. It goes with this very command, as both must know the same form of
/// recording.
pub const RECORDER: Library =
    Library { name: "libhakmem_record.so", package: "hakmem-record", replaceable: false };

/// Finds the allocator, or builds it where its sources are; `named` is what the user asked for.
pub fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        return checked(path).with_context(|| format!("--lib {}", path.display()));
    }
    if let Some(path) = std::env::var_os("HAKMEM_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return checked(&path).with_context(|| format!("HAKMEM_LIB={}", path.display()));
    }
    HAKMEM.find()
}

impl Library {
    /// Looks beside this executable, and at the source workspace it was compiled from, where it is built if
    /// needed. An executable in the target folder of that workspace is a developer's: there cargo decides
    /// what is fresh.
    pub fn find(&self) -> anyhow::Result<PathBuf> {
        let executable = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
        let places = self.beside(&executable);
        let installed = places.iter().find(|place| place.is_file());
        let workspace = workspace::root();
        let target = workspace.as_ref().and_then(|_| workspace::target_of(&executable));

        if let (Some(path), None) = (installed, &target) {
            return checked(path).with_context(|| path.display().to_string());
        }
        match (&workspace, installed) {
            (Some(root), installed) => match (workspace::build(self, root, target.as_deref()), installed) {
                (Ok(path), _) => checked(&path).with_context(|| path.display().to_string()),
                // Moved to a machine without cargo: better than nothing.
                (Err(error), Some(path)) if error.is::<workspace::NoCargo>() => {
                    checked(path).with_context(|| path.display().to_string())
                }
                (Err(error), _) => {
                    Err(error.context(format!("cannot build {} from {}", self.name, root.display())))
                }
            },
            (None, _) => bail!(self.not_found(&places)),
        }
    }

    /// The places beside `executable` where an installation may have put the library.
    fn beside(&self, executable: &Path) -> Vec<PathBuf> {
        let Some(folder) = executable.parent() else { return Vec::new() };
        let mut places = vec![folder.join(self.name)];
        if let Some(prefix) = folder.parent() {
            places.push(prefix.join("lib").join(self.name));
            places.push(prefix.join("lib/hakmem").join(self.name));
        }
        places
    }

    /// The message that names every place looked at.
    fn not_found(&self, places: &[PathBuf]) -> String {
        let mut text = format!("cannot find {}; looked at:", self.name);
        if self.replaceable {
            text += "\n  --lib PATH (not given)\n  HAKMEM_LIB (not set)";
        }
        for place in places {
            text += &format!("\n  {} (missing)", place.display());
        }
        text + &format!("\n  {} (no sources to build it from)", workspace::compiled_from().display())
    }
}

/// The absolute path of a library that the loader will take.
fn checked(path: &Path) -> anyhow::Result<PathBuf> {
    let path = path.canonicalize()?;
    elf::check_library(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_beside_the_executable_and_in_lib() {
        let places = HAKMEM.beside(Path::new("/usr/local/bin/hakmem"));
        let names: Vec<_> = places.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "/usr/local/bin/libhakmem.so",
                "/usr/local/lib/libhakmem.so",
                "/usr/local/lib/hakmem/libhakmem.so"
            ]
        );
        assert!(HAKMEM.beside(Path::new("/")).is_empty());
    }

    #[test]
    fn names_all_places() {
        let text = HAKMEM.not_found(&HAKMEM.beside(Path::new("/opt/h/bin/hakmem")));
        for place in ["--lib", "HAKMEM_LIB", "/opt/h/bin/libhakmem.so", "/opt/h/lib/hakmem/libhakmem.so"] {
            assert!(text.contains(place), "{place} is missing in {text}");
        }
        assert!(text.contains(&*workspace::compiled_from().to_string_lossy()));
        let text = RECORDER.not_found(&RECORDER.beside(Path::new("/opt/h/bin/hakmem")));
        assert!(text.contains("/opt/h/lib/libhakmem_record.so") && !text.contains("HAKMEM_LIB"), "{text}");
    }
}
