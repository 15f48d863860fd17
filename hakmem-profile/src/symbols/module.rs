//! One program or library: its debug information, wherever that is, and its symbol table.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use addr2line::Loader;
use object::read::ReadCache;
use object::{Object as _, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};

use super::{Frame, demangle};
use crate::file::Module;

/// What is known of a file.
pub struct Object {
    /// Where the file's bytes are mapped: offset, length, address.
    segments: Vec<(u64, u64, u64)>,
    /// Debug information, if there is any.
    dwarf: Option<Loader>,
    /// The files that have symbol tables.
    tables: Vec<PathBuf>,
    symbols: OnceCell<Vec<Symbol>>,
    /// Where the kernel or the loader enters it; 0 in most libraries.
    entry: u64,
    /// The name that a library gives itself, whatever its file is called.
    pub(super) own_name: Option<String>,
}

/// What the C library calls the code at the entry, and how long it is at the most: it calls one function.
const ENTRY: (&str, u64) = ("_start", 64);

struct Symbol {
    address: u64,
    size: u64,
    name: String,
}

/// A piece of code.
struct Code {
    /// Where the file has it: offset, length.
    file: (u64, u64),
    /// Where it is once it is mapped: address, bytes, alignment.
    mapped: (u64, u64, u64),
}

/// What a file says about itself.
#[derive(Default)]
struct Head {
    build_id: Vec<u8>,
    segments: Vec<(u64, u64, u64)>,
    code: Vec<Code>,
    has_lines: bool,
    has_table: bool,
    entry: u64,
    own_name: Option<String>,
    /// The name of its debug file, and that one's checksum.
    link: Option<(String, u32)>,
    /// The name and build id of the file that several debug files share.
    shared: Option<(String, Vec<u8>)>,
}

impl Object {
    /// What is known of `module`, and what there is to say where that is not all. `started` is when the
    /// profile was, 0 if that is not known. Last whether it holds for all pieces in which the file is mapped.
    pub fn open(module: &Module, started: u64, debug: &Path) -> (Option<Self>, Option<String>, bool) {
        let path = &place(&module.path);
        let shown = path.display();
        let own = head(path).filter(|head| same(&head.build_id, &module.build_id));
        let mut note = match own {
            None if path.exists() => {
                Some(format!("{shown} is not the file that ran (another build id): no names and lines of it"))
            }
            None => Some(format!("{shown} is not there any more: no names and lines of it")),
            Some(_) => None,
        };
        let has_ids = |own: &Head| !own.build_id.is_empty() && !module.build_id.is_empty();
        let has_changed = is_newer(path, started) || module.path.as_os_str().as_bytes().ends_with(DELETED);
        let in_doubt = own.as_ref().is_some_and(|own| !has_ids(own)) && has_changed;
        let separate = separate(path, own.as_ref(), &module.build_id, debug);
        let lines = match &own {
            Some(head) if head.has_lines => Some(path.to_path_buf()),
            _ => separate.clone(),
        };
        let dwarf = lines.as_ref().and_then(|path| load(path, debug));
        if in_doubt {
            note = Some(format!(
                "{shown} has changed since it was loaded or profiled, and no build id says whether that is what \
                 ran: its names and lines may be wrong"
            ));
        } else if let (None, Some(own)) = (&dwarf, &own) {
            let names =
                if own.has_table { "names from its symbol table" } else { "names of exported functions" };
            note = Some(format!(
                "{shown} has no debug information: {names} only, no lines and inlined functions"
            ));
        }
        let tables: Vec<PathBuf> = own.iter().map(|_| path.to_path_buf()).chain(separate.clone()).collect();
        let is_whole = own.is_some();
        let alone = || {
            let head = head(separate.as_deref()?)?;
            let segments = vec![code(&head, module)?];
            Some(Head { segments, ..head })
        };
        let own = own.or_else(|| alone().inspect(|_| note = None));
        let Head { segments, entry, own_name, .. } = own.unwrap_or_default();
        let object = Self { segments, dwarf, tables, symbols: OnceCell::new(), entry, own_name };
        ((!object.segments.is_empty()).then_some(object), note, is_whole)
    }

