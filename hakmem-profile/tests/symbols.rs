//! Functions, inlined ones, files and lines of real programs, stripped ones too.

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use hakmem_profile::file::{self, Module, Raw, Stack, Writer};
use hakmem_profile::symbols::{Frame, Frames, Symbols};
use object::{Object, ObjectSymbol};
use support::process;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Builds a program with all that is known of it.
fn build(folder: &Path, source_name: &str) -> PathBuf {
    let program = folder.join("walk");
    let (compiler, arguments): (&str, &[&str]) = match source_name.rsplit_once('.').unwrap().1 {
        "c" => ("cc", &["-g", "-O2", "-Wl,--build-id"]),
        "cc" => ("c++", &["-g", "-O1", "-Wl,--build-id"]),
        _ => ("rustc", &["-g", "-Copt-level=1", "-Clink-arg=-Wl,--build-id", "--edition=2024"]),
    };
    run(Command::new(compiler).args(arguments).arg("-o").arg(&program).arg(source(source_name)));
    program
}

fn build_id(file: &Path) -> Vec<u8> {
    let bytes = std::fs::read(file).unwrap();
    object::File::parse(&bytes[..]).unwrap().build_id().unwrap().unwrap_or_default().to_vec()
}

/// What the allocator would have recorded of a run.
fn record(program: &Path) -> Raw {
    let mut raw = Raw { process: process(), ..Raw::default() };
    let (mut addresses, mut modules) = (Vec::new(), Vec::new());
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    for line in run(&mut Command::new(program)).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [address] => addresses.push(hex(address)),
            [range, rights, offset, _, _, path] if rights.contains('x') => {
                let (start, end) = range.split_once('-').unwrap();
                let build_id = if path.starts_with('/') { build_id(Path::new(path)) } else { Vec::new() };
                let (start, end, offset) = (hex(start), hex(end), hex(offset));
                modules.push(Module { start, end, offset, build_id, path: path.into() });
            }
            _ => {}
        }
    }
    raw.modules.push(modules);
    raw.stacks.push(Stack { addresses, modules: Some(0), ..Stack::default() });
    raw
}

/// The stack's functions down to `main`, and what there was to say.
fn look(raw: &Raw, debug: &Path) -> (Frames, Vec<String>) {
    let mut symbols = Symbols::with_debug_folder(debug.into());
    let mut frames = symbols.stack(raw, 0);
    let own = |frame: &Rc<Frame>| frame.module == "walk";
    frames.truncate(frames.iter().rposition(own).unwrap() + 1);
    let notes = symbols.notes().iter().filter(|note| note.contains("/walk ")).cloned().collect();
    (frames, notes)
}

fn names(frames: &[Rc<Frame>]) -> Vec<&str> {
    frames.iter().map(|frame| frame.function.as_str()).collect()
}

/// The line of `file` with `text`.
fn line_of(file: &str, text: &str) -> u32 {
    let source = std::fs::read_to_string(source(file)).unwrap();
    source.lines().position(|line| line.contains(text)).unwrap() as u32 + 1
}

#[test]
fn c_with_what_was_inlined() {
    let folder = tempfile::tempdir().unwrap();
    let raw = record(&build(folder.path(), "walk.c"));
    let (frames, notes) = look(&raw, Path::new("/no/such/folder"));
    assert_eq!(names(&frames)[..4], ["grow", "read_node", "read_tree", "main"]);
    assert_eq!(frames[0].line, Some(line_of("walk.c", "return backtrace")));
    assert_eq!(frames[1].line, Some(line_of("walk.c", "int n = grow")));
    assert!(frames[2].location().ends_with(&format!("walk.c:{}", line_of("walk.c", "return read_node"))));
    assert!(notes.is_empty(), "{notes:?}");
}

