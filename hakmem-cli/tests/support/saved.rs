//! Profiles in files.

use std::path::{Path, PathBuf};

use hakmem_profile::file::{Module, Process, Row, Site, StackEnd, Totals, Why, Writer};

use super::{Ended, hakmem, run};

/// A profile of a program that has left no file: one site that holds `live` blocks of 1 MiB, and one that has
/// freed all of its small ones.
pub fn profile(live: u64) -> Vec<u8> {
    let arguments = ["server", "--port", "80"].map(String::from).to_vec();
    let process =
        Process { pid: 4711, rate: 1 << 19, arguments, allocator: "0.2.0".into(), ..Process::default() };
    let mut writer = Writer::new(&process);
    let path = "/no/such/server".into();
    writer.modules(&[Module { start: 0, end: 0x9000, offset: 0, build_id: vec![1, 2], path }]);
    for (address, size) in [(0x2001, 1 << 20), (0x3001, 64)] {
        let stack = writer.stack(&[address, 0x4001], StackEnd::Complete);
        writer.site(&Site { stack: stack as usize, thread: 4711, tag: None, size });
    }
    let mib = 1 << 20;
    let totals = Totals { resident: 50 * mib, live: 20 * mib, cached: 5 * mib, ..Totals::default() };
    let row = |allocated, live, peak| Row { allocated, live, peak, pinned: 0.0 };
    writer.snapshot(1_000_000_000, Why::Timer, &totals, &[(0, row(live, live, 0)), (1, row(5, 5, 0))]);
    writer.snapshot(2_000_000_000, Why::End, &totals, &[(0, row(live, live, live)), (1, row(9, 0, 5))]);
    writer.end(Why::End);
    writer.bytes().to_vec()
}

/// Writes a file.
pub fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// `hakmem profile` of a file.
pub fn show(path: &Path, options: &[&str]) -> Ended {
    run(hakmem().arg("profile").arg(path).args(options))
}
