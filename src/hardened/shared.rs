//! Blocks of the classes above 4 KiB come from slabs that threads share: two for each class.
//!
//! Such a slab has 128 to 640 KiB, and whoever takes blocks from it goes through all of it, so that a freed
//! block is handed out late and at random. If each thread had one, 16 threads held 68 MiB of which nothing
//! was in use. Who takes many blocks ([`pace`](crate::hardened::pace)), or finds that another thread is here,
//! takes a slab for itself, as in other classes, until a word of that is used up: so none waits where many
//! threads allocate such blocks all the time, and each has in its cache what it has freed.

use crate::base::table::Table;
use crate::hardened::place::Place;
use crate::hardened::slab::Cursor;
use crate::hardened::source::Source;
use crate::hardened::{aged, lists};
use crate::os::futex::{Inherit, Lock};
use crate::os::thread;
use crate::superslab::pagemap::KINDS;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;
use crate::tiny::classes;

/// The longest blocks that each thread takes from a slab of its own.
const OWN: u32 = 4096;
/// The first class of longer ones.
const FIRST: usize = {
    let mut class = 1;
    while classes::stride(class) <= OWN {
        class += 1;
    }
    class
};

/// Where the blocks of one class come from.
struct Shared(Source);

/// A line of the cache for each, so that threads that want different classes do not wait for each other.
#[repr(align(64))]
struct Line(Lock<Shared>);

const _: () = assert!(cfg!(loom) || size_of::<Line>() == 64);

// SAFETY: records stay mapped, and the source is used only under the lock.
unsafe impl Send for Shared {}

impl Inherit for Shared {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // Lost, as what a thread has is that the child does not.
            self.0.forget();
        }
    }
}

/// Threads take turns with so many sets. With one, two threads on two processors took 1.05 of the time, since
/// each fetched lines of the cache that the other had cleared; with four 16 threads held 12 MiB more.
const SETS: usize = 2;

static OF: Table<Table<Line, KINDS>, SETS> =
    Table([const { Table([const { Line(Lock::new(Shared(Source::new()))) }; KINDS]) }; SETS]);

/// Threads that have ever come here. Relaxed: it is no matter which of two comes first.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The set that the next thread shares.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn next_set() -> usize {
    THREADS.fetch_add(1, Relaxed)
}

fn of(set: usize, class: usize) -> &'static Lock<Shared> {
    &OF[set][class].0
}

/// Whether the blocks of a class come from here.
#[inline(always)]
pub(super) fn serves(class: usize) -> bool {
    class >= FIRST
}

/// A block of `class`, which is the calling thread's now. `None` if another thread is here, or there is no
/// memory. `cursor` as in [`lists::take_or_make`].
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take(
    set: usize,
    class: usize,
    mut random: impl FnMut() -> Option<u64>,
    cursor: &Cursor,
) -> Option<Place<'static>> {
    loop {
        let shared = of(set, class).try_lock()?;
        let source = &shared.0;
        let used_up = source.slab.get();
        if let Some(slab) = used_up {
            let is_ready = source.bits.get() != 0;
            if is_ready || source.take_word(slab, &mut random) {
                slab.thread.store(thread::id(), Relaxed);
                let place = source.take_one(slab, random);
                drop(shared);
                if !is_ready {
                    // Now that it has what it needs: not what it would have taken.
                    aged::tick();
                }
                return Some(place);
            }
            source.settle(slab);
            source.slab.set(None);
        }
        // Nothing is held while the system is asked for memory. Others may come meanwhile, and one of us
        // gives its slab up.
        drop(shared);
        let slab = match used_up {
            // It has enough free blocks after all.
            Some(slab) if !lists::drop_used_up(slab) => slab,
            _ => lists::take_or_make(class, cursor)?,
        };
        match of(set, class).lock_soon() {
            Some(shared) if shared.0.slab.get().is_none() => shared.0.begin(slab, random()),
            shared => {
                drop(shared);
                lists::drop_current(slab);
            }
        }
    }
}

/// Gives up the slabs that have no block in use: all of which can be handed out is free.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn retire() {
    for Line(shared) in OF.0.iter().flat_map(|set| set.0.iter().skip(FIRST)) {
        let Some(shared) = shared.try_lock() else { continue };
        let Some(slab) = shared.0.slab.get().filter(|slab| shared.0.is_all_free(slab)) else { continue };
        shared.0.slab.set(None);
        shared.0.put_back(slab);
        drop(shared);
        lists::drop_current(slab);
    }
}

