//! How the command finds its library, and `hakmem lib`.
//!
//! The command is copied away from the target folder it was built in, and cargo is a script that says what it
//! was asked; what a real build gives is in `real.rs`.

mod support;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{clean, compile, fake, hakmem, install, run, script};
use tempfile::TempDir;

/// An installation: the command in `bin`, and what a test adds.
struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        install(Path::new(env!("CARGO_BIN_EXE_hakmem")), &folder.path().join("bin/hakmem"), "755");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    /// Puts the library in this place.
    fn library(&self, name: &str) -> PathBuf {
        let place = self.path(name);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        install(&fake(), &place, "755");
        place
    }

    /// A cargo that notes its arguments, says `progress` on stderr, names the stand-in as what it built, and
    /// leaves with `code`.
    fn cargo(&self, progress: &str, code: i32) -> PathBuf {
        let text = format!(
            "#!/bin/sh\necho \"$PWD|$CARGO_TARGET_DIR|$*\" >> '{}'\nprintf '{progress}' >&2\n\
             echo '{{\"reason\":\"compiler-artifact\",\"filenames\":[\"{}\"]}}'\nexit {code}\n",
            self.path("asked").display(),
            fake().display()
        );
        script(&self.path("cargo"), &text, "755")
    }

    /// What cargo was asked, if it was.
    fn asked(&self) -> Option<String> {
        std::fs::read_to_string(self.path("asked")).ok()
    }

    fn hakmem(&self, program: &str) -> Command {
        let mut command = clean(Command::new(self.path(program)));
        command.env_remove("CARGO_TARGET_DIR").env("CARGO", "/no/such/cargo");
        command
    }
}

fn root() -> &'static str {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_str().unwrap()
}

#[test]
fn lib_prints_the_path_and_nothing_else() {
    for command in
        [hakmem().env("HAKMEM_LIB", fake()).arg("lib"), hakmem().args(["lib", "--lib"]).arg(fake())]
    {
        let ended = run(command);
        assert_eq!((ended.stdout(), &*ended.stderr), (&*format!("{}\n", fake().display()), ""));
        assert_eq!(ended.code(), Some(0));
    }
    // The loader needs it absolute.
    let ended = run(hakmem().args(["lib", "--lib", "libhakmem.so"]).current_dir(fake().parent().unwrap()));
    assert_eq!(ended.stdout(), format!("{}\n", fake().display()));
}

#[test]
fn version() {
    assert_eq!(run(hakmem().arg("--version")).stdout(), format!("hakmem {}\n", env!("CARGO_PKG_VERSION")));
    let ended = run(&mut hakmem());
    assert!(ended.stderr.contains("run") && ended.stderr.contains("lib"), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(2));
    assert_eq!(run(hakmem().arg("walk")).code(), Some(2));
}

#[test]
fn the_order_of_places() {
    let installed = Installed::new();
    let mut want = installed.library("lib/hakmem/libhakmem.so");
    let found = || PathBuf::from(run(installed.hakmem("bin/hakmem").arg("lib")).stdout().trim_end());
    assert_eq!(found(), want);
    for nearer in ["lib/libhakmem.so", "bin/libhakmem.so"] {
        want = installed.library(nearer);
        assert_eq!(found(), want);
    }
    let ended = run(installed.hakmem("bin/hakmem").arg("lib").env("HAKMEM_LIB", fake()));
    assert_eq!(ended.stdout().trim_end(), fake().to_str().unwrap());
    let ended =
        run(installed.hakmem("bin/hakmem").args(["lib", "--lib"]).arg(&want).env("HAKMEM_LIB", fake()));
    assert_eq!(ended.stdout().trim_end(), want.to_str().unwrap());
    // An empty HAKMEM_LIB is as good as none. And nobody asked cargo all the time.
    assert_eq!(run(installed.hakmem("bin/hakmem").arg("lib").env("HAKMEM_LIB", "")).code(), Some(0));
    assert_eq!(installed.asked(), None);
}

#[test]
fn a_wrong_library_is_an_error_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    let object = compile("plain.c", "object.o", &["-c"]);
    let cases = [
        ("/no/such/lib.so", "No such file"),
        (folder.path().to_str().unwrap(), "not a file"),
        (text.to_str().unwrap(), "not an ELF file"),
        (object.to_str().unwrap(), "not a shared library"),
    ];
    for (library, what) in cases {
        let mark = folder.path().join("started");
        let by_option = &mut hakmem();
        by_option.args(["run", "--quiet", "--lib", library, "touch"]).arg(&mark);
        let ended = run(by_option);
        assert!(ended.line().starts_with(&format!("hakmem: --lib {library}: ")), "{}", ended.line());
        assert!(ended.line().contains(what), "{}", ended.line());
        assert_eq!(ended.code(), Some(2));
        assert!(!mark.exists(), "the program was started");
        let ended = run(hakmem().args(["lib"]).env("HAKMEM_LIB", library));
        assert!(ended.line().starts_with(&format!("hakmem: HAKMEM_LIB={library}: ")), "{}", ended.line());
        assert_eq!((ended.code(), ended.stdout()), (Some(2), ""));
    }
}

