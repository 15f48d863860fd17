//! Allocators that are built into programs: one program for each, nothing preloaded.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::{Found, Subject};
use crate::why;

impl Found {
    /// A subject for every program; without `baseline` the one called glibc or musl, else the first.
    pub fn linked(programs: &[(String, PathBuf)], baseline: Option<&str>) -> anyhow::Result<Self> {
        let mut found =
            Self { subjects: Vec::new(), missing: Vec::new(), broken: Vec::new(), baseline: String::new() };
        for (name, path) in programs {
            let context = || format!("--linked {name}={}", path.display());
            std::fs::metadata(path).with_context(context)?;
            ensure!(why::is_executable(path), "{}: not a program", context());
            // A name without a slash is not looked for where the shell would. Links stay: by its own name a
            // program may know what to do, or where its files are.
            let program = std::path::absolute(path).with_context(context)?;
            found.add(Subject { name: name.clone(), program: Some(program), ..Subject::default() }, None);
        }
        found.check(baseline, false)?;
        Ok(found)
    }
}

/// What the programs have in common: the beginning of their names, or else the first one's name.
pub fn common_name(programs: &[(String, PathBuf)]) -> String {
    let names: Vec<_> = programs.iter().map(|(_, path)| file_name(path)).collect();
    let Some(first) = names.first() else { return String::new() };
    let mut common = first.as_str();
    while !names.iter().all(|name| name.starts_with(common)) {
        common = &common[..common.char_indices().next_back().map_or(0, |(at, _)| at)];
    }
    match common.trim_end_matches(['-', '_', '.', '+']) {
        "" => first.clone(),
        common => common.to_string(),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(paths: &[&str]) -> Vec<(String, PathBuf)> {
        paths.iter().map(|path| (path.to_string(), path.into())).collect()
    }

    #[test]
    fn programs_have_a_name_in_common() {
        assert_eq!(common_name(&named(&["x/json-glibc", "x/json-hakmem"])), "json");
        assert_eq!(common_name(&named(&["a/one", "b/two"])), "one");
        assert_eq!(common_name(&named(&["a/same", "b/same"])), "same");
        assert_eq!(common_name(&named(&["é1", "è1"])), "é1");
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let error = |programs: &[&str]| format!("{:#}", Found::linked(&named(programs), None).err().unwrap());
        assert!(error(&["/no/such"]).contains("--linked /no/such=/no/such: No such file"));
        assert!(error(&["/etc/passwd"]).contains("not a program"));
        assert!(error(&["/bin/sh", "/bin/sh"]).contains("two allocators called /bin/sh"));
        let found = Found::linked(&named(&["/bin/sh"]), None).unwrap();
        assert_eq!(found.baseline, "/bin/sh");
        assert!(found.subjects[0].library.is_none() && found.subjects[0].program.is_some());
    }

    #[test]
    fn a_link_is_started_by_its_own_name() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
        let found = Found::linked(&named(&[link.to_str().unwrap()]), None).unwrap();
        assert_eq!(found.subjects[0].program.as_ref(), Some(&link));
    }
}