/// In the child of a fork.
pub(super) fn inherit() {
    OF.0.iter().flat_map(|set| &set.0).for_each(|Line(shared)| shared.inherit());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardened::lists::ALONE;
    use crate::hardened::slab::{CURRENT, LISTED};
    use crate::hardened::{State, child};
    use crate::superslab::pagemap;

    /// A thread that shares the set 0.
    fn thread() -> Box<State> {
        // SAFETY: all zero is valid.
        let state = unsafe { Box::<State>::new_zeroed().assume_init() };
        state.set.set(1);
        state
    }

    /// The record of the slab of a block for so many bytes that the thread allocates.
    fn slab_of(thread: &State, size: usize) -> usize {
        pagemap::hardened(thread.alloc(size, 16).unwrap().ptr).addr()
    }

    #[test]
    fn who_takes_many_has_slabs_of_its_own() {
        let _alone = ALONE.lock();
        const SIZE: usize = 7_000;
        let class = classes::class_of(SIZE + 8, 16) as usize;
        let (one, other) = (thread(), thread());
        let shared = slab_of(&one, SIZE);
        // As if so many had just been taken.
        one.paces[class].begin(1 << 20);
        assert_ne!(slab_of(&one, SIZE), shared);
        assert_eq!(slab_of(&other, SIZE), shared);
    }

    fn place_of(class: usize) -> u8 {
        of(0, class).lock_soon().unwrap().0.slab.get().unwrap().place.load(Relaxed)
    }

    #[test]
    fn threads_share_slabs_of_long_blocks_only() {
        let _alone = ALONE.lock();
        let (one, other) = (thread(), thread());
        assert_ne!(slab_of(&one, 4000), slab_of(&other, 4000));
        for size in [5000, 20_000, 60_000] {
            assert_eq!(slab_of(&one, size), slab_of(&other, size), "{size}");
        }
        // Of three that come each by itself two share.
        let slabs = [(); 3].map(|()| {
            let thread = thread();
            thread.set.set(0);
            slab_of(&thread, 5000)
        });
        assert!(slabs[0] == slabs[2] && slabs[0] != slabs[1]);
    }

    #[test]
    fn who_finds_another_there_has_a_slab_of_its_own_for_a_while() {
        let _alone = ALONE.lock();
        const SIZE: usize = 13_000;
        let class = classes::class_of(SIZE + 8, 16) as usize;
        let thread = thread();
        let shared = slab_of(&thread, SIZE);
        let other = of(0, class).try_lock().unwrap();
        let own = slab_of(&thread, SIZE);
        assert_ne!(own, shared);
        drop(other);
        // All that it has taken the bits of.
        let blocks = of(0, class).lock_soon().unwrap().0.slab.get().unwrap().blocks();
        assert!((1..blocks).all(|_| slab_of(&thread, SIZE) == own));
        thread.paces[class].rest();
        assert_eq!(slab_of(&thread, SIZE), shared);
    }

    #[test]
    fn a_slab_without_blocks_in_use_is_given_up() {
        let _alone = ALONE.lock();
        let thread = thread();
        let block = thread.alloc(30_000, 16).unwrap().ptr;
        let class = classes::class_of(30_008, 16) as usize;
        let slab = of(0, class).lock_soon().unwrap().0.slab.get().unwrap();
        thread.retire();
        assert_eq!(place_of(class), CURRENT, "it has one");
        let place = slab.at(block).unwrap();
        assert!(place.hold().is_ok());
        lists::freed(slab, place.let_go());
        thread.retire();
        assert_eq!(slab.place.load(Relaxed), LISTED);
        assert_eq!(slab.free.load(Relaxed) as usize, slab.blocks());
        assert!(of(0, class).lock_soon().unwrap().0.slab.get().is_none());
        lists::purge();
    }

    #[test]
    fn the_child_of_a_fork_forgets_what_is_torn() {
        let _alone = ALONE.lock();
        let slab = lists::take_or_make(FIRST, &Cursor::default()).unwrap();
        let mut shared = Shared(Source::new());
        shared.0.begin(slab, None);
        assert!(shared.0.take_word(slab, || None));
        shared.inherit(false);
        assert!(shared.0.slab.get().is_some() && shared.0.bits.get() != 0);
        shared.inherit(true);
        assert!(shared.0.slab.get().is_none() && shared.0.bits.get() == 0);
    }

    /// Of two slabs that threads share another thread is just taking a block of one when a third one forks.
    /// In the child that slab is lost, and what comes instead is shared.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn in_the_child_of_a_fork_threads_go_on_sharing() {
        let _alone = ALONE.lock();
        const SIZES: [usize; 2] = [17_000, 23_000];
        let [one, other] = [(); 2].map(|()| thread());
        let [torn, whole] = SIZES.map(|size| slab_of(&one, size));
        let class = classes::class_of(SIZES[0] + 8, 16) as usize;
        let barrier = std::sync::Barrier::new(2);
        let is_so = std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = of(0, class).try_lock();
                barrier.wait();
                // Forks.
                barrier.wait();
                assert!(held.is_some());
            });
            barrier.wait();
            let is_so = child::is_so(|| {
                crate::hardened::inherit();
                let new = slab_of(&one, SIZES[0]);
                let is_shared = new == slab_of(&other, SIZES[0]);
                let is_kept = SIZES.map(|size| slab_of(&other, size)) == [new, whole];
                new != torn && is_shared && is_kept
            });
            barrier.wait();
            is_so
        });
        assert!(is_so && SIZES.map(|size| slab_of(&other, size)) == [torn, whole]);
    }
}
