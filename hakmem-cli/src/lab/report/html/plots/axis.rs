//! The axes of all plots: linear, logarithmic or rows with names, with round marks. plotters' own ones panic
//! or loop on empty ranges, know no units, and leave short logarithmic axes without marks.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::lab::model::Unit;
use crate::lab::report::units;

/// An axis from `low` to `high`.
#[derive(Clone, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    /// Logarithmic; then `low` is above 0.
    log: bool,
    /// Rows go down.
    down: bool,
    marks: Vec<(f64, String)>,
    /// What the numbers at the marks are in; empty where they say it themselves.
    pub unit: &'static str,
}

impl Axis {
    /// Linear over `values`, with room at both ends; from 0 where `from_zero`.
    pub fn linear(values: impl IntoIterator<Item = f64>, unit: Unit, from_zero: bool) -> Self {
        let (low, high) = bounds(values).unwrap_or((0.0, 1.0));
        let low = if from_zero { low.min(0.0) } else { low };
        let room = match (high - low) * 0.06 {
            room if room > high.abs() * 1e-6 => room,
            _ => (high.abs() * 0.05).max(1e-12),
        };
        let (low, high) = (if from_zero && low == 0.0 { 0.0 } else { low - room }, high + room);
        let (size, name) = units::scale(high, unit);
        let marks =
            round(low / size, high / size).into_iter().map(|(mark, text)| (mark * size, text)).collect();
        Self { low, high, log: false, down: false, marks, unit: name }
    }

    /// Logarithmic over `values`; what is not above 0 is drawn at the lower end.
    pub fn logarithmic(values: impl IntoIterator<Item = f64>, unit: Unit) -> Self {
        let (low, high) = bounds(values.into_iter().filter(|value| *value > 0.0)).unwrap_or((1.0, 10.0));
        // So far from the ends of what a number can hold that nothing below overflows.
        let (low, high) = (low.clamp(1e-140, 1e140), high.clamp(1e-140, 1e140));
        let room = (high / low).powf(0.06).max(1.1);
        let (low, high) = (low / room, high * room);
        let decades = (high / low).log10();
        let factors: &[f64] = if decades < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / 7.0).ceil().max(1.0) as i32;
        let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let marks = exponents.filter(|exponent| exponent.rem_euclid(every) == 0);
        let marks =
            marks.flat_map(|exponent| factors.iter().map(move |factor| factor * 10f64.powi(exponent)));
        let marks =
            marks.filter(|mark| (low..=high).contains(mark)).map(|mark| (mark, units::mark(mark, unit)));
        Self { low, high, log: true, down: false, marks: marks.collect(), unit: "" }
    }

    /// Logarithmic where the largest is far above the smallest, else linear.
    pub fn fitting(values: impl Iterator<Item = f64> + Clone, unit: Unit, far: f64) -> Self {
        match bounds(values.clone()) {
            Some((low, high)) if low > 0.0 && high / low > far => Self::logarithmic(values, unit),
            _ => Self::linear(values, unit, false),
        }
    }

    /// Rows with names, from 0 to their number downwards.
    pub fn rows(names: &[String]) -> Self {
        let marks = names.iter().enumerate().map(|(i, name)| (i as f64 + 0.5, name.clone())).collect();
        Self { low: 0.0, high: names.len().max(1) as f64, log: false, down: true, marks, unit: "" }
    }

    /// Both ends.
    pub fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Where `value` lies: 0 at the start, 1 at the end; what is beyond is at the end.
    fn place(&self, value: f64) -> f64 {
        let place = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let place = if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 };
        if self.down { 1.0 - place } else { place }
    }
}

/// The smallest and largest of the values that are numbers.
fn bounds(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let numbers = values.into_iter().filter(|value| value.is_finite());
    numbers.fold(None, |ends, value| {
        Some(ends.map_or((value, value), |(low, high): (f64, f64)| (low.min(value), high.max(value))))
    })
}

/// About five round numbers from `low` to `high`.
fn round(low: f64, high: f64) -> Vec<(f64, String)> {
    let rough = (high - low) / 5.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
    let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(steps[3]);
    let digits = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
    let (first, last) = ((low / step).ceil(), (high / step).floor());
    if !(first.is_finite() && last - first < 100.0) {
        return Vec::new();
    }
    let marks = (0..=(last - first) as u32).map(|i| (first + f64::from(i)) * step);
    marks.map(|mark| (mark, format!("{:.digits$}", mark + 0.0))).collect()
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        start + (self.place(*value) * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.iter().map(|(mark, _)| *mark).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.marks.iter().find(|(mark, _)| mark == value).map_or(String::new(), |(_, text)| text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.marks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn marks_are_round() {
        assert_eq!(texts(&Axis::linear([0.93, 1.07], Unit::Ratio, false)), ["0.95", "1.00", "1.05"]);
        let memory = Axis::linear([0.0, 100.0 * 1048576.0], Unit::Bytes, true);
        assert_eq!((texts(&memory), memory.unit), (vec!["0", "50", "100"], "MiB"));
        assert_eq!(
            texts(&Axis::logarithmic([10.0, 1e6], Unit::Nanoseconds)),
            ["10 ns", "100 ns", "1 µs", "10 µs", "100 µs", "1 ms"]
        );
        assert_eq!(texts(&Axis::logarithmic([0.4, 4.0], Unit::Ratio)), ["0.5", "1", "2"]);
    }

    #[test]
    fn any_values_make_an_axis() {
        let odd =
            [0.0, -1.0, 1.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE, 1e-9, 1e18, 1.0 + 1e-15];
        for one in odd {
            for other in odd {
                for axis in [
                    Axis::linear([one, other], Unit::Bytes, false),
                    Axis::linear([one, other], Unit::Seconds, true),
                    Axis::logarithmic([one, other], Unit::Nanoseconds),
                    Axis::fitting([one, other].into_iter(), Unit::Ratio, 3.0),
                ] {
                    assert!(axis.marks.len() <= 100, "{axis:?}");
                    for value in [one, other, 0.0] {
                        assert!((0..=100).contains(&axis.map(&value, (0, 100))), "{axis:?} {value}");
                    }
                }
            }
        }
        Axis::rows(&[]);
    }
}
