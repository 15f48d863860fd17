//! `install.sh`: what it says that it installs is there, and programs are built with it by `pkg-config`.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;
use support::{expect_ok, root, run, scratch};

/// Building the library is in it.
const LIMIT: Duration = Duration::from_secs(300);

const PREFIX: &str = "/opt/h";
const LIBDIR: &str = "/opt/h/lib64";

fn script(arguments: &[&str]) -> Command {
    let mut script = Command::new(root().join("install.sh"));
    script.args(arguments).env("PREFIX", PREFIX).env("LIBDIR", LIBDIR).env_remove("DESTDIR");
    // What the tests themselves are built with.
    script.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    script
}

/// Where the library has been installed, once for all tests: what is then below `/`.
fn installed() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = scratch("install");
        expect_ok(script(&["--library"]).env("DESTDIR", &root), LIMIT);
        root
    })
}

fn library() -> PathBuf {
    installed().join(&LIBDIR[1..]).join("libhakmem.so")
}

/// The files and links below `folder`, as they are named from there.
fn files(folder: &Path, base: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            files(&path, base, found);
        } else {
            found.insert(format!("/{}", path.strip_prefix(base).unwrap().display()));
        }
    }
}

#[test]
fn what_is_listed_is_installed() {
    let list = expect_ok(&mut script(&["--library", "--list"]), LIMIT);
    let listed: BTreeSet<String> =
        list.lines().map(|line| line.split(" -> ").next().unwrap().to_owned()).collect();
    let mut found = BTreeSet::new();
    files(installed(), installed(), &mut found);
    assert_eq!(listed, found);
    assert!(list.contains("libhakmem.a") && list.contains("/include/hakmem.h"), "{list}");
    let all = expect_ok(&mut script(&["--list"]), LIMIT);
    assert!(all.contains("/opt/h/bin/hakmem\n") && all.contains("libhakmem_record.so"), "{all}");
    assert!(all.contains("/opt/h/lib/hakmem/libhakmem.so -> /opt/h/lib64/libhakmem.so\n"), "{all}");
}

fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_be_installed_is_refused() {
    let text = failure(&run(&mut script(&["--libary"]), LIMIT));
    assert!(text.contains("--libary?"), "{text}");
    for (name, folder) in
        [("PREFIX", "opt"), ("LIBDIR", "lib"), ("PREFIX", "/my libraries"), ("PREFIX", "/a$b")]
    {
        let text = failure(&run(script(&["--list"]).env(name, folder), LIMIT));
        assert!(text.contains(folder), "{text}");
    }
}

/// The paths of the sources are not in what is shipped, and the library is the one that its name says.
#[test]
fn the_library_names_its_version_and_no_folder_of_ours() {
    let version = env!("CARGO_PKG_VERSION");
    let file = library().canonicalize().unwrap();
    assert_eq!(file.file_name().unwrap().to_str().unwrap(), format!("libhakmem.so.{version}"));
    let archive = library().with_extension("a");
    let (here, home) = (root(), std::env::var("HOME").unwrap());
    for file in [file, archive] {
        let bytes = std::fs::read(&file).unwrap();
        for folder in [here.to_str().unwrap(), &format!("{home}/.cargo")] {
            let folder = folder.as_bytes();
            assert!(!bytes.windows(folder.len()).any(|part| part == folder), "{} names it", file.display());
        }
    }
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let text = expect_ok(
        Command::new("pkg-config")
            .args(arguments)
            .arg("hakmem")
            .env("PKG_CONFIG_PATH", library().with_file_name("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", installed()),
        LIMIT,
    );
    text.split_whitespace().map(str::to_owned).collect()
}

/// One that names no allocation function, so that a linker might leave the library out.
#[test]
fn pkg_config_builds_programs() {
    if !support::skips::has("pkg-config") {
        return;
    }
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let source = scratch("install-program").join("program.c");
    std::fs::write(
        &source,
        "#include <hakmem.h>\n#include <stdio.h>\n#include <string.h>\n\
         int main(void) { char *copy = strdup(\"copied\"); return copy == NULL || puts(copy) < 0; }\n",
    )
    .unwrap();
    for (name, arguments, more) in [
        ("shared", &["--cflags", "--libs"][..], None),
        ("static", &["--cflags", "--libs", "--static"], Some("-static")),
    ] {
        let program = source.with_file_name(name);
        let mut gcc = Command::new("gcc");
        gcc.arg("-o").arg(&program).args(more).arg(&source).args(pkg_config(arguments));
        expect_ok(&mut gcc, LIMIT);
        let mut command = Command::new(&program);
        command.env("HAKMEM_STATS", "table").env("LD_LIBRARY_PATH", library().parent().unwrap());
        let output = run(&mut command, LIMIT);
        assert!(output.status.success() && output.stdout == b"copied\n", "{name}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(" statistics\n"), "{name}: {output:?}");
    }
    let dynamic = expect_ok(Command::new("readelf").arg("-dW").arg(source.with_file_name("shared")), LIMIT);
    let number = env!("CARGO_PKG_VERSION_MAJOR");
    let number = if number == "0" { format!("0.{}", env!("CARGO_PKG_VERSION_MINOR")) } else { number.into() };
    assert!(dynamic.contains(&format!("[libhakmem.so.{number}]")), "{dynamic}");
}
