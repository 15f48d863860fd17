//! The trace file.
//!
//! | bytes | what                                                        |
//! |-------|-------------------------------------------------------------|
//! | 8     | `HAKTRACE`                                                  |
//! | 4     | version, 1                                                  |
//! | 4     | flags: 1 = the recording stopped before the program did     |
//! | 4     | processes                                                   |
//! | 4     | CRC-32 of all before                                        |
//!
//! and for every process
//!
//! | bytes | what                                                        |
//! |-------|-------------------------------------------------------------|
//! | 8     | length of what follows in the file, compressed by zlib      |
//! | 8     | its length when decompressed                                |
//! | 4     | CRC-32 of both lengths and the compressed bytes             |
//!
//! Decompressed: the length of the name and the name, the parent's place + 1 or 0, the number of frees left
//! out (all LEB128), then the events (`codec`). Fixed-size numbers are little-endian.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use flate2::Crc;

use crate::codec;
use crate::process::{self, ProcessTrace};

const MAGIC: &[u8; 8] = b"HAKTRACE";
const VERSION: u32 = 1;
const TRUNCATED: u32 = 1;
/// The most that a compressed byte can stand for: the format's limit.
const RATIO: u64 = 1032;

/// A recorded program, with all its processes in the order in which they made their first allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// What each did.
    pub processes: Vec<ProcessTrace>,
    /// The recording reached its limit before the program ended.
    pub truncated: bool,
}

fn crc(parts: &[&[u8]]) -> u32 {
    let mut crc = Crc::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.sum()
}

impl Trace {
    /// Reads and checks a whole file. Errors name the file and the place in it.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || path.display().to_string();
        if !std::fs::metadata(path).with_context(context)?.is_file() {
            bail!("{}: not a file", path.display());
        }
        let bytes = std::fs::read(path).with_context(context)?;
        Self::from_bytes(&bytes).with_context(context)
    }

    /// The file's content.
    pub fn to_bytes(&self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        let flags = if self.truncated { TRUNCATED } else { 0 };
        for number in [VERSION, flags, u32::try_from(self.processes.len())?] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(crc(&[&bytes]).to_le_bytes());
        for process in &self.processes {
            let mut head = Vec::new();
            codec::put(&mut head, process.name.len() as u64);
            head.extend(process.name.as_bytes());
            codec::put(&mut head, process.parent.map_or(0, |parent| u64::from(parent) + 1));
            codec::put(&mut head, process.unknown);
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(&head)?;
            encoder.write_all(&process.events)?;
            let packed = encoder.finish()?;
            let lengths =
                [packed.len() as u64, (head.len() + process.events.len()) as u64].map(u64::to_le_bytes);
            bytes.extend(lengths.as_flattened());
            bytes.extend(crc(&[lengths.as_flattened(), &packed]).to_le_bytes());
            bytes.extend(packed);
        }
        Ok(bytes)
    }

    /// Reads a file's content.
    pub fn from_bytes(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut rest = bytes;
        ensure!(bytes.starts_with(MAGIC), "not a trace of hakmem record");
        let head = part(&mut rest, 24).context("at byte 8: it breaks off in its header")?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        ensure!(
            number(8) == VERSION,
            "at byte 8: version {} of the format, this program knows {VERSION}",
            number(8)
        );
        ensure!(number(20) == crc(&[&head[..20]]), "at byte 20: the header is damaged (wrong checksum)");
        ensure!(number(12) & !TRUNCATED == 0, "at byte 12: unknown flags");
        let mut trace = Self { processes: Vec::new(), truncated: number(12) & TRUNCATED != 0 };
        for index in 0..number(16) {
            let at = bytes.len() - rest.len();
            let process = section(&mut rest).with_context(|| format!("process {index}, at byte {at}"))?;
            // A parent is earlier or later in the file, but in it.
            let parent = process.parent.unwrap_or(0);
            ensure!(
                parent < number(16),
                "process {index}, at byte {at}: its parent, process {parent}, is missing"
            );
            trace.processes.push(process);
        }
        ensure!(rest.is_empty(), "at byte {}: {} bytes too many", bytes.len() - rest.len(), rest.len());
        Ok(trace)
    }
}

/// The file that a trace for `path` is to replace: what links lead to, also where nothing is there yet.
/// `None` where there is something else than a file, which is to be written into.
pub fn replaceable(path: &Path) -> io::Result<Option<PathBuf>> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => return path.canonicalize().map(Some),
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The kernel has followed the links to their end, so there is one.
    let mut path = path.to_path_buf();
    while let Ok(target) = std::fs::read_link(&path) {
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Ok(Some(path))
}

/// The next `len` bytes.
fn part<'a>(rest: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (part, left) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = left;
    Some(part)
}

