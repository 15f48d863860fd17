//! From a process of a trace to the operations of its threads: which slots objects go into, and where the
//! spans of the recording begin and end.

use std::collections::HashMap;

use anyhow::ensure;

use crate::codec::{Event, Object};
use crate::pace::SPAN;
use crate::process::{Facts, ProcessTrace};
use crate::program::{Kind, NUMBERS, Op, SHARED, ops_at};

/// A thread's operations on the way.
#[derive(Default)]
struct Thread {
    ops: Vec<Op>,
    /// Slots used and free again.
    free: Vec<u32>,
    /// Slots in use at the most.
    slots: u32,
    /// Whether it has a part in the span that is being gone through.
    takes_part: bool,
}

impl Thread {
    /// A slot that only this thread uses.
    fn slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    /// Its own slots are used again.
    fn done_with(&mut self, slot: u32) {
        if slot & SHARED == 0 {
            self.free.push(slot);
        }
    }
}

/// An object alive.
struct Live {
    slot: u32,
    thread: u32,
    size: u64,
    align_log2: u8,
}

/// What [`Program::save`](crate::program::Program::save) writes.
pub(crate) struct Plan {
    /// The last is none: it frees what is still alive at the end, off the clock.
    threads: Vec<Thread>,
    spans: Vec<u32>,
    slots: u64,
}

impl Plan {
    pub(crate) fn new(process: &ProcessTrace) -> anyhow::Result<Self> {
        let several = process.facts.threads > 1;
        let shared = if several { Shared::of(process) } else { Shared::default() };
        let mut threads: Vec<Thread> =
            (0..=process.facts.threads.max(1)).map(|_| Thread::default()).collect();
        let mut spans = Vec::new();
        let mut live = HashMap::<Object, Live>::new();
        let (mut started, mut last, mut shared_slots) = (1, 0, 0);
        for (number, step) in process.steps().enumerate() {
            if several && number % SPAN == 0 {
                leave(&mut threads, &spans);
                ensure!(spans.len() < u32::MAX as usize, "too many operations");
                spans.push(0);
            }
            // Those without any event, too, which recordings of earlier versions have: the replay waits for
            // all.
            while started <= step.thread {
                threads[last as usize].ops.push(Op::new(Kind::Start, 0, 0, started));
                started += 1;
            }
            last = step.thread;
            let own = &mut threads[step.thread as usize];
            if several && !own.takes_part {
                own.takes_part = true;
                own.ops.push(Op::new(Kind::Enter, 0, 0, spans.len() as u32 - 1));
                *spans.last_mut().expect("pushed above") += 1;
            }
            let mut slot_for = |own: &mut Thread, object: Object| {
                if shared.contains(object) {
                    shared_slots += 1;
                    SHARED | (shared_slots - 1)
                } else {
                    own.slot()
                }
            };
            match step.event {
                Event::Allocate { object, size, align_log2, zeroed } => {
                    let slot = slot_for(own, object);
                    let kind = if zeroed { Kind::Zeroed } else { Kind::Allocate };
                    own.ops.push(Op::new(kind, size, align_log2, slot));
                    live.insert(object, Live { slot, thread: step.thread, size, align_log2 });
                }
                Event::Free { object } => {
                    let old = live.remove(&object).expect("checked when the trace was made");
                    own.ops.push(Op::new(Kind::Free, old.size, old.align_log2, old.slot));
                    own.done_with(old.slot);
                }
                Event::Reallocate { object, from, size } => {
                    let old = live.remove(&from).expect("checked when the trace was made");
                    // The alignment stays: a heap that is told it (`Heap::free`) must be told the same to the
                    // end.
                    let align_log2 = old.align_log2;
                    own.done_with(old.slot);
                    let slot = slot_for(own, object);
                    let op = Op::new(Kind::Reallocate, size, align_log2, slot);
                    own.ops.push(Op { from: old.slot, ..op });
                    own.ops.push(Op::new(Kind::OldSize, old.size, 0, 0));
                    live.insert(object, Live { slot, thread: step.thread, size, align_log2 });
                }
            }
            ensure!(own.slots < SHARED >> 1 && shared_slots < SHARED >> 1, "too many objects");
        }
        leave(&mut threads, &spans);
        let mut left: Vec<_> = live.into_iter().collect();
        left.sort_unstable_by_key(|&(object, _)| object);
        Self { threads, spans, slots: 0 }.place(left.into_iter().map(|(_, live)| live))
    }

