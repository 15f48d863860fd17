//! Walks through libraries that come and go.

use super::*;
use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;

/// A shared library, in a folder that goes with it.
struct Library {
    folder: PathBuf,
    path: CString,
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A shared library made of C source. `None`, which is said, where there is no compiler for this machine, or
/// no `dlopen`.
fn library(name: &str, source: &str) -> Option<Library> {
    let folder = std::env::temp_dir().join(format!("hakmem-stacks-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (from, to) = (folder.join("library.c"), folder.join("library.so"));
    std::fs::write(&from, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o"]).arg(&to).arg(&from);
    let library = Library { folder, path: CString::new(to.to_str().unwrap()).unwrap() };
    // A compiler that is there has to compile this.
    let has_compiler = cfg!(target_env = "gnu")
        && cc.status().is_ok_and(|status| {
            assert!(status.success(), "{cc:?}: {status}");
            true
        });
    // Under an emulator, it is for another machine.
    let machine = |path: &std::path::Path| std::fs::read(path).unwrap()[18..20].to_vec();
    let is_there = has_compiler && machine(&to) == machine(&std::env::current_exe().unwrap());
    if !is_there {
        child::skip("no compiler for this machine, or no `dlopen`");
    }
    is_there.then_some(library)
}

/// Loads a library, has it call a walk, and unloads it; where its function was.
fn walk_through(library: &Library) -> (usize, Walk) {
    // SAFETY: a library made here, whose `through` calls the function that it is given.
    unsafe {
        let handle = libc::dlopen(library.path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        let through = libc::dlsym(handle, c"through".as_ptr());
        let at = through.expose_provenance();
        let through: extern "C" fn(extern "C" fn()) -> c_int = std::mem::transmute(through);
        // Otherwise, what was remembered of the library that was there before may lead astray, and nothing
        // show that it has.
        modules::reread(true);
        through(walk_now);
        let walk = last();
        if walk.captured.end == End::Stopped {
            let known = walk.pcs().iter().map(|pc| (KNOWN.get(pc - 1, modules::gone()), pc.wrapping_sub(at)));
            let known: Vec<_> = known.map(|(word, far)| (word.map(Known::unpack), far)).collect();
            let code = modules::find(at).map(|code| (code, modules::is_still(&code)));
            println!("{at:#x}, gone {}, {code:x?}, {known:x?}", modules::gone());
            println!("{}", std::fs::read_to_string("/proc/self/maps").unwrap());
        }
        assert_eq!(libc::dlclose(handle), 0);
        (at, walk)
    }
}

/// A function with an entry that does not fit on the stack.
#[test]
fn long_unwind_tables_are_read() {
    // While another test's thread reads the maps, this one does not.
    if !child::is_alone() {
        return;
    }
    let mut source = String::from("int through(void (*f)(void)) { int n = 0;\n");
    for _ in 0..2000 {
        source += "__asm__ volatile(\".cfi_remember_state\\n nop\\n .cfi_restore_state\\n nop\");\n";
    }
    source += "f(); return n; }";
    let Some(library) = library("long", &source) else { return };
    walk_through(&library).1.assert_complete();
}

#[test]
fn a_library_may_go_and_another_one_take_its_place() {
    // While another test's thread reads the maps, this one does not.
    if !child::is_alone() {
        return;
    }
    // The call is at the same place, but the frame has another size.
    let source = |bytes: usize| {
        format!(
            "int through(void (*f)(void)) {{ volatile char a[{bytes}]; a[3] = 1; f(); return a[3]; }}
             const char pad[20000] = \"{bytes}\";"
        )
    };
    let Some(small) = library("small", &source(1000)) else { return };
    let large = library("large", &source(3000)).unwrap();
    // From one place in the code, whatever the compiler makes of it.
    let libraries = core::hint::black_box(vec![&small, &large, &small, &large]);
    let walks: Vec<_> = libraries.into_iter().map(walk_through).collect();
    println!("{:x?}", walks.iter().map(|&(at, _)| at).collect::<Vec<_>>());
    for &(at, ref walk) in &walks {
        walk.assert_complete();
        // Behind the library's frame, all have the same callers.
        let callers = |at: usize, walk: &Walk| {
            let pcs = walk.pcs().to_vec();
            let through = pcs.iter().position(|pc| pc.wrapping_sub(at) < 100).unwrap();
            pcs[through + 1..].to_vec()
        };
        assert_eq!(callers(at, walk), callers(walks[0].0, &walks[0].1));
    }
}
