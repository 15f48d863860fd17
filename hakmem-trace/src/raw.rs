//! The raw recording: the layout of the file that the recorder maps and writes while the program runs.
//!
//! `hakmem-record` includes this very file: without std it cannot depend on a package that has it, as cargo
//! merges the features of what is built together.
//!
//! The file is a [`Header`] followed by chunks of [`CHUNK`] bytes. A thread claims a chunk by adding 1 to
//! [`Header::claimed`], fills in its [`ChunkHeader`] and writes events behind it, until it is full. No chunk
//! is ever written by two threads or two processes. All of it starts as zeros (the file is sparse).
//!
//! An event is 2, 3 or 5 words of 8 bytes. Its first word, the time, is written last and is never 0: a 0
//! there is the end of the chunk so far, however the writer ended.
//!
//! | event   | words                                                            |
//! |---------|------------------------------------------------------------------|
//! | free    | time before, place                                               |
//! | others  | time after, place, size                                          |
//! | realloc | time before, old place, new size, time after, new place          |
//!
//! A *place* is an address with the kind and the alignment in its upper bits ([`place`]). Times are
//! nanoseconds of CLOCK_MONOTONIC. An allocation is stamped after it was made and a free before: so, of two
//! objects that had the same address, the one that was there first also ends first, whichever threads took
//! part.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// What a raw recording starts with; the last byte is the version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HAKRAW\0\x01");
/// The environment variable that names the file for the recorder.
pub const VARIABLE: &str = "HAKMEM_RECORD_FILE";
/// Bytes of a chunk. Small, because a thread that lives for one allocation takes a whole one.
pub const CHUNK: usize = 16 * 1024;
/// Bytes of the file before the first chunk.
pub const HEADER: usize = 4096;

/// The start of the file.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`], written by whoever made the file.
    pub magic: u64,
    /// Chunks in the file.
    pub chunks: u64,
    /// Chunks asked for so far; more than [`Header::chunks`] when the file is full.
    pub claimed: AtomicU64,
    /// When a thread first found the file full, as the bitwise complement of the time; 0 if none has.
    /// (Complemented, so that the earliest is the largest, and nothing needs to be set up.)
    pub refused: AtomicU64,
    /// Processes that could not record.
    pub failed: AtomicU64,
}

/// The start of a chunk.
#[repr(C)]
pub struct ChunkHeader {
    /// What tells the writing process from others: one more than the number of its first chunk. An `exec`
    /// makes a new one, process ids do not matter. Written last; 0 is a chunk that nobody came to use.
    pub process: AtomicU32,
    /// The process that forked it, 0 if it was started by `exec`.
    pub forked_from: u32,
    /// The writing thread, counted from 0 in its process.
    pub thread: u32,
    /// The system's number of the process.
    pub pid: i32,
    /// That of its parent at the time.
    pub parent_pid: i32,
    /// The program's name, as the kernel has it: up to 15 bytes and zeros.
    pub name: [u8; 16],
    /// Keeps the events aligned.
    pub _reserved: [u32; 7],
}

/// Bytes of events in a chunk.
pub const ROOM: usize = CHUNK - size_of::<ChunkHeader>();

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An allocation of unset bytes.
    Allocate = 1,
    /// One of zeros.
    Zeroed = 2,
    /// The end of a block.
    Free = 3,
    /// A block got a new size, and perhaps a new address.
    Reallocate = 4,
}

const ADDRESS_BITS: u32 = 54;
const ALIGN_BITS: u32 = 6;

/// A place: the address (its lower 54 bits: more than any user space has), the alignment asked for as its
/// logarithm (0 where none was), and the kind.
#[inline(always)]
pub const fn place(kind: Kind, align_log2: u32, address: usize) -> u64 {
    (address as u64 & ((1 << ADDRESS_BITS) - 1))
        | (align_log2 as u64) << ADDRESS_BITS
        | (kind as u64) << (ADDRESS_BITS + ALIGN_BITS)
}

/// The address in a place.
pub const fn address(place: u64) -> u64 {
    place & ((1 << ADDRESS_BITS) - 1)
}

/// The alignment in a place, as its logarithm; 0 where none was asked for.
pub const fn align_log2(place: u64) -> u8 {
    (place >> ADDRESS_BITS) as u8 & ((1 << ALIGN_BITS) - 1)
}

/// The kind in a place, if it is one.
pub const fn kind(place: u64) -> Option<Kind> {
    match place >> (ADDRESS_BITS + ALIGN_BITS) {
        1 => Some(Kind::Allocate),
        2 => Some(Kind::Zeroed),
        3 => Some(Kind::Free),
        4 => Some(Kind::Reallocate),
        _ => None,
    }
}

impl Kind {
    /// Words of an event of this kind.
    pub const fn words(self) -> usize {
        match self {
            Kind::Free => 2,
            Kind::Allocate | Kind::Zeroed => 3,
            Kind::Reallocate => 5,
        }
    }
}

/// Bytes of a file with this many chunks.
pub const fn file_size(chunks: u64) -> u64 {
    HEADER as u64 + chunks * CHUNK as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_parts() {
        for kind in [Kind::Allocate, Kind::Zeroed, Kind::Free, Kind::Reallocate] {
            let at = place(kind, 12, 0x7fff_ffff_f010);
            assert_eq!((super::kind(at), align_log2(at), address(at)), (Some(kind), 12, 0x7fff_ffff_f010));
        }
        assert_eq!(super::kind(0), None);
        // An address with a tag in its top byte must not become another kind.
        assert_eq!(super::kind(place(Kind::Free, 0, 0xff00_0000_0000_1000)), Some(Kind::Free));
    }

    #[test]
    fn the_layout_leaves_room_for_whole_words() {
        assert_eq!((size_of::<ChunkHeader>(), ROOM % 8), (64, 0));
        assert!(size_of::<Header>() <= HEADER);
    }
}
