//! The heap profile: what is sampled is what was allocated, and switching it on and off disturbs nobody.

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::thread;
use support::in_own_process;

static ALLOCATOR: hakmem::Hakmem = hakmem::Hakmem::new();

/// One profile at a time in the process.
static ALONE: Mutex<()> = Mutex::new(());

/// A block that knows what was written to it.
struct Block {
    at: *mut u8,
    layout: Layout,
    mark: u8,
}

impl Block {
    fn new(size: usize, mark: u8) -> Self {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the size is not 0.
        let at = unsafe { ALLOCATOR.alloc(layout) };
        assert!(!at.is_null());
        // SAFETY: a block of that size.
        unsafe { at.write_bytes(mark, size) };
        Self { at, layout, mark }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        for i in [0, self.layout.size() / 2, self.layout.size() - 1] {
            // SAFETY: within the block, which was written as a whole.
            assert_eq!(unsafe { self.at.add(i).read() }, self.mark);
        }
        // SAFETY: a block of this allocator and this layout, which nobody else has.
        unsafe { ALLOCATOR.dealloc(self.at, self.layout) };
    }
}

// SAFETY: the block is the owner's alone.
unsafe impl Send for Block {}

/// Stops the other threads, also when a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Allocates and frees until told to stop, some blocks by way of other threads.
fn work(seed: u64, stop: &AtomicBool, passed: &Mutex<Vec<Block>>) {
    let mut held: Vec<Block> = Vec::new();
    let mut x = seed;
    while !stop.load(Relaxed) {
        for _ in 0..200 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let size = match x >> 60 {
                0 => 20_000 + (x >> 20) as usize % 100_000,
                1 => 1 << 20,
                2..6 => 1 + (x >> 20) as usize % 8000,
                _ => 1 + (x >> 20) as usize % 300,
            };
            if held.len() > 300 || x & 1 == 0 && !held.is_empty() {
                held.swap_remove((x >> 33) as usize % held.len());
            } else {
                held.push(Block::new(size, x as u8));
            }
        }
        let mut passed = passed.lock().unwrap();
        passed.truncate(1000);
        for _ in 0..20 {
            if let Some(block) = held.pop() {
                passed.push(block);
            }
            let at = (x >> 40) as usize % passed.len().max(1);
            if at < passed.len() {
                held.push(passed.swap_remove(at));
            }
        }
    }
}

/// What an armed heap has beyond others is memory of the allocator's own.
#[test]
fn the_memory_of_armed_heaps_is_counted() {
    // Heaps that another test has armed have it already.
    in_own_process("the_memory_of_armed_heaps_is_counted", armed_heaps);
}

fn armed_heaps() {
    let metadata = || hakmem::stats().metadata_bytes;
    drop(Block::new(100, 1));
    let (ready, go) = (Barrier::new(4), Barrier::new(4));
    let more = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                drop(Block::new(100, 1));
                ready.wait();
                go.wait();
                // Of a size of which the thread has none.
                drop(Block::new(5000, 1));
                ready.wait();
                go.wait();
            });
        }
        ready.wait();
        let before = metadata();
        // No sample, so nothing else is needed.
        hakmem::profile::start(1 << 60).unwrap();
        go.wait();
        ready.wait();
        let more = metadata() - before;
        hakmem::profile::stop();
        go.wait();
        more
    });
    // SAFETY: no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    assert!((4 * page..8 * page).contains(&more), "{more} bytes for 4 heaps");
}

/// Freed mappings that were kept too long go back when a thread needs a slab, also during a profile.
#[test]
fn the_cache_of_large_blocks_ages() {
    in_own_process("the_cache_of_large_blocks_ages", || {
        // One sample or none.
        hakmem::profile::start(1 << 60).unwrap();
        drop(Block::new(8 << 20, 1));
        let kept = hakmem::stats().dirty_bytes;
        assert!(kept >= 8 << 20, "{kept} bytes are kept");
        // Twice the delay after which what is unused goes back.
        thread::sleep(std::time::Duration::from_millis(500));
        let blocks: Vec<_> = (0..4000).map(|i| Block::new(1000, i as u8)).collect();
        let now = hakmem::stats().dirty_bytes;
        drop(blocks);
        assert!(now < 8 << 20, "{now} bytes are still kept");
    });
}

