//! Makes the list of modules from `/proc/self/maps`.

use crate::os::file::File;
use crate::stacks::elf::{FIRST, read_headers};
use crate::stacks::list::{Code, Detail, LONGEST_ID, List, MOST};
use crate::sync::Ordering::Relaxed;

/// Bytes of `/proc/self/maps` that are read at once; longer lines are passed over.
pub(super) const LINES: usize = 16 << 10;

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

/// Makes a list; how many lines were read. Only for who may write to it.
pub(super) fn make(list: *mut List, lines: &mut [u8; LINES], first: &mut [u8; FIRST]) -> u32 {
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
                maker.add(&Line::parse(rest.get(..len).unwrap_or_default()), first);
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
    fn add(&mut self, line: &Line<'_>, first: &mut [u8; FIRST]) {
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
        // Code that was made at run time has no file that begins anywhere.
        let is_anonymous = line.path.is_empty() || line.path.starts_with(b"[anon");
        let is_based = !is_anonymous && (line.offset == 0 || is_same_file);
        let base = if is_based { self.base } else { 0 };
        let mut code = Code { start: line.start, end: line.end, base, ..Code::default() };
        let mut detail =
            Detail { offset: line.offset, path: self.paths, path_len: 0, id: [0; LONGEST_ID], id_len: 0 };
        if base != 0 && !line.path.is_empty() {
            read_headers(&mut code, &mut detail, first);
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
        let words = [code.start, code.end, code.fingerprint, code.base, code.table, detail.offset as usize];
        // The path as well: another file may be laid out as this one, and have no build id.
        for word in words.into_iter().chain(line.path.iter().map(|&byte| usize::from(byte))) {
            self.sum = (self.sum ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
}
