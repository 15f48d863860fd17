//! From addresses to functions, with what was inlined there, files and lines.

mod allocator;
mod module;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use serde::Serialize;

use crate::file::{Module, Raw, StackEnd};
use allocator::is_ours;
use module::Object;

/// A function in a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Frame {
    /// Its name, demangled; or what else is known of the address.
    pub function: String,
    /// Its source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The program or library, without its folder.
    pub module: String,
}

/// A call stack, or a part of one: the innermost function first. Equal functions that one [`Symbols`] has
/// found are one: a large profile has few of them and many stacks.
pub type Frames = Vec<Rc<Frame>>;

impl Frame {
    /// "file.c:12" with the last two parts of the path, or the module if the function does not say it.
    pub fn location(&self) -> String {
        let Some(file) = &self.file else {
            return if self.is_named() { self.module.clone() } else { String::new() };
        };
        let start = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
        match self.line {
            Some(line) => format!("{}:{line}", &file[start..]),
            None => file[start..].to_string(),
        }
    }

    /// Whether its function has a name.
    pub fn is_named(&self) -> bool {
        let rest = self.function.strip_prefix(&self.module).unwrap_or_default();
        !rest.starts_with("+0x") && !self.function.starts_with("0x")
    }

    /// Whether a whole call stack ends in it: the start of the program, of the loader, or of a thread.
    pub fn is_start(&self) -> bool {
        self.function == "main" || BEFORE_MAIN.contains(&self.function.as_str())
    }

    /// Whether it only passes allocations on: of the C++ and Rust libraries, a wrapper of `malloc`, or what
    /// comes before `main`. What is shown as the place of an allocation is the first frame that does not.
    pub fn is_plumbing(&self) -> bool {
        if self.file.as_deref().is_some_and(is_library) || is_library_trait(&self.function) {
            return true;
        }
        let name = self.function.trim_start_matches(['<', '&', '[', '(']);
        let name = name.split(['<', '(', ' ']).next().unwrap_or_default();
        // As xmalloc, g_malloc0, CRYPTO_malloc, _PyObject_Malloc, zrealloc.
        let wrappers = ["malloc", "malloc0", "calloc", "realloc", "memalign", "strdup", "strndup"];
        let lower = name.to_ascii_lowercase();
        SPACES.iter().any(|space| name.starts_with(space))
            || BEFORE_MAIN.contains(&name)
            || self.function.contains("operator new")
            || wrappers.iter().any(|wrapper| lower.ends_with(wrapper))
    }
}

/// Of the C++ and Rust libraries, and what programs use as if it were of these.
const SPACES: [&str; 8] =
    ["std::", "core::", "alloc::", "hashbrown::", "bytes::", "smallvec::", "__gnu_cxx::", "boost::"];

/// Whether a source file is of what [`SPACES`] names: what was inlined may have its bare name, as
/// `from_elem`.
fn is_library(file: &str) -> bool {
    let rust = file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/");
    let folders = ["/hashbrown-", "/bytes-", "/smallvec-", "/include/c++/", "/include/boost/"];
    rust && file.contains("/library/") || folders.iter().any(|folder| file.contains(folder))
}

/// Whether it is a function of a trait of the Rust library for a type that is not the program's, or of one
/// that a program cannot implement, as `<u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem`.
fn is_library_trait(function: &str) -> bool {
    let Some(inside) = function.strip_prefix('<') else { return false };
    let mut deep = 0;
    let of = inside.char_indices().find_map(|(at, character)| {
        match character {
            '<' | '(' | '[' => deep += 1,
            '>' | ')' | ']' => deep -= 1,
            _ => {}
        }
        let rest = (deep == 0).then(|| inside[at..].strip_prefix(" as "))??;
        Some((&inside[..at], rest))
    });
    let Some((kind, of)) = of else { return false };
    let own = of.starts_with("alloc::vec::") || of.starts_with("alloc::slice::hack::");
    own || !kind.contains("::") && SPACES[..3].iter().any(|space| of.starts_with(space))
}

/// What calls `main` and the first function of a thread.
const BEFORE_MAIN: [&str; 9] = [
    "_start",
    "_dl_start_user",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "clone",
    "clone3",
    "__clone3",
];

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Finds functions, and keeps what it has found, for all profiles of a run.
pub struct Symbols {
    debug: PathBuf,
    /// The numbers of files, by path and then by build id. A file is mapped in several pieces, and at other
    /// addresses in every process.
    numbers: HashMap<PathBuf, Vec<(Vec<u8>, usize)>>,
    /// What is known of a file, by its number, and where in it that begins if it is not of all of it.
    objects: HashMap<(usize, Option<u64>), Option<Rc<Object>>>,
    /// The functions at a call, by the number of the file and the place in it.
    places: HashMap<(usize, u64), Rc<Frames>>,
    /// All functions that were found, each kept once.
    frames: HashSet<Rc<Frame>>,
    notes: Vec<String>,
}

