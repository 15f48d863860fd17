//! What looking for leaks takes in memory: of most stacks no more than what tells that they do not grow.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hakmem_profile::file::{self, Row, Site, StackEnd, Totals, Why, Writer};
use hakmem_profile::model::Profile;
use hakmem_profile::suspects;
use hakmem_profile::symbols::Symbols;
use support::process;

/// Counts what lives, and the most that has.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

const STACKS: u64 = 20_000;

/// So many stacks, of which half have no sample that lives, and one grows.
fn large() -> Profile {
    let mut writer = Writer::new(&process());
    let mut rows = Vec::new();
    for stack in 0..STACKS {
        let stack_id = writer.stack(&[0x1000 + stack], StackEnd::Complete) as usize;
        let site = writer.site(&Site { stack: stack_id, thread: 1, tag: None, size: 1 << 19 });
        rows.push((site, Row { allocated: 1, live: stack % 2, ..Row::default() }));
    }
    let growing = rows[7].0;
    for step in 0..150 {
        writer.snapshot(step * 1_000_000_000, Why::Timer, &Totals::default(), &rows);
        rows = vec![(growing, Row { allocated: 30 * step, live: 30 * step, ..Row::default() })];
    }
    Profile::new(file::read(writer.bytes()).unwrap(), &mut Symbols::new())
}

#[test]
fn most_stacks_take_little() {
    let profile = large();
    assert_eq!(profile.stacks.len() as u64, STACKS);
    MOST.store(0, Relaxed);
    let before = LIVE.load(Relaxed);
    let suspects = suspects::find(&profile, usize::MAX);
    let taken = MOST.load(Relaxed) - before;
    assert_eq!((suspects.len(), suspects[0].series.len()), (1, 120));
    assert_eq!(profile.stacks[suspects[0].stack][0].function, "0x1007");
    println!("{taken} bytes for {STACKS} stacks");
    // A series has 120 points of 16 bytes.
    assert!(taken < STACKS as usize * 300, "{taken}");
}
