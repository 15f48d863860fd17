//! `hakmem profile` of a program that has Hakmem built in: nothing is preloaded, and its call sites are
//! shown.

#![cfg(feature = "profile")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{clean, hakmem, real, run};

/// What allocates 32 MiB in `hold`.
const SOURCE: &str = "#include <stdlib.h>\n\
    __attribute__((noinline)) void hold(void **to) {\n\
        for (int i = 0; i < 32768; i++) to[i] = malloc(1000);\n\
    }\n\
    int main(void) { static void *all[32768]; hold(all); return all[7] == 0; }\n";

/// The program, linked with `libhakmem.a`.
fn build(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("keeper.c"), folder.join("keeper"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut cc = clean(Command::new("cc"));
    cc.args(["-g", "-O1", "-fno-builtin", "-o"]).arg(&program).arg(&source);
    cc.arg(real().with_extension("a")).args(["-lpthread", "-ldl", "-lm"]);
    assert!(cc.status().expect("cc is needed").success());
    program
}

#[test]
fn a_program_with_its_own_is_profiled() {
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path());
    let mut command = hakmem();
    command.current_dir(folder.path()).args(["profile", "--what", "peak", "--"]).arg(&program);
    let ended = run(&mut command);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("hold  ") && ended.stderr.contains("keeper.c:3"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("sampling/mod.rs"), "{}", ended.stderr);
    // So it is under a shell, where both are in it.
    let mut command = hakmem();
    command.current_dir(folder.path()).env("HAKMEM_LIB", real());
    command.args(["profile", "--what", "peak", "--out", "both", "--", "sh", "-c", "./keeper; true"]);
    let ended = run(&mut command);
    assert!(ended.stderr.contains("keeper.c:3"), "{}", ended.stderr);
    // Another library is not what it would use.
    let mut command = hakmem();
    command.current_dir(folder.path()).args(["profile", "--lib"]).arg(real()).arg("--").arg(&program);
    assert!(run(&mut command).stderr.contains("has Hakmem built in"));
}
