//! What is mapped executable: read from `/proc/self/maps` and from the program headers of what is mapped.
//!
//! There are two lists, in memory that stays mapped until the library is unloaded. One is current, the other
//! one is where the next one is made, by one thread at a time. A reader looks up an address in the current
//! list and then makes sure that it still is the current one: until then nobody has begun to overwrite it. So
//! readers never wait, need not say that they read, and cannot be left behind by a fork.
//!
//! The memory of modules is only read by [`peek::copy`], because the program can unmap a module at any
//! moment.

use crate::os::file::File;
use crate::os::futex::{Inherit, Lock};
use crate::os::{self, peek};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, fence};
use core::ptr;

/// Modules in a list at most. Those beyond are not known.
const MOST: usize = 4096;
/// Bytes of all paths in a list.
const PATHS: usize = 256 << 10;
/// Bytes from the start of a module that tell it from another one at the same address: the ELF header, the
/// program headers, and nearly always the build id.
const FIRST: usize = 1024;
/// The longest build id that is kept.
const LONGEST_ID: usize = 32;
/// Bytes of `/proc/self/maps` that are read at once; longer lines are passed over.
const LINES: usize = 16 << 10;
/// What reading the maps costs: so many milliseconds in which they are not read again, and one more for so
/// many lines. A line takes about a microsecond, so that reading takes about 1% of the time at most.
const PAUSE: u32 = 10;
const LINES_PER_MS: u32 = 10;
/// Milliseconds that may be owed: a program that starts loads one module after another.
const MOST_OWED: u32 = 500;

/// What a walk needs to know of a module. Words of 0 where there is nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct Code {
    /// The executable mapping.
    pub start: usize,
    pub end: usize,
    /// Where its file begins in memory.
    pub base: usize,
    /// The table of `.eh_frame_hdr` (12 bytes behind its beginning) and the number of its entries.
    pub table: usize,
    pub entries: usize,
    /// Of the first bytes at `base`.
    pub fingerprint: usize,
}

/// [`Code`], for everybody to read. Relaxed throughout: see [`find`].
#[derive(Default)]
struct Shared([AtomicUsize; 6]);

impl Shared {
    fn start(&self) -> usize {
        self.0[0].load(Relaxed)
    }

    fn get(&self) -> Code {
        let [start, end, base, table, entries, fingerprint] =
            [0, 1, 2, 3, 4, 5].map(|i| self.0[i].load(Relaxed));
        Code { start, end, base, table, entries, fingerprint }
    }

    fn set(&self, code: &Code) {
        let words = [code.start, code.end, code.base, code.table, code.entries, code.fingerprint];
        self.0.iter().zip(words).for_each(|(shared, word)| shared.store(word, Relaxed));
    }
}

/// What only those need who write down the list.
#[derive(Clone, Copy)]
struct Detail {
    offset: u64,
    path: usize,
    path_len: usize,
    id: [u8; LONGEST_ID],
    id_len: usize,
}

/// A list of modules, by address. All zeros is an empty one.
struct List {
    len: AtomicUsize,
    code: [Shared; MOST],
    details: [Detail; MOST],
    paths: [u8; PATHS],
    paths_len: AtomicUsize,
    /// Of everything above.
    sum: u64,
}

/// Everything that is mapped for this module.
struct Memory {
    lists: [List; 2],
    lines: [u8; LINES],
}

/// Null until the first reading.
static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(ptr::null_mut());
/// The number of the current list, which is the list at that number modulo 2. 0: there is none yet.
static CURRENT: AtomicU32 = AtomicU32::new(0);
/// How often a module with an unwind table has gone.
static GONE: AtomicU32 = AtomicU32::new(0);

/// When the maps were read last, and what is still to be waited for it.
struct Last {
    at: u32,
    owed: u32,
}

/// Whoever holds it may write to the list that is not current, and read the details of the one that is.
static LAST: Lock<Last> = Lock::new(Last { at: 0, owed: 0 });

impl Inherit for Last {
    /// The list that is not current is made from its beginning each time.
    fn inherit(&mut self, _torn: bool) {}
}

/// In the child of a fork: see [`crate::os::futex`].
pub(crate) fn inherit() {
    LAST.inherit();
}

/// Gives the memory back, when no other thread can be in here: only threads that have heaps walk.
pub(crate) fn unmap() {
    let memory = MEMORY.swap(ptr::null_mut(), Relaxed);
    CURRENT.store(0, Relaxed);
    if !memory.is_null() {
        // SAFETY: the mapping that `reread` has made, which nobody uses any more.
        unsafe { os::unmap_uncounted(memory.cast(), mapped_len()) };
    }
}

