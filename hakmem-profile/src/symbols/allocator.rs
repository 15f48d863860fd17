//! Which frames of a stack are the allocator's: where a stack begins, and of no interest to who reads it.

use super::{Frame, file_name};

/// The file, below the folder of the allocator's crate, with the function that notes a stack: every stack
/// begins in it. So it tells where the allocator was built from.
const INNERMOST: &str = "src/sampling/mod.rs";

/// Folders of the allocator, below that of its crate. The program may have been built from others there.
const FOLDERS: [&str; 2] = ["src/", "hakmem-capi/src/"];

/// How many of a stack's frames, the innermost first, are the allocator's.
pub(super) fn depth<'a>(frames: impl Iterator<Item = &'a Frame>) -> usize {
    let mut frames = frames.peekable();
    // Where there are lines only, what was inlined has its bare name, which tells nothing, but its file.
    let root = frames.peek().and_then(|frame| root(frame)).unwrap_or_default().to_string();
    let is_its = |frame: &Frame| {
        let below =
            frame.file.as_deref().filter(|_| !root.is_empty()).and_then(|file| file.strip_prefix(&*root));
        is_ours(&frame.module)
            || is_entry(&frame.function)
            || below.is_some_and(|file| FOLDERS.iter().any(|folder| file.starts_with(folder)))
    };
    // The allocator's may call what is not its own: closures, in a debug build.
    let inner = frames.take_while(|frame| is_its(frame) || frame.is_plumbing()).enumerate();
    inner.filter(|(_, frame)| is_its(frame)).last().map_or(0, |(last, _)| last + 1)
}

/// The folder of the allocator's crate, with a slash at its end, if `innermost` is its function.
fn root(innermost: &Frame) -> Option<&str> {
    let root = innermost.file.as_deref()?.strip_suffix(INNERMOST)?;
    root.ends_with('/').then_some(root)
}

/// Whether frames of this module are the allocator's.
pub(super) fn is_ours(module: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::Frames;
    use std::rc::Rc;

    /// A program's stack: functions and their files.
    fn stack(frames: &[(&str, &str)]) -> Frames {
        let frame = |&(function, file): &(&str, &str)| Frame {
            function: function.into(),
            file: (!file.is_empty()).then(|| file.into()),
            module: "prog".into(),
            ..Frame::default()
        };
        frames.iter().map(frame).map(Rc::new).collect()
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
    fn bare_names_are_known_by_their_files() {
        let rust = "/rustc/59807616e1fa/library";
        let frames = stack(&[
            ("capture", "/home/me/hakmem-alloc-0.1.0/src/sampling/mod.rs"),
            ("sampled", "/home/me/hakmem-alloc-0.1.0/src/sampling/mod.rs"),
            ("hakmem::api::profile::sampled", "/home/me/hakmem-alloc-0.1.0/src/api/profile.rs"),
            ("map<u8, u8>", &format!("{rust}/core/src/option.rs")),
            ("alloc_cold", "/home/me/hakmem-alloc-0.1.0/src/api/rust.rs"),
            ("try_allocate_in", &format!("{rust}/alloc/src/raw_vec/mod.rs")),
            ("from_elem<u8>", "/usr/lib/rustlib/src/rust/library/alloc/src/vec/mod.rs"),
            ("large_ones", "/home/me/prog/src/main.rs"),
            ("main", "/home/me/prog/src/main.rs"),
        ]);
        assert_eq!(depth(frames.iter().map(Rc::as_ref)), 5);
        assert_eq!(crate::model::place(&frames[5..]), 2);
        // The C functions are of the same clone; its examples are not the allocator's.
        let frames = stack(&[
            ("capture", "/clone/src/sampling/mod.rs"),
            ("refill", "/clone/src/api/slow_path.rs"),
            ("new", "/clone/hakmem-capi/src/cxx.rs"),
            ("keep", "/clone/examples/src/keep.rs"),
        ]);
        assert_eq!(depth(frames.iter().map(Rc::as_ref)), 3);
        // A program's own files of that name.
        let frames =
            stack(&[("mix", "/home/me/synth/src/sampling/mod.rs.in"), ("main", "/home/me/synth/src/a.rs")]);
        assert_eq!(depth(frames.iter().map(Rc::as_ref)), 0);
        // Built without the names of folders, the allocator's cannot be told from the program's.
        let frames = stack(&[("capture", "src/sampling/mod.rs"), ("main", "src/main.rs")]);
        assert_eq!(depth(frames.iter().map(Rc::as_ref)), 0);
    }
}
