//! The allocator that a program has of its own, that of its C library; and which Hakmem it is.

use std::ffi::OsStr;
use std::path::Path;

use super::super::model::Subject;
use super::super::run::{self, Job};
use super::super::{machine, output};
use super::{TRIAL, subject};
use crate::records::{self, Records};
use crate::{elf, why};

/// That of glibc.
pub const GLIBC: &str = "glibc";
/// That of musl.
pub const MUSL: &str = "musl";

/// Whether a program's own allocator may be called so.
pub fn is_one(name: &str) -> bool {
    [GLIBC, MUSL].contains(&name)
}

/// That of this command, whose workers are itself.
pub fn of_workers() -> Subject {
    let name = if cfg!(target_env = "musl") { MUSL } else { GLIBC };
    subject(name, None, Some(machine::libc_version()))
}

/// That of `program`. Where its file does not tell, as that of a static one, it is taken to be like ours.
pub fn of(program: &OsStr) -> Subject {
    let ours = of_workers();
    match why::loader(program) {
        Some(loader) if elf::is_musls(&loader) => subject(MUSL, None, musls_version(&loader)),
        Some(_) if ours.name != GLIBC => subject(GLIBC, None, None),
        _ => ours,
    }
}

/// The version of Hakmem that `library` is, which need not be that of this command: it says so where it has
/// started. `None` where it is for another C library than this command, or does not say.
pub fn hakmems_version(library: &Path) -> Option<String> {
    if elf::is_for_musl(library) != cfg!(target_env = "musl") {
        return None;
    }
    let (records, program) = (Records::new().ok()?, std::env::current_exe().ok()?);
    let arguments = ["--version".into()];
    let job = Job { program: program.as_os_str(), arguments: &arguments, input: None, timeout: TRIAL };
    let mut trial = subject(super::HAKMEM, Some(library.into()), None);
    trial.environment = vec![
        ("HAKMEM_STATS".into(), "json".into()),
        ("HAKMEM_STATS_FILE".into(), records.path().to_str()?.into()),
    ];
    run::run(&job, &trial).ok()?;
    records::summary(&records.text(), 0).version
}

/// What the loader of musl, which is all of musl, says of itself when it is given nothing to load.
fn musls_version(loader: &str) -> Option<String> {
    let job = Job { program: loader.as_ref(), arguments: &[], input: None, timeout: TRIAL };
    let said = run::run(&job, &Subject::default()).ok()?.errors;
    let version = said.lines().find_map(|line| line.strip_prefix("Version "))?;
    Some(format!("{MUSL} {}", output::last_line(version)))
}