/// Bytes mapped for the lists, and how many of them are in use.
pub(crate) fn bytes() -> (usize, usize) {
    let memory = MEMORY.load(Relaxed);
    if memory.is_null() {
        return (0, 0);
    }
    // SAFETY: the memory stays mapped, and these fields are atomics.
    let used = |i: usize| unsafe {
        let list = &raw const (*memory).lists[i % 2];
        let modules = (*list).len.load(Relaxed) * (size_of::<Shared>() + size_of::<Detail>());
        modules + (*list).paths_len.load(Relaxed)
    };
    (mapped_len(), used(0) + used(1) + LINES)
}

fn mapped_len() -> usize {
    size_of::<Memory>().next_multiple_of(os::page_size())
}

/// The number of the current list. 0 while there is none.
#[inline]
pub(crate) fn version() -> u32 {
    CURRENT.load(Relaxed)
}

/// Changes when what is known of some module's code does not hold any more.
#[inline]
pub(super) fn gone() -> u32 {
    // Acquire: pairs with the release in `reread`: whoever sees the new number also finds the new list.
    GONE.load(Acquire)
}

/// The module that an address is in, by the current list.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn find(pc: usize) -> Option<Code> {
    for _ in 0..3 {
        // Acquire: pairs with the release in `reread`, so that the list is whole.
        let current = CURRENT.load(Acquire);
        // Relaxed: the pointer was stored before the first number.
        let memory = MEMORY.load(Relaxed);
        if current == 0 || memory.is_null() {
            return None;
        }
        // SAFETY: the memory stays mapped, and these fields are atomics.
        let (code, len) = unsafe {
            let list = &raw const (*memory).lists[current as usize % 2];
            (&(*list).code, (*list).len.load(Relaxed))
        };
        let code = code.get(..len).unwrap_or_default();
        let found =
            code.get(code.partition_point(|code| code.start() <= pc).wrapping_sub(1)).map(Shared::get);
        // Acquire: pairs with the fence in `reread`. If anything of a later list has been read above, the
        // number is not the same any more.
        fence(Acquire);
        if CURRENT.load(Relaxed) == current {
            return found.filter(|code| pc < code.end);
        }
    }
    None
}

/// Like [`find`]; reads the maps again if nothing is found there, and not too often.
pub(super) fn find_or_reread(pc: usize) -> Option<Code> {
    find(pc).or_else(|| if reread(false) { find(pc) } else { None })
}

/// Whether what is mapped at an address is what was there when the maps were read.
#[cold]
pub(super) fn is_still_at(pc: usize) -> bool {
    find(pc).is_some_and(|code| code.table == 0 || is_still(&code))
}

/// Whether what is mapped at a module's address is still that module.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn is_still(code: &Code) -> bool {
    let mut bytes = [0; FIRST];
    let n = peek::copy(code.base, &mut bytes);
    fingerprint(bytes.get(..n).unwrap_or_default()) == code.fingerprint
}