impl Default for Symbols {
    fn default() -> Self {
        Self::new()
    }
}

impl Symbols {
    /// Looks for separate debug files where distributions put them.
    pub fn new() -> Self {
        Self::with_debug_folder("/usr/lib/debug".into())
    }

    /// Looks for separate debug files in another folder.
    pub fn with_debug_folder(debug: PathBuf) -> Self {
        Self {
            debug,
            numbers: HashMap::new(),
            objects: HashMap::new(),
            places: HashMap::new(),
            frames: HashSet::new(),
            notes: Vec::new(),
        }
    }

    /// What was missing so far: one line for each module.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The functions of a stack, the innermost first, without those of the allocator.
    pub fn stack(&mut self, raw: &Raw, stack: usize) -> Frames {
        self.calls(raw, stack).into_iter().flat_map(|(_, frames)| frames).collect()
    }

    /// The same by the addresses of the calls. A last one of 0 says what is unknown.
    pub fn calls(&mut self, raw: &Raw, stack: usize) -> Vec<(u64, Frames)> {
        let stack = &raw.stacks[stack];
        let at = |&address: &u64| {
            (address.saturating_sub(1), self.at(raw, stack.modules, address).as_ref().clone())
        };
        let mut calls: Vec<(u64, Frames)> = stack.addresses.iter().map(at).collect();
        let mut left = allocator::depth(calls.iter().flat_map(|(_, frames)| frames).map(Rc::as_ref));
        calls.retain_mut(|(_, frames)| {
            let gone = left.min(frames.len());
            left -= gone;
            frames.drain(..gone);
            !frames.is_empty()
        });
        let end = match stack.end {
            StackEnd::Complete => return calls,
            StackEnd::Cut => "(deeper than is recorded)",
            StackEnd::Stopped => "(callers unknown)",
            StackEnd::NoWalk => "(stack unknown)",
            StackEnd::Others => "(other call stacks)",
        };
        calls.push((0, vec![self.one(Frame { function: end.into(), ..Frame::default() })]));
        calls
    }

    /// The functions at one return address, inlined ones first; at least one.
    pub fn at(&mut self, raw: &Raw, modules: Option<usize>, address: u64) -> Rc<Frames> {
        // The call is in front of the address to which it returns.
        let call = address.saturating_sub(1);
        let Some(module) = module_of(raw, modules, call) else {
            let frame = Frame { function: format!("{address:#x}"), ..Frame::default() };
            return Rc::new(vec![self.one(frame)]);
        };
        let number = self.number(module);
        let offset = call - module.start + module.offset;
        if let Some(known) = self.places.get(&(number, offset)) {
            return known.clone();
        }
        let found = self.in_module(module, number, offset, raw.process.start);
        let found: Rc<Frames> = Rc::new(found.into_iter().map(|frame| self.one(frame)).collect());
        self.places.insert((number, offset), found.clone());
        found
    }

    /// The number of a module's file.
    fn number(&mut self, module: &Module) -> usize {
        let find = |(build_id, number): &(Vec<u8>, usize)| (*build_id == module.build_id).then_some(*number);
        let known = self.numbers.get(&module.path).and_then(|builds| builds.iter().find_map(find));
        known.unwrap_or_else(|| {
            let number = self.numbers.values().map(Vec::len).sum();
            self.numbers.entry(module.path.clone()).or_default().push((module.build_id.clone(), number));
            number
        })
    }

    /// The one that is kept of equal functions.
    fn one(&mut self, frame: Frame) -> Rc<Frame> {
        if let Some(known) = self.frames.get(&frame) {
            return known.clone();
        }
        let frame = Rc::new(frame);
        self.frames.insert(frame.clone());
        frame
    }

    fn in_module(&mut self, module: &Module, number: usize, offset: u64, started: u64) -> Vec<Frame> {
        let path = module.path.to_string_lossy();
        let name = file_name(path.trim_end_matches(" (deleted)"));
        if name.is_empty() || path.starts_with('[') && name != "[vdso]" {
            return vec![Frame { function: "(code made at run time)".into(), ..Frame::default() }];
        }
        let object = self.object(module, number, started);
        // Whatever the file is called.
        let ours = object.as_ref().and_then(|object| object.own_name.clone()).filter(|name| is_ours(name));
        let name = ours.as_deref().unwrap_or(name);
        let frames = object.as_ref().map(|object| object.frames(offset)).unwrap_or_default();
        let mut frames: Vec<Frame> =
            frames.into_iter().map(|frame| Frame { module: name.into(), ..frame }).collect();
        if frames.is_empty() {
            // By the page only: most often all that stays equal between two runs is which library it is.
            frames.push(Frame {
                function: format!("{name}+{offset:#x}"),
                module: name.into(),
                ..Frame::default()
            });
        }
        frames
    }

