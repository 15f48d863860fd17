//! A profile whose sites and counts are known.
#![allow(dead_code)]

pub mod samples;
#[path = "../../../tests/support/skips.rs"]
mod skips;

use hakmem_profile::file::{Module, Process, Row, Site, StackEnd, Totals, Why, Writer};

pub const RATE: u64 = 512 << 10;

pub fn process() -> Process {
    Process {
        pid: 4711,
        rate: RATE,
        start: 1_700_000_000_000_000_000,
        monotonic: 5,
        page_size: 4096,
        armed_late: false,
        coarse: false,
        arguments: ["/usr/bin/server", "--port", "80"].map(String::from).to_vec(),
        allocator: "0.2.0".into(),
    }
}

pub fn module(start: u64, path: &str) -> Module {
    Module {
        start,
        end: start + 0x10_0000,
        offset: 0x1000,
        build_id: vec![0xab, 0xcd, 0xef],
        path: path.into(),
    }
}

pub fn totals(n: u64) -> Totals {
    let mib = n << 20;
    Totals {
        resident: 20 * mib,
        mapped: 40 * mib,
        live: 10 * mib,
        cached: mib,
        free: 2 * mib,
        dirty: 3 * mib,
        metadata: mib / 2,
        fresh: mib / 4,
    }
}

pub fn row(allocated: u64, live: u64, peak: u64, pinned: f64) -> Row {
    Row { allocated, live, peak, pinned }
}

/// Two stacks, three sites, two threads, a tag, three snapshots.
pub fn small() -> Vec<u8> {
    let mut writer = Writer::new(&process());
    writer.modules(&[
        module(0x1000_0000, "/no/such/server"),
        module(0x2000_0000, "/no/such/libhakmem.so"),
        module(0x3000_0000, ""),
    ]);
    let one = writer.stack(&[0x2000_0010, 0x1000_0101, 0x1000_0201], StackEnd::Complete);
    let two = writer.stack(&[0x1000_0301, 0x3000_0001, 0x9000_0000], StackEnd::Stopped);
    let tag = writer.tag("query 42");
    let site = |stack: u32, thread, tag, size| Site { stack: stack as usize, thread, tag, size };
    let a = writer.site(&site(one, 4711, None, 64));
    let b = writer.site(&site(one, 4712, Some(tag), 1 << 20));
    writer.thread(4711, "server");
    writer.thread(4712, "worker");
    writer.snapshot(
        1_000_000_000,
        Why::Timer,
        &totals(1),
        &[(a, row(10, 4, 0, 0.0)), (b, row(2, 2, 0, 0.0))],
    );
    let c = writer.site(&site(two, 4712, None, 4096));
    writer.snapshot(2_000_000_000, Why::Timer, &totals(2), &[(c, row(3, 3, 0, 0.0))]);
    // A kind that does not exist yet.
    writer.push(77, b"something new");
    writer.lifetimes(a, &[(10, 12), (20, 4)]);
    writer.snapshot(
        3_000_000_000,
        Why::End,
        &totals(1),
        &[(a, row(20, 4, 6, 512.0)), (b, row(2, 1, 2, 8192.0)), (c, row(3, 0, 3, 0.0))],
    );
    writer.end(Why::End);
    writer.bytes().to_vec()
}

/// The go command; `None`, which is said, where there is none.
pub fn go() -> Option<&'static str> {
    let is_there = |go: &&str| {
        std::process::Command::new(go).arg("version").output().is_ok_and(|output| output.status.success())
    };
    let go = ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"].into_iter().find(is_there);
    skips::is_there("go (apt-get install golang-go)", go.is_some());
    go
}
