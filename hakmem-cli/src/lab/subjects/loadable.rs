//! Whether libraries that the user has named can be preloaded at all, before anything is measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::elf;
use crate::preload::Preload;

/// The real path of a library that programs can be started with.
pub fn checked(path: &Path) -> anyhow::Result<PathBuf> {
    let real = path.canonicalize()?;
    elf::check_library(&real)?;
    ask_loader(&real)?;
    Ok(real)
}

/// Has the loader list what it would load with `library`, by which nothing of that runs.
pub fn ask_loader(library: &Path) -> anyhow::Result<()> {
    // That of musl makes no lists, and this command's own cannot say what the other one would load.
    if !cfg!(target_env = "gnu") || elf::is_for_musl(library) {
        return Ok(());
    }
    let preload = Preload::new(library, None)?;
    let program = std::env::current_exe().context("this command's own file")?;
    let mut command = Command::new(program);
    command.arg("--version").env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_PRELOAD", preload.value());
    let output = command.stdin(Stdio::null()).output()?;
    let list = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = list.lines().find(|line| line.contains("=> not found")) {
        bail!("it needs {}, which is not found", line.trim().split(' ').next().unwrap_or_default());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    if let Some(line) = words.lines().find(|line| line.contains("cannot be preloaded")) {
        bail!("the loader says: {}", line.trim_start_matches("ERROR: "));
    }
    if !output.status.success() {
        bail!("the loader cannot read it ({}); it may be incomplete", output.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_cannot_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let run = |line: &str| {
            let done = Command::new("sh").args(["-ec", line]).current_dir(folder.path()).status();
            assert!(done.unwrap().success(), "{line}");
        };
        run("echo 'int x(void) { return 1; }' >x.c; echo 'int x(void); int y(void) { return x(); }' >y.c
             gcc -shared -fPIC -o libx.so x.c; gcc -shared -fPIC -o y.so y.c -L. -lx
             head -c 3000 libx.so >short.so");
        let complaint = |name: &str| format!("{:#}", checked(&folder.path().join(name)).unwrap_err());
        checked(&folder.path().join("libx.so")).unwrap();
        assert_eq!(complaint("y.so"), "it needs libx.so, which is not found");
        assert!(
            complaint("short.so").starts_with("the loader cannot read it ("),
            "{}",
            complaint("short.so")
        );
        assert_eq!(complaint("x.c"), "not an ELF file");
        assert!(complaint("none.so").contains("No such file"));
    }
}