    /// The program as it is mapped.
    pub(crate) fn to_bytes(&self, facts: &Facts) -> Vec<u8> {
        let ops: usize = self.threads.iter().map(|thread| thread.ops.len()).sum();
        let numbers: [u64; NUMBERS] = [
            self.threads.len() as u64 - 1,
            ops as u64,
            self.spans.len() as u64,
            self.slots,
            facts.operations(),
            facts.live_at_end,
            facts.peak_live,
            0,
        ];
        let size = ops_at(self.threads.len() - 1) + ops * size_of::<Op>() + self.spans.len() * 4;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(numbers.into_iter().flat_map(u64::to_ne_bytes));
        let mut start = 0;
        for thread in &self.threads {
            bytes.extend([start, thread.ops.len() as u64].into_iter().flat_map(u64::to_ne_bytes));
            start += thread.ops.len() as u64;
        }
        for op in self.threads.iter().flat_map(|thread| &thread.ops) {
            bytes.extend(op.head.to_ne_bytes());
            bytes.extend([op.slot, op.from].into_iter().flat_map(u32::to_ne_bytes));
        }
        bytes.extend(self.spans.iter().flat_map(|threads| threads.to_ne_bytes()));
        bytes
    }

    /// Gives every thread's slots their place in the one table: thread after thread, then the shared ones.
    fn place(mut self, left: impl Iterator<Item = Live>) -> anyhow::Result<Self> {
        let mut bases = Vec::new();
        let mut own_slots = 0u64;
        for thread in &self.threads {
            bases.push(own_slots);
            own_slots += u64::from(thread.slots);
        }
        let mut highest = own_slots;
        let mut placed = |slot: u32, base: u64| {
            let at = if slot & SHARED == 0 {
                base + u64::from(slot)
            } else {
                own_slots + u64::from(slot & !SHARED)
            };
            highest = highest.max(at + 1);
            (at as u32 & !SHARED) | (slot & SHARED)
        };
        for (thread, &base) in self.threads.iter_mut().zip(&bases) {
            for op in &mut thread.ops {
                if matches!(op.kind(), Kind::Allocate | Kind::Zeroed | Kind::Free | Kind::Reallocate) {
                    op.slot = placed(op.slot, base);
                }
                if op.kind() == Kind::Reallocate {
                    op.from = placed(op.from, base);
                }
            }
        }
        let ops = &mut self.threads.last_mut().expect("there is always the one that cleans up").ops;
        for live in left {
            let slot = placed(live.slot, bases[live.thread as usize]);
            ops.push(Op::new(Kind::Free, live.size, live.align_log2, slot));
        }
        ensure!(highest < u64::from(SHARED), "too many objects");
        self.slots = highest;
        Ok(self)
    }
}

/// Ends the latest span: right behind the last operation in it of every thread, so that no thread keeps it
/// open.
fn leave(threads: &mut [Thread], spans: &[u32]) {
    for thread in threads.iter_mut().filter(|thread| thread.takes_part) {
        thread.takes_part = false;
        thread.ops.push(Op::new(Kind::Leave, 0, 0, spans.len() as u32 - 1));
    }
}

/// The objects that are ended by another thread than the one that makes them: a bit for each.
#[derive(Default)]
struct Shared(Vec<u64>);

impl Shared {
    fn of(process: &ProcessTrace) -> Self {
        let mut bits = Vec::new();
        let mut owners = HashMap::<Object, u32>::new();
        for step in process.steps() {
            let (begun, ended) = match step.event {
                Event::Allocate { object, .. } => (Some(object), None),
                Event::Free { object } => (None, Some(object)),
                Event::Reallocate { object, from, .. } => (Some(object), Some(from)),
            };
            if let Some(object) = ended.filter(|object| owners.remove(object) != Some(step.thread)) {
                let word = (object / 64) as usize;
                bits.resize(bits.len().max(word + 1), 0u64);
                bits[word] |= 1 << (object % 64);
            }
            owners.extend(begun.map(|object| (object, step.thread)));
        }
        Self(bits)
    }

    fn contains(&self, object: Object) -> bool {
        self.0.get((object / 64) as usize).is_some_and(|bits| bits >> (object % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::check;

    #[test]
    fn every_thread_is_started() {
        // Threads 1 and 3 do nothing: tag 5 names them, and then another.
        let events = vec![8, 13, 21, 8, 29, 37, 8];
        let facts = check(&events).unwrap();
        assert_eq!(facts.threads, 5);
        let plan = Plan::new(&ProcessTrace { name: String::new(), parent: None, unknown: 0, facts, events })
            .unwrap();
        let ops = plan.threads.iter().flat_map(|thread| &thread.ops);
        let started: Vec<_> = ops.filter(|op| op.kind() == Kind::Start).map(|op| op.slot).collect();
        assert_eq!(started, [1, 2, 3, 4]);
    }
}
