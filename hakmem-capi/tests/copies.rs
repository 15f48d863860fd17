//! Two copies of the crate in one program: two versions that cargo does not take for one, and the crate
//! beside the C library's archive. Each is an allocator of its own, and neither knows of the other.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::{expect_ok, lib_dir, root, scratch};

const LIMIT: Duration = Duration::from_secs(60);

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The crate as it is, under another version.
fn release(dir: &Path, version: &str) {
    copy(&root().join("src"), &dir.join("src"));
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let dependencies = manifest.split_once("\n[dependencies]\n").unwrap().1.split("\n[").next().unwrap();
    let text = format!(
        "[package]\nname = 'hakmem-alloc'\nversion = '{version}'\nedition = '2024'\n[lib]\nname = 'hakmem'\n\
         [features]\nchecked = []\n[lints.rust]\nunexpected_cfgs = 'allow'\n[dependencies]\n{dependencies}"
    );
    fs::write(dir.join("Cargo.toml"), text).unwrap();
}

/// Builds a program that has these dependencies.
fn build(name: &str, profile: &str, dependencies: &str, main: &str, script: &str) -> PathBuf {
    let dir = scratch("copies").join(name);
    fs::create_dir_all(dir.join("src")).unwrap();
    let text = format!(
        "[package]\nname = '{name}'\nversion = '0.1.0'\nedition = '2024'\n[workspace]\n[dependencies]\n{dependencies}\
         [profile.release]\nopt-level = 1\n"
    );
    fs::write(dir.join("Cargo.toml"), text).unwrap();
    fs::write(dir.join("src/main.rs"), main).unwrap();
    fs::write(dir.join("build.rs"), script).unwrap();
    // The versions of what the crate depends on, which are here: no network is asked.
    fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    let target = scratch("copies").join("target");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--offline", "--profile", profile]).current_dir(&dir);
    let status = command.env("CARGO_TARGET_DIR", &target).status().expect("cargo runs");
    assert!(status.success(), "{name} is not built, {profile}");
    target.join(if profile == "dev" { "debug" } else { profile }).join(name)
}

/// Blocks of both, some of them freed by other threads, while threads end.
const WORK: &str = r#"
struct Block(*mut u8, u8);
unsafe impl Send for Block {}
fn make(of: &Two, size: usize, mark: u8) -> Block {
    let p = unsafe { if mark == 1 { (of.0)(size) } else { (of.1)(size) } };
    assert!(!p.is_null());
    unsafe { p.write_bytes(mark, size) };
    Block(p, mark)
}
fn end(of: &Two, block: Block, size: usize) {
    let bytes = unsafe { std::slice::from_raw_parts(block.0, size) };
    assert!(bytes.iter().step_by(1 + size / 64).all(|&b| b == block.1), "a block of one was overwritten by the other");
    unsafe { if block.1 == 1 { (of.2)(block.0, size) } else { (of.3)(block.0, size) } };
}
type Make = unsafe fn(usize) -> *mut u8;
type End = unsafe fn(*mut u8, usize);
#[derive(Clone, Copy)]
struct Two(Make, Make, End, End);
fn work(two: Two) {
    for size in [8, 64, 1000, 40_000, 300_000, 2_000_000] {
        let count = (4_000_000 / size).min(3000);
        let made: Vec<Block> = std::thread::spawn(move || {
            let mut kept = Vec::new();
            for i in 0..count {
                for mark in [1, 2] {
                    kept.push(make(&two, size, mark));
                    if i % 3 == 0 {
                        end(&two, kept.swap_remove(i % kept.len()), size);
                    }
                }
            }
            kept
        })
        .join()
        .unwrap();
        let mut halves = [Vec::new(), Vec::new()];
        for (i, block) in made.into_iter().enumerate() {
            halves[i % 2].push(block);
        }
        for half in halves {
            std::thread::spawn(move || half.into_iter().for_each(|block| end(&two, block, size))).join().unwrap();
        }
    }
}
"#;

#[test]
fn two_versions_in_one_program() {
    let (one, other) = (scratch("copies").join("one"), scratch("copies").join("other"));
    release(&one, "0.1.9");
    release(&other, "0.2.0");
    let dependencies = format!(
        "one = {{ package = 'hakmem-alloc', path = '{}' }}\nother = {{ package = 'hakmem-alloc', path = '{}' }}\n",
        one.display(),
        other.display()
    );
    let main = r#"
        use std::alloc::{GlobalAlloc, Layout};
        #[global_allocator]
        static ONE: one::Hakmem = one::Hakmem::new();
        static OTHER: other::Hakmem = other::Hakmem::new();
        fn layout(size: usize) -> Layout { Layout::from_size_align(size, 8).unwrap() }
        fn main() {
            let (before, beside) = (one::stats(), other::stats());
            work(Two(
                |size| unsafe { ONE.alloc(layout(size)) },
                |size| unsafe { OTHER.alloc(layout(size)) },
                |p, size| unsafe { ONE.dealloc(p, layout(size)) },
                |p, size| unsafe { OTHER.dealloc(p, layout(size)) },
            ));
            assert!(one::stats().large_allocs > before.large_allocs);
            assert!(other::stats().large_allocs > beside.large_allocs);
            assert_eq!(other::stats().allocated_bytes, 0, "all that the other made has gone back to it");
            println!("fine");
        }
    "#;
    for profile in ["dev", "release"] {
        let program = build("two", profile, &dependencies, &format!("{main}{WORK}"), "fn main() {}");
        assert_eq!(expect_ok(&mut Command::new(program), LIMIT), "fine\n");
    }
}

#[test]
fn the_crate_beside_the_archive() {
    let dependencies = format!("hakmem-alloc = {{ path = '{}' }}\n", root().display());
    let script = format!(
        "fn main() {{ println!(\"cargo::rustc-link-search=native={}\"); println!(\"cargo::rustc-link-lib=static=hakmem\"); }}",
        lib_dir().display()
    );
    let main = r#"
        use std::alloc::{GlobalAlloc, Layout};
        #[global_allocator]
        static CRATE: hakmem::Hakmem = hakmem::Hakmem::new();
        unsafe extern "C" {
            fn hak_malloc(size: usize) -> *mut u8;
            fn hak_free(p: *mut u8);
            fn malloc(size: usize) -> *mut u8;
            fn malloc_usable_size(p: *mut u8) -> usize;
        }
        fn layout(size: usize) -> Layout { Layout::from_size_align(size, 8).unwrap() }
        fn main() {
            work(Two(
                |size| unsafe { CRATE.alloc(layout(size)) },
                |size| unsafe { hak_malloc(size) },
                |p, size| unsafe { CRATE.dealloc(p, layout(size)) },
                |p, _| unsafe { hak_free(p) },
            ));
            // The archive's `malloc` is the program's.
            unsafe {
                let p = malloc(40);
                assert!(malloc_usable_size(p) >= 40);
                hak_free(p);
            }
            println!("fine");
        }
    "#;
    let program = build("both", "release", &dependencies, &format!("{main}{WORK}"), &script);
    assert_eq!(expect_ok(&mut Command::new(program), LIMIT), "fine\n");
}
