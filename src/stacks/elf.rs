//! What the headers of a mapped file say: its unwind table and its build id.

use crate::os::peek;
use crate::stacks::list::{Code, Detail, LONGEST_ID};

/// Bytes from the start of a module that tell it from another one at the same address: the ELF header, the
/// program headers, and nearly always the build id.
pub(super) const FIRST: usize = 1024;

/// Tells a module from others by its [first bytes](FIRST): `before` is what came of those before these, or 0.
pub(super) fn fingerprint(before: usize, bytes: &[u8]) -> usize {
    bytes.chunks_exact(8).fold(before, |sum, chunk| {
        let word = chunk.iter().fold(0usize, |word, &byte| word << 8 | usize::from(byte));
        (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// The little-endian number of `N` bytes at an offset.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
}

/// A program header.
struct Header {
    kind: u32,
    offset: u64,
    address: usize,
    len: usize,
}

impl Header {
    const LEN: usize = 56;

    fn get(first: &[u8], base: usize, at: usize) -> Option<Self> {
        let mut copied = [0; Self::LEN];
        let bytes = match first.get(at..at.checked_add(Self::LEN)?) {
            Some(bytes) => bytes,
            None if peek::copy(base.wrapping_add(at), &mut copied) == Self::LEN => &copied,
            None => return None,
        };
        Some(Self {
            kind: number::<4>(bytes, 0)? as u32,
            offset: number::<8>(bytes, 8)?,
            address: number::<8>(bytes, 16)? as usize,
            len: number::<8>(bytes, 40)? as usize,
        })
    }
}

/// Program headers that are looked at.
const MOST_HEADERS: u64 = 64;

/// What the program headers of a mapped file say. Everything that is read may be wrong.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn read_headers(code: &mut Code, detail: &mut Detail, first: &mut [u8; FIRST]) {
    let n = peek::copy(code.base, first);
    let first = first.get(..n).unwrap_or_default();
    // 64 bits, little-endian.
    if !first.starts_with(b"\x7fELF\x02\x01") {
        return;
    }
    code.fingerprint = fingerprint(0, first);
    let (Some(at), Some(count)) = (number::<8>(first, 32), number::<2>(first, 56)) else { return };
    let headers = || {
        (0..count.min(MOST_HEADERS) as usize)
            .map_while(|i| Header::get(first, code.base, (at as usize).checked_add(i * Header::LEN)?))
    };
    let load = headers().find(|header| header.kind == libc::PT_LOAD && header.offset == 0);
    let Some(load) = load else { return };
    let bias = code.base.wrapping_sub(load.address);
    let (mut table, mut entries) = (0, 0);
    for header in headers() {
        let address = bias.wrapping_add(header.address);
        match header.kind {
            libc::PT_GNU_EH_FRAME => (table, entries) = read_table(address, header.len),
            libc::PT_NOTE if detail.id_len == 0 => {
                read_build_id(address, header.len, (code.base, first), detail)
            }
            _ => {}
        }
    }
    (code.table, code.entries) = (table, entries);
}

/// Bytes of `.eh_frame_hdr` before its table.
pub(super) const TABLE_HEADER: usize = 12;
/// Bytes of an entry of the table.
pub(super) const ENTRY: usize = 8;

/// Finds the table of `.eh_frame_hdr`, in the form that all linkers write.
fn read_table(address: usize, len: usize) -> (usize, usize) {
    let mut bytes = [0; TABLE_HEADER];
    // Version 1; of the address of `.eh_frame` only the size matters (4 bytes); the number of entries in 4
    // bytes; entries of 4 bytes each, relative to the beginning of the header.
    let is_usual = peek::copy(address, &mut bytes) == TABLE_HEADER
        && bytes[0] == 1
        && matches!(bytes[1] & 0xf, 0x3 | 0xb)
        && bytes[2] == 0x3
        && bytes[3] == 0x3b;
    if !is_usual {
        return (0, 0);
    }
    let entries = number::<4>(&bytes, 8).unwrap_or(0) as usize;
    (address.wrapping_add(TABLE_HEADER), entries.min(len.saturating_sub(TABLE_HEADER) / ENTRY))
}

/// Finds the build id among the notes, which are mostly in the first bytes of the module.
fn read_build_id(address: usize, len: usize, first: (usize, &[u8]), detail: &mut Detail) {
    const BUILD_ID: u64 = 3;
    let mut bytes = [0; 512];
    let len = len.min(512);
    let at = address.wrapping_sub(first.0);
    let known = at.checked_add(len).and_then(|end| first.1.get(at..end));
    let mut rest = known.unwrap_or_else(|| {
        let bytes = bytes.get_mut(..len).unwrap_or_default();
        let n = peek::copy(address, bytes);
        bytes.get(..n).unwrap_or_default()
    });
    while let (Some(name), Some(len), Some(kind)) =
        (number::<4>(rest, 0), number::<4>(rest, 4), number::<4>(rest, 8))
    {
        let start = 12 + (name as usize).next_multiple_of(4);
        let end = start + len as usize;
        if kind == BUILD_ID && rest.get(12..16) == Some(b"GNU\0") {
            let id = rest.get(start..end).unwrap_or_default();
            detail.id_len = id.len().min(LONGEST_ID);
            detail.id.iter_mut().zip(id).for_each(|(to, from)| *to = *from);
            return;
        }
        rest = rest.get(end.next_multiple_of(4)..).unwrap_or_default();
    }
}
