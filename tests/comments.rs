//! Comments are as narrow as code: rustfmt, which formats code only on stable Rust, does not see to that.

use std::path::{Path, PathBuf};

/// The folders whose Rust files are looked at: not yet `src` and `hakmem-capi/src`.
const FOLDERS: [&str; 8] = [
    "benches",
    "examples",
    "hakmem-capi/tests",
    "hakmem-cli",
    "hakmem-record",
    "hakmem-trace",
    "hakmem-workloads",
    "tests",
];

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn comments_are_at_most_as_wide_as_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let settings = std::fs::read_to_string(root.join("rustfmt.toml")).unwrap();
    let width = settings.lines().find_map(|line| line.strip_prefix("max_width = ")).unwrap();
    let width: usize = width.parse().unwrap();
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| rust_files(&root.join(folder), &mut files));
    assert!(files.len() > 100, "{} files", files.len());
    let mut wide = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") && line.chars().count() > width {
                let file = file.strip_prefix(root).unwrap().display();
                wide += &format!("{file}:{}: {} columns\n", number + 1, line.chars().count());
            }
        }
    }
    assert!(wide.is_empty(), "comments of more than {width} columns:\n{wide}");
}
