//! The threads of a profile. Each has a row, and rows are passed on: when a thread has ended, the next new
//! one of the same name is charged to its row. So a program that starts a thread for each request has as many
//! rows as there are such threads at once, and sites to match.

use crate::sampling::grown::{Grown, Index, Zero, mix};

/// Rows from which on a thread of any name may get that of another one.
const MANY: usize = 1 << 10;
/// Rows that are looked at for one whose thread has ended. If that is fewer than one in so many, there are
/// few of them.
const LOOKS: usize = 16;
/// The name of a row that was passed on to a thread of another name.
const SEVERAL: [u8; 16] = *b"(several)\0\0\0\0\0\0\0";

/// A thread that has allocated a sample, or several, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    /// The system's number of the first; more than that if another row has it.
    pub(super) id: u32,
    /// The number of the last.
    now: u32,
    /// Ends at the first zero.
    pub(super) name: [u8; 16],
    /// The next row of the same name, in a circle. Rows are counted from 1.
    next: u32,
    /// Of the first row of a name: which of them to look at next.
    cursor: u32,
}

// SAFETY: it consists of numbers.
unsafe impl Zero for Thread {}

/// All of them.
pub(super) struct Threads {
    rows: Grown<Thread>,
    /// Rows by the last thread's number.
    by_now: Index,
    /// The first row of each name.
    by_name: Index,
    /// The row to look at next, if any name will do, counted from 0.
    cursor: usize,
    /// How often a row was given another name.
    pub(super) renamed: u32,
}

fn hash_of_name(name: &[u8; 16]) -> u64 {
    name.iter().fold(0, |hash, &byte| mix(hash, u64::from(byte)))
}

fn hash_of_now(now: u32) -> u64 {
    mix(1, u64::from(now))
}

impl Threads {
    /// No threads.
    pub(super) const fn new() -> Self {
        Self { rows: Grown::new(), by_now: Index::new(), by_name: Index::new(), cursor: 0, renamed: 0 }
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.by_now.clear();
        self.by_name.clear();
        (self.cursor, self.renamed) = (0, 0);
    }

    /// How many rows there are.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// All rows.
    pub(super) fn rows(&self) -> &[Thread] {
        &self.rows
    }

