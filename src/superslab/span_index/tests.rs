//! Tests of the index where other threads have it, too: the index over the pool that all tests use.

use super::*;
use crate::os::futex;
use crate::superslab::desc::unused_desc;
use crate::superslab::layout::{SLICES, SUPERSLAB};
use crate::superslab::pagemap::RUN;
use crate::superslab::pool;

/// Others say without the lock that the index is stale, so now and then one does so in between.
#[test]
#[cfg_attr(miri, ignore)]
fn a_stale_index_is_rebuilt_once() {
    let mut pool = POOL.lock();
    let is_told_once = || {
        set_stale();
        is_stale() && !is_stale()
    };
    assert!((0..100).any(|_| is_told_once()));
    pool.rebuild();
}

#[test]
#[cfg_attr(miri, ignore)]
fn the_pool_answers() {
    // Another test may hold the lock for a while, and who is overdue is not waited for.
    let has_answered = || with(|pool| pool.superslabs < usize::MAX) == Some(true);
    assert!((0..20_000).any(|_| has_answered() || (futex::pause(), false).1));
}

#[test]
fn the_newest_is_known_while_it_is_there() {
    let mut pool = State::new();
    let add = |pool: &mut State, age: u32| {
        let desc = Desc::stand_in(core::ptr::without_provenance_mut(SUPERSLAB));
        desc.set_age(age);
        pool.enter(desc, 0);
        desc
    };
    let is = |pool: &State, desc| pool.newest.is_some_and(|newest| core::ptr::eq(newest, desc));
    add(&mut pool, 40);
    let newest = add(&mut pool, 20);
    let older = add(&mut pool, 30);
    assert!(is(&pool, newest));
    pool.forget(older);
    assert!(is(&pool, newest));
    pool.forget(newest);
    assert!(pool.newest.is_none());
}

/// A descriptor that a thread without the lock has given up is found again when the index is rebuilt.
#[test]
#[cfg_attr(miri, ignore)]
fn a_rebuilt_index_has_the_spare_descriptors() {
    // For which the pool needs descriptors.
    let span = pool::take_span(1, RUN, |_| None).unwrap();
    // SAFETY: our own span, given back once.
    unsafe { pool::give_span(span.slab, 0) };
    let mut pool = POOL.lock();
    let ours = unused_desc().or_else(|| pool.take_spare()).expect("one chunk has more than are in use");
    ours.clear();
    pool.rebuild();
    let spare: std::vec::Vec<DescRef> = core::iter::from_fn(|| pool.take_spare()).collect();
    assert!(spare.iter().any(|&desc| core::ptr::eq(desc, ours)));
    spare.iter().for_each(|desc| desc.clear());
    pool.rebuild();
}

/// In the child of a fork beside a thread that was changing the index the lock is free, and the index is made
/// anew.
#[test]
#[cfg_attr(any(miri, loom), ignore)]
fn a_child_of_a_fork_has_the_lock_and_a_whole_index() {
    if !os::child::is_alone() {
        return;
    }
    let mut pool = POOL.lock();
    let most = pool.used_slices + 500;
    pool.used_slices += 1000;
    let by_another_thread = || {
        // SAFETY: the child calls nothing that may need what other threads hold, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                let is_whole = || {
                    inherit();
                    POOL.lock().used_slices <= most
                };
                // A panic would end it as if all were well.
                libc::_exit(if std::panic::catch_unwind(is_whole).unwrap_or(false) { 0 } else { 1 });
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        }
    };
    let status = std::thread::scope(|scope| scope.spawn(by_another_thread).join().unwrap());
    pool.used_slices -= 1000;
    drop(pool);
    assert_eq!(status, 0);
}

/// What the pool has dropped is wanted again when it takes memory from elsewhere, too.
#[test]
#[cfg_attr(miri, ignore)]
fn a_superslab_of_used_memory_is_regretted() {
    assert!(os::child::is_so(|| {
        inherit();
        // For which the pool needs descriptors.
        let span = pool::take_span(1, RUN, |_| None).unwrap();
        let base = os::map_aligned(core::ptr::null_mut(), SUPERSLAB, SUPERSLAB);
        let slack = || with(|pool| (pool.policy.regret.slack(), pool.dirty_slices)).unwrap();
        with(|pool| {
            let now = os::now_ms();
            pool.policy.taken(0, 1000, 0, false, now);
            pool.policy.regret.forget();
            pool.policy.regret.drop(40, now);
        });
        let before = slack();
        assert!(add(base, false, true));
        let after = slack();
        // SAFETY: our own span, given back once.
        unsafe { pool::give_span(span.slab, 0) };
        after == (before.0 + SLICES, before.1 + SLICES)
    }));
}