fn fingerprint(bytes: &[u8]) -> usize {
    bytes.chunks_exact(8).fold(0usize, |sum, chunk| {
        let word = chunk.iter().fold(0usize, |word, &byte| word << 8 | usize::from(byte));
        (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// A module, for those who write down where code was.
pub(crate) struct Module<'a> {
    /// The first address.
    pub start: usize,
    /// The one behind the last.
    pub end: usize,
    /// Where the mapping begins in the file.
    pub offset: u64,
    /// The file, or a name in brackets, or nothing.
    pub path: &'a [u8],
    /// The linker's build id, if there is one.
    pub build_id: &'a [u8],
}

/// Calls `f` with each module of the current list, whose number is returned.
/// `None` if another thread is reading the maps.
pub(crate) fn each(mut f: impl FnMut(Module<'_>)) -> Option<u32> {
    let _last = LAST.lock_soon()?;
    let current = version();
    let memory = MEMORY.load(Relaxed);
    if current == 0 || memory.is_null() {
        return Some(0);
    }
    // SAFETY: the memory stays mapped, and nobody writes to the current list; the lock keeps it current.
    let list = unsafe { &(*memory).lists[current as usize % 2] };
    let len = list.len.load(Relaxed).min(MOST);
    for (code, detail) in list.code.iter().zip(&list.details).take(len) {
        let Code { start, end, .. } = code.get();
        f(Module {
            start,
            end,
            offset: detail.offset,
            path: list.paths.get(detail.path..detail.path + detail.path_len).unwrap_or_default(),
            build_id: detail.id.get(..detail.id_len).unwrap_or_default(),
        });
    }
    Some(current)
}

/// Runs `f` with the buffer that the maps are read into, unless another thread uses it.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn with_buffer<T>(f: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
    let _last = LAST.try_lock()?;
    let memory = MEMORY.load(Relaxed);
    // SAFETY: the memory stays mapped, and the lock is held, by which only this thread uses the buffer.
    (!memory.is_null()).then(|| f(unsafe { &mut (*memory).lines }))
}

/// Reads the maps, unless another thread does so just now or, without `at_once`, it was done too often
/// lately. Whether the list is a new one now.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn reread(at_once: bool) -> bool {
    if os::is_confined() || cfg!(miri) {
        return false;
    }
    let Some(mut last) = LAST.try_lock() else { return false };
    let now = os::now_ms();
    let owed = last.owed.saturating_sub(os::elapsed(last.at, now));
    if !at_once && owed > MOST_OWED {
        return false;
    }
    let mut memory = MEMORY.load(Relaxed);
    if memory.is_null() {
        memory = os::map_uncounted(mapped_len()).cast();
        if memory.is_null() {
            return false;
        }
        // Relaxed: see `find`.
        MEMORY.store(memory, Relaxed);
    }
    let current = version();
    // Release: pairs with the fence in `find`. Whoever reads what is written below also sees that the list
    // which was current before the one that is now is no more.
    fence(Release);
    // SAFETY: the lock is held, so only this thread uses the buffer and writes to the list that is not
    // current; others only read its atomics. Zeroed memory is valid as both.
    let (old, next, lines) = unsafe {
        let lists = &raw mut (*memory).lists;
        let (old, next) =
            (&raw const (*lists)[current as usize % 2], &raw mut (*lists)[(current as usize + 1) % 2]);
        (old, next, &mut (*memory).lines)
    };
    let read = make(next, lines);
    *last = Last { at: now, owed: owed + PAUSE + read / LINES_PER_MS };
    // SAFETY: as above; nobody writes to the current list.
    let (is_same, has_gone) = unsafe { ((*next).sum == (*old).sum, has_gone(&*old, &*next)) };
    if read == 0 || (is_same && current != 0) {
        return false;
    }
    // 0 is none. Release: pairs with the acquire in `find`.
    let number = if current == u32::MAX { 2 } else { current + 1 };
    CURRENT.store(number, Release);
    if has_gone {
        // After the list: what is found in the old list from now on must not be remembered for the new
        // number. Release: pairs with the acquire in `gone`.
        GONE.fetch_add(1, Release);
    }
    true
}

/// Whether a module with an unwind table is not in the new list any more.
fn has_gone(old: &List, new: &List) -> bool {
    let mut at = new.code.iter().take(new.len.load(Relaxed)).map(Shared::get).peekable();
    old.code.iter().take(old.len.load(Relaxed)).map(Shared::get).any(|old| {
        while at.next_if(|new| new.start < old.start).is_some() {}
        let is_there = at.peek().is_some_and(|new| {
            (new.start, new.end, new.fingerprint) == (old.start, old.end, old.fingerprint)
        });
        old.table != 0 && !is_there
    })
}

/// A line of the maps.
struct Line<'a> {
    start: usize,
    end: usize,
    is_executable: bool,
    offset: u64,
    /// Device and inode as text.
    file: &'a [u8],
    path: &'a [u8],
}

fn hex(text: &[u8]) -> u64 {
    text.iter().fold(0, |n, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            _ => (digit | 0x20).wrapping_sub(b'a').wrapping_add(10),
        };
        n << 4 | u64::from(value)
    })
}

/// The text before the first of these bytes, and the rest behind it.
fn cut(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let n = text.iter().position(|&byte| byte == at).unwrap_or(text.len());
    (text.get(..n).unwrap_or_default(), text.get(n + 1..).unwrap_or_default())
}

impl<'a> Line<'a> {
    /// `start-end perms offset device inode      path`
    fn parse(line: &'a [u8]) -> Self {
        let (start, rest) = cut(line, b'-');
        let (end, rest) = cut(rest, b' ');
        let (access, rest) = cut(rest, b' ');
        let (offset, file) = cut(rest, b' ');
        let (device, rest) = cut(file, b' ');
        let (inode, rest) = cut(rest, b' ');
        let blanks = rest.iter().take_while(|&&byte| byte == b' ').count();
        Line {
            start: hex(start) as usize,
            end: hex(end) as usize,
            is_executable: access.get(2) == Some(&b'x'),
            offset: hex(offset),
            file: if inode == b"0" {
                &[]
            } else {
                file.get(..device.len() + 1 + inode.len()).unwrap_or_default()
            },
            path: rest.get(blanks..).unwrap_or_default(),
        }
    }
}