#[test]
fn an_unreadable_library_is_an_error() {
    let installed = Installed::new();
    let library = installed.path("secret.so");
    install(&fake(), &library, "000");
    let mut command = installed.hakmem("bin/hakmem");
    command.args(["run", "--lib"]).arg(&library).arg("true");
    if nix::unistd::getuid().is_root() {
        // Root reads everything, so somebody else has to try.
        install(&fake(), &library, "600");
        std::fs::set_permissions(
            installed.folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        command.uid(65534).gid(65534);
    }
    let ended = run(&mut command);
    assert!(ended.line().contains("secret.so: Permission denied"), "{}", ended.line());
    assert_eq!(ended.code(), Some(2));
}

#[test]
fn an_awkward_path_is_linked_for_run_and_reported_by_lib() {
    let installed = Installed::new();
    let library = installed.library("a b:c/libhakmem.so");
    let show = ["sh", "-c", "case $LD_PRELOAD in *' '*|*:*) echo awkward;; *) echo plain;; esac; env true"];
    let ended = run(installed.hakmem("bin/hakmem").args(["run", "--lib"]).arg(&library).args(show));
    assert_eq!(ended.stdout(), "plain\n");
    assert!(ended.line().starts_with("hakmem 9.8.7 served sh"), "{}", ended.line());
    let ended = run(installed.hakmem("bin/hakmem").args(["lib", "--lib"]).arg(&library));
    assert_eq!(ended.stdout().trim_end(), library.to_str().unwrap());
    assert!(ended.line().contains("warning"), "{}", ended.line());
}

#[test]
fn builds_where_the_sources_are() {
    let installed = Installed::new();
    let cargo = installed.cargo("    Finished fresh\\n", 0);
    let ended = run(installed.hakmem("bin/hakmem").arg("lib").env("CARGO", &cargo));
    // A fresh build is silent.
    assert_eq!((ended.stdout(), &*ended.stderr), (&*format!("{}\n", fake().display()), ""));
    let asked = installed.asked().unwrap();
    let want =
        format!("{}||build --release -p hakmem-capi --message-format=json-render-diagnostics\n", root());
    assert_eq!(asked, want);

    let cargo = installed.cargo("warning: earlier\\n   Compiling x\\n    Finished y\\n", 0);
    let ended = run(installed.hakmem("bin/hakmem").args(["run", "-q", "echo", "out"]).env("CARGO", &cargo));
    assert_eq!(ended.stdout(), "out\n");
    assert_eq!(ended.stderr, "warning: earlier\n   Compiling x\n    Finished y\n");
}

#[test]
fn honours_cargo_target_dir() {
    let installed = Installed::new();
    let cargo = installed.cargo("", 0);
    let mut command = installed.hakmem("bin/hakmem");
    run(command
        .arg("lib")
        .env("CARGO", cargo)
        .env("CARGO_TARGET_DIR", "here")
        .current_dir(installed.path("")));
    let asked = installed.asked().unwrap();
    assert!(asked.contains(&format!("|{}|", installed.path("here").display())), "{asked}");
}

#[test]
fn in_a_target_folder_cargo_decides_what_is_fresh() {
    let installed = Installed::new();
    std::fs::write(installed.path(".rustc_info.json"), "{}").unwrap();
    let stale = installed.library("bin/libhakmem.so");
    let cargo = installed.cargo("", 0);
    let lib = |cargo: &Path| run(installed.hakmem("bin/hakmem").arg("lib").env("CARGO", cargo));
    assert_eq!(lib(&cargo).stdout().trim_end(), fake().to_str().unwrap());
    let asked = installed.asked().unwrap();
    assert!(
        asked.ends_with(&format!("--target-dir {}\n", installed.path("").display()).replace("/\n", "\n")),
        "{asked}"
    );
    // Where there is no cargo at all, the library that is there has to do.
    assert_eq!(lib(Path::new("/no/such/cargo")).stdout().trim_end(), stale.to_str().unwrap());
}

#[test]
fn a_failed_build_is_an_error() {
    let installed = Installed::new();
    let cargo = installed.cargo("error: no good\\n", 101);
    let ended = run(installed.hakmem("bin/hakmem").args(["run", "true"]).env("CARGO", &cargo));
    assert!(
        ended.stderr.starts_with("error: no good\nhakmem: cannot build libhakmem.so from "),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains(root()) && ended.stderr.contains("101"), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(2));
    let ended = run(installed.hakmem("bin/hakmem").arg("lib"));
    assert!(ended.line().contains("cannot run cargo"), "{}", ended.line());
    assert_eq!((ended.code(), ended.stdout()), (Some(2), ""));
}
