//! The statistics as a table.

use comfy_table::{CellAlignment, Table, presets};

use crate::records::Record;
use crate::report::mebibytes;

/// All statistics of `record`, in the library's order, figures as they are and sizes also in MiB.
pub fn render(record: &Record) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(["statistic", "value", "in MiB"]);
    for (name, value) in &record.members {
        let size = value.as_u64().filter(|_| name.split('_').any(|word| word == "bytes"));
        table.add_row([name.clone(), value.to_string(), size.map(mebibytes).unwrap_or_default()]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn shows_every_member() {
        let record = serde_json::from_str(
            r#"{"hakmem":"0.1.0","event":"exit","pid":7,"zebra":3,"bytes_mapped":4194304,"later":"word"}"#,
        );
        let text = super::render(&record.unwrap());
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split(['│', '┆']).map(str::trim).filter(|c| !c.is_empty()).collect())
            .collect();
        assert!(rows.contains(&vec!["zebra", "3"]), "{text}");
        assert!(rows.contains(&vec!["bytes_mapped", "4194304", "4.0 MiB"]), "{text}");
        assert!(rows.contains(&vec!["later", "\"word\""]), "{text}");
        assert!(text.find("zebra") < text.find("bytes_mapped"));
        assert!(!text.contains("pid"));
    }
}
