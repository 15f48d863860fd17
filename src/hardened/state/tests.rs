//! Tests of what a thread keeps: how much its quarantine holds, and what the next thread finds.

use super::*;
use crate::base::options::Options;
use crate::hardened::child;
use crate::hardened::slab::{CURRENT, FREE, FULL, HELD, Slab};

/// A state as that of a new thread.
fn state() -> Box<State> {
    // SAFETY: all zero is valid.
    unsafe { Box::<State>::new_zeroed().assume_init() }
}

/// A thread may end by a jump out of a signal handler that has interrupted it here.
#[test]
fn the_next_owner_finds_nothing_begun() {
    let state = state();
    core::mem::forget(state.enter());
    state.next.store(3, Relaxed);
    assert!(state.enter().is_none());
    state.begin();
    assert!(state.enter().is_some() && state.first.get() == 3);
    // What nobody has left in the middle stays.
    state.next.store(7, Relaxed);
    state.begin();
    assert_eq!((state.first.get(), state.next.load(Relaxed)), (3, 7));
}

/// Lets all threads hold up to so much from now on: in the child of a fork.
fn set_bounds(bytes: usize, blocks: usize) {
    let options = Options::new().hardened(Hardened::QUARANTINE);
    parts::init(&options.quarantine_bytes(bytes).quarantine_blocks(blocks), 1);
}

/// A slab of this class of which the program has all blocks.
fn used_up(class: usize) -> &'static Slab {
    let slab = Slab::make_usual(class).unwrap();
    (0..slab.words()).for_each(|word| _ = slab.take_bits(word));
    slab.count(-(slab.blocks() as i32));
    slab
}

/// Holds a block that the program has had.
fn hold(state: &State, place: Place<'static>) {
    place.take();
    assert_eq!(place.hold(), Ok(()));
    state.hold(place);
}

/// What is in the quarantine: blocks, and bytes.
fn held(state: &State) -> (usize, usize) {
    (state.next.load(Relaxed) - state.first.get(), state.bytes.get())
}

