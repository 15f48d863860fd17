//! What a profile takes in the reader's memory: a few times its file.

mod support;

use hakmem::Hakmem;
use hakmem_profile::file::{self, Row, Site, StackEnd, Totals, Why, Writer};
use hakmem_profile::model::{By, Profile};
use hakmem_profile::symbols::Symbols;
use support::process;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

/// 3,000 stacks of 100 functions each, of 500 different ones.
fn large() -> Vec<u8> {
    let mut writer = Writer::new(&process());
    let mut rows = Vec::new();
    for stack in 0..3000u64 {
        let addresses: Vec<u64> =
            (0..100).map(|depth| 0x7000_0000_0000 + (stack + depth * (1 + stack / 500)) % 500 * 16).collect();
        let stack = writer.stack(&addresses, StackEnd::Complete) as usize;
        let site = writer.site(&Site { stack, thread: 1, tag: None, size: 64 });
        rows.push((site, Row { allocated: 1, live: 1, ..Row::default() }));
    }
    writer.snapshot(1, Why::End, &Totals::default(), &rows);
    writer.end(Why::End);
    writer.bytes().to_vec()
}

#[test]
fn names_are_kept_once() {
    let bytes = large();
    let before = hakmem::stats().allocated_bytes;
    let profile = Profile::new(file::read(&bytes).unwrap(), &mut Symbols::new());
    let taken = hakmem::stats().allocated_bytes - before;
    assert!(profile.stacks.len() == 3000 && profile.stacks.iter().all(|stack| stack.len() == 100));
    println!("{} bytes of {}", taken, bytes.len());
    assert!(taken < 4 * bytes.len() as u64, "{taken} of {}", bytes.len());
    let moment = profile.moment(None).unwrap();
    assert_eq!(profile.groups(&moment, By::Stack).len(), profile.stacks.len());
}
