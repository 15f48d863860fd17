//! Figures for people.

use crate::lab::model::Unit;

/// `value`, which is in `unit`, with as many digits as matter.
pub fn figure(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds => scaled(value, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")]),
        Unit::Nanoseconds => scaled(value, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")]),
        Unit::Bytes => {
            scaled(value, &[((1u64 << 30) as f64, "GiB"), ((1 << 20) as f64, "MiB"), (1024.0, "KiB"), (1.0, "B")])
        }
        Unit::Count => thousands(value),
        Unit::Ratio => format!("{value:.3}"),
    }
}

/// In the first of `units` that leaves at least 1, with three significant digits.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fitting = units.iter().find(|(size, _)| value.abs() >= *size).or(units.last());
    let (size, name) = fitting.expect("there are units");
    let value = value / size;
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {name}")
}

/// A whole number with its thousands apart.
fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(figure(0.812_34, Unit::Seconds), "812 ms");
        assert_eq!(figure(12.34, Unit::Seconds), "12.3 s");
        assert_eq!(figure(0.0, Unit::Seconds), "0.00 µs");
        assert_eq!(figure(3.14159, Unit::Nanoseconds), "3.14 ns");
        assert_eq!(figure(12.9 * 1024.0 * 1024.0, Unit::Bytes), "12.9 MiB");
        assert_eq!(figure(1234567.0, Unit::Count), "1,234,567");
        assert_eq!(figure(0.8726, Unit::Ratio), "0.873");
    }
}
