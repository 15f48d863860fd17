//! `GlobalAlloc` through and through: every alignment, the ends of the size range, and a program that lives
//! on it.

use hakmem::{Hakmem, Options, StatsFormat, Thp};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// The test program's own allocator, with options from the const builder.
#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(100).thp(Thp::Never));

/// Figures of the whole process are compared, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn every_alignment_to_1_gib() {
    let _alone = alone();
    for shift in 0..=30 {
        let align = 1 << shift;
        for size in [1, 7, 16, 100, 1025, 40_000, 70_000, 2 << 20] {
            let layout = layout(size, align);
            // SAFETY: the size is not zero; blocks are freed with their layout.
            unsafe {
                let block = GLOBAL.alloc(layout);
                assert!(!block.is_null(), "{layout:?}");
                assert_eq!(block as usize % align, 0, "{layout:?}");
                block.add(size - 1).write(2);
                block.write(1);
                // The alignment survives growing and shrinking.
                let grown = GLOBAL.realloc(block, layout, size * 3);
                assert!(!grown.is_null() && grown as usize % align == 0, "{layout:?}");
                let large = Layout::from_size_align_unchecked(size * 3, align);
                let shrunk = GLOBAL.realloc(grown, large, size);
                assert!(!shrunk.is_null() && shrunk as usize % align == 0, "{layout:?}");
                assert_eq!((shrunk.read(), shrunk.add(size - 1).read()), (1, if size == 1 { 1 } else { 2 }));
                GLOBAL.dealloc(shrunk, layout);
                let zeroed = GLOBAL.alloc_zeroed(layout);
                assert_eq!((zeroed.read(), zeroed.add(size - 1).read()), (0, 0));
                GLOBAL.dealloc(zeroed, layout);
            }
        }
    }
}

#[path = "support/empty.rs"]
mod empty;

#[test]
fn blocks_of_no_bytes() {
    let _alone = alone();
    empty::blocks_of_no_bytes(&GLOBAL);
}

#[test]
fn impossible_sizes_are_null() {
    let _alone = alone();
    for layout in
        [layout(isize::MAX as usize, 1), layout(isize::MAX as usize - 4095, 4096), layout(1 << 48, 1 << 40)]
    {
        // SAFETY: the size is not zero.
        unsafe {
            assert!(GLOBAL.alloc(layout).is_null(), "{layout:?}");
            assert!(GLOBAL.alloc_zeroed(layout).is_null(), "{layout:?}");
        }
    }
    let small = layout(100, 8);
    // SAFETY: a block of ours, which a failed realloc leaves alone.
    unsafe {
        let block = GLOBAL.alloc(small);
        block.write(9);
        assert!(GLOBAL.realloc(block, small, isize::MAX as usize - 7).is_null());
        assert_eq!(block.read(), 9);
        GLOBAL.dealloc(block, small);
    }
}

#[test]
fn large_blocks_grow_where_they_are_or_by_moving_pages() {
    let _alone = alone();
    let mut size = 100_000;
    // SAFETY: blocks are resized with the layout they have.
    unsafe {
        let mut block = GLOBAL.alloc(layout(size, 8));
        block.write_bytes(7, size);
        while size < 200 << 20 {
            let next = size * 5 / 4;
            block = GLOBAL.realloc(block, layout(size, 8), next);
            assert!(!block.is_null());
            assert_eq!((block.read(), block.add(size - 1).read()), (7, 7));
            block.add(size).write_bytes(7, next - size);
            size = next;
        }
        GLOBAL.dealloc(block, layout(size, 8));
    }
}

/// The unwinder of musl demands more of a panic's exception than its layout says.
#[test]
fn panics_unwind() {
    let _alone = alone();
    // What is kept is as long as an exception, so that the next one lies elsewhere.
    let panicked = |n: u64| std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new([n; 7])));
    let kept: Vec<_> = (0..64).map(|n| panicked(n).unwrap_err().downcast::<[u64; 7]>().unwrap()).collect();
    assert!(kept.iter().zip(0..).all(|(kept, n)| **kept == [n; 7]));
}

thread_local! {
    static LATE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_program_lives_on_it() {
    let _alone = alone();
    let before = hakmem::stats();
    let handles: Vec<_> = (0..8)
        .map(|t| {
            std::thread::spawn(move || {
                let mut words: HashMap<String, Vec<String>> = HashMap::new();
                for i in 0..20_000 {
                    words.entry(format!("word {}", i % 997)).or_default().push(format!("{t} {i}"));
                }
                // Freed when the thread ends, by a destructor.
                LATE.with(|late| late.borrow_mut().extend(words.remove("word 5").unwrap()));
                words
            })
        })
        .collect();
    let all: Vec<_> = handles.into_iter().map(|h| h.join().unwrap()).collect();
    assert_eq!(all.iter().flat_map(|m| m.values()).map(Vec::len).sum::<usize>(), 8 * (20_000 - 21));
    let during = hakmem::stats();
    assert!(during.allocated_bytes > 8 * 20_000 * 24, "{during:?}");
    assert!(during.threads_started >= before.threads_started + 8);
    drop(all);
    hakmem::purge();
    let after = hakmem::stats();
    assert!(after.allocated_bytes < during.allocated_bytes / 2, "{during:?} {after:?}");
    assert!(after.home_foreign > before.home_foreign, "what other threads allocated went home");
}

#[test]
fn options_have_a_const_builder() {
    let _alone = alone();
    const OPTIONS: Options = Options::new()
        .preset(hakmem::Preset::Memory)
        .stats(StatsFormat::Json)
        .magazine(false)
        .outbox(false)
        .orphans(false)
        .large_cache(1 << 20)
        .purge_delay_ms(-5)
        .foreign(hakmem::Foreign::Warn);
    let text = format!("{OPTIONS:?}");
    for expected in ["Json", "magazine: false", "large_cache: 1048576", "purge_delay: -1", "Never", "Warn"] {
        assert!(text.contains(expected), "{text}");
    }
}
