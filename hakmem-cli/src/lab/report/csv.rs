//! A line for every workload, subject and metric.

use std::io::Write;

use crate::lab::model::{Experiment, Unit, Verdict};

/// The columns. Values are in the metric's unit; a ratio is to the baseline's run of the same round.
const HEADER: [&str; 15] = [
    "workload",
    "parameters",
    "allocator",
    "metric",
    "unit",
    "runs",
    "median",
    "minimum",
    "maximum",
    "ratio",
    "ratio_low",
    "ratio_high",
    "baseline",
    "verdict",
    "failure",
];

/// Writes `experiment`.
pub fn write(experiment: &Experiment, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut csv = ::csv::Writer::from_writer(out);
    csv.write_record(HEADER)?;
    for workload in &experiment.workloads {
        for row in &workload.rows {
            let start = [workload.name.as_str(), &workload.parameters, &row.subject];
            if let Some(failure) = &row.failure {
                let mut line: Vec<&str> = start.to_vec();
                line.resize(HEADER.len() - 3, "");
                line.extend([experiment.method.baseline.as_str(), "", failure]);
                csv.write_record(line)?;
            }
            for metric in &experiment.metrics {
                let Some(summary) = row.summaries.get(&metric.key) else { continue };
                let mut line: Vec<String> = start.iter().map(ToString::to_string).collect();
                line.extend([metric.key.clone(), unit(metric.unit).to_string(), summary.runs.to_string()]);
                line.extend(
                    [summary.median, summary.minimum, summary.maximum].map(|value| value.to_string()),
                );
                line.extend(match summary.ratio {
                    Some(ratio) => {
                        let ends = ratio.interval;
                        [Some(ratio.median), ends.map(|ends| ends.low), ends.map(|ends| ends.high)]
                            .map(|value| value.map_or(String::new(), |value| format!("{value:.4}")))
                    }
                    None => Default::default(),
                });
                let verdict = row.verdict.filter(|_| metric.key == workload.primary).map_or("", word);
                line.extend([experiment.method.baseline.clone(), verdict.to_string(), String::new()]);
                csv.write_record(line)?;
            }
        }
    }
    csv.flush()?;
    Ok(())
}

/// A unit in a word.
pub fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "s",
        Unit::Nanoseconds => "ns",
        Unit::Bytes => "bytes",
        Unit::Count => "count",
        Unit::Ratio => "ratio",
    }
}

/// The verdict as the project writes it.
pub fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Go => "GO",
        Verdict::Neutral => "NEUTRAL",
        Verdict::NoGo => "NO-GO",
    }
}
