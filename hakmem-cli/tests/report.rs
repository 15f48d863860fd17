//! `--report` of a real comparison, opened in a real browser.

#![cfg(feature = "lab")]

use skips::is_there;
use std::path::Path;
use std::process::Command;

#[path = "../../tests/support/skips.rs"]
mod skips;

const CHROMIUM: &str = "/usr/bin/chromium";
/// A browser does not always end, nor is there always room in /dev/shm.
const BROWSER: [&str; 4] = ["--kill-after=5", "200", CHROMIUM, "--disable-dev-shm-usage"];

/// The page as the browser has it after loading.
fn dom(page: &Path) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args(BROWSER)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_of_a_real_comparison_opens_without_a_network() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("report");
    let [source, library] = ["ends.c", "ends.so"].map(|name| folder.path().join(name));
    let code = "#include <unistd.h>\n__attribute__((constructor)) static void start(void) { _exit(7); }\n";
    std::fs::write(&source, code).unwrap();
    let gcc = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(gcc.unwrap().success());
    let with = format!("ends={}", library.display());
    let output = Command::new(env!("CARGO_BIN_EXE_hakmem"))
        .args(["ab", "--rounds=5", "--with", &with, "--report"])
        .arg(&dir)
        .args(["--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sh -c 'echo <hello>'; done"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "one allocator fails: {error}");
    assert!(error.contains(&format!("report: {}", dir.join("index.html").display())), "{error}");

    let page = std::fs::read_to_string(dir.join("index.html")).unwrap();
    let outside = ["src=\"http", "href=\"http", "url(http", "@import", "<script src", "<link "];
    for reference in outside {
        assert!(!page.contains(reference), "{reference}");
    }
    let experiment: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("experiment.json")).unwrap()).unwrap();
    assert_eq!(experiment["workloads"][0]["rows"].as_array().unwrap().last().unwrap()["subject"], "ends");
    let plots: Vec<_> = std::fs::read_dir(dir.join("plots")).unwrap().flatten().collect();
    assert!(plots.len() >= 3, "{plots:?}");

    if !is_there(CHROMIUM, Path::new(CHROMIUM).exists()) {
        return;
    }
    let dom = dom(&dir.join("index.html"));
    assert_eq!(dom.matches("<svg").count(), plots.len(), "each plot is in the page");
    for expected in
        ["hakmem", "glibc", "exits with 7, under glibc with 2", "wall time", "peak resident", "&lt;hello&gt;"]
    {
        assert!(dom.contains(expected), "{expected}");
    }
}
