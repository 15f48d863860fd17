//! Scopes: what a thread or a task allocates is charged to its tag, whoever else is at work, and to nobody
//! else's.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, VecDeque};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread;

use hakmem::profile::Scoped;
use hakmem_profile::file::{self, Raw};
use hakmem_profile::model::{By, Profile};
use hakmem_profile::symbols::Symbols;

static ALLOCATOR: hakmem::Hakmem = hakmem::Hakmem::new();

/// Bytes between two samples, and of the blocks that are counted: of these every one is sampled.
const RATE: usize = 1024;
const SIZE: usize = 40960;

/// One profile at a time in the process.
static ALONE: Mutex<()> = Mutex::new(());

/// A block of [`SIZE`] bytes that is never freed.
fn keep() {
    // SAFETY: the size is not 0.
    assert!(!unsafe { ALLOCATOR.alloc(Layout::from_size_align(SIZE, 8).unwrap()) }.is_null());
}

/// A profile from now on.
struct Taken(MutexGuard<'static, ()>);

impl Taken {
    fn begin() -> Self {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        hakmem::profile::start(RATE).unwrap();
        Self(alone)
    }

    fn raw(self) -> Raw {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scopes.hakprof");
        hakmem::profile::write(path.to_str().unwrap()).unwrap();
        hakmem::profile::stop();
        drop(self.0);
        file::read(&std::fs::read(path).unwrap()).unwrap()
    }

    /// How many blocks were charged to each tag; "" is none.
    fn end(self) -> BTreeMap<String, u64> {
        let raw = self.raw();
        let mut charged = BTreeMap::new();
        for (site, row) in &raw.snapshots.last().unwrap().rows {
            let tag = raw.sites[*site].tag.map_or("", |tag| &raw.tags[&tag]);
            *charged.entry(tag.to_string()).or_default() += row.allocated;
        }
        charged
    }
}

fn expected(charged: &[(&str, u64)]) -> BTreeMap<String, u64> {
    charged.iter().map(|(tag, number)| (tag.to_string(), *number)).collect()
}

#[test]
fn the_innermost_scope_counts_and_its_end_restores_what_was_before() {
    let taken = Taken::begin();
    keep();
    {
        let _outer = hakmem::scope("outer");
        (0..2).for_each(|_| keep());
        {
            let _inner = hakmem::scope("inner");
            (0..3).for_each(|_| keep());
            // The same name again is the same tag.
            let _again = hakmem::scope("outer");
            keep();
        }
        (0..4).for_each(|_| keep());
    }
    keep();
    assert_eq!(taken.end(), expected(&[("", 2), ("outer", 7), ("inner", 3)]));
}

/// Each end puts back what was when that scope began, as documented: so the last one decides.
#[test]
fn scopes_that_end_in_the_wrong_order_put_back_what_they_found() {
    let taken = Taken::begin();
    let work = || {
        let first = hakmem::scope("first");
        let second = hakmem::scope("second");
        drop(first);
        keep();
        drop(second);
        (0..2).for_each(|_| keep());
        drop(hakmem::scope("third"));
        (0..3).for_each(|_| keep());
    };
    // A thread that ends with this one's tag.
    thread::spawn(work).join().unwrap();
    keep();
    assert_eq!(taken.end(), expected(&[("", 2), ("first", 5)]));
}

#[test]
fn threads_have_tags_of_their_own_and_leave_none_behind() {
    let taken = Taken::begin();
    let next = Barrier::new(4);
    let _mine = hakmem::scope("mine");
    thread::scope(|scope| {
        for number in 0..4 {
            let next = &next;
            scope.spawn(move || {
                next.wait();
                keep();
                let tag = ["one", "two", "three", "four"][number];
                let scope = hakmem::scope(tag);
                next.wait();
                (0..10 * (number + 1)).for_each(|_| keep());
                // One ends while its scope does not.
                if number == 3 {
                    std::mem::forget(scope);
                }
            });
        }
    });
    // These may get the heaps of those.
    for _ in 0..8 {
        thread::spawn(keep).join().unwrap();
    }
    keep();
    let all = [("", 12), ("one", 10), ("two", 20), ("three", 30), ("four", 40), ("mine", 1)];
    assert_eq!(taken.end(), expected(&all));
}

#[test]
fn scopes_begun_without_a_profile_count_in_one() {
    let before = hakmem::scope("before");
    let taken = Taken::begin();
    keep();
    let during = hakmem::scope("during");
    keep();
    assert_eq!(taken.end(), expected(&[("before", 1), ("during", 1)]));
    // And in the next, without a profile between.
    (0..3).for_each(|_| keep());
    drop(during);
    let taken = Taken::begin();
    (0..2).for_each(|_| keep());
    drop(before);
    keep();
    assert_eq!(taken.end(), expected(&[("", 1), ("before", 2)]));
}

#[test]
fn names_of_any_kind_are_kept() {
    let taken = Taken::begin();
    let long = "long ".repeat(100);
    for name in ["", "zeile\nzwei", "größer", &long] {
        let _scope = hakmem::scope(name);
        keep();
    }
    let raw = taken.raw();
    let tags: Vec<&str> = raw.sites.iter().filter_map(|site| Some(raw.tags[&site.tag?].as_str())).collect();
    assert_eq!(tags, ["", "zeile\nzwei", "größer", &long[..255]]);
}

/// Pending once.
struct Pause(bool);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Allocates at each of some steps, and lets others go on between them.
async fn steps(number: usize) {
    for _ in 0..number {
        keep();
        Pause(false).await;
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
/// Tasks that wait for a thread, and where each was before.
type Queue = Mutex<VecDeque<(Task, Option<thread::ThreadId>)>>;

/// Polls all tasks on several threads until they have ended, each time on another one than before. Each
/// thread allocates a block of its own after each poll. Returns how many polls there were, and how many tasks
/// changed threads.
fn execute(tasks: Vec<Task>, threads: usize) -> (usize, usize) {
    let left = AtomicUsize::new(tasks.len());
    let queues: Vec<Queue> = (0..threads).map(|_| Mutex::new(VecDeque::new())).collect();
    for (i, task) in tasks.into_iter().enumerate() {
        queues[i % threads].lock().unwrap().push_back((task, None));
    }
    let (polls, moved) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for (queue, next) in queues.iter().zip(queues.iter().cycle().skip(1)) {
            let (left, polls, moved) = (&left, &polls, &moved);
            scope.spawn(move || {
                while left.load(Relaxed) > 0 {
                    let Some((mut task, last)) = queue.lock().unwrap().pop_front() else {
                        thread::yield_now();
                        continue;
                    };
                    let here = thread::current().id();
                    moved.fetch_add(usize::from(last.is_some_and(|last| last != here)), Relaxed);
                    polls.fetch_add(1, Relaxed);
                    let ended = task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
                    keep();
                    if ended {
                        left.fetch_sub(1, Relaxed);
                    } else {
                        next.lock().unwrap().push_back((task, Some(here)));
                    }
                }
            });
        }
    });
    (polls.into_inner(), moved.into_inner())
}

#[test]
fn tasks_are_charged_on_whatever_thread_they_are_polled() {
    let taken = Taken::begin();
    let mut tasks: Vec<Task> = Vec::new();
    for _ in 0..10 {
        tasks.push(Box::pin(Scoped::new("query", steps(20))));
        tasks.push(Box::pin(Scoped::new("login", steps(7))));
        tasks.push(Box::pin(steps(3)));
        // A task in a task, and a scope within one poll.
        tasks.push(Box::pin(Scoped::new("request", async {
            keep();
            Scoped::new("part", steps(5)).await;
            steps(2).await;
            {
                let _scope = hakmem::scope("block");
                keep();
            }
            Pause(false).await;
            keep();
        })));
    }
    let number = tasks.len();
    let (polls, moved) = execute(tasks, 4);
    assert_eq!(moved, polls - number);
    let expected = expected(&[
        ("", 30 + polls as u64),
        ("query", 200),
        ("login", 70),
        ("request", 40),
        ("part", 50),
        ("block", 10),
    ]);
    assert_eq!(taken.end(), expected);
}

#[test]
fn a_task_that_panics_or_is_dropped_leaves_no_tag() {
    let taken = Taken::begin();
    let panics = || {
        let mut task = pin!(Scoped::new("panics", async {
            keep();
            panic!("on purpose");
        }));
        let _: Poll<()> = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    };
    assert!(std::panic::catch_unwind(panics).is_err());
    keep();
    let mut dropped = Box::pin(Scoped::new("dropped", steps(2)));
    assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    keep();
    drop(dropped);
    keep();
    assert_eq!(taken.end(), expected(&[("", 3), ("panics", 1), ("dropped", 1)]));
}

/// Of small blocks not every one is in the sample: the estimate of each tag holds the truth, within twice the
/// width of its interval.
#[test]
fn estimates_by_tag_hold_the_truth() {
    let taken = Taken::begin();
    let layout = Layout::from_size_align(64, 8).unwrap();
    let truth: BTreeMap<&str, usize> = [("few", 4000), ("more", 20_000), ("most", 80_000)].into();
    thread::scope(|scope| {
        for (tag, count) in &truth {
            scope.spawn(move || {
                let _scope = hakmem::scope(tag);
                for _ in 0..*count {
                    // SAFETY: the size is not 0; the block goes back at once, with the same layout.
                    unsafe { ALLOCATOR.dealloc(ALLOCATOR.alloc(layout), layout) };
                }
            });
        }
    });
    let profile = Profile::new(taken.raw(), &mut Symbols::new());
    let moment = profile.moment(None).unwrap();
    let groups = profile.groups(&moment, By::Tag);
    let sum: u64 = groups.iter().map(|group| group.figures.allocated.samples).sum();
    assert_eq!(sum, profile.total(&moment).allocated.samples);
    for (tag, count) in truth {
        let group = groups.iter().find(|group| group.label == tag).unwrap();
        let (low, high) = group.figures.allocated.interval();
        let bytes = (count * 64) as f64;
        println!("{tag}: {low:.0} to {high:.0}, in truth {bytes}");
        assert!((2.0 * low - high..2.0 * high - low).contains(&bytes), "{tag}: {low} to {high}, not {bytes}");
        assert_eq!(group.figures.live.samples, 0);
    }
    assert_eq!(groups.len(), 3);
}
