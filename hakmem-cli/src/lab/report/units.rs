//! Figures for people.

use crate::lab::model::Unit;

const SECONDS: &[(f64, &str)] = &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")];
const NANOSECONDS: &[(f64, &str)] = &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
const BYTES: &[(f64, &str)] = &[(1073741824.0, "GiB"), (1048576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")];

/// The names of `unit` and their sizes in it, the largest first; none where figures are plain numbers.
fn names(unit: Unit) -> &'static [(f64, &'static str)] {
    match unit {
        Unit::Seconds => SECONDS,
        Unit::Nanoseconds => NANOSECONDS,
        Unit::Bytes => BYTES,
        Unit::Count | Unit::Ratio => &[],
    }
}

/// `value`, which is in `unit`, with as many digits as matter: "812 ms", "12.3 MiB", "1,234,567", "0.873".
pub fn figure(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "–".to_string();
    }
    match unit {
        Unit::Count => thousands(value),
        Unit::Ratio => format!("{value:.3}"),
        Unit::Bytes if value.abs() < 1023.5 => format!("{value:.0} B"),
        Unit::Seconds | Unit::Nanoseconds if value == 0.0 => {
            format!("0 {}", names(unit).last().expect("has names").1)
        }
        _ => scaled(value, names(unit)),
    }
}

/// The size and name to show values up to `largest` in, such as (1048576.0, "MiB"); no name for plain
/// numbers.
pub fn scale(largest: f64, unit: Unit) -> (f64, &'static str) {
    let units = names(unit);
    let fitting = units.iter().find(|(size, _)| largest.abs() >= *size).or(units.last());
    fitting.copied().unwrap_or((1.0, ""))
}

/// Like [`figure`] without digits that say nothing, for the marks of an axis: "10 µs", "0.5", "2 GiB".
pub fn mark(value: f64, unit: Unit) -> String {
    let (size, name) = scale(value, unit);
    let mut number = format!("{:.3}", value / size);
    number.truncate(number.trim_end_matches('0').trim_end_matches('.').len());
    format!("{number} {name}").trim_end().to_string()
}

/// In the first of `units` that leaves at least 1 when rounded, with three significant digits.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // 999.6 ms would be shown as "1000 ms"; for bytes this leaves 1000 to 1023 of the smaller unit, in four
    // digits.
    let decimal = |size: f64| units.iter().any(|(next, _)| (next / size - 1000.0).abs() < 1e-6);
    let fits = |size: f64| value.abs() >= size * if decimal(size / 1000.0) { 0.9995 } else { 1.0 };
    let (size, name) = *units.iter().find(|(size, _)| fits(*size)).or(units.last()).expect("there are units");
    let value = value / size;
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
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
    if value <= -0.5 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(figure(0.812_34, Unit::Seconds), "812 ms");
        assert_eq!(figure(12.34, Unit::Seconds), "12.3 s");
        assert_eq!(figure(0.999_7, Unit::Seconds), "1.00 s");
        assert_eq!(figure(0.099_97, Unit::Seconds), "100 ms");
        assert_eq!(figure(0.0, Unit::Seconds), "0 ns");
        assert_eq!(figure(2.5e-8, Unit::Seconds), "25.0 ns");
        assert_eq!(figure(3.456_7, Unit::Nanoseconds), "3.46 ns");
        assert_eq!(figure(9.996, Unit::Nanoseconds), "10.0 ns");
        assert_eq!(figure(2.5e6, Unit::Nanoseconds), "2.50 ms");
        assert_eq!(figure(12.9 * 1024.0 * 1024.0, Unit::Bytes), "12.9 MiB");
        assert_eq!(figure(4096.0, Unit::Bytes), "4.00 KiB");
        assert_eq!(figure(1000.0, Unit::Bytes), "1000 B");
        assert_eq!(figure(0.0, Unit::Bytes), "0 B");
        assert_eq!(figure(1234567.0, Unit::Count), "1,234,567");
        assert_eq!(figure(-1234.0, Unit::Count), "-1,234");
        assert_eq!(figure(999.0, Unit::Count), "999");
        assert_eq!(figure(0.8726, Unit::Ratio), "0.873");
        assert_eq!(figure(f64::NAN, Unit::Bytes), "–");
    }

    #[test]
    fn marks_and_scales() {
        assert_eq!(mark(10_000.0, Unit::Nanoseconds), "10 µs");
        assert_eq!(mark(0.5, Unit::Ratio), "0.5");
        assert_eq!(mark(2147483648.0, Unit::Bytes), "2 GiB");
        assert_eq!(mark(100.0, Unit::Count), "100");
        assert_eq!(scale(0.02, Unit::Seconds), (1e-3, "ms"));
        assert_eq!(scale(0.0, Unit::Bytes), (1.0, "B"));
        assert_eq!(scale(7.0, Unit::Ratio), (1.0, ""));
    }
}
