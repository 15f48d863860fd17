//! What the loader will make of a file, read from its ELF headers.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use goblin::elf::header::{ELFMAG, ET_DYN};
use goblin::elf::program_header::PT_INTERP;
use goblin::elf::{Elf, Header};

/// The machine this command itself was compiled for, read from its own file.
fn own_machine() -> Option<(u16, u8)> {
    let header = read_header(Path::new("/proc/self/exe")).ok()?;
    Some((header.e_machine, header.e_ident[goblin::elf::header::EI_CLASS]))
}

/// Reads the ELF header of `path`, or says what is wrong with the file.
fn read_header(path: &Path) -> anyhow::Result<Header> {
    // A FIFO would keep us waiting for a writer.
    if !std::fs::metadata(path)?.is_file() {
        bail!("not a file");
    }
    let mut start = Vec::new();
    File::open(path)?.take(64).read_to_end(&mut start)?;
    if !start.starts_with(ELFMAG) {
        bail!("not an ELF file");
    }
    start.resize(64, 0);
    Elf::parse_header(&start).context("broken ELF header")
}

/// Checks that `path` is a shared library which the loader of a program of this machine would take.
pub fn check_library(path: &Path) -> anyhow::Result<()> {
    let header = read_header(path)?;
    if header.e_type != ET_DYN {
        bail!("an ELF file, but not a shared library");
    }
    let machine = (header.e_machine, header.e_ident[goblin::elf::header::EI_CLASS]);
    if own_machine().is_some_and(|own| own != machine) {
        bail!("a shared library for another kind of machine");
    }
    Ok(())
}

/// Whether `path` is Hakmem, as far as its exported names tell.
pub fn is_hakmem(path: &Path) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    Elf::parse(&bytes)
        .is_ok_and(|elf| elf.dynsyms.iter().any(|s| elf.dynstrtab.get_at(s.st_name) == Some("hak_version")))
}

/// Whether the file at `path` offers a `malloc` of its own to all of its process; none where that cannot be
/// read.
pub fn defines_malloc(path: &Path) -> Option<bool> {
    let bytes = std::fs::read(path).ok()?;
    let elf = Elf::parse(&bytes).ok()?;
    let is_malloc = |s: &goblin::elf::Sym| elf.dynstrtab.get_at(s.st_name) == Some("malloc");
    Some(elf.dynsyms.iter().any(|s| s.st_shndx != 0 && is_malloc(&s)))
}

/// Whether `path` is a shared library for programs on musl: that has two names, of which glibc has neither.
pub fn is_for_musl(path: &Path) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    Elf::parse(&bytes)
        .is_ok_and(|elf| elf.libraries.iter().any(|name| *name == "libc.so" || name.starts_with("libc.musl")))
}

/// Whether a program that names this loader is for musl.
pub fn is_musls(loader: &str) -> bool {
    loader.contains("musl")
}

/// How a program file is started.
#[derive(Debug, PartialEq)]
pub enum Kind {
    /// Not a program file that could be read.
    Unknown,
    /// A script for this interpreter.
    Script(String),
    /// An ELF program for another kind of machine than this one.
    Foreign,
    /// An ELF program without a loader.
    Static,
    /// An ELF program that names this loader.
    Dynamic(String),
}

/// Finds out how the program file at `path` is started.
pub fn kind(path: &Path) -> Kind {
    let Ok(bytes) = std::fs::read(path) else { return Kind::Unknown };
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let line = String::from_utf8_lossy(line.split(|&b| b == b'\n').next().unwrap_or(line)).into_owned();
        return Kind::Script(line.split_whitespace().next().unwrap_or_default().to_string());
    }
    // The headers alone: whatever else is broken in the file does not matter here.
    let Ok(header) = Elf::parse_header(&bytes) else { return Kind::Unknown };
    if own_machine()
        .is_some_and(|own| own != (header.e_machine, header.e_ident[goblin::elf::header::EI_CLASS]))
    {
        return Kind::Foreign;
    }
    let Ok(elf) = Elf::parse(&bytes) else { return Kind::Unknown };
    match elf.interpreter {
        Some(loader) => Kind::Dynamic(loader.to_string()),
        None if elf.program_headers.iter().any(|p| p.p_type == PT_INTERP) => Kind::Unknown,
        None => Kind::Static,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn knows_this_very_program() {
        let own = std::env::current_exe().unwrap();
        assert!(matches!(kind(&own), Kind::Dynamic(loader) if loader.contains("ld-")));
        assert!(!is_hakmem(&own));
    }

    #[test]
    fn knows_scripts() {
        assert_eq!(kind(file(b"#! /bin/sh -e\nexit\n").path()), Kind::Script("/bin/sh".into()));
        assert_eq!(kind(file(b"#!").path()), Kind::Script(String::new()));
        assert_eq!(kind(file(b"").path()), Kind::Unknown);
        assert_eq!(kind(Path::new("/does/not/exist")), Kind::Unknown);
    }

    #[test]
    fn names_what_is_wrong_with_a_library() {
        let complaint = |path: &Path| check_library(path).unwrap_err().to_string();
        assert_eq!(complaint(file(b"").path()), "not an ELF file");
        assert_eq!(complaint(file(b"hello, this is no library at all").path()), "not an ELF file");
        assert_eq!(complaint(file(b"\x7fELF and then nonsense").path()), "broken ELF header");
        assert_eq!(complaint(Path::new("/")), "not a file");
        assert!(complaint(Path::new("/does/not/exist")).contains("No such file"));
    }

    #[test]
    fn tells_machines_and_objects_apart() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = own.clone();
            bytes[at] = value;
            file(&bytes)
        };
        // e_type 1 is an object file; e_machine 8 is MIPS.
        assert!(check_library(with(16, 1).path()).unwrap_err().to_string().contains("not a shared library"));
        assert!(
            check_library(with(18, 8).path()).unwrap_err().to_string().contains("another kind of machine")
        );
        assert_eq!(kind(with(18, 8).path()), Kind::Foreign);
    }
}