/// Makes a list; how many lines were read.
fn make(list: *mut List, lines: &mut [u8; LINES]) -> u32 {
    let Some(file) = File::read_only(c"/proc/self/maps") else { return 0 };
    let mut maker = Maker { list, len: 0, paths: 0, end: 0, sum: 0, first: [0; 40], first_len: 0, base: 0 };
    let (mut read, mut kept, mut is_too_long) = (0, 0, false);
    loop {
        let n = file.read(lines.get_mut(kept..).unwrap_or_default()).len();
        if n == 0 {
            break;
        }
        let mut rest = lines.get(..kept + n).unwrap_or_default();
        while let Some(len) = rest.iter().position(|&byte| byte == b'\n') {
            if !is_too_long {
                maker.add(&Line::parse(rest.get(..len).unwrap_or_default()));
                read += 1;
            }
            is_too_long = false;
            rest = rest.get(len + 1..).unwrap_or_default();
        }
        let len = rest.len();
        // A line that fills the buffer is passed over.
        is_too_long |= len == LINES;
        let from = kept + n - len;
        kept = if is_too_long { 0 } else { len };
        for i in 0..kept {
            if let (Some(byte), Some(place)) = (lines.get(from + i).copied(), lines.get_mut(i)) {
                *place = byte;
            }
        }
    }
    // SAFETY: the caller holds the lock, by which this is the only thread that writes to this list.
    unsafe {
        (*list).len.store(maker.len, Relaxed);
        (*list).paths_len.store(maker.paths, Relaxed);
        (*list).sum = maker.sum;
    }
    read
}

/// A list that is being made.
struct Maker {
    list: *mut List,
    len: usize,
    paths: usize,
    /// Of the last module.
    end: usize,
    sum: u64,
    /// The file whose beginning was mapped last, and where.
    first: [u8; 40],
    first_len: usize,
    base: usize,
}

impl Maker {
    fn add(&mut self, line: &Line<'_>) {
        if line.offset == 0 {
            self.base = line.start;
            self.first_len = line.file.len().min(self.first.len());
            self.first.iter_mut().zip(line.file).for_each(|(to, from)| *to = *from);
        }
        // While the file is read, mappings may change, and one may be listed twice.
        if !line.is_executable || line.start < self.end || self.len == MOST {
            return;
        }
        let is_same_file = self.first.get(..self.first_len) == Some(line.file) && !line.file.is_empty();
        let base = if line.offset == 0 || is_same_file { self.base } else { 0 };
        let mut code = Code { start: line.start, end: line.end, base, ..Code::default() };
        let mut detail =
            Detail { offset: line.offset, path: self.paths, path_len: 0, id: [0; LONGEST_ID], id_len: 0 };
        if base != 0 && !line.path.is_empty() {
            read_headers(&mut code, &mut detail);
        }
        // SAFETY: the caller of `make` holds the lock, by which this is the only thread that uses these
        // fields of this list. The index is below `MOST`.
        unsafe {
            if let Some(to) = (*self.list).paths.get_mut(self.paths..self.paths + line.path.len()) {
                to.copy_from_slice(line.path);
                detail.path_len = line.path.len();
                self.paths += line.path.len();
            }
            (*self.list).code[self.len % MOST].set(&code);
            (*self.list).details[self.len % MOST] = detail;
        }
        self.len += 1;
        self.end = line.end;
        for word in [code.start, code.end, code.fingerprint, code.base, detail.offset as usize] {
            self.sum = (self.sum ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
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
fn read_headers(code: &mut Code, detail: &mut Detail) {
    let mut first = [0; FIRST];
    let n = peek::copy(code.base, &mut first);
    let first = first.get(..n).unwrap_or_default();
    // 64 bits, little-endian.
    if !first.starts_with(b"\x7fELF\x02\x01") {
        return;
    }
    code.fingerprint = fingerprint(first);
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
            libc::PT_NOTE if detail.id_len == 0 => read_build_id(address, header.len, detail),
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

/// Finds the build id among the notes.
fn read_build_id(address: usize, len: usize, detail: &mut Detail) {
    const BUILD_ID: u64 = 3;
    let mut bytes = [0; 512];
    let bytes = bytes.get_mut(..len.min(512)).unwrap_or_default();
    let n = peek::copy(address, bytes);
    let mut rest = bytes.get(..n).unwrap_or_default();
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
