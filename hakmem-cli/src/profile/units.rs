//! Figures for people.

/// Bytes.
pub fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    // What would be rounded to 1024.0 is 1.0 of the next.
    while value.abs() >= 1023.95 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0} B"),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

/// From one size to another; the unit is said once where it is the same.
pub fn range((low, high): (f64, f64)) -> String {
    let (low, high) = (bytes(low), bytes(high));
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((figure, one)), Some((_, other))) if one == other => format!("{figure} – {high}"),
        _ => format!("{low} – {high}"),
    }
}

/// A change, with a sign.
pub fn change(value: f64) -> String {
    if value > 0.0 { format!("+{}", bytes(value)) } else { bytes(value) }
}

/// A number of things, in groups of three digits.
pub fn count(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number <= -0.5 { format!("-{text}") } else { text }
}

/// A part of a whole; nothing of nothing is nothing.
pub fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", part / whole * 100.0) } else { String::new() }
}

/// A time in ns; an infinite one is that of blocks that are kept.
pub fn time(ns: f64) -> String {
    if ns.is_infinite() {
        return "kept".into();
    }
    let steps =
        [(1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms"), (120e9, 1e9, "s"), (7200e9, 60e9, "min")];
    let found = steps.iter().find(|(limit, _, _)| ns < *limit);
    let (_, unit, name) = found.unwrap_or(&(f64::INFINITY, 3600e9, "h"));
    let value = ns / unit;
    if value < 99.95 && *name != "ns" { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

/// At most `width` characters: what is too long loses its middle.
pub fn elide(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.into();
    }
    let kept = width.saturating_sub(1);
    let head: String = text.chars().take(kept - kept / 3).collect();
    let tail: String = text.chars().skip(length - kept / 3).collect();
    if width == 0 { String::new() } else { format!("{head}…{tail}") }
}

/// Lines of at most `width` characters, where words allow it. A unit stays with its figure.
pub fn wrap(text: &str, width: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "%"];
    let mut lines = String::new();
    let mut column = 0;
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        let unit = words.next_if(|next| units.contains(&next.trim_end_matches([',', '.', ';', ':', ')'])));
        let word = unit.map_or(word.into(), |unit| format!("{word} {unit}"));
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            lines.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(&word);
        column += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let all = [0.0, 1.4, 1023.0, 1024.0, 1048575.0, 1.5 * 1048576.0, 3e12].map(bytes);
        assert_eq!(all, ["0 B", "1 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 MiB", "2.7 TiB"]);
        assert_eq!(range((1536.0, 4096.0)), "1.5 – 4.0 KiB");
        assert_eq!(range((5.0, 4096.0)), "5 B – 4.0 KiB");
        assert_eq!([5.0, -2048.0].map(change), ["+5 B", "-2.0 KiB"]);
        assert_eq!(
            [0.0, 999.4, 1000.0, 1234567.0, -1000.0].map(count),
            ["0", "999", "1,000", "1,234,567", "-1,000"]
        );
        let times = [12.0, 1500.0, 2.5e6, 500e6, 3e9, 600e9, 9000e9].map(time);
        assert_eq!(times, ["12 ns", "1.5 µs", "2.5 ms", "500 ms", "3.0 s", "10.0 min", "2.5 h"]);
        assert_eq!(time(f64::INFINITY), "kept");
    }

    #[test]
    fn text_fits() {
        assert_eq!(elide("abcdefghij", 10), "abcdefghij");
        assert_eq!(elide("abcdefghijk", 7), "abcd…jk");
        assert_eq!([elide("abc", 1), elide("abc", 0)], ["…", ""]);
        assert_eq!(wrap("one two three", 9), "one two\n  three");
        assert_eq!(wrap("of it 12 KiB", 9), "of it\n  12 KiB");
    }
}