/// Under these bounds `most` blocks of `slab` are held, and the oldest one goes first.
fn holds_the_last(most: usize, slab: &'static Slab, bytes: usize, blocks: usize) {
    set_bounds(bytes, blocks);
    let state = state();
    let is = |number: usize| slab.nth(number).look();
    for number in 0..20 {
        hold(&state, slab.nth(number));
        let count = most.min(number + 1);
        assert_eq!(held(&state), (count, count * slab.stride()), "{bytes} {blocks} {number}");
        let gone = number + 1 - count;
        assert!((0..gone).all(|number| is(number) == FREE), "{bytes} {blocks} {number}");
        assert!((gone..=number).all(|number| is(number) == HELD), "{bytes} {blocks} {number}");
    }
    state.retire();
    assert!(held(&state) == (0, 0) && (0..20).all(|number| is(number) == FREE));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn neither_more_blocks_nor_more_bytes_are_held_than_may_be() {
    assert!(child::is_so(|| {
        crate::hardened::inherit();
        let slab = used_up(4);
        let stride = slab.stride();
        // So many blocks, whatever bytes that is, and the other way round.
        [1, 3, 19, 20].iter().for_each(|&most| holds_the_last(most, slab, 1 << 30, most));
        [1, 3, 19, 20].iter().for_each(|&most| holds_the_last(most, slab, most * stride, 1000));
        holds_the_last(3, slab, 4 * stride - 1, 1000);
        holds_the_last(5, slab, 5 * stride, 5);
        // Nothing; but where blocks may be held the last one stays, however large it is.
        holds_the_last(0, slab, 1 << 30, 0);
        holds_the_last(1, slab, stride - 1, 1000);
        holds_the_last(1, slab, 0, 1000);
        true
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_block_beyond_the_bound_in_bytes_stays_until_the_next_one_comes() {
    assert!(child::is_so(|| {
        crate::hardened::inherit();
        let (small, large) = (used_up(4), used_up(20));
        let (stride, beyond) = (small.stride(), large.stride());
        assert!(3 * stride < beyond);
        set_bounds(3 * stride, 1000);
        let state = state();
        (0..3).for_each(|number| hold(&state, small.nth(number)));
        assert_eq!(held(&state), (3, 3 * stride));
        hold(&state, large.nth(0));
        assert_eq!((held(&state), large.nth(0).look()), ((1, beyond), HELD));
        hold(&state, small.nth(3));
        assert_eq!((held(&state), large.nth(0).look()), ((1, stride), FREE));
        true
    }));
}

/// Whoever asks for more gets what the ring has room for: else blocks would be overwritten there, and lost.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn no_more_blocks_are_held_than_there_is_room_for() {
    assert!(child::is_so(|| {
        crate::hardened::inherit();
        set_bounds(1 << 30, 100_000);
        assert_eq!(parts::quarantine(), (1 << 30, MOST_HELD));
        let slabs: Vec<_> = (0..40).map(|_| used_up(4)).collect();
        let all = slabs.iter().flat_map(|slab| (0..slab.blocks()).map(|number| slab.nth(number)));
        let blocks: Vec<_> = all.take(MOST_HELD + 1000).collect();
        assert_eq!(blocks.len(), MOST_HELD + 1000);
        let state = state();
        blocks.iter().for_each(|&place| hold(&state, place));
        assert_eq!(held(&state).0, MOST_HELD);
        let (gone, stay) = blocks.split_at(1000);
        assert!(gone.iter().all(|place| place.look() == FREE));
        assert!(stay.iter().all(|place| place.look() == HELD));
        let begin = offset_of!(State, ring);
        assert_eq!((state.idle(), state.written()), (None, size_of::<State>()));
        state.retire();
        assert!(stay.iter().all(|place| place.look() == FREE));
        assert_eq!((state.idle(), state.written()), (Some(begin..size_of::<State>()), size_of::<State>()));
        state.purged();
        assert_eq!((state.idle(), state.written()), (None, begin));
        hold(&state, used_up(4).nth(0));
        state.retire();
        assert_eq!((state.idle().is_some(), state.written()), (true, begin + size_of::<Held>()));
        // Who has another part of hardened mode only holds nothing.
        parts::init(&Options::new().hardened(Hardened::CANARY), 1);
        parts::quarantine() == (0, 0)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn slabs_with_few_free_blocks_serve_who_cannot_get_another_one() {
    let _alone = lists::ALONE.lock();
    // All others that there are count as somebody's.
    assert!(child::is_so(|| {
        const CLASS: usize = 20;
        Slab::each_while(|slab| {
            slab.place.store(CURRENT, SeqCst);
            true
        });
        let slabs = [(CLASS, 1), (CLASS, 0), (CLASS + 1, 1), (CLASS, 1)].map(|(class, free)| {
            let slab = Slab::make_usual(class).unwrap();
            slab.free.store(free, SeqCst);
            slab
        });
        slabs[..3].iter().for_each(|slab| slab.place.store(FULL, SeqCst));
        let cursor = Cursor::default();
        let take = || lists::take_unlisted(CLASS, &cursor);
        assert!(take().is_some_and(|slab| ptr::eq(slab, slabs[0])));
        assert_eq!(slabs.map(|slab| slab.place.load(SeqCst)), [CURRENT, FULL, FULL, CURRENT]);
        // It begins where it has ended, and goes round: the newest comes first.
        slabs[3].place.store(FULL, SeqCst);
        assert!(take().is_some_and(|slab| ptr::eq(slab, slabs[3])));
        take().is_none()
    }));
}

/// How a process ends that hands out a block for the first time, in front of whose end `before` was written.
fn handed_out(slab: &'static Slab, before: u64) -> i32 {
    let place = slab.nth(3);
    place.trailer().store(before, Relaxed);
    let mut status = -1;
    // SAFETY: the child has the only thread of this process, and ends.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            state().hand_out(place, 10, 8, parts::now());
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    place.trailer().store(0, Relaxed);
    status
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_is_written_before_a_block_is_handed_out_at_all_is_found() {
    let _alone = lists::ALONE.lock();
    assert!(child::is_so(|| {
        let slab = used_up(20);
        let ends = |hardened, before| {
            parts::init(&Options::new().hardened(hardened), 1);
            handed_out(slab, before)
        };
        assert_eq!(ends(Hardened::ON, 0), 0);
        assert_eq!(ends(Hardened::ZERO, 1), 0, "nothing is said of trailers");
        libc::WTERMSIG(ends(Hardened::CANARY, 1)) == libc::SIGABRT
    }));
}