/// One process.
fn section(rest: &mut &[u8]) -> anyhow::Result<ProcessTrace> {
    let head = part(rest, 20).context("it breaks off in its header")?;
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let packed = part(rest, number(0)).context("it breaks off")?;
    let sum = u32::from_le_bytes(head[16..].try_into().expect("4 bytes"));
    ensure!(sum == crc(&[&head[..16], packed]), "damaged (wrong checksum)");
    let len = number(8);
    ensure!(len / RATIO <= packed.len() as u64, "an impossible length");
    let mut events = Vec::new();
    // One more than it should be, to see whether there is more.
    flate2::read::ZlibDecoder::new(packed).take(len + 1).read_to_end(&mut events).context("damaged")?;
    ensure!(events.len() as u64 == len, "not of the length it says");

    let mut rest = &events[..];
    let name = codec::take(&mut rest).and_then(|len| part(&mut rest, len)).context("its name breaks off")?;
    let name = std::str::from_utf8(name).context("its name is not UTF-8")?.to_string();
    let parent = codec::take(&mut rest).context("its parent is missing")?;
    let parent = parent.checked_sub(1).map(u32::try_from).transpose().context("an impossible parent")?;
    let unknown = codec::take(&mut rest).context("its count of frees is missing")?;
    let start = events.len() - rest.len();
    let facts = process::check(rest)
        .map_err(|(place, what)| anyhow::anyhow!("byte {} when decompressed: {what}", start + place))?;
    events.drain(..start);
    Ok(ProcessTrace { name, parent, unknown, facts, events })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Builder;

    fn sample() -> Trace {
        let processes = (0..3).map(|number| {
            let mut builder = Builder::new(format!("process {number}"), (number > 0).then(|| number - 1));
            let objects: Vec<_> = (0..200).map(|i| builder.allocate(i * 37 % 500, 0, i % 5 == 0)).collect();
            builder.thread(9);
            builder.thread(1);
            objects.iter().step_by(3).for_each(|&object| builder.free(object));
            builder.unknown();
            builder.finish().unwrap()
        });
        Trace { processes: processes.collect(), truncated: true }
    }

    #[test]
    fn comes_back_as_it_went() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.trace");
        std::fs::write(&path, sample().to_bytes().unwrap()).unwrap();
        assert_eq!(Trace::read(&path).unwrap(), sample());
        assert_eq!(Trace::from_bytes(&Trace::default().to_bytes().unwrap()).unwrap(), Trace::default());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let good = sample().to_bytes().unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Trace::from_bytes(&bad).is_err(), "byte {at} flipped");
            assert!(Trace::from_bytes(&good[..at]).is_err(), "cut at {at}");
        }
        let more = [&good[..], &[0]].concat();
        assert!(format!("{:#}", Trace::from_bytes(&more).unwrap_err()).contains("1 bytes too many"));
    }

    /// Puts right checksums over whatever a section says.
    fn forged(lengths: [u64; 2], packed: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        [VERSION, 0, 1].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(crc(&[&bytes]).to_le_bytes());
        let lengths = lengths.map(u64::to_le_bytes);
        bytes.extend(lengths.as_flattened());
        bytes.extend(crc(&[lengths.as_flattened(), packed]).to_le_bytes());
        bytes.extend(packed);
        bytes
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lies_with_right_checksums_are_noticed() {
        let complaint = |content: &[u8], claim: u64| {
            let packed = packed(content);
            format!("{:#}", Trace::from_bytes(&forged([packed.len() as u64, claim], &packed)).unwrap_err())
        };
        assert!(complaint(&[0, 0, 0], 1 << 40).contains("impossible length"));
        assert!(complaint(&[0, 0, 0], 2).contains("not of the length"));
        assert!(complaint(&[0, 0, 0], 4).contains("not of the length"));
        assert!(complaint(&[9, b'x', 0], 3).contains("name breaks off"));
        assert!(complaint(&[1, 0xff, 0, 0], 4).contains("not UTF-8"));
        assert!(complaint(&[0, 3, 0], 3).contains("process 2, is missing"));
        let text = complaint(&[0, 0, 0, 8, 3, 3], 6);
        assert_eq!(text, "process 0, at byte 24: byte 5 when decompressed: an object that is no more");
        let junk = forged([4, 10], &[1, 2, 3, 4]);
        assert!(format!("{:#}", Trace::from_bytes(&junk).unwrap_err()).contains("damaged"));
        assert!(Trace::from_bytes(&forged([u64::MAX, 10], &[])).is_err());
    }

    #[test]
    fn random_content_never_panics() {
        // A linear congruential generator is random enough here.
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        for _ in 0..2000 {
            let mut content = vec![0, 0, 0];
            content.extend((0..next()).map(|_| next() & next()));
            let packed = packed(&content);
            let _ = Trace::from_bytes(&forged([packed.len() as u64, content.len() as u64], &packed));
        }
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.trace");
        let complaint = || format!("{:#}", Trace::read(&path).unwrap_err());
        assert!(complaint().contains("x.trace") && complaint().contains("No such file"));
        std::fs::write(&path, "hello").unwrap();
        assert!(complaint().ends_with("x.trace: not a trace of hakmem record"));
        assert!(format!("{:#}", Trace::read(dir.path()).unwrap_err()).ends_with(": not a file"));
    }
}