#[test]
fn stripped_programs_are_found_in_separate_files() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "walk.c");
    let debug = folder.path().join("walk.debug");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&program).arg(&debug));
    run(Command::new("strip").arg(&program));
    let none = folder.path().join("none");
    let raw = record(&program);
    let expected = ["grow", "read_node", "read_tree", "main"];

    // Nothing is known but where it begins, and that is said once.
    let (frames, notes) = look(&raw, &none);
    let named: Vec<_> = frames.iter().filter(|frame| frame.module == "walk" && frame.is_named()).collect();
    assert!(
        named.len() == 1 && named[0].function == "_start" && frames.last() == Some(named[0]),
        "{frames:?}"
    );
    assert!(notes.len() == 1 && notes[0].contains("no debug information"), "{notes:?}");

    // By the build id, under the folder for that.
    let id: String = build_id(&program).iter().map(|byte| format!("{byte:02x}")).collect();
    let place = folder.path().join("debug/.build-id").join(&id[..2]);
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(&debug, place.join(format!("{}.debug", &id[2..]))).unwrap();
    let (frames, notes) = look(&raw, &folder.path().join("debug"));
    assert_eq!(names(&frames)[..4], expected);
    assert!(frames[0].line.is_some() && notes.is_empty(), "{notes:?}");

    // The program has gone meanwhile.
    std::fs::rename(&program, folder.path().join("gone")).unwrap();
    let (_, notes) = look(&raw, &none);
    assert!(notes.len() == 1 && notes[0].contains("not there any more"), "{notes:?}");
    let (frames, notes) = look(&raw, &folder.path().join("debug"));
    assert_eq!(names(&frames)[..4], expected);
    assert!(frames[0].line.is_some() && notes.is_empty(), "{notes:?}");
    // Where not all of the code was mapped in one piece nobody knows which piece that was.
    let mut pieces = raw.clone();
    let of_walk = |module: &&mut Module| module.path == program;
    pieces.modules[0].iter_mut().filter(of_walk).for_each(|module| module.end += 1 << 20);
    let (frames, notes) = look(&pieces, &folder.path().join("debug"));
    assert!(names(&frames)[0].starts_with("walk+0x"), "{frames:?}");
    assert!(notes.len() == 1 && notes[0].contains("not there any more"), "{notes:?}");
    std::fs::rename(folder.path().join("gone"), &program).unwrap();

    // By the program's own link, with a checksum.
    run(Command::new("objcopy").arg("--add-gnu-debuglink").arg(&debug).arg(&program));
    let (frames, _) = look(&record(&program), &none);
    assert_eq!(names(&frames)[..4], expected);
    let mut bytes = std::fs::read(&debug).unwrap();
    bytes.push(0);
    std::fs::write(&debug, bytes).unwrap();
    let (frames, _) = look(&record(&program), &none);
    assert!(names(&frames)[0].starts_with("walk+0x"), "a debug file of another build");
}

/// Makes a program's link to a debug file say this.
fn link(program: &Path, name: &str, checksum: u32) {
    let section = program.with_extension("link");
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(name.len() / 4 * 4 + 4, 0);
    bytes.extend(checksum.to_le_bytes());
    std::fs::write(&section, bytes).unwrap();
    let add = format!(".gnu_debuglink={}", section.display());
    run(Command::new("objcopy").args(["-R", ".gnu_debuglink", "--add-section", &add]).arg(program));
}

/// A profile may come from anywhere, and name anything.
#[test]
fn only_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "walk.c");
    let debug = folder.path().join("walk.debug");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&program).arg(&debug));
    run(Command::new("strip").arg(&program));
    // Without an end that is waited for in vain, whatever was done with them.
    let function = |raw: Raw| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send(look(&raw, Path::new("/no/such/folder")).0[0].function.clone())
        });
        receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("it goes on reading")
    };
    let mut crc = flate2::Crc::new();
    crc.update(&std::fs::read(&debug).unwrap());
    // The name is what counts.
    link(&program, "no/such/walk.debug", crc.sum());
    assert_eq!(function(record(&program)), "grow");

    std::fs::remove_file(&debug).unwrap();
    link(&program, &format!("{}dev/zero", "../".repeat(20)), 7);
    assert!(function(record(&program)).starts_with("walk+0x"));
    link(&program, "walk.debug", 7);
    std::os::unix::fs::symlink("/dev/zero", &debug).unwrap();
    assert!(function(record(&program)).starts_with("walk+0x"));

    let raw = record(&program);
    std::fs::remove_file(&program).unwrap();
    run(Command::new("mkfifo").arg(&program));
    assert!(function(raw).starts_with("walk+0x"));
}

