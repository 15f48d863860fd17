//! Tests of frames.

use super::*;
use std::vec;
use std::vec::Vec;

fn note(store: &mut Store, number: u32, addresses: &[usize]) {
    assert_eq!(store.stacks.intern(addresses, 0), Some(number));
}

#[test]
fn snapshots_say_what_was_lost() {
    let mut store = Store::new();
    store.lost = 3;
    let mut out = Grown::new();
    let missed = state::MISSED.load(Relaxed);
    assert!(put_snapshot(&store, &mut out, Why::Timer, &[1, 2, 3, 4, 5, 6, 7, 8], Written::default()));
    let words: Vec<u64> =
        out[24..].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!((out[20], &words[..7]), (9, &[1, 2, 3, 4, 5, 6, 7][..]));
    assert_eq!((words[7] - missed, words[8]), (3, 8));
    out.clear();
}

/// Kind, and number of things, of each frame that a file with `have` needs.
fn frames(store: &Store, have: &mut Written) -> Vec<(u32, u32)> {
    let mut out = Grown::new();
    let mut now = *have;
    assert!(put_named_stacks(store, &mut out, *have, &mut now));
    *have = now;
    let found = kinds(&out);
    out.clear();
    found
}

/// Kind, and number of things, of each of these frames.
fn kinds(mut frames: &[u8]) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    while !frames.is_empty() {
        let number = |at: usize| u32::from_le_bytes(frames[at..at + 4].try_into().unwrap());
        found.push((number(0), number(8)));
        frames = &frames[number(4) as usize + 16..];
    }
    found
}

/// A stack is named by what was there when it was noted, whatever has taken its place since.
#[test]
fn stacks_stand_behind_the_list_that_names_them() {
    use kind::{MODULES, STACKS};
    let mut store = Store::new();
    let (old, new) = ([(10, 20, "main"), (30, 40, "a")], [(10, 20, "main"), (30, 40, "b"), (50, 60, "c")]);
    let mut have = Written::default();
    store.lists.pass(&old, &mut store.stacks);
    note(&mut store, 0, &[35, 15]);
    let mut early = Written::default();
    assert_eq!(frames(&store, &mut early), [(MODULES, 2), (STACKS, 1)]);
    note(&mut store, 1, &[36, 15]);
    note(&mut store, 2, &[12, 15]);
    store.lists.pass(&new, &mut store.stacks);
    // The same addresses are another's now; but those of what stays are what they were.
    note(&mut store, 3, &[35, 15]);
    assert_eq!(store.stacks.intern(&[12, 15], 0), Some(2));
    assert_eq!([0, 1, 2, 3].map(|stack| store.stacks.list(stack)), [1, 1, 0, 0]);
    assert_eq!(frames(&store, &mut have), [(MODULES, 2), (STACKS, 2), (MODULES, 3), (STACKS, 2)]);
    assert_eq!(frames(&store, &mut have), []);
    // One that has the first.
    assert_eq!(frames(&store, &mut early), [(MODULES, 2), (STACKS, 1), (MODULES, 3), (STACKS, 2)]);
    // All are written: the list is not needed for them.
    store.lists.pass(&old[..1], &mut store.stacks);
    assert_eq!(store.stacks.list(3), 2);
    assert_eq!(frames(&store, &mut have), [(MODULES, 1)]);
    // A new file needs both.
    let all = frames(&store, &mut Written::default());
    assert_eq!(all, [(MODULES, 2), (STACKS, 2), (MODULES, 3), (STACKS, 1), (MODULES, 1), (STACKS, 1)]);
    store.clear();
    assert_eq!(store.lists.earlier().count(), 0);
}

/// A row may be passed on to a thread of another name after the file was told the first one.
#[test]
fn all_rows_of_threads_are_written_again_when_one_was_renamed() {
    let mut store = Store::new();
    let add = |store: &mut Store, thread: u32| {
        assert_eq!(store.threads.row_of(thread, || [thread as u8; 16], |_| false), Some(thread));
    };
    // The file has been begun already.
    let mut have = Written { begun: 1, ..Written::default() };
    let mut rows = |store: &mut Store| {
        let mut out = Grown::new();
        have = put(store, &mut out, have, Why::Timer, &[0; 8]).unwrap();
        let found = kinds(&out);
        out.clear();
        let of_threads = found.into_iter().filter(|frame| frame.0 == kind::THREADS);
        of_threads.map(|frame| frame.1).collect::<Vec<_>>()
    };
    [1, 2].into_iter().for_each(|thread| add(&mut store, thread));
    assert_eq!([rows(&mut store), rows(&mut store)], [vec![2], vec![]]);
    // Only the new one.
    add(&mut store, 3);
    assert_eq!([rows(&mut store), rows(&mut store)], [vec![1], vec![]]);
    store.threads.renamed += 1;
    assert_eq!([rows(&mut store), rows(&mut store)], [vec![3], vec![]]);
    // One is renamed while another one comes.
    add(&mut store, 4);
    store.threads.renamed += 1;
    assert_eq!([rows(&mut store), rows(&mut store)], [vec![4], vec![]]);
    store.clear();
}
