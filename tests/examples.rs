//! The examples are built and run, and say what they should. (Those in C and C++:
//! hakmem-capi/tests/examples.rs.)

use std::path::Path;
use std::process::Command;

/// Builds an example as this test is built, runs it, and returns what it printed.
fn example(name: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let exe = std::env::current_exe().unwrap();
    let profile = exe.ancestors().nth(2).unwrap();
    let release = profile.file_name().is_some_and(|name| name == "release");
    let flag = if release { "--release" } else { "--profile=dev" };
    let status = Command::new(cargo)
        .args(["build", "--quiet", "-p", "hakmem-tests", "--example", name, flag])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .status()
        .expect("cargo runs");
    assert!(status.success(), "{name} is not built");
    let mut command = Command::new(profile.join("examples").join(name));
    // As for a user: nothing that the surrounding test run may have set.
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("HAKMEM_") {
            command.env_remove(variable);
        }
    }
    let output = command.output().expect("the example runs");
    let text = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && err.is_empty(), "{name}: {}\n{text}\n{err}", output.status);
    text
}

#[test]
fn hello() {
    let text = example("hello");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text, format!("hello 1, hello 2, hello 3\nserved by Hakmem {version}\n"));
}

#[test]
fn threads_and_statistics() {
    let text = example("threads_and_statistics");
    let all =
        ["  allocated_bytes ", "= resident ", "class         blocks", "200 messages kept, 1 threads ended"];
    for part in all {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let purged = text.lines().last().and_then(|line| line.strip_prefix("purge gave back "));
    let bytes: usize = purged.unwrap().strip_suffix(" bytes").unwrap().parse().unwrap();
    assert!(bytes > 0);
}

#[test]
fn limits() {
    let text = example("limits");
    assert!(text.contains("cache emptied at entry "), "{text}");
    assert!(text.contains("200 MiB refused: memory allocation failed"), "{text}");
    assert!(text.ends_with("hard limit: 1 refusals\n"), "{text}");
    let crossed = text.lines().find_map(|line| line.strip_prefix("soft limit crossed ")).unwrap();
    let times: usize = crossed.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(times, text.matches("cache emptied").count(), "{text}");
}

#[test]
fn sample_cost() {
    let text = example("sample_cost");
    let frames: Vec<_> = text.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(frames, ["0", "10", "30", "90"], "{text}");
}
