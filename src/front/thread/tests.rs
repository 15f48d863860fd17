//! Tests of how a thread gets its heap and gives it up. In the child of a fork, because the key and what
//! counts threads are the process's.

#![cfg(not(miri))]

use super::*;
use crate::base::misuse::Said;
use crate::os::child;
use crate::superslab::orphans;
use crate::sync::Ordering::Relaxed;
extern crate std;
use std::vec::Vec;

/// Whether `f` says so in a child whose only thread has no heap yet.
fn is_so(f: impl FnOnce() -> bool) -> bool {
    let _alone = orphans::ALONE.lock();
    // Before the fork, since another thread may be initialising: the child would wait for it.
    with_heap(None, |_| ());
    child::is_so(|| {
        forget_key_users();
        leave_heap();
        f()
    })
}

/// Heaps that were started and not borrowed, and those that have ended.
fn counts() -> (u64, u64) {
    (registry::STARTED.load(Relaxed), registry::EXITED.load(Relaxed))
}

/// As a thread begins.
fn begin() {
    tls::set((&raw const EMPTY).cast_mut());
}

/// As the C library's destructors end it.
fn end() {
    on_thread_exit(ptr::null_mut());
}

fn our_key() -> u32 {
    KEY.load(Relaxed)
}

/// What the C library passes to the exit hook when this thread ends; null if it does not run.
fn hooked() -> *mut Heap {
    // SAFETY: our key, or none.
    unsafe { libc::pthread_getspecific(our_key()) }.cast()
}

fn is_past_exit() -> bool {
    ptr::eq(tls::get(), &raw const AFTER_EXIT)
}

#[test]
fn a_thread_has_one_heap_until_it_leaves_it() {
    assert!(is_so(|| {
        let before = counts();
        assert!(own_heap().is_null() && hooked().is_null() && ptr::eq(tls::get(), &raw const EMPTY));
        assert!(tag() == 0 && own_heap().is_null());
        let heap = with_heap(None, |heap| heap);
        assert!(!heap.is_null() && !is_placeholder(heap) && own_heap() == heap && hooked() == heap);
        assert_eq!(counts(), (before.0 + 1, before.1));
        // SAFETY: ours; the field is atomic.
        assert_eq!(unsafe { (*heap).thread.load(Relaxed) }, os::thread::id());
        assert!(with_heap(None, |again| again) == heap && lasting_heap() == heap);
        assert_eq!((set_tag(7), tag(), set_tag(0), tag()), (0, 7, 7, 0));
        leave_heap();
        assert!(own_heap().is_null() && hooked().is_null());
        // The other one is not given up, though it has the id of this thread.
        let next = lasting_heap();
        assert!(!next.is_null() && next != heap && own_heap() == next && hooked() == next);
        counts() == (before.0 + 2, before.1)
    }));
}

/// A thread that is past the C library's destructors would not give a heap back.
#[test]
fn the_first_frees_of_a_thread_borrow_a_heap() {
    assert!(is_so(|| {
        let before = counts();
        for free in 0..FEW {
            let heap =
                if free % 2 == 0 { with_heap_to_free(|heap| heap) } else { with_heap_to_hold(|heap| heap) };
            assert!(!heap.is_null() && own_heap().is_null() && counts() == before, "{free}");
        }
        let heap = with_heap_to_free(|heap| heap);
        assert!(!heap.is_null() && own_heap() == heap && counts() == (before.0 + 1, before.1));
        assert!(with_heap_to_free(|same| same) == heap && with_heap_to_hold(|same| same) == heap);
        // So it is where frees are to hold something.
        leave_heap();
        let borrowed = (0..FEW).all(|_| with_heap_to_hold(|heap| !heap.is_null()) && own_heap().is_null());
        let heap = with_heap_to_hold(|heap| heap);
        borrowed && !heap.is_null() && own_heap() == heap && counts() == (before.0 + 2, before.1)
    }));
}

#[test]
fn without_a_key_frees_are_not_counted() {
    assert!(is_so(|| {
        assert!(give_up_key());
        let heap = with_heap_to_free(|heap| heap);
        !heap.is_null() && own_heap() == heap
    }));
}

/// Frees a block in hardened mode, which is in quarantine then.
fn free_in_hardened_mode(heap: *mut Heap) {
    assert!(!heap.is_null());
    // SAFETY: the calling thread has the heap, and the block is freed once.
    unsafe {
        let state = Heap::hardened(heap);
        let block = hardened::alloc(state, 100, 16, false).ptr;
        hardened::free(Some(state), block, Said::Nothing, "free");
    }
}

/// Blocks that are in some quarantine.
fn held() -> usize {
    let mut held = 0;
    hardened::figures(|slab| held += slab.held);
    held
}

