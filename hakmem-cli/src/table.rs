//! The statistics as tables.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value};

use crate::records::Record;
use crate::report::mebibytes;

/// All statistics of `record`, in the library's order, figures as they are and sizes also in MiB; where the
/// memory is; and the size classes in use. What the record does not have is left out.
pub fn render(record: &Record) -> String {
    let all = [Some(statistics(record)), memory(record), classes(record)];
    all.into_iter().flatten().map(|table| table.to_string()).collect::<Vec<_>>().join("\n")
}

fn new<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn statistics(record: &Record) -> Table {
    let mut table = new(["statistic", "value", "in MiB"]);
    for (name, value) in record.members.iter().filter(|(_, value)| !value.is_array()) {
        let size = value.as_u64().filter(|_| name.split('_').any(|word| word == "bytes"));
        table.add_row([name.clone(), value.to_string(), size.map(mebibytes).unwrap_or_default()]);
    }
    table
}

/// How the program's blocks add up to what is resident and what is mapped.
const MEMORY: [(&str, &str, &str); 12] = [
    ("", "allocated", "allocated_bytes"),
    ("+", "cached by threads", "cached_bytes"),
    ("+", "free in slabs", "free_bytes"),
    ("+", "never handed out", "fresh_bytes"),
    ("+", "ends of slabs", "slack_bytes"),
    ("=", "active", "active_bytes"),
    ("-", "untouched", "untouched_bytes"),
    ("+", "free and dirty", "dirty_bytes"),
    ("+", "records", "metadata_bytes"),
    ("=", "resident", "resident_bytes"),
    ("+", "retained", "retained_bytes"),
    ("=", "mapped", "bytes_mapped"),
];

fn memory(record: &Record) -> Option<Table> {
    let mut table = new(["memory", "bytes", "in MiB", "of resident"]);
    let resident = record.number("resident_bytes")?;
    for (sign, what, name) in MEMORY {
        let bytes = record.number(name)?;
        table.add_row([
            format!("{sign:1} {what}"),
            bytes.to_string(),
            mebibytes(bytes),
            percent(bytes, resident),
        ]);
    }
    Some(table)
}

fn classes(record: &Record) -> Option<Table> {
    let rows: Vec<&Map<String, Value>> =
        record.members.get("classes")?.as_array()?.iter().filter_map(Value::as_object).collect();
    let mut table = new(["class", "blocks", "bytes", "cached", "free", "fresh", "slabs", "active", "in use"]);
    for row in &rows {
        let number = |name: &str| row.get(name).and_then(Value::as_u64);
        let shown = |name| number(name).map(|n| n.to_string()).unwrap_or_default();
        let in_use = number("allocated_bytes").zip(number("active_bytes"));
        table.add_row([
            row.get("class").and_then(Value::as_str).unwrap_or_default().to_string(),
            shown("blocks"),
            shown("allocated_bytes"),
            shown("cached_blocks"),
            shown("free_blocks"),
            shown("fresh_blocks"),
            shown("slabs"),
            shown("active_bytes"),
            in_use.map(|(part, whole)| percent(part, whole)).unwrap_or_default(),
        ]);
    }
    (!rows.is_empty()).then_some(table)
}

/// `part` of `whole`; nothing of nothing is nothing.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { String::new() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    /// The cells of each line of the tables for these members.
    fn rows(members: &str) -> (String, Vec<Vec<String>>) {
        let record =
            serde_json::from_str(&format!(r#"{{"hakmem":"0.1.0","event":"exit","pid":7{members}}}"#));
        let text = super::render(&record.unwrap());
        let cells = |line: &str| -> Vec<String> {
            line.split(['│', '┆']).map(str::trim).filter(|c| !c.is_empty()).map(String::from).collect()
        };
        let rows = text.lines().map(cells).collect();
        (text, rows)
    }

    fn has(rows: &[Vec<String>], row: &[&str]) -> bool {
        rows.iter().any(|cells| cells == row)
    }

    #[test]
    fn shows_every_member() {
        let (text, rows) = rows(r#","zebra":3,"bytes_mapped":4194304,"later":"word""#);
        assert!(has(&rows, &["zebra", "3"]), "{text}");
        assert!(has(&rows, &["bytes_mapped", "4194304", "4.0 MiB"]), "{text}");
        assert!(has(&rows, &["later", "\"word\""]), "{text}");
        assert!(text.find("zebra") < text.find("bytes_mapped"));
        assert!(!text.contains("pid"));
        // A library that tells no more gets no more tables.
        assert!(!text.contains("memory") && !text.contains("class"), "{text}");
    }

    #[test]
    fn adds_up_the_memory() {
        let members = super::MEMORY.iter().zip(1u64..);
        let members: String = members.map(|((_, _, name), n)| format!(",\"{name}\":{}", n << 20)).collect();
        let (text, rows) = rows(&members);
        assert!(has(&rows, &["allocated", "1048576", "1.0 MiB", "10.0 %"]), "{text}");
        assert!(has(&rows, &["= resident", "10485760", "10.0 MiB", "100.0 %"]), "{text}");
        assert!(has(&rows, &["= mapped", "12582912", "12.0 MiB", "120.0 %"]), "{text}");
    }

    #[test]
    fn shows_the_classes_one_by_one() {
        let (text, rows) = rows(
            r#","classes":[{"class":"48","block_bytes":48,"blocks":1000,"allocated_bytes":48000,"cached_blocks":7,
            "free_blocks":8,"fresh_blocks":9,"slabs":1,"slack_bytes":16,"active_bytes":64000},
            {"class":"runs","blocks":0,"allocated_bytes":0,"active_bytes":0}, 3]"#,
        );
        assert!(has(&rows, &["48", "1000", "48000", "7", "8", "9", "1", "64000", "75.0 %"]), "{text}");
        assert!(has(&rows, &["runs", "0", "0", "0"]), "{text}");
        assert!(!text.contains("block_bytes"), "{text}");
        // None, and what is no list of classes, make no table.
        for odd in [",\"classes\":[]", ",\"classes\":[3]", ",\"classes\":3"] {
            let (text, rows) = self::rows(odd);
            assert!(!rows.iter().any(|cells| cells.first().is_some_and(|c| c == "class")), "{text}");
        }
    }
}
