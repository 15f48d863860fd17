//! The page, read as text and in a real browser.

use std::path::Path;
use std::process::Command;

use super::fixture::{experiment, fail, verdicts, without_ratios};
use super::*;
use crate::lab::model::{Interval, Outcome, Ratio, Target, Verdict};
use crate::lab::stats;

fn written(experiment: &Experiment) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let files = write(experiment, dir.path()).unwrap();
    assert_eq!(files[0], dir.path().join("index.html"));
    for file in &files {
        assert!(file.metadata().unwrap().len() > 0, "{}", file.display());
    }
    let page = fs::read_to_string(&files[0]).unwrap();
    (dir, page)
}

fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

/// One with all that occurs: several workloads, one of memory, a failure, odd names, all verdicts.
fn rich() -> Experiment {
    let mut experiment = experiment(6, 5, 10);
    experiment.workloads[3].primary = "held".into();
    fail(&mut experiment.workloads[1].rows[4], "killed by signal 11 (SIGSEGV) in round 2 <&\">");
    fail(&mut experiment.workloads[2].rows[0], "timed out after 120 s");
    without_ratios(&mut experiment.workloads[2]);
    experiment
}

#[test]
fn everything_is_on_the_page() {
    let experiment = rich();
    let (dir, page) = written(&experiment);
    for expected in [
        "hakmem bench: comprehensive &amp; &lt;others&gt;",
        "hakmem bench --report 'it'\\''s here' -- ''",
        "2026-11-21T03:00:00Z, took 12m 34s",
        "31% busy before the start",
        "apt install libscudo-19-dev",
        "AMD EPYC 9B14, 2 usable",
        "10 rounds after 1 not counted",
        "(seed 42)",
        "killed by signal 11 (SIGSEGV) in round 2 &lt;&amp;&quot;&gt;",
        "the baseline glibc failed",
        "0 in every run: major faults",
        "Geometric mean",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    for workload in &experiment.workloads {
        for row in workload.rows.iter().filter(|row| row.failure.is_none()) {
            let summary = row.summaries["per_op"];
            let shown = crate::lab::report::units::figure(summary.median, Unit::Nanoseconds);
            assert!(page.contains(&format!("<span class=\"median\">{shown}</span>")), "{shown}");
            if let Some(ends) = summary.ratio.and_then(|ratio| ratio.interval) {
                assert!(page.contains(&format!("[{:.3}, {:.3}]", ends.low, ends.high)));
            }
        }
    }
    let verdicts = verdicts(&experiment);
    for (verdict, class) in [(Verdict::Go, "go"), (Verdict::NoGo, "nogo"), (Verdict::Neutral, "neutral")] {
        let expected = verdicts.iter().filter(|one| **one == verdict).count();
        // One more in the explanation of the verdict.
        assert_eq!(count(&page, &format!("class=\"verdict {class}\"")), expected + 1, "{class}");
    }
    let raw: Experiment =
        serde_json::from_slice(&fs::read(dir.path().join("experiment.json")).unwrap()).unwrap();
    assert_eq!(raw.workloads[0].rows[1].summaries, experiment.workloads[0].rows[1].summaries);
    let mut plots: Vec<String> = fs::read_dir(dir.path().join("plots"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    plots.sort();
    assert_eq!(plots.len(), count(&page, "<svg "), "{plots:?}");
    for expected in [
        "overview-time.svg",
        "overview-main.svg",
        "overview-memory.svg",
        "larson-ratio.svg",
        "larson-memory-ratio.svg",
        "larson-memory-over-time.svg",
        "larson-time-and-memory.svg",
        "larson-latency-malloc.svg",
        "larson-latency-free.svg",
    ] {
        assert!(plots.iter().any(|name| name == expected), "{expected}: {plots:?}");
    }
    assert!(
        !plots.iter().any(|name| name == "producer-consumer-1-n-ratio.svg"),
        "its baseline failed: {plots:?}"
    );
}

#[test]
fn targets_are_green_or_not() {
    let mut experiment = experiment(3, 1, 3);
    assert!(!written(&experiment).1.contains("Targets"));
    for (outcome, value) in
        [(Outcome::Met, Some(0.25)), (Outcome::Missed, Some(0.75)), (Outcome::Unknown, None)]
    {
        experiment.targets.push(Target {
            scenario: format!("<{outcome:?}>"),
            figure: "what is left".into(),
            unit: Unit::Ratio,
            limit: "0.500".into(),
            subject: "hakmem".into(),
            bound: Some(0.5),
            values: vec![Some(0.125), value, None],
            outcome,
        });
    }
    let page = written(&experiment).1;
    assert!(page.contains("1 of 3 are met"), "{page}");
    let green = "<th scope=\"row\">&lt;Met&gt;</th><td>what is left</td><td>0.500</td><td class=\"met\">met</td>\
                 <td class=\"number\">0.125</td><td class=\"number met\">0.250</td><td class=\"number\">–</td>";
    assert!(page.contains(green), "{page}");
    assert!(
        page.contains("<td class=\"missed\">MISSED</td>")
            && page.contains("<td class=\"number missed\">0.750")
    );
    assert!(
        page.contains("<td class=\"failed\">unknown</td>") && page.contains("<td class=\"number failed\">–")
    );
}

#[test]
fn plots_are_documents_that_say_what_they_show() {
    let (dir, _) = written(&experiment(12, 2, 3));
    let plot = fs::read_to_string(dir.path().join("plots/larson-ratio.svg")).unwrap();
    assert!(plot.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"530\""), "{plot}");
    assert!(
        plot.contains("role=\"img\" aria-label=\"larson: time per operation, ratio to glibc\">"),
        "{plot}"
    );
    assert!(plot.contains("<title>larson: time per operation, ratio to glibc</title>"));
    assert!(plot.contains("3 runs of each"));
    assert!(plot.contains("&lt;b&gt;&amp;") && !plot.contains("<b>"), "names are escaped");
    assert!(!plot.contains("NaN") && !plot.contains("inf"));
}

#[test]
fn each_subject_keeps_its_colour() {
    let (_dir, page) = written(&experiment(4, 1, 3));
    let hakmem = "--own:#D55E00\" aria-hidden=\"true\"></span>hakmem<";
    assert_eq!(count(&page, hakmem), 4, "subjects, two tables of figures, latencies");
    assert_eq!(count(&page, "--own:#D55E00"), 4, "nobody else has it");
}

#[test]
fn odd_experiments_make_a_page() {
    let one = experiment(1, 1, 10);
    assert!(written(&one).1.contains("only glibc was run"));

    let mut none = experiment(2, 1, 1);
    none.workloads.clear();
    assert!(written(&none).1.contains("No workload was run."));

    let page = written(&experiment(3, 1, 1)).1;
    assert!(page.contains("1 run of each") && page.contains("1 round after"));

    for (rounds, sure) in [(stats::LEAST_RUNS - 1, false), (stats::LEAST_RUNS, true)] {
        let page = written(&experiment(3, 2, rounds)).1;
        for mark in ["background:rgba(", "class=\"ratio ", "<small>[", "number sure", "% interval, "] {
            assert_eq!(page.contains(mark), sure, "{mark} after {rounds} rounds");
        }
        assert_eq!(page.contains("too few for an interval"), !sure);
    }

    let mut bare = experiment(3, 2, 2);
    for row in bare.workloads.iter_mut().flat_map(|workload| &mut workload.rows) {
        row.timeline.clear();
        row.latency = None;
    }
    let page = written(&bare).1;
    assert!(!page.contains("over time") && !page.contains("latency of single calls"));

    let mut failed = experiment(3, 2, 2);
    failed
        .workloads
        .iter_mut()
        .flat_map(|workload| &mut workload.rows)
        .for_each(|row| fail(row, "no such file"));
    let page = written(&failed).1;
    assert_eq!(count(&page, "no such file"), 6);
    assert!(page.contains("Failed: glibc, hakmem, jemalloc."));

    let mut unknown = experiment(2, 2, 2);
    unknown.metrics.clear();
    unknown.method.baseline = "gone".into();
    written(&unknown);

    let mut twins = experiment(2, 4, 2);
    twins.workloads.iter_mut().for_each(|workload| workload.name = "../a/é B".into());
    let (dir, _) = written(&twins);
    for name in ["a-b-ratio.svg", "a-b-2-ratio.svg", "a-b-4-ratio.svg"] {
        assert!(dir.path().join("plots").join(name).exists(), "{name}");
    }
}

#[test]
fn no_figure_is_too_odd() {
    let odd = [0.0, 1e-300, f64::MAX, f64::NAN, -1.0];
    for one in odd {
        for other in odd {
            let mut strange = experiment(3, 2, 2);
            for row in strange.workloads.iter_mut().flat_map(|workload| &mut workload.rows) {
                for summary in row.summaries.values_mut() {
                    (summary.median, summary.minimum, summary.maximum) = (one, one, other);
                    let interval = Some(Interval { low: one, high: other });
                    summary.ratio = summary.ratio.map(|_| Ratio { median: one, interval });
                }
                for (i, run) in row.runs.iter_mut().enumerate() {
                    run.values.values_mut().for_each(|value| *value = if i == 0 { one } else { other });
                }
                row.timeline = vec![(one, 0), (other, u64::MAX)];
                let latency = row.latency.as_mut().unwrap();
                (latency.malloc.p50, latency.malloc.max, latency.free.max) = (one, other, other);
            }
            written(&strange);
        }
    }
}

#[test]
fn the_stated_rule_is_the_one_that_is_used() {
    let verdict = |percent: f64| {
        let median = 1.0 + percent / 100.0;
        let (low, high) = if percent < 0.0 { (median, 0.999) } else { (1.001, median) };
        stats::verdict(Ratio { median, interval: Some(Interval { low, high }) }).unwrap()
    };
    assert_eq!(verdict(-page::GO - 0.01), Verdict::Go);
    assert_eq!(verdict(-page::GO + 0.01), Verdict::Neutral);
    assert_eq!(verdict(page::NO_GO + 0.01), Verdict::NoGo);
    assert_eq!(verdict(page::NO_GO - 0.01), Verdict::Neutral);
}

/// Chromium, which has to be there where HAKMEM_REQUIRE_PROGRAMS is set.
fn chromium(arguments: &[&str], page: &Path) -> Option<Vec<u8>> {
    let program = "/usr/bin/chromium";
    if !Path::new(program).exists() {
        assert!(std::env::var_os("HAKMEM_REQUIRE_PROGRAMS").is_none(), "{program} is not installed");
        eprintln!("skipped: {program} is not installed");
        return None;
    }
    let profile = tempfile::tempdir().unwrap();
    // A browser does not always end, nor is there always room in /dev/shm.
    let output = Command::new("timeout")
        .args(["--kill-after=5", "200", program, "--disable-dev-shm-usage"])
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000"])
        // Whatever the page or the browser looks for outside does not exist.
        .arg("--host-resolver-rules=MAP * ~NOTFOUND")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

#[test]
fn a_browser_shows_all_of_it_without_a_network() {
    let experiment = rich();
    let (dir, page) = written(&experiment);
    for fetching in ["src=", "url(", "@import", "<link", "<script", "<iframe", "href=\"http", "href=\"//"] {
        assert!(!page.contains(fetching), "{fetching}");
    }
    // What the browser measured is left in the page by a script that is not part of the report.
    let probe = "<script>addEventListener('load', () => {
        const plots = [...document.querySelectorAll('figure svg')];
        const hidden = plots.filter(p => p.getBoundingClientRect().width < 100 || p.querySelectorAll('text').length < 4);
        const outside = plots.flatMap(p => [...p.querySelectorAll('text')].filter(t => {
            const a = t.getBoundingClientRect(), b = p.getBoundingClientRect();
            return a.width > 0 && (a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1);
        }).map(t => t.textContent.trim()));
        const overlapping = plots.flatMap(p => {
            const boxes = [...p.querySelectorAll('text')].map(t => [t.getBoundingClientRect(), t.textContent.trim()]);
            return boxes.flatMap(([a, x], i) => boxes.slice(i + 1).filter(([b]) =>
                a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3
            ).map(([, y]) => x + ' / ' + y));
        });
        document.body.dataset.measured = JSON.stringify({
            plots: plots.length, hidden: hidden.length, outside, overlapping,
            wide: document.documentElement.scrollWidth > innerWidth,
            requests: performance.getEntriesByType('resource').length,
        });
    })</script></body>";
    let probed = dir.path().join("probed.html");
    fs::write(&probed, page.replace("</body>", probe)).unwrap();
    let Some(dom) = chromium(&["--window-size=1000,800", "--dump-dom"], &probed) else { return };
    let dom = String::from_utf8(dom).unwrap();
    let measured =
        dom.split("data-measured=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("the script ran");
    let measured: serde_json::Value = serde_json::from_str(&measured.replace("&quot;", "\"")).unwrap();
    let plots = fs::read_dir(dir.path().join("plots")).unwrap().count();
    let expected = serde_json::json!({
        "plots": plots, "hidden": 0, "outside": [], "overlapping": [], "wide": false, "requests": 0,
    });
    assert_eq!(measured, expected);
    for workload in &experiment.workloads {
        assert!(dom.contains(&format!("</h2><p class=\"models\">{}", workload.models)));
    }
    let shot = dir.path().join("shot.png");
    chromium(&["--window-size=1000,3000", &format!("--screenshot={}", shot.display())], &probed);
    assert!(shot.metadata().unwrap().len() > 50_000, "the picture shows something");
    if let Some(keep) = std::env::var_os("HAKMEM_KEEP_REPORT") {
        let keep = Path::new(&keep);
        write(&experiment, keep).unwrap();
        fs::copy(shot, keep.join("shot.png")).unwrap();
    }
}
