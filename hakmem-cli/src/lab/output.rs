//! What a run prints: it goes to temporary files, and is compared by length and hash.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Seek};
use std::process::Stdio;

use anyhow::{Context, ensure};

use super::run::Ended;

/// Without so much room, bytes, nothing is begun; what is free afterwards may be less.
const LEAST: u64 = 1 << 20;
/// With less than this the disk counts as full.
const FULL: u64 = 1 << 16;
/// The most that a run may print, bytes, also where there is room for more than twice as much.
const MOST: u64 = 4 << 30;

/// What a stream of output was: its length and a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    bytes: u64,
    hash: u64,
}

/// Both streams of one run.
pub struct Output {
    stdout: File,
    stderr: File,
    most: u64,
}

impl Output {
    /// Nothing yet.
    pub fn new() -> anyhow::Result<Self> {
        let folder = || std::env::temp_dir().display().to_string();
        let make =
            || tempfile::tempfile().with_context(|| format!("{}: cannot make a temporary file", folder()));
        let (stdout, stderr) = (make()?, make()?);
        let room = room(&stdout).with_context(folder)?;
        ensure!(
            room >= LEAST,
            "{}: the disk is full, and what the program prints goes there; name another folder by TMPDIR",
            folder()
        );
        Ok(Self { stdout, stderr, most: (room / 2).min(MOST) })
    }

    /// Standard output and standard error, for the program.
    pub fn streams(&self) -> io::Result<[Stdio; 2]> {
        Ok([self.stdout.try_clone()?.into(), self.stderr.try_clone()?.into()])
    }

    /// That the program has printed so much that it has to be ended, lest it fill the disk for all.
    pub fn too_much(&self) -> io::Result<Option<Ended>> {
        let printed = self.stdout.metadata()?.len() + self.stderr.metadata()?.len();
        Ok((printed > self.most).then_some(Ended::Flooded(self.most)))
    }

    /// That some of what it has printed may be lost, and that it may have failed by that.
    pub fn no_room(&self) -> io::Result<Option<Ended>> {
        Ok((room(&self.stdout)? < FULL).then_some(Ended::NoRoom))
    }

    /// Standard output and standard error.
    pub fn digests(&mut self) -> io::Result<(Digest, Digest)> {
        Ok((digest(&mut self.stdout)?, digest(&mut self.stderr)?))
    }

    /// The beginning (where the loader complains) and the end of standard error.
    pub fn errors(&mut self) -> io::Result<String> {
        const PART: u64 = 1 << 14;
        let file = &mut self.stderr;
        let length = file.metadata()?.len();
        let mut bytes = Vec::new();
        file.rewind()?;
        Read::by_ref(file).take(PART).read_to_end(&mut bytes)?;
        if length > PART {
            file.seek(io::SeekFrom::Start(length.saturating_sub(PART).max(PART)))?;
            Read::by_ref(file).take(PART).read_to_end(&mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Bytes that can be written to the disk of `file`.
pub fn room(file: &File) -> io::Result<u64> {
    let disk = nix::sys::statvfs::fstatvfs(file)?;
    if disk.blocks() == 0 {
        // One that does not tell.
        return Ok(u64::MAX);
    }
    // Some is kept for root alone.
    let root = nix::unistd::geteuid().is_root();
    let blocks = if root { disk.blocks_free() } else { disk.blocks_available() };
    Ok(blocks.saturating_mul(disk.fragment_size()))
}

fn digest(file: &mut File) -> io::Result<Digest> {
    file.rewind()?;
    let mut hasher = std::hash::DefaultHasher::new();
    let mut buffer = [0; 1 << 16];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest { bytes, hash: hasher.finish() }),
            read => {
                hasher.write(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// The last line of a text, for messages.
pub fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::last_line;

    #[test]
    fn last_lines() {
        assert_eq!(last_line("a\nb\n\n"), "b");
        assert_eq!(last_line("a\tb"), "a b");
        assert_eq!(last_line(""), "");
    }
}
