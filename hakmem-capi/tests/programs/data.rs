//! Databases and documents.

use crate::inputs::Random;
use crate::twin::{Twin, missing};
use std::fmt::Write as _;

const SQL: &str = "
create table item (id integer primary key, name text, price real, place integer, note blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000)
    insert into item select i, printf('item-%d-%s', i * 7919 % 300007, hex(i * 31)), i * 13 % 9973 / 7.0, i * 7 % 1000,
        case when i % 500 = 0 then zeroblob(i % 30000) end from n;
create index by_name on item(name);
create index by_place on item(place, price);
select count(*), sum(price), min(name), max(name) from item;
select place, count(*), avg(price) from item group by place order by 3 desc limit 20;
select a.id, b.id from item a join item b on b.place = a.place and b.price > a.price where a.id < 40 order by 1, 2 limit 300;
select id, name, row_number() over (partition by place order by price desc) r from item where place < 3 order by place, r limit 90;
select json_group_array(json_object('id', id, 'name', name)) from item where id % 3000 = 1;
select length(group_concat(name, ',')) from (select name from item order by name);
begin;
update item set name = name || '-' || substr('abcdefghijklmnopqrstuvwxyz', 1 + id % 20, id % 13) where id % 2 = 0;
delete from item where id % 3 = 0;
savepoint half;
delete from item;
rollback to half;
commit;
select count(*), sum(length(name)) from item;
select name from item order by lower(name) desc limit 30;
vacuum;
pragma integrity_check;
";

#[test]
fn sqlite3_with_300_000_rows() {
    if missing(&[("sqlite3", "sqlite3")]) {
        return;
    }
    Twin::new("sqlite3", 90).processes(3).compare(|side| {
        side.file("rows.sql", SQL);
        side.run(&["sqlite3", "rows.db", ".read rows.sql"]);
        side.run(&["sh", "-c", "sqlite3 rows.db .dump | sqlite3 again.db"]);
        side.run(&[
            "sqlite3",
            "again.db",
            "select count(*), sum(length(name)) from item; pragma integrity_check;",
        ]);
    });
}

/// A JSON document of 30,000 nested objects.
fn document() -> String {
    let mut random = Random::new(11);
    let mut json = String::from("[\n");
    for n in 0..30_000 {
        let tags: Vec<_> = (0..random.below(6)).map(|_| format!("\"{}\"", random.word())).collect();
        let (word, group, weight) = (random.word(), random.below(50), random.below(100_000) as f64 / 8.0);
        let end = if n == 29_999 { "" } else { "," };
        let tags = tags.join(",");
        writeln!(
            json,
            r#"{{"id":{n},"name":"{word}","in":{{"group":{group},"weight":{weight}}},"tags":[{tags}]}}{end}"#
        )
        .unwrap();
    }
    json.push_str("]\n");
    json
}

#[test]
fn jq_on_a_large_document() {
    if missing(&[("jq", "jq")]) {
        return;
    }
    let document = document();
    Twin::new("jq", 60).processes(4).compare(|side| {
        side.file("in.json", &document);
        for filter in [
            ".",
            "group_by(.in.group) | map({group: .[0].in.group, n: length, sum: (map(.in.weight) | add)})",
            "[.[] | select(.tags | length > 2) | .name + \"-\" + (.tags | join(\"+\"))] | sort | unique",
            "[paths(type == \"string\") | map(tostring) | join(\".\")] | length",
        ] {
            side.run(&["jq", "-S", filter, "in.json"]);
        }
    });
}
