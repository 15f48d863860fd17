//! The page that `hakmem profile --report` writes, in a real browser; and what is shown of a moment.

#![cfg(feature = "profile")]

mod support;

use std::path::Path;
use std::process::Command;

use hakmem_profile::file::{Process, Row, Site, StackEnd, Totals, Why, Writer};
use support::saved::{profile, put, show};
use support::skips::is_there;

const CHROMIUM: &str = "/usr/bin/chromium";
/// A browser does not always end, nor is there always room in /dev/shm.
const BROWSER: [&str; 4] = ["--kill-after=5", "200", CHROMIUM, "--disable-dev-shm-usage"];

/// The page as the browser has it after loading, and after `script`.
fn dom(page: &Path, script: &str) -> String {
    let text = std::fs::read_to_string(page).unwrap();
    let with = page.with_file_name("with.html");
    std::fs::write(&with, text.replace("</body>", &format!("<script>{script}</script></body>"))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.args(BROWSER);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--dump-dom",
    ]);
    command
        .arg(format!("--user-data-dir={}", folder.path().display()))
        .arg(format!("file://{}", with.display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_shows_moments_tabs_search_and_zoom() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "x.hakprof", &profile(12));
    let report = folder.path().join("report");
    let ended = show(&path, &["--report", report.to_str().unwrap()]);
    let page = report.join("index.html");
    assert_eq!(ended.line(), format!("report: {}", page.display()));
    let text = std::fs::read_to_string(&page).unwrap();
    for reference in ["src=\"http", "href=\"http", "url(http", "@import", "<script src", "<link "] {
        assert!(!text.contains(reference), "{reference}");
    }
    if !is_there(CHROMIUM, Path::new(CHROMIUM).exists()) {
        return;
    }
    let said = |script: &str| {
        let dom = dom(&page, script);
        let said = dom.split("<p class=\"said\" aria-live=\"polite\">").nth(1).unwrap();
        // Beside the box that they are in.
        let frames = dom.matches("class=\"flame").count() - 1;
        (said.split("</p>").next().unwrap().to_string(), frames)
    };
    // The root, the caller and the site that still holds something; at the peak and before, two sites.
    assert_eq!(said(""), ("held at the end: 13.9 MiB".into(), 3));
    let click = |what: &str| format!("document.querySelector('{what}').click();");
    assert_eq!(said(&click("[data-what=peak]")), ("held at the peak: 16.4 MiB".into(), 4));
    assert_eq!(said(&click("[data-what=allocated]")), ("allocated: 18.4 MiB".into(), 4));
    let slide = "let s = document.querySelector('input[type=range]'); s.value = 0; s.dispatchEvent(new Event('input'));";
    assert_eq!(said(slide), ("held at 1.0 s: 16.4 MiB".into(), 4));
    let search = "let i = document.querySelector('input[type=search]'); i.value = '0x2000'; i.dispatchEvent(new Event('input'));";
    assert_eq!(said(search), ("13.9 MiB, 100.0 %, in stacks with “0x2000”".into(), 3));
    // Of an earlier moment the page begins there.
    let ended = show(&path, &["--at", "1500ms", "--report", report.to_str().unwrap()]);
    assert_eq!(ended.line(), format!("report: {}", page.display()));
    assert_eq!(said(""), ("held at 1.0 s: 16.4 MiB".into(), 4));
    std::fs::write(&page, text).unwrap();
    // Zoomed in, the other site is not drawn; what leads there is.
    let zoom = format!(
        "{}[...document.querySelectorAll('.flame')].find((f) => f.textContent.includes('2000')).click();",
        click("[data-what=peak]")
    );
    assert_eq!(said(&zoom).1, 3);
    assert_eq!(said(&format!("{zoom}{}", click(".reset"))).1, 4);
    assert!(dom(&page, "").contains("None: no call site grows"));
}

/// One site that holds a block more with each of 40 snapshots.
fn leaking() -> Vec<u8> {
    let mut writer = Writer::new(&Process { pid: 7, rate: 1 << 19, ..Process::default() });
    let stack = writer.stack(&[0x1000], StackEnd::Complete);
    let site = writer.site(&Site { stack: stack as usize, thread: 7, tag: None, size: 1 << 20 });
    for step in 1..=40 {
        let row = Row { allocated: step, live: step, peak: 0, pinned: 0.0 };
        writer.snapshot(step * 1_000_000_000, Why::Timer, &Totals::default(), &[(site, row)]);
    }
    writer.bytes().to_vec()
}

#[test]
fn at_a_moment_nothing_is_known_of_what_comes_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "leaking.7.hakprof", &leaking());
    let suspects = |options: &[&str]| {
        let shown = show(&path, options);
        assert_eq!(shown.code(), Some(0), "{}", shown.stderr);
        let table = shown.stdout().contains("Leak suspects");
        let json = show(&path, &[options, &["--format", "json"]].concat());
        let value: serde_json::Value = serde_json::from_str(json.stdout()).unwrap();
        assert_eq!(table, value["leak_suspects"] != serde_json::json!([]));
        table.then(|| value["leak_suspects"][0]["to"].as_f64().unwrap() / f64::from(1 << 20))
    };
    assert_eq!(suspects(&["--at", "5s"]), None);
    let [early, end] = [&["--at", "20s"][..], &[]].map(|options| suspects(options).unwrap());
    assert!((early * 2.0 - end).abs() < 1.0, "{early} {end}");
}