    /// The functions at this offset in the file, inlined ones first; none if nothing is known.
    pub fn frames(&self, offset: u64) -> Vec<Frame> {
        let inside = |&&(start, length, _): &&(u64, u64, u64)| offset >= start && offset - start < length;
        let Some(&(start, _, address)) = self.segments.iter().find(inside) else { return Vec::new() };
        let address = address.wrapping_add(offset - start);
        let mut frames = Vec::new();
        if let Some(mut found) = self.dwarf.as_ref().and_then(|dwarf| dwarf.find_frames(address).ok()) {
            while let Ok(Some(frame)) = found.next() {
                let name = frame.function.and_then(|name| Some(demangle(&name.raw_name().ok()?)));
                let Some(function) = name.or_else(|| self.symbol(address)) else { continue };
                let (file, line) = match frame.location {
                    Some(location) => (location.file.map(String::from), location.line),
                    None => (None, None),
                };
                frames.push(Frame { function, file, line, module: String::new() });
            }
        }
        if frames.is_empty() {
            // A stripped program does not name its first function, but says where it is.
            let entered = || self.entry != 0 && (self.entry..self.entry + ENTRY.1).contains(&address);
            let name = self.symbol(address).or_else(|| entered().then(|| ENTRY.0.into()));
            frames.extend(name.map(|function| Frame { function, ..Frame::default() }));
        }
        frames
    }

    /// The name of the function at `address`, by the symbol tables.
    fn symbol(&self, address: u64) -> Option<String> {
        let symbols = self.symbols.get_or_init(|| symbols(&self.tables));
        let after = symbols.partition_point(|symbol| symbol.address <= address);
        let next = symbols.get(after).map_or(u64::MAX, |symbol| symbol.address);
        let symbol = symbols[..after].last()?;
        // Those written in assembly often have no size.
        let inside = if symbol.size > 0 { address - symbol.address < symbol.size } else { address < next };
        inside.then(|| demangle(&symbol.name))
    }
}

/// What the kernel shows behind the path of a file that is not there any more.
const DELETED: &[u8] = b" (deleted)";

/// Where a file is that the kernel shows as `path` in a process's maps: there a newline is escaped. So is
/// nothing else, and a file may have that in its name.
fn place(path: &Path) -> PathBuf {
    let mut bytes = path.as_os_str().as_bytes();
    while let Some(name) = bytes.strip_suffix(DELETED) {
        bytes = name;
    }
    let plain = PathBuf::from(OsStr::from_bytes(bytes));
    const NEWLINE: &[u8] = b"\\012";
    if plain.exists() || !bytes.windows(NEWLINE.len()).any(|window| window == NEWLINE) {
        return plain;
    }
    let mut name = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        let (byte, rest) = bytes.strip_prefix(NEWLINE).map_or((first, rest), |rest| (b'\n', rest));
        name.push(byte);
        bytes = rest;
    }
    OsString::from_vec(name).into()
}

/// Whether two build ids may belong to one build.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.is_empty() || other.is_empty() || one == other
}

/// Whether the file at `path` was written after `started`, ns since 1970, 0 if that is not known.
fn is_newer(path: &Path, started: u64) -> bool {
    let written = path.metadata().and_then(|data| data.modified()).ok();
    let since_1970 = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    started != 0 && since_1970.is_some_and(|time| time.as_nanos() > started.into())
}

/// Where the code of `module` is by what its debug file says: as in [`Object::segments`]. A debug file has
/// no code, and for the most part does not say either where in the program's file that is, but at which
/// addresses. `None` if that is not what was mapped there, or only a part of it, or there are several that
/// may be.
fn code(head: &Head, module: &Module) -> Option<(u64, u64, u64)> {
    let mut found = head.code.iter().filter_map(|code| code.place(module));
    found.next().filter(|_| found.next().is_none())
}

impl Code {
    /// Where it is, if `module` may be it.
    fn place(&self, module: &Module) -> Option<(u64, u64, u64)> {
        let (address, size, align) = self.mapped;
        let (offset, length) = self.file;
        let mapped = module.end.checked_sub(module.start)?;
        // Some debug files say it, others have none of it or just the headers.
        if length == size && length != 0 {
            // It is mapped from the beginning of its first page on.
            let (end, mapped_end) = (offset.checked_add(length)?, module.offset.checked_add(mapped)?);
            return (module.offset < end && offset < mapped_end).then_some((offset, length, address));
        }
        let end = address.checked_add(size)?;
        [12, 14, 16].into_iter().find_map(|page| {
            let start = address >> page << page;
            let is_whole = end.checked_next_multiple_of(1 << page)? - start == mapped;
            let is_aligned = start.wrapping_sub(module.offset) % align.max(1) == 0;
            (is_whole && is_aligned).then_some((module.offset, mapped, start))
        })
    }
}

