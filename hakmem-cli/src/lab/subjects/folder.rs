//! Allocators by the folder that holds their libraries: `--peers`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// A library in the folder: what it is called, where it is, and its version where a file beside it tells.
pub type Peer = (String, PathBuf, Option<String>);

/// Every `NAME.so` in `folder`, by name; its version is the first line of `NAME.version`.
pub fn libraries(folder: &Path) -> anyhow::Result<Vec<Peer>> {
    let mut found = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("--peers {}", folder.display()))? {
        let path = entry.with_context(|| format!("--peers {}", folder.display()))?.path();
        if path.extension().is_none_or(|extension| extension != "so") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let version = std::fs::read_to_string(path.with_extension("version")).ok();
        let version = version.and_then(|text| text.lines().next().map(str::to_string));
        found.push((name, path, version));
    }
    ensure!(!found.is_empty(), "--peers {}: no file there is called NAME.so", folder.display());
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = libraries(folder.path()).unwrap_err().to_string();
        assert!(error.contains("no file there is called NAME.so"), "{error}");
        for name in ["b.so", "a.so", "a.version", "readme", "c.so.1"] {
            std::fs::write(folder.path().join(name), "1.2 of a\nmore\n").unwrap();
        }
        let found = libraries(folder.path()).unwrap();
        let names: Vec<_> =
            found.iter().map(|(name, _, version)| (name.as_str(), version.as_deref())).collect();
        assert_eq!(names, [("a", Some("1.2 of a")), ("b", None)]);
        assert!(libraries(Path::new("/no/such")).is_err());
    }
}
