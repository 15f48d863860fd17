use std::collections::BTreeMap;

use super::*;
use crate::lab::model::{Ratio, Row, Summary};
use crate::lab::report::html::fixture;

/// An experiment in which each workload has one figure of each subject; none where it failed.
fn experiment(subjects: &[&str], workloads: &[(&str, &str, &[Option<f64>])]) -> Experiment {
    let mut experiment = fixture::experiment(1, 0, 1);
    let named = |name: &&str| Subject { name: name.to_string(), ..Subject::default() };
    experiment.subjects = subjects.iter().map(named).collect();
    for (name, figure, values) in workloads {
        let base = values[0];
        let rows = subjects.iter().zip(*values).map(|(subject, value)| {
            let summary = value.map(|median| {
                let ratio = base.filter(|_| *subject != GLIBC).map(|base| median / base);
                let ratio = ratio.map(|median| Ratio { median, interval: None });
                (figure.to_string(), Summary { runs: 1, median, minimum: median, maximum: median, ratio })
            });
            Row {
                subject: subject.to_string(),
                failure: value.is_none().then(|| "killed".into()),
                summaries: BTreeMap::from_iter(summary),
                verdict: None,
                runs: Vec::new(),
                timeline: Vec::new(),
                latency: None,
            }
        });
        experiment.workloads.push(model::Workload {
            name: name.to_string(),
            models: String::new(),
            parameters: String::new(),
            primary: figure.to_string(),
            rows: rows.collect(),
        });
    }
    experiment
}

const ALL: [&str; 4] = ["glibc", "hakmem", "hakmem BACKGROUND=on", "other"];

fn outcomes(targets: &[model::Target]) -> Vec<(&str, Outcome)> {
    targets.iter().map(|target| (target.scenario.as_str(), target.outcome)).collect()
}

#[test]
fn figures_are_held_against_limits() {
    let drift = |own| experiment(&ALL, &[("drift", "overhead", &[Some(1.0), own, Some(9.0), Some(0.5)])]);
    let judged = |own| judge(&drift(own)).remove(0);
    assert_eq!(judged(Some(1.1)).outcome, Outcome::Met);
    assert_eq!(judged(Some(1.101)).outcome, Outcome::Missed);
    assert_eq!(judged(None).outcome, Outcome::Unknown);
    let target = judged(Some(1.1));
    assert_eq!((target.bound, target.subject.as_str(), target.unit), (Some(1.1), "hakmem", Unit::Ratio));
    assert_eq!(target.values, [Some(1.0), Some(1.1), Some(9.0), Some(0.5)]);
    assert_eq!(target.limit, "1.100");
    assert!(judge(&experiment(&ALL, &[("larson", "per_op", &[Some(1.0); 4])])).is_empty(), "has no target");
}

#[test]
fn the_best_peer_is_never_hakmem_itself_and_settings_are_judged_by_their_own_figures() {
    let slow = |figure, values: [f64; 4]| {
        judge(&experiment(&ALL, &[("oscillation:slow", figure, &values.map(Some))]))
    };
    let times = slow("later", [2.0, 1.1, 0.1, 1.0]);
    let expected =
        [("oscillation:slow", Outcome::Met), ("oscillation:slow, BACKGROUND=on", Outcome::Unknown)];
    assert_eq!(outcomes(&times), expected);
    assert_eq!(times[0].bound, Some(1.1), "1.10 of 1.0: `other` is the best peer");
    assert_eq!(slow("later", [2.0, 1.2, 0.1, 1.0])[0].outcome, Outcome::Missed);
    assert_eq!(slow("left", [0.0, 1.0, 0.1, 0.0])[1].outcome, Outcome::Met);
    assert_eq!(slow("left", [0.0, 0.0, 0.2, 0.0])[1].outcome, Outcome::Missed);

    let alone = experiment(&["hakmem"], &[("oscillation:slow", "later", &[Some(1.0)])]);
    let alone = judge(&alone);
    assert_eq!((alone[0].outcome, alone[0].bound), (Outcome::Unknown, None), "nothing to compare with");
    assert_eq!(alone[1].outcome, Outcome::Unknown, "was not run under the setting");
}

#[test]
fn programs_are_compared_with_glibc_and_with_every_peer() {
    const SUBJECTS: [&str; 3] = ["glibc", "hakmem", "other"];
    let judged = |values: &[[Option<f64>; 3]]| {
        let of = |values: &[Option<f64>; 3]| experiment(&SUBJECTS, &[("program", "peak", values)]);
        let programs: Vec<Experiment> = values.iter().map(of).collect();
        super::programs(&programs, &experiment(&ALL, &[]).subjects).unwrap()
    };
    let good = judged(&[[Some(100.0), Some(104.0), Some(110.0)], [Some(10.0), Some(9.8), Some(10.0)]]);
    assert_eq!(good.outcome, Outcome::Met, "{good:?}");
    assert_eq!((good.scenario.as_str(), good.bound), ("2 real programs", Some(1.02)));
    let mean = (1.04f64 * 0.98).sqrt();
    assert!((good.values[1].unwrap() - mean).abs() < 1e-12 && good.values[0] == Some(1.0), "{good:?}");
    assert_eq!(good.values[2], None, "was not run under the setting");

    let judged = |own, other| judged(&[[Some(100.0), own, other]]);
    assert_eq!(judged(Some(102.5), Some(120.0)).outcome, Outcome::Missed, "too much beside glibc's");
    assert_eq!(judged(Some(101.0), Some(101.0)).outcome, Outcome::Missed, "not below the other's");
    assert_eq!(judged(Some(101.0), None).outcome, Outcome::Met, "the other failed");
    assert_eq!(judged(None, Some(101.0)).outcome, Outcome::Unknown);

    let mut wrong = experiment(&["hakmem"], &[("program", "peak", &[Some(1.0)])]);
    wrong.method.baseline = "hakmem".into();
    let error = super::programs(&[wrong], &[]).unwrap_err().to_string();
    assert!(error.contains("compared with hakmem, not with glibc"), "{error}");
}

#[test]
fn every_target_is_run_and_told() {
    let scenarios: Vec<String> =
        scenarios().iter().map(|(workload, preset)| name(workload, *preset)).collect();
    for expected in ["idle-return", "idle-return:freer-parked", "thread-cost:seven", "oscillation:slow"] {
        assert_eq!(scenarios.iter().filter(|name| *name == expected).count(), 1, "{scenarios:?}");
    }
    assert_eq!(settings(), ["BACKGROUND=on"]);
    let workload = hakmem_workloads::find("oscillation").unwrap();
    let words: Vec<String> = workload.targets.iter().map(|target| in_words(workload, target)).collect();
    assert_eq!(
        words,
        [
            "oscillation:slow: cycles from the third on, without pauses at most 1.10 of the best peer",
            "oscillation:slow: resident after idling / at the peak at most 0.100 (under BACKGROUND=on)",
        ]
    );
    assert!(is_ours("hakmem") && is_ours("hakmem THP=never") && !is_ours("hakmem2") && !is_ours("glibc"));
}