/// Opens a file that a profile, or a file of one, names, which may be anything: a pipe has nothing to read as
/// long as nobody writes, some devices have no end, and others do something when they are opened.
fn open(path: &Path) -> Option<File> {
    if !path.is_file() {
        return None;
    }
    // What has come there since is not waited for.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// Reads what the file at `path` says about itself.
fn head(path: &Path) -> Option<Head> {
    let cache = ReadCache::new(open(path)?);
    let file = object::File::parse(&cache).ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let segments = file.segments().map(|segment| {
        let (offset, length) = segment.file_range();
        (offset, length, segment.address())
    });
    let is_code = |segment: &object::Segment<'_, '_, _>| matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
    let code = file.segments().filter(is_code).map(|segment| Code {
        file: segment.file_range(),
        mapped: (segment.address(), segment.size(), segment.align()),
    });
    Some(Head {
        code: code.collect(),
        build_id: file.build_id().ok().flatten().unwrap_or_default().to_vec(),
        segments: segments.filter(|(_, length, _)| *length > 0).collect(),
        has_lines: file.section_by_name(".debug_info").is_some_and(|section| section.size() > 0),
        has_table: file.symbols().next().is_some(),
        entry: file.entry(),
        own_name: own_name(&file),
        link: file.gnu_debuglink().ok().flatten().map(|(name, crc)| (text(name), crc)),
        shared: file.gnu_debugaltlink().ok().flatten().map(|(name, id)| (text(name), id.to_vec())),
    })
}

/// The name that a library gives itself (`DT_SONAME`).
fn own_name<'a>(file: &impl object::Object<'a>) -> Option<String> {
    const SONAME: [u8; 8] = 14u64.to_ne_bytes();
    let data = |name| file.section_by_name(name).and_then(|section| section.data().ok());
    let (dynamic, names) = (data(".dynamic")?, data(".dynstr")?);
    // Of the machine that we are on, else nothing is found.
    let entry = dynamic.chunks_exact(16).find(|entry| entry[..8] == SONAME)?;
    let at = usize::try_from(u64::from_ne_bytes(entry[8..].try_into().ok()?)).ok()?;
    let name = names.get(at..)?.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Where the debug file of this build id would be.
fn by_build_id(debug: &Path, build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(debug.join(format!(".build-id/{first:02x}/{rest}.debug"))).filter(|path| path.is_file())
}

/// The separate debug file of the file at `path`.
fn separate(path: &Path, own: Option<&Head>, build_id: &[u8], debug: &Path) -> Option<PathBuf> {
    let known = if build_id.is_empty() { own.map_or(&[][..], |own| &own.build_id) } else { build_id };
    if let Some(found) = by_build_id(debug, known) {
        return Some(found);
    }
    let (name, crc) = own?.link.as_ref()?;
    // No folders are in it, unless somebody wants to have other files read.
    let name = Path::new(name).file_name()?;
    let folder = path.parent()?;
    let global = debug.join(folder.strip_prefix("/").unwrap_or(folder));
    [folder.to_path_buf(), folder.join(".debug"), global]
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|candidate| candidate != path && checksum(candidate) == Some(*crc))
}

/// The checksum that a link to a debug file holds.
fn checksum(path: &Path) -> Option<u32> {
    let mut file = open(path)?;
    let (mut crc, mut buffer) = (flate2::Crc::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(crc.sum()),
            n => crc.update(&buffer[..n]),
        }
    }
}

/// The debug information in the file at `path`, and in the one that it shares with others.
fn load(path: &Path, debug: &Path) -> Option<Loader> {
    let shared = head(path)?.shared.and_then(|(name, build_id)| {
        let beside = path.parent()?.join(name);
        if beside.is_file() { Some(beside) } else { by_build_id(debug, &build_id) }
    });
    Loader::new_with_sup(path, shared).ok()
}

/// The functions in the symbol tables of these files, by address.
fn symbols(tables: &[PathBuf]) -> Vec<Symbol> {
    let mut all = Vec::new();
    for path in tables {
        let Some(cache) = open(path).map(ReadCache::new) else { continue };
        let Ok(file) = object::File::parse(&cache) else { continue };
        let functions = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
            .filter_map(|symbol| {
                let (address, size) = (symbol.address(), symbol.size());
                Some(Symbol {
                    address,
                    size,
                    name: symbol.name().ok().filter(|name| !name.is_empty())?.into(),
                })
            });
        all.extend(functions);
    }
    // Of several names for one function the last is taken: those with a size, the shortest of them.
    all.sort_by(|a, b| {
        (a.address, a.size, b.name.len(), &b.name).cmp(&(b.address, b.size, a.name.len(), &a.name))
    });
    all
}