    fn object(&mut self, module: &Module, number: usize, started: u64) -> Option<Rc<Object>> {
        let part = Some(module.offset);
        let known = [None, part].into_iter().find_map(|part| self.objects.get(&(number, part)));
        if let Some(known) = known {
            return known.clone();
        }
        let path = module.path.to_string_lossy();
        let (object, note, is_whole) = match &*path {
            "[vdso]" => (None, None, true),
            _ => Object::open(module, started, &self.debug),
        };
        // Of the allocator nothing is shown.
        self.notes.extend(note.filter(|note| !is_ours(&path) && !self.notes.contains(note)));
        let object = object.map(Rc::new);
        self.objects.insert((number, part.filter(|_| !is_whole)), object.clone());
        object
    }
}

/// The module that held `address` when that list was made.
pub fn module_of(raw: &Raw, modules: Option<usize>, address: u64) -> Option<&Module> {
    let list = &raw.modules[modules?];
    let after = list.partition_point(|module| module.start <= address);
    list[..after].last().filter(|module| address < module.end)
}

/// A linker's name as its programmer wrote it; without the hash that Rust adds, and without C++ parameters.
pub fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let cpp = name.starts_with("_Z").then(|| cpp_demangle::Symbol::new(name).ok()).flatten();
    cpp.and_then(|symbol| symbol.demangle_with_options(&options).ok()).unwrap_or_else(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled() {
        assert_eq!(
            demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("_ZN5space3fooEibc"), "space::foo");
        assert_eq!(demangle("_Znwm"), "operator new");
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("_Zwrong"), "_Zwrong");
    }

    #[test]
    fn plumbing_is_known() {
        let plumbing = |function: &str| Frame { function: function.into(), ..Frame::default() }.is_plumbing();
        for name in [
            "std::vector<int, std::allocator<int>>::_M_realloc_insert",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "alloc::raw_vec::finish_grow",
            "<u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
            "<app::Tree as alloc::vec::spec_from_elem::SpecFromElem>::from_elem::<alloc::alloc::Global>",
            "<[u8] as alloc::borrow::ToOwned>::to_owned",
            "__gnu_cxx::new_allocator<char>::allocate",
            "operator new",
            "xmalloc",
            "_PyObject_Malloc",
            "v8::internal::Malloced::operator new",
        ] {
            assert!(plumbing(name), "{name}");
        }
        for name in [
            "main",
            "app::read",
            "<app::Tree as core::clone::Clone>::clone",
            "<alloc as app::Grow>::grow",
            "<[app::Tree] as core::clone::Clone>::clone",
            "stdio_read",
            "alloc",
        ] {
            assert!(!plumbing(name), "{name}");
        }
    }

    #[test]
    fn bare_names_of_libraries_are_known_by_their_files() {
        let plumbing = |file: &str| {
            Frame { function: "grow".into(), file: Some(file.into()), ..Frame::default() }.is_plumbing()
        };
        for file in [
            "/rustc/59807616e1fa/library/alloc/src/vec/mod.rs",
            "/home/me/.rustup/toolchains/x/lib/rustlib/src/rust/library/core/src/option.rs",
            "/rust/deps/hashbrown-0.17.0/src/raw/alloc.rs",
            "/usr/include/c++/12/bits/stl_vector.h",
        ] {
            assert!(plumbing(file), "{file}");
        }
        for file in ["/home/me/library/src/main.rs", "/rustc/src/main.rs", "/home/me/bytes/src/a.rs", "a.c"] {
            assert!(!plumbing(file), "{file}");
        }
    }

    #[test]
    fn a_file_is_looked_into_once_for_all_processes() {
        let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
        let mut look = |start, build| {
            let path = "/no/such/program".into();
            let module = Module { start, end: start + 0x1000, offset: 0x2000, build_id: vec![build], path };
            let raw = Raw { modules: vec![vec![module]], ..Raw::default() };
            let found = symbols.at(&raw, Some(0), start + 0x11);
            assert_eq!(found[0].function, "program+0x2010");
            assert_eq!(symbols.notes().len(), 1);
            (found, symbols.places.len(), symbols.numbers.len(), symbols.objects.len())
        };
        let first = look(0x10_0000, 1);
        for process in 2..100 {
            let next = look(process * 0x10_0000, 1);
            assert!(Rc::ptr_eq(&next.0, &first.0) && (next.1, next.2, next.3) == (1, 1, 1));
        }
        let rebuilt = look(0x10_0000, 2);
        assert_eq!((rebuilt.1, rebuilt.3), (2, 2));
    }

    #[test]
    fn locations_are_short() {
        let frame = |file: &str, line| Frame {
            file: Some(file.into()),
            line,
            module: "m".into(),
            ..Frame::default()
        };
        assert_eq!(frame("/home/me/src/http/parse.c", Some(7)).location(), "http/parse.c:7");
        assert_eq!(frame("parse.c", Some(7)).location(), "parse.c:7");
        assert_eq!(frame("a/parse.c", None).location(), "a/parse.c");
        assert_eq!(Frame { module: "m".into(), ..Frame::default() }.location(), "m");
    }
}
