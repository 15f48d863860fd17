//! A large JSON document: read into a tree, changed, written again, as a service that passes documents on
//! does.

use std::fmt::Write;

use hakmem_rust_programs::{Random, checksum, scale};
use serde_json::{Map, Value, json};

/// A document of `count` records.
fn document(count: usize) -> String {
    let mut random = Random::new(1);
    let mut text = String::from("[");
    for id in 0..count {
        let comma = if id == 0 { "" } else { "," };
        write!(text, r#"{comma}{{"id":{id},"name":"user {:x}","active":{},"#, random.number(), id % 3 == 0)
            .expect("a String takes all");
        write!(
            text,
            r#""score":{}.5,"address":{{"street":"{} Long Street","city":"Town {}"}},"tags":["#,
            id % 1000,
            id % 97,
            id % 53
        )
        .expect("a String takes all");
        for tag in 0..random.below(6) {
            let comma = if tag == 0 { "" } else { "," };
            write!(text, r#"{comma}"tag-{}""#, random.below(1000)).expect("a String takes all");
        }
        text.push_str("]}");
    }
    text.push(']');
    text
}

/// What happens to one record.
fn change(record: &mut Map<String, Value>, random: &mut Random) -> bool {
    let tags = record["tags"].as_array_mut().expect("each has some or none");
    tags.retain(|tag| tag.as_str().is_some_and(|tag| !tag.ends_with('7')));
    tags.push(json!(format!("seen-{}", random.below(100))));
    let summary =
        json!({ "tags": tags.len(), "label": format!("{}!", record["name"].as_str().unwrap_or("")) });
    record.insert("summary".into(), summary);
    if random.below(4) == 0 {
        record.remove("address");
    }
    random.below(10) != 0
}

fn main() {
    let count = scale(60_000);
    let text = document(count);
    let mut random = Random::new(2);
    let mut tree: Value = serde_json::from_str(&text).expect("well-formed");
    let records = tree.as_array_mut().expect("an array");
    assert_eq!(records.len(), count);
    records.retain_mut(|record| change(record.as_object_mut().expect("an object"), &mut random));
    let written = tree.to_string();
    let again: Value = serde_json::from_str(&written).expect("what was written can be read");
    assert_eq!(again, tree);
    println!("{} bytes, {:016x}", written.len(), checksum(written.as_bytes()));
}