#[test]
fn what_a_thread_has_in_quarantine_goes_with_its_heap_but_for_its_first_frees() {
    assert!(is_so(|| {
        // In the mode that this process began with they had magazines.
        registry::forget_free();
        hardened::inherit();
        hardened::init(&Options::new().hardened(Hardened::ON), os::random());
        let before = held();
        for free in 1..=FEW {
            with_heap_to_hold(free_in_hardened_mode);
            assert_eq!(held(), before + free);
        }
        // The record's next owner has it.
        let heap = with_heap(None, |heap| heap);
        free_in_hardened_mode(heap);
        assert_eq!(held(), before + FEW + 1);
        tls::set((&raw const AFTER_EXIT).cast_mut());
        // SAFETY: this thread's, which does not use it any more.
        unsafe { registry::release_heap(heap) };
        assert_eq!(held(), before);
        // Past the exit hook.
        with_heap(None, free_in_hardened_mode);
        held() == before
    }));
}

/// Does something in the calling thread's heap.
fn work(heap: *mut Heap) {
    // SAFETY: the calling thread owns it.
    unsafe { (*heap).counters.home_local.add(1) };
}

#[test]
fn the_exit_hook_runs_until_nothing_is_done_or_there_are_no_more_rounds() {
    assert!(is_so(|| {
        let (started, exited) = counts();
        for works in 1..=ROUNDS {
            begin();
            let heap = with_heap(None, |heap| heap);
            // The heap has been used before the first round, and before so many in all.
            let mut rounds = 0;
            while !is_past_exit() {
                rounds += 1;
                assert!(rounds <= ROUNDS, "it asks for more than the C library has");
                if rounds <= works {
                    work(heap);
                }
                set_hook(ptr::null_mut());
                end();
                assert!(is_past_exit() || (own_heap() == heap && hooked() == heap));
            }
            assert_eq!(rounds, (works + 1).min(ROUNDS));
            assert!(own_heap().is_null() && hooked().is_null() && lasting_heap().is_null());
        }
        let rounds = u64::from(ROUNDS);
        assert_eq!(counts(), (started + rounds, exited + rounds));
        // Once more: there is nothing to give up.
        end();
        assert_eq!(counts(), (started + rounds, exited + rounds));
        // Who allocates now borrows a heap.
        assert!(with_heap(None, |heap| !heap.is_null()) && is_past_exit());
        assert!(with_heap_to_free(|heap| !heap.is_null()) && is_past_exit());
        assert!(with_heap_to_hold(|heap| heap.is_null()) && is_past_exit());
        counts() == (started + rounds, exited + rounds)
    }));
}

#[test]
fn a_heap_is_given_up_at_once_where_the_hook_cannot_run_again() {
    assert!(is_so(|| {
        let heap = with_heap(None, |heap| heap);
        work(heap);
        assert!(give_up_key());
        end();
        is_past_exit()
    }));
}

/// Destructors that come after it may be the first to use the heap.
#[test]
fn the_exit_hook_asks_for_a_second_round_whatever_it_sees_in_the_first() {
    assert!(is_so(|| {
        let heap = with_heap(None, |heap| heap);
        // SAFETY: a heap that this thread owns.
        unsafe { (*heap).exit.activity.set(Heap::own_activity(heap)) };
        end();
        let is_kept = own_heap() == heap;
        end();
        is_kept && is_past_exit()
    }));
}

/// Otherwise the process would wait for it.
#[test]
fn the_background_thread_is_roused_when_no_other_has_a_heap() {
    assert!(is_so(|| {
        // So that the hook runs once only.
        assert!(give_up_key());
        let is_roused = |others: usize| {
            begin();
            with_heap(None, |_| ());
            // None but this and the others.
            registry::left_behind(1);
            assert!((0..others).all(|_| !registry::acquire().is_null()));
            waker::WAKER.reset();
            assert!(waker::WAKER.arm());
            end();
            assert!(is_past_exit());
            !waker::WAKER.is_asleep()
        };
        is_roused(0) && is_roused(1) && !is_roused(2)
    }));
}

#[test]
fn the_key_stays_while_somebody_uses_it() {
    assert!(is_so(|| {
        let users = || KEY_USERS.load(Relaxed);
        let key = KEY.load(Relaxed);
        assert_ne!(key, NO_KEY);
        let mut seen = (0, 0);
        let mut look = |key: u32| {
            seen = (key, users());
            key % 2 == 1
        };
        assert_eq!(with_key(&mut look), key % 2 == 1);
        assert_eq!(with_key(|key| !look(key)), key % 2 == 0);
        assert_eq!((seen, users()), ((key, 1), 0));
        KEY_USERS.store(1, Relaxed);
        assert!(!give_up_key() && our_key() == key);
        // The user does not exist in a child.
        forget_key_users();
        assert!(set_hook(NO_HEAP) && users() == 0);
        let heap = with_heap(None, |heap| heap);
        assert!(give_up_key() && our_key() == NO_KEY);
        // SAFETY: deleted, which this asks for.
        assert_eq!(unsafe { libc::pthread_setspecific(key, ptr::null()) }, libc::EINVAL);
        assert!(!with_key(|_| panic!("there is none")) && !set_hook(heap) && users() == 0);
        assert!(!give_up_key() && our_key() == NO_KEY);
        // A child by a signal handler that has interrupted a user may have forgotten that.
        assert!(!with_key(|_| true));
        own_heap() == heap
    }));
}

