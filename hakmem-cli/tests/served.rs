//! Programs that Hakmem cannot serve: the line has to say so, and why.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::disk::Disk;
use support::{Ended, compile, fake_run, hakmem, install, run, script};

/// What the line says after the verdict.
#[track_caller]
fn reason<'a>(ended: &'a Ended, name: &str) -> &'a str {
    let start = format!("hakmem: {name} was NOT served by Hakmem: ");
    ended.line().strip_prefix(&start).unwrap_or_else(|| panic!("{}", ended.line()))
}

/// A statically linked program: exits with 3, or after `-c` runs a shell command.
fn static_program() -> PathBuf {
    compile("plain.c", "static", &["-static"])
}

#[test]
fn a_static_program() {
    for program in [static_program(), compile("plain.c", "static-pie", &["-static-pie", "-fPIE"])] {
        let ended = run(&mut fake_run([&program]));
        let name = program.file_name().unwrap().to_str().unwrap();
        let want = format!("{} is statically linked, so no loader reads LD_PRELOAD", program.display());
        assert_eq!(reason(&ended, name), want);
        assert_eq!(ended.code(), Some(3));
    }
}

#[test]
fn a_script_for_a_static_program() {
    let folder = tempfile::tempdir().unwrap();
    let script = script(&folder.path().join("script"), &format!("#!{}\n", static_program().display()), "755");
    let ended = run(&mut fake_run([&script]));
    assert!(
        reason(&ended, "script").starts_with(&format!("{} is statically linked", static_program().display()))
    );
}

#[test]
fn a_static_program_with_children_that_are_served() {
    let ended = run(fake_run([static_program()]).args(["-c", "/usr/bin/env true"]));
    let text = reason(&ended, "static");
    assert!(text.contains("is statically linked"), "{text}");
    assert!(text.contains("; but hakmem 9.8.7 served ") && text.ends_with(" started by it"), "{text}");
}

#[test]
fn a_program_found_in_the_path() {
    let path = std::env::join_paths([static_program().parent().unwrap(), Path::new("/usr/bin")]).unwrap();
    let ended = run(fake_run(["static"]).env("PATH", path));
    assert!(reason(&ended, "static").starts_with(&*static_program().to_string_lossy()));
}

#[test]
fn a_set_user_id_program() {
    // Root makes one for the user nobody; anybody else takes one of root's.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (program, argument) = if nix::unistd::getuid().is_root() {
        let program = folder.path().join("other");
        install(Path::new("/usr/bin/env"), &program, "755");
        std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        (program, "true")
    } else {
        (PathBuf::from("/bin/mount"), "--version")
    };
    let ended = run(fake_run([&program]).arg(argument));
    let name = program.file_name().unwrap().to_str().unwrap();
    assert!(reason(&ended, name).contains("is set-user-id or set-group-id"), "{}", ended.line());
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn another_library() {
    let other = compile("plain.c", "libother.so", &["-shared", "-fPIC"]);
    let ended = run(hakmem().args(["run", "--lib"]).arg(&other).args(["sh", "-c", "exit 9"]));
    assert_eq!(reason(&ended, "sh"), format!("{} is not Hakmem's library", other.display()));
    assert_eq!(ended.code(), Some(9));
}

#[test]
fn quiet_holds_here_too() {
    let ended = run(fake_run(["--quiet"]).arg(static_program()));
    assert_eq!((ended.code(), &*ended.stderr), (Some(3), ""));
}

#[test]
fn only_the_last_program_of_a_chain_of_execs_counts() {
    let ended = run(&mut fake_run(["--exact", "sh", "-c", "exec env true"]));
    assert!(ended.line().starts_with("hakmem 9.8.7 served sh: 4242 allocations, "), "{}", ended.line());
    let last = format!("exec {}", static_program().display());
    let ended = run(&mut fake_run(["sh", "-c", &last]));
    assert!(ended.line().contains("served sh, which left without a report"), "{}", ended.line());
    assert_eq!(ended.code(), Some(3));
}

#[test]
fn a_full_disk_is_no_proof() {
    let Some(disk) = Disk::new("2M") else { return };
    // Filled by the program itself: its record has room, and those of all that it starts.
    let perl = "open F, '>', $ARGV[0]; 1 while syswrite F, 'x' x 4096; system 'true' for 1..9; exit 5";
    let fill = disk.path().join("fill");
    let mut command = fake_run(["perl", "-e", perl]);
    let ended = run(command.arg(fill).env("TMPDIR", disk.path()));
    assert_eq!(ended.code(), Some(5));
    let (start, end) = ("hakmem 9.8.7 served perl: 17 blocks", ", 10 processes");
    assert!(ended.line().starts_with(start) && ended.line().ends_with(end), "{}", ended.line());
    disk.fill();
    let ended = run(fake_run(["true"]).env("TMPDIR", disk.path()));
    let expected = format!(
        "hakmem: whether true was served cannot be told: its record goes to {}: No space left on device",
        disk.path().display()
    );
    assert_eq!((ended.code(), ended.line()), (Some(0), &*expected));
    // What is certain stays so.
    let ended = run(fake_run([static_program()]).env("TMPDIR", disk.path()));
    assert!(reason(&ended, "static").contains("is statically linked"), "{}", ended.line());
}