/// The path is one of the directory in which the process starts.
#[test]
fn a_relative_path_does_not_follow_the_working_directory() {
    const NAME: &str = "a_relative_path_does_not_follow_the_working_directory";
    if std::env::var_os("HAKMEM_PROFILE").is_some() {
        let block = Block::new(100_000, 1);
        std::env::set_current_dir("elsewhere").unwrap();
        return drop(block);
    }
    let folder = std::env::temp_dir().join(format!("hakmem-chdir-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("elsewhere")).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args([NAME, "--exact"]).env("HAKMEM_PROFILE", "here").current_dir(&folder);
    assert!(child.output().unwrap().status.success());
    let files = |folder: &std::path::Path| {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".hakprof")).count()
    };
    let found = (files(&folder), files(&folder.join("elsewhere")));
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(found, (1, 0));
}

#[test]
fn a_path_with_a_zero_byte_is_not_the_one_before_it() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    hakmem::profile::start(1000).unwrap();
    let path = std::env::temp_dir().join(format!("hakmem-zero-{}", std::process::id()));
    let written = hakmem::profile::write(&format!("{}\0rest", path.display()));
    hakmem::profile::stop();
    assert_eq!((written, path.exists()), (Err(hakmem::profile::Error::Path), false));
}

#[test]
fn a_path_may_have_more_than_255_bytes() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    hakmem::profile::start(1000).unwrap();
    let folder = std::env::temp_dir().join(format!("hakmem-long-{}", std::process::id()));
    let within = folder.join("a".repeat(200)).join("b".repeat(200));
    std::fs::create_dir_all(&within).unwrap();
    let path = within.join("profile");
    let written = hakmem::profile::write(path.to_str().unwrap());
    let longer = hakmem::profile::write(&"c/".repeat(700));
    hakmem::profile::stop();
    let found = path.exists();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((written, found, longer), (Ok(()), true, Err(hakmem::profile::Error::Path)));
}

#[test]
fn it_can_be_switched_on_and_off_at_any_time() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (stop, passed) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let rounds = if cfg!(debug_assertions) { 1000 } else { 10_000 };
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        let mut threads: Vec<_> = (1..4)
            .map(|seed| {
                let (stop, passed) = (&stop, &passed);
                scope.spawn(move || work(seed, stop, passed))
            })
            .collect();
        // Threads that come and go.
        threads.push(scope.spawn(|| {
            while !stop.load(Relaxed) {
                thread::scope(|inner| {
                    let brief = inner.spawn(|| {
                        (0..100).for_each(|i| drop(Block::new(1 + i * 7, i as u8)));
                        passed.lock().unwrap().push(Block::new(77, 7));
                    });
                    brief.join().unwrap();
                });
            }
        }));
        for round in 0..rounds {
            // Now and then every allocation.
            let rate = if round % 100 == 0 { 1 } else { (1 + round % 7) << 14 };
            hakmem::profile::start(rate).unwrap();
            assert_eq!(hakmem::profile::start(5), Err(hakmem::profile::Error::Running));
            drop(Block::new(100, 1));
            if round % 16 == 0 {
                thread::yield_now();
            }
            hakmem::profile::stop();
        }
        stop.store(true, Relaxed);
        // The scope would not wait for their ends, in which they give up what their heaps have.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    drop(passed);
    // Nothing is left: what the threads held has been freed, and a purge finds it.
    hakmem::purge();
    let stats = hakmem::stats();
    println!(
        "{} bytes allocated, {} cached, {} mapped",
        stats.allocated_bytes, stats.cached_bytes, stats.bytes_mapped
    );
    assert_eq!(stats.allocated_bytes, 0);
}
