//! Every form of allocation is in the profile, with its size, until it is freed; whose profile may be taken.

#![cfg(feature = "profile")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::skips::skip;
use support::{compile, hakmem, install, real, run};

const FORMS: [&str; 13] = [
    "by_malloc",
    "by_calloc",
    "by_aligned_alloc",
    "by_posix_memalign",
    "by_memalign",
    "by_reallocarray",
    "by_realloc",
    "by_shrinking",
    "by_growing",
    "by_new",
    "by_sized_delete",
    "by_aligned_new",
    "by_strdup",
];

#[test]
fn every_form_of_allocation_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(
        "forms.cc",
        "forms",
        &["-Wl,--no-as-needed", "-lstdc++", "-x", "c++", "-std=c++17", "-g", "-O0", "-fno-builtin"],
    );
    // Every block is a sample.
    let mut command = hakmem();
    command.env("HAKMEM_LIB", real()).current_dir(folder.path());
    let ended = run(command.args(["profile", "--rate", "1", "--out", "out", "--"]).arg(&program));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let file = std::fs::read_dir(folder.path().join("out")).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|end| end == "hakprof")).unwrap();
    let shown = run(hakmem().arg("profile").arg(&file).args(["--format", "json", "--group", "stack"]));
    let value: serde_json::Value = serde_json::from_str(shown.stdout()).unwrap();
    for form in FORMS {
        let (mut live, mut bytes) = (0.0, 0.0);
        for group in value["groups"].as_array().unwrap() {
            let names = group["stack"].as_array().unwrap().iter();
            if names.clone().any(|frame| frame["function"] == form) {
                live += group["live"]["objects"].as_f64().unwrap();
                bytes += group["live"]["bytes"].as_f64().unwrap();
            }
        }
        assert_eq!(live, 12.0, "{form}: of 10 small and 10 large blocks 6 each live still");
        // Whole classes of small blocks, and of large ones eighths of a power of two, at random.
        let exact = 6.0 * (100.0 + 100_000.0);
        assert!((bytes - exact).abs() < 0.1 * exact, "{form}: {bytes} instead of {exact}");
    }
}

/// Of another user's process: one line, and no profile.
#[test]
fn another_users_process_is_none_of_ours() {
    if !nix::unistd::getuid().is_root() {
        return skip("only root can be somebody else");
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ours = folder.path().join("hakmem");
    install(Path::new(env!("CARGO_BIN_EXE_hakmem")), &ours, "755");
    let program = compile("grow.c", "grow", &["-g", "-O1"]);
    let mut roots = Command::new(program);
    roots.current_dir(folder.path()).env("LD_PRELOAD", real()).stdin(Stdio::piped());
    let mut roots = roots.spawn().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&ours);
    let ended = run(command.args([
        "profile",
        "--seconds",
        "1",
        "--out",
        "/tmp/nobodys",
        "--pid",
        &roots.id().to_string(),
    ]));
    drop(roots.stdin.take());
    assert!(roots.wait().unwrap().success());
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(
        ended.line().contains("is another user's, or protected: run this as its user or as root"),
        "{}",
        ended.line()
    );
}