    /// The row of a thread, by its [`id`](Thread::id). If it is a new one, its `name` is asked for, and about
    /// some others whether they have ended. `None` when there is no memory.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn row_of(
        &mut self,
        thread: u32,
        name: impl FnOnce() -> [u8; 16],
        has_ended: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let rows = &self.rows;
        let is_it = |row: u32| rows.get(row as usize - 1).is_some_and(|row| row.now == thread);
        if let Some(row) = self.by_now.find(hash_of_now(thread), is_it) {
            return rows.get(row as usize - 1).map(|row| row.id);
        }
        let name = name();
        let is_first = |row: u32| rows.get(row as usize - 1).is_some_and(|row| row.name == name);
        let first = self.by_name.find(hash_of_name(&name), is_first);
        let free = first.and_then(|first| self.ended_of(first, &has_ended));
        if let Some(row) = free.or_else(|| self.ended_of_any(&has_ended)) {
            return self.pass_on(row, thread, &name);
        }
        self.add(thread, name, first)
    }

    /// A row of the same name as the row `first`, if the thread of one has ended.
    fn ended_of(&mut self, first: u32, has_ended: impl Fn(u32) -> bool) -> Option<u32> {
        let start = self.rows.get(first as usize - 1)?.cursor;
        let mut at = start;
        let mut found = None;
        for _ in 0..LOOKS {
            let row = self.rows.get(at as usize - 1)?;
            found = has_ended(row.now).then_some(at);
            at = row.next;
            if found.is_some() || at == start {
                break;
            }
        }
        self.rows.get_mut(first as usize - 1)?.cursor = at;
        found
    }

    /// A row whose thread has ended, if there are many.
    fn ended_of_any(&mut self, has_ended: impl Fn(u32) -> bool) -> Option<u32> {
        if self.rows.len() < MANY {
            return None;
        }
        for _ in 0..LOOKS {
            self.cursor = (self.cursor + 1) % self.rows.len().max(1);
            if has_ended(self.rows.get(self.cursor)?.now) {
                return Some(self.cursor as u32 + 1);
            }
        }
        None
    }

    /// Charges a thread to a row whose thread has ended.
    fn pass_on(&mut self, row: u32, thread: u32, name: &[u8; 16]) -> Option<u32> {
        let rows = &self.rows;
        let now_of = |row: u32| hash_of_now(rows.get(row as usize - 1).map_or(0, |row| row.now));
        self.by_now.remove(now_of(row), row, now_of);
        let it = self.rows.get_mut(row as usize - 1)?;
        it.now = thread;
        if it.name != *name && it.name != SEVERAL {
            it.name = SEVERAL;
            self.renamed += 1;
        }
        let id = it.id;
        let rows = &self.rows;
        let now_of = |row: u32| hash_of_now(rows.get(row as usize - 1).map_or(0, |row| row.now));
        self.by_now.insert(hash_of_now(thread), row, now_of).then_some(id)
    }

    /// Adds a row for a thread. `first` is the first row of its name.
    fn add(&mut self, thread: u32, name: [u8; 16], first: Option<u32>) -> Option<u32> {
        // The system gives numbers out again, and a row keeps the one that it has had first.
        let mut id = thread;
        while self.rows.iter().any(|row| row.id == id) {
            id = id.wrapping_add(1 << 22);
        }
        let row = self.rows.len() as u32 + 1;
        if !self.rows.push(Thread { id, now: thread, name, next: row, cursor: row }) {
            return None;
        }
        let rows = &self.rows;
        let now_of = |row: u32| hash_of_now(rows.get(row as usize - 1).map_or(0, |row| row.now));
        let name_of = |row: u32| hash_of_name(rows.get(row as usize - 1).map_or(&SEVERAL, |row| &row.name));
        let known = self.by_now.insert(hash_of_now(thread), row, now_of);
        if !(known && (first.is_some() || self.by_name.insert(hash_of_name(&name), row, name_of))) {
            if known {
                self.by_now.remove(hash_of_now(thread), row, now_of);
            }
            self.rows.truncate(row as usize - 1);
            return None;
        }
        if let Some(first) = first.and_then(|first| self.rows.get_mut(first as usize - 1)) {
            let next = core::mem::replace(&mut first.next, row);
            self.rows.get_mut(row as usize - 1)?.next = next;
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::format;

    fn name(text: &str) -> [u8; 16] {
        let mut name = [0; 16];
        name.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        name
    }

    #[test]
    fn threads_that_come_one_after_the_other_share_rows() {
        let mut threads = Threads::new();
        let alone = threads.row_of(5, || name("main"), |_| false);
        // 40 at a time, which end in another order than they began.
        let mut alive: Vec<u32> = Vec::new();
        for n in 0..20_000u32 {
            if alive.len() == 40 {
                alive.swap_remove(n as usize * 7 % 40);
            }
            alive.push(1000 + n);
            let has_ended = |thread| thread != 5 && !alive.contains(&thread);
            let row = threads.row_of(1000 + n, || name("worker"), has_ended);
            // It keeps its row.
            assert_eq!(threads.row_of(1000 + n, || unreachable!(), has_ended), row);
            assert!(row.is_some() && row != alone);
        }
        // With the rows that were not looked at.
        assert!((41..2 * 41).contains(&threads.len()), "{} rows", threads.len());
        let ids: HashSet<u32> = threads.rows().iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), threads.len());
        assert!(threads.rows()[1..].iter().all(|row| row.name == name("worker")));
        assert_eq!(threads.row_of(5, || unreachable!(), |_| false), alone);
        threads.clear();
        assert_eq!(threads.len(), 0);
    }

    #[test]
    fn threads_of_many_names_share_rows_in_the_end() {
        let mut threads = Threads::new();
        for n in 0..100_000u32 {
            let row = threads.row_of(1000 + n, || name(&format!("thread {n}")), |thread| thread != 1000 + n);
            assert!(row.is_some());
        }
        assert_eq!((threads.len(), threads.renamed as usize), (MANY, MANY));
        threads.clear();
    }

    #[test]
    fn a_number_that_is_used_again_gets_a_row_of_its_own() {
        let mut threads = Threads::new();
        let first = threads.row_of(7, || name("a"), |_| true);
        // The row of 7 is passed on to 8, and another 7 comes.
        assert_eq!(threads.row_of(8, || name("a"), |_| true), first);
        let other = threads.row_of(7, || name("b"), |_| true);
        assert_eq!((first, other), (Some(7), Some(7 + (1 << 22))));
        threads.clear();
    }
}