#[test]
fn without_a_key_the_next_thread_with_the_same_id_gives_a_heap_up() {
    assert!(is_so(|| {
        let heap = with_heap(None, |heap| heap);
        let other = registry::acquire();
        let (started, exited) = counts();
        assert!(give_up_key());
        // As if the thread had ended, and the next one had its control block.
        begin();
        let next = with_heap(None, |heap| heap);
        // That which `is_so` has left is one, too.
        assert!(counts() == (started + 1, exited + 2) && !next.is_null() && next != other);
        // SAFETY: records, which stay mapped.
        let is_live = |heap: *mut Heap| unsafe { (*heap).live.load(Relaxed) };
        is_live(other) && is_live(next) && (next == heap || !is_live(heap))
    }));
}

#[test]
fn who_unloads_the_library_has_neither_a_key_nor_a_heap() {
    assert!(is_so(|| {
        let heap = with_heap(None, |heap| heap);
        let before = counts();
        unhook();
        assert!(our_key() == NO_KEY && is_past_exit() && own_heap().is_null());
        assert_eq!(counts(), (before.0, before.1 + 1));
        // SAFETY: a record, which stays mapped.
        assert!(!unsafe { (*heap).live.load(Relaxed) });
        unhook();
        counts() == (before.0, before.1 + 1)
    }));
}

#[test]
fn a_thread_goes_without_a_heap_where_there_is_no_memory() {
    // Set where test.sh emulates other page sizes: the emulator cannot be without memory.
    if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
        return;
    }
    assert!(is_so(|| {
        // SAFETY: a limit of this process. Nothing allocates after this.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
        while !registry::acquire().is_null() {}
        let before = counts();
        let has_none = |heap: *mut Heap| heap.is_null();
        assert!(with_heap_to_free(has_none) && with_heap_to_hold(has_none) && with_heap(None, has_none));
        assert!(lasting_heap().is_null() && set_tag(7) == 0);
        assert!(ptr::eq(tls::get(), &raw const EMPTY) && hooked().addr() == 2);
        tls::set((&raw const AFTER_EXIT).cast_mut());
        with_heap(None, has_none) && is_past_exit() && counts() == before
    }));
}

/// Keys that the C library gives out now, the lowest first; they are free again afterwards.
fn free_keys() -> Vec<u32> {
    let next = || {
        let mut key = 0;
        // SAFETY: the key is written to a place of ours.
        (unsafe { libc::pthread_key_create(&mut key, None) } == 0).then_some(key)
    };
    let keys: Vec<u32> = core::iter::from_fn(next).collect();
    // SAFETY: just created.
    keys.iter().for_each(|&key| assert_eq!(unsafe { libc::pthread_key_delete(key) }, 0));
    keys
}

/// A library in another namespace (`dlmopen`) has the same keys, from the first one on.
#[test]
#[cfg(target_env = "gnu")]
fn the_key_is_the_last_for_which_no_memory_is_needed() {
    assert!(is_so(|| {
        assert!(give_up_key());
        let mut free = free_keys();
        free.sort_unstable();
        let mut take = |expected: u32| {
            assert_eq!(late_key(), expected);
            free.retain(|&key| key != expected);
            let mut now = free_keys();
            now.sort_unstable();
            assert!(now == free, "it is the only one that is taken");
        };
        take(31);
        take(30);
        take(29);
        // Of the first ones there is none.
        let mut low = 0;
        while low < 31 {
            // SAFETY: the key is written to a place of ours.
            assert_eq!(unsafe { libc::pthread_key_create(&mut low, None) }, 0);
        }
        let free = free_keys();
        let first = free[0];
        assert!(first > 31 && late_key() == first);
        // Two, one and none at all.
        let mut key = 0;
        // SAFETY: the key is written to a place of ours.
        while unsafe { libc::pthread_key_create(&mut key, None) } == 0 {}
        assert_eq!(late_key(), NO_KEY);
        // SAFETY: created above.
        unsafe { libc::pthread_key_delete(7) };
        assert_eq!((late_key(), late_key()), (7, NO_KEY));
        // SAFETY: created above.
        unsafe { (libc::pthread_key_delete(9), libc::pthread_key_delete(500)) };
        (late_key(), late_key(), late_key()) == (9, 500, NO_KEY)
    }));
}