#[test]
fn another_build_under_the_same_name_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let mut raw = record(&build(folder.path(), "walk.c"));
    raw.modules[0]
        .iter_mut()
        .filter(|module| module.path.ends_with("walk"))
        .for_each(|module| module.build_id[0] ^= 1);
    let (frames, notes) = look(&raw, Path::new("/no/such/folder"));
    assert!(names(&frames)[0].starts_with("walk+0x"), "{frames:?}");
    assert!(notes.len() == 1 && notes[0].contains("not the file that ran"), "{notes:?}");
}

/// Programs may have several pieces of code, of which each is looked for by itself.
#[test]
fn each_piece_of_code_is_found_in_a_separate_file() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("walk");
    let script = ["cc", "-g", "-O2", "-Wl,--build-id", "-Wl,-z,noseparate-code"];
    let apart = folder.path().join("apart.c");
    std::fs::write(
        &apart,
        // Not as long as the other piece.
        "__attribute__((section(\".apart\"), noinline)) void *apart(void *(*f)(void)) { return f(); }
        __asm__(\".section .apart, \\\"ax\\\"; .skip 9000; .previous\");",
    )
    .unwrap();
    run(Command::new(script[0])
        .args(&script[1..])
        .args(["-no-pie", "-Wl,--section-start=.apart=0x10000000", "-o"])
        .arg(&program)
        .arg(source("walk.c"))
        .arg(&apart));
    let bytes = std::fs::read(&program).unwrap();
    let file = object::File::parse(&bytes[..]).unwrap();
    let addresses: Vec<u64> = ["apart", "main"]
        .map(|name| {
            let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
            symbol.address() + 1
        })
        .to_vec();
    let mut raw = record(&program);
    // As if both had called.
    raw.stacks.push(Stack { addresses: addresses.clone(), modules: Some(0), ..Stack::default() });
    let id: String = build_id(&program).iter().map(|byte| format!("{byte:02x}")).collect();
    let place = folder.path().join("debug/.build-id").join(&id[..2]);
    std::fs::create_dir_all(&place).unwrap();
    let debug = place.join(format!("{}.debug", &id[2..]));
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&program).arg(&debug));
    std::fs::remove_file(&program).unwrap();
    let mut symbols = Symbols::with_debug_folder(folder.path().join("debug"));
    assert_eq!(names(&symbols.stack(&raw, 1)), ["apart", "main"]);
    assert!(!symbols.notes().iter().any(|note| note.contains("/walk ")), "{:?}", symbols.notes());
}

#[test]
fn a_file_without_a_build_id_that_has_changed_since_is_doubted() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "walk.c");
    run(Command::new("objcopy").args(["--remove-section", ".note.gnu.build-id"]).arg(&program));
    assert_eq!(build_id(&program), []);
    let mut raw = record(&program);
    let doubts = |raw: &Raw| {
        let (frames, notes) = look(raw, Path::new("/no/such/folder"));
        assert_eq!(names(&frames)[..4], ["grow", "read_node", "read_tree", "main"]);
        let doubts = notes.iter().any(|note| note.contains("has changed since"));
        assert_eq!(notes.len(), usize::from(doubts), "{notes:?}");
        doubts
    };
    assert!(doubts(&raw));
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    raw.process.start = now.as_nanos() as u64;
    assert!(!doubts(&raw));
    // When it was is not known.
    raw.process.start = 0;
    assert!(!doubts(&raw));
    // Another one has come to its place before.
    let of_walk = |module: &&mut Module| module.path == program;
    let deleted = PathBuf::from(format!("{} (deleted)", program.display()));
    raw.modules[0].iter_mut().filter(of_walk).for_each(|module| module.path = deleted.clone());
    assert!(doubts(&raw));
}

