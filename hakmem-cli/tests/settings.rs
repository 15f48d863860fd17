//! `--env`: a setting that the library does not take would make a comparison of nothing.

#![cfg(feature = "lab")]

mod support;

use std::path::Path;

use support::{hakmem, real, run};

/// Each command that compares, with the least that it runs.
fn commands() -> Vec<Vec<String>> {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/traces/gcc.trace");
    let commands = [
        "bench lifo --set operations=10 --rounds 1 --warmups 0",
        "memory thread-cost --set threads=2 --rounds 1 --warmups 0",
        "instructions --only hit-16",
        &format!("replay {} --repeat 1 --rounds 1 --warmups 0", trace.display()),
        "ab --rounds 1 --warmups 0",
    ];
    commands.map(|command| command.split(' ').map(str::to_string).collect()).into()
}

#[test]
fn what_the_library_does_not_take_is_refused_before_anything_is_measured() {
    for (setting, why) in [
        ("NOSUCHOPTION=1", "HAKMEM_NOSUCHOPTION: unknown option; known: HAKMEM_PRESET, "),
        ("THP=sometimes", "HAKMEM_THP=sometimes: expected auto, folios, always or never; ignored"),
        ("MAGAZINE=off,THP=x", "HAKMEM_THP=x: expected auto, folios, always or never; ignored"),
    ] {
        for mut command in commands() {
            command.extend(["--env".into(), setting.into()]);
            if command[0] == "ab" {
                command.extend(["--", "touch", "/no/such/folder/x"].map(Into::into));
            }
            let ended = run(hakmem().env("HAKMEM_LIB", real()).args(&command));
            assert_eq!(ended.code(), Some(2), "{command:?}: {}", ended.stderr);
            let expected = format!("hakmem: --env {setting}: the library says: {why}");
            assert!(ended.line().starts_with(&expected), "{command:?}: {}", ended.stderr);
            assert_eq!(ended.stdout(), "");
        }
    }
}

#[test]
fn an_option_of_the_environment_is_not_taken_for_the_setting() {
    let mut command = hakmem();
    command.env("HAKMEM_LIB", real()).env("HAKMEM_NOSUCHOPTION", "1");
    let ended = run(command.args([
        "ab",
        "--rounds=1",
        "--warmups=0",
        "--env",
        "THP=never",
        "--json=-",
        "--",
        "true",
    ]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stdout().contains("HAKMEM_NOSUCHOPTION=1 from the environment holds for every run"));
}
