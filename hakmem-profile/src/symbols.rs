//! From addresses to functions, with what was inlined there, files and lines.

mod module;

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Serialize;

use crate::file::{Module, Raw, StackEnd};
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
        let name = self.function.trim_start_matches(['<', '&', '[', '(']);
        let name = name.split(['<', '(', ' ']).next().unwrap_or_default();
        let spaces =
            ["std::", "core::", "alloc::", "hashbrown::", "bytes::", "smallvec::", "__gnu_cxx::", "boost::"];
        // As xmalloc, g_malloc0, CRYPTO_malloc, _PyObject_Malloc, zrealloc.
        let wrappers = ["malloc", "malloc0", "calloc", "realloc", "memalign", "strdup", "strndup"];
        let lower = name.to_ascii_lowercase();
        spaces.iter().any(|space| name.starts_with(space))
            || BEFORE_MAIN.contains(&name)
            || self.function.contains("operator new")
            || wrappers.iter().any(|wrapper| lower.ends_with(wrapper))
    }
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

/// Whether frames of this module are the allocator's.
fn is_ours(module: &str) -> bool {
    file_name(module).starts_with("libhakmem")
}

/// Whether a function is the allocator's, or the way into it, where it is linked into the program.
fn is_entry(function: &str) -> bool {
    const ENTRIES: [&str; 19] = [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "free",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "pvalloc",
        "operator new",
        "operator new[]",
        "__rust_alloc",
        "__rust_realloc",
        "__rust_alloc_zeroed",
        "__rdl_alloc",
        "__rg_alloc",
        "__rg_realloc",
        "__rg_alloc_zeroed",
    ];
    let name = function.trim_start_matches('<');
    let name = name.strip_prefix("__rustc::").unwrap_or(name);
    let name = match name.strip_prefix("__rustc[").and_then(|rest| rest.split_once("]::")) {
        Some((_, name)) => name,
        None => name,
    };
    ENTRIES.contains(&name) || name.starts_with("hakmem::") || name.starts_with("hak_")
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Finds functions, and keeps what it has found, for all profiles of a run.
pub struct Symbols {
    debug: PathBuf,
    objects: HashMap<Module, Option<Rc<Object>>>,
    /// The functions at a call, by the number of the module.
    places: HashMap<(usize, u64), Rc<Vec<Frame>>>,
    modules: HashMap<Module, usize>,
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
            objects: HashMap::new(),
            places: HashMap::new(),
            modules: HashMap::new(),
            notes: Vec::new(),
        }
    }

    /// What was missing so far: one line for each module.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The functions of a stack, the innermost first, without those of the allocator.
    pub fn stack(&mut self, raw: &Raw, stack: usize) -> Vec<Frame> {
        self.calls(raw, stack).into_iter().flat_map(|(_, frames)| frames).collect()
    }

    /// The same by the addresses of the calls. A last one of 0 says what is unknown.
    pub fn calls(&mut self, raw: &Raw, stack: usize) -> Vec<(u64, Vec<Frame>)> {
        let stack = &raw.stacks[stack];
        let at = |&address: &u64| {
            (address.saturating_sub(1), self.at(raw, stack.modules, address).as_ref().clone())
        };
        let mut calls: Vec<(u64, Vec<Frame>)> = stack.addresses.iter().map(at).collect();
        // The allocator's may call what is not its own: closures, in a debug build.
        let is_its = |frame: &Frame| is_ours(&frame.module) || is_entry(&frame.function);
        let inner = calls.iter().flat_map(|(_, frames)| frames);
        let inner = inner.take_while(|frame| is_its(frame) || frame.is_plumbing()).enumerate();
        let mut left = inner.filter(|(_, frame)| is_its(frame)).last().map_or(0, |(last, _)| last + 1);
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
        };
        calls.push((0, vec![Frame { function: end.into(), ..Frame::default() }]));
        calls
    }

    /// The functions at one return address, inlined ones first; at least one.
    pub fn at(&mut self, raw: &Raw, modules: Option<usize>, address: u64) -> Rc<Vec<Frame>> {
        // The call is in front of the address to which it returns.
        let call = address.saturating_sub(1);
        let Some(module) = module_of(raw, modules, call) else {
            return Rc::new(vec![Frame { function: format!("{address:#x}"), ..Frame::default() }]);
        };
        let number = match self.modules.get(module) {
            Some(known) => *known,
            None => {
                self.modules.insert(module.clone(), self.modules.len());
                self.modules.len() - 1
            }
        };
        if let Some(known) = self.places.get(&(number, call)) {
            return known.clone();
        }
        let found = Rc::new(self.in_module(module, call));
        self.places.insert((number, call), found.clone());
        found
    }

    fn in_module(&mut self, module: &Module, call: u64) -> Vec<Frame> {
        let name = file_name(module.path.trim_end_matches(" (deleted)"));
        if name.is_empty() || module.path.starts_with('[') && name != "[vdso]" {
            return vec![Frame { function: "(code made at run time)".into(), ..Frame::default() }];
        }
        let offset = call - module.start + module.offset;
        let frames = self.object(module).map(|object| object.frames(offset)).unwrap_or_default();
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

    fn object(&mut self, module: &Module) -> Option<Rc<Object>> {
        // One file is mapped in several pieces.
        let key = Module { start: 0, end: 0, offset: 0, ..module.clone() };
        if let Some(known) = self.objects.get(&key) {
            return known.clone();
        }
        let (object, note) = match module.path.as_str() {
            "[vdso]" => (None, None),
            _ => Object::open(module, &self.debug),
        };
        // Of the allocator nothing is shown.
        self.notes.extend(note.filter(|_| !is_ours(&module.path)));
        let object = object.map(Rc::new);
        self.objects.insert(key, object.clone());
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
            "__gnu_cxx::new_allocator<char>::allocate",
            "operator new",
            "xmalloc",
            "_PyObject_Malloc",
            "v8::internal::Malloced::operator new",
        ] {
            assert!(plumbing(name), "{name}");
        }
        for name in ["main", "app::read", "<app::Tree as core::clone::Clone>::clone", "stdio_read", "alloc"] {
            assert!(!plumbing(name), "{name}");
        }
    }

    #[test]
    fn the_way_into_the_allocator_is_known() {
        for name in [
            "malloc",
            "operator new[]",
            "__rust_alloc",
            "__rustc::__rust_alloc",
            "<hakmem::Hakmem as X>::alloc",
        ] {
            assert!(is_entry(name), "{name}");
        }
        for name in ["main", "my_malloc", "operator", "hakmem"] {
            assert!(!is_entry(name), "{name}");
        }
        assert!(is_ours("/x/libhakmem.so") && !is_ours("/x/libc.so.6"));
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