#[test]
fn files_may_have_any_names() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "walk.c");
    let raw = record(&program);
    let names_of = |shown: &[u8], real: &[u8]| {
        let [shown, real] = [shown, real].map(|name| folder.path().join(OsStr::from_bytes(name)));
        std::fs::rename(&program, &real).unwrap();
        let mut modules = raw.modules[0].clone();
        modules
            .iter_mut()
            .filter(|module| module.path == program)
            .for_each(|module| module.path = shown.clone());
        // As the allocator writes them.
        let mut writer = Writer::new(&process());
        writer.modules(&modules);
        let mut again = raw.clone();
        again.modules = file::read(writer.bytes()).unwrap().modules;
        let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
        let frames = symbols.stack(&again, 0);
        std::fs::rename(&real, &program).unwrap();
        assert_eq!(symbols.notes().iter().find(|note| note.contains("not there")), None);
        names(&frames)[..3].join(" ")
    };
    for (shown, real) in [
        (&b"bad\xff"[..], &b"bad\xff"[..]),
        (b"new\\012line\\012", b"new\nline\n"),
        (b"back\\012slash", b"back\\012slash"),
    ] {
        assert_eq!(names_of(shown, real), "grow read_node read_tree");
    }
}

#[test]
fn a_symbol_table_alone_gives_names() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), "walk.c");
    run(Command::new("strip").arg("-g").arg(&program));
    let (frames, notes) = look(&record(&program), Path::new("/no/such/folder"));
    assert_eq!(names(&frames)[..3], ["read_node", "read_tree", "main"]);
    assert!(frames[0].line.is_none() && notes[0].contains("names from its symbol table only"), "{notes:?}");
}

#[test]
fn names_of_cpp_and_rust_are_demangled() {
    let folder = tempfile::tempdir().unwrap();
    let raw = record(&build(folder.path(), "walk.cc"));
    let (frames, _) = look(&raw, Path::new("/no/such/folder"));
    assert_eq!(names(&frames)[..3], ["shop::Basket<long>::put", "shop::buy", "main"]);
    assert_eq!(frames[0].line, Some(line_of("walk.cc", "backtrace(frames")));
    let raw = record(&build(folder.path(), "walk.rs"));
    let (frames, _) = look(&raw, Path::new("/no/such/folder"));
    assert_eq!(names(&frames)[..2], ["<walk::shop::Basket as walk::shop::Buy>::buy", "walk::main"]);
    assert_eq!(frames[0].line, Some(line_of("walk.rs", "super::backtrace")));
}

#[test]
fn the_allocator_is_known_under_another_file_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut raw = record(&build(folder.path(), "walk.c"));
    // A library of which nothing is known but the name that it gives itself.
    for (own, shown) in [("libhakmem.so", 4), ("libother.so", 5)] {
        let (source, library) = (folder.path().join("a.c"), folder.path().join(format!("alloc-{own}")));
        std::fs::write(&source, "int f(int n) { return n * n; }\n").unwrap();
        run(Command::new("cc")
            .args(["-shared", "-fPIC", "-s", &format!("-Wl,-soname,{own}"), "-o"])
            .arg(&library)
            .arg(&source));
        let path = library.clone();
        raw.modules[0].retain(|module| module.start != 0x1000);
        raw.modules[0]
            .insert(0, Module { start: 0x1000, end: 0x3000, offset: 0x1000, build_id: Vec::new(), path });
        if raw.stacks[0].addresses[0] != 0x1101 {
            raw.stacks[0].addresses.insert(0, 0x1101);
        }
        let (frames, _) = look(&raw, Path::new("/no/such/folder"));
        assert_eq!(names(&frames).iter().position(|name| *name == "main"), Some(shown - 1), "{frames:?}");
    }
}
