//! `docs/case-growing-server.md` is true: its commands find the line that it says, and its fix is one.

#![cfg(feature = "profile")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{clean, finish, hakmem, real, run};

/// Requests of the visitors: fewer than the page has.
const REQUESTS: &str = "20000";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// What is in the page's blocks of this kind, one after the other.
fn blocks<'a>(page: &'a str, kind: &str) -> Vec<&'a str> {
    let begin = format!("\n```{kind}\n");
    page.split(&begin).skip(1).map(|rest| rest.split("\n```\n").next().unwrap()).collect()
}

/// Runs a command of the page.
fn shell(folder: &Path, line: &str) {
    let mut command = clean(Command::new("sh"));
    let ended = run(command.current_dir(folder).args(["-c", line]));
    assert_eq!(ended.code(), Some(0), "{line}: {}", ended.stderr);
}

/// Runs the server by the page's command `serve`, with visitors by `load`, to its end. Its profile.
fn serve(folder: &Path, serve: &str, load: &str, out: &str) -> PathBuf {
    let words = serve.split(' ').skip(1).map(|word| if word == "7070" { "0" } else { word });
    let mut command = hakmem();
    command.current_dir(folder).env("HAKMEM_LIB", real()).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().rsplit_once(' ').expect("it says its port").1;
    shell(folder, &load.replace("7070", port).replace("60000", REQUESTS));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(server.id() as i32), nix::sys::signal::SIGINT).unwrap();
    let ended = finish(server);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let files = std::fs::read_dir(folder.join(out)).unwrap().map(|file| file.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|end| end == "hakprof")).unwrap()
}

fn show(path: &Path) -> Value {
    let ended = run(hakmem().arg("profile").arg(path).args(["--format", "json"]));
    serde_json::from_str(ended.stdout()).unwrap()
}

/// What a text says that resident memory consists of, each time that it does: the words, without figures.
fn parts(text: &str) -> Vec<Vec<String>> {
    let lines = text.split("Resident at the end: ").skip(1);
    let sums = lines.map(|rest| rest.split_once(" = ").unwrap().1.split(". ").next().unwrap());
    let word = |part: &str| part.split_whitespace().skip(2).collect::<Vec<_>>().join(" ");
    // But for what is not the allocator's, the last one: that is what is left, above nothing or below.
    let allocators = |sum: &str| sum.split(" +").take(5).map(word).collect();
    sums.map(allocators).collect()
}

/// The innermost function of a stack that is the program's own, with its place.
fn place(stack: &Value) -> (&str, &str) {
    let frames = stack.as_array().unwrap().iter();
    let frame =
        frames.clone().find(|frame| frame["file"].as_str().is_some_and(|file| file.contains("server.c")));
    let frame = frame.unwrap_or_else(|| panic!("{stack}"));
    (frame["function"].as_str().unwrap(), frame["file"].as_str().unwrap())
}

#[test]
fn the_page_finds_the_line_and_its_fix_is_one() {
    let page = std::fs::read_to_string(root().join("docs/case-growing-server.md")).unwrap();
    let commands = blocks(&page, "sh");
    let [build, profile, load, fixed, diff] = commands[..] else { panic!("{commands:?}") };
    assert!(commands[..].iter().all(|command| command.lines().count() == 1), "{commands:?}");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir_all(folder.join("examples/c")).unwrap();
    let source = folder.join("examples/c/server.c");
    std::fs::copy(root().join("examples/c/server.c"), &source).unwrap();
    let text = std::fs::read_to_string(&source).unwrap();
    for quoted in blocks(&page, "c") {
        assert!(text.contains(quoted), "not in the source: {quoted}");
    }
    // The copy's visitors wait longer between their requests: the look for suspects begins after a fifth of
    // the time, and on a quick machine the sessions would still grow then.
    assert_eq!(text.matches("usleep(200)").count(), 1);
    let text = text.replace("usleep(200)", "usleep(1000)");
    std::fs::write(&source, &text).unwrap();
    shell(folder, build);
    let before = serve(folder, profile, load, "server.profile");
    // The page's own lines, by their words.
    let shown = parts(run(hakmem().arg("profile").arg(&before)).stdout());
    assert_eq!(parts(&page), [&*shown[0], &*shown[0]], "the page's lines");
    let value = show(&before);
    let suspects = value["leak_suspects"].as_array().unwrap();
    assert_eq!(suspects.len(), 1, "{suspects:?}");
    let stack = suspects[0]["stack"].as_array().unwrap();
    let site = stack.iter().position(|frame| frame["function"] == "session_new").unwrap();
    let line = stack[site]["line"].as_u64().unwrap();
    assert!(stack[site]["file"].as_str().unwrap().ends_with("examples/c/server.c"), "{}", stack[site]);
    // The line of the source that the page quotes, as the page's tables name it.
    let quoted = blocks(&page, "c")[0];
    assert_eq!(text.lines().nth(line as usize - 1), Some(quoted));
    assert!(page.contains(&format!("\n  session_new  c/server.c:{line}\n")));
    assert!(page.contains(&format!("\nLine {line} is innocent")));
    assert_eq!(place(&suspects[0]["stack"]).0, "session_new");
    // Live memory is what resident memory consists of.
    let memory = |name: &str| value["memory"][name].as_f64().unwrap();
    let kept = memory("cached_bytes") + memory("free_bytes") + memory("dirty_bytes");
    assert!(memory("live_bytes") > 2.0 * kept, "{}", value["memory"]);

    let patch = folder.join("fix.diff");
    std::fs::write(&patch, blocks(&page, "diff")[0].to_string() + "\n").unwrap();
    shell(folder, "git apply --unidiff-zero fix.diff");
    assert_ne!(std::fs::read_to_string(&source).unwrap(), text);
    shell(folder, build);
    let after = serve(folder, fixed, load, "fixed.profile");
    let value = show(&after);
    assert_eq!(value["leak_suspects"], serde_json::json!([]));
    // The other site is the cache in both.
    assert_eq!(place(&value["groups"][0]["stack"]).0, "page");

    let line = diff.replace("$hakmem", env!("CARGO_BIN_EXE_hakmem"));
    let ended = run(clean(Command::new("sh")).current_dir(folder).args(["-c", &line]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let shrunk = ended.stdout().split("Shrunk: ").nth(1).unwrap_or_else(|| panic!("{}", ended.stdout()));
    let first = shrunk.lines().find(|line| line.contains("server.c")).unwrap();
    assert!(first.contains("session_new"), "{}", ended.stdout());
    for report in ["page", "fixed-page"] {
        let text = std::fs::read_to_string(folder.join(report).join("index.html")).unwrap();
        assert!(text.contains("session_new"), "{report}");
    }
}
