//! What one process of a trace did.

use std::collections::HashMap;

use crate::codec::{Decoder, Encoder, Event, Object, Step};

/// One process of a trace. What is in here has been checked: every object is freed or gets a new size at most
/// once, and after it was allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessTrace {
    /// The program's name as the kernel had it, at most 15 bytes; empty in a trace without names.
    pub name: String,
    /// The process it was forked from or executed by, as its place in the trace.
    pub parent: Option<u32>,
    /// Frees that were left out, because their objects were allocated before the recording, or in the parent.
    pub unknown: u64,
    /// What the events amount to.
    pub facts: Facts,
    pub(crate) events: Vec<u8>,
}

/// Figures of a stream of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Threads that took part.
    pub threads: u32,
    /// Calls that allocated.
    pub allocations: u64,
    /// Those among them that asked for zeros.
    pub zeroed: u64,
    /// Those among them that asked for an alignment.
    pub aligned: u64,
    /// Calls that freed.
    pub frees: u64,
    /// Calls that gave an object a new size.
    pub reallocations: u64,
    /// Frees and new sizes by another thread than the one that had allocated.
    pub remote: u64,
    /// The largest sum of the sizes of live objects, bytes.
    pub peak_live: u64,
    /// That sum at the end, bytes.
    pub live_at_end: u64,
    /// By the logarithm of the size (0 for 0 and 1 bytes; 17 to 32 bytes are 5): how many allocations and new
    /// sizes.
    pub sizes: Vec<u64>,
}

impl Facts {
    /// Calls in all.
    pub fn operations(&self) -> u64 {
        self.allocations + self.frees + self.reallocations
    }

    fn grew(&mut self, size: u64) {
        let class = size.max(1).next_power_of_two().ilog2() as usize;
        if self.sizes.len() <= class {
            self.sizes.resize(class + 1, 0);
        }
        self.sizes[class] += 1;
        self.live_at_end += size;
        self.peak_live = self.peak_live.max(self.live_at_end);
    }
}

/// Goes through `events` and checks them; an error comes with its place.
pub(crate) fn check(events: &[u8]) -> Result<Facts, (usize, &'static str)> {
    let mut facts = Facts::default();
    // Size and thread of those alive.
    let mut live = HashMap::<Object, (u64, u32)>::new();
    let mut decoder = Decoder::new(events);
    loop {
        let place = events.len() - decoder.left();
        let Some(step) = decoder.next() else { break };
        let Step { thread, event } = step.map_err(|what| (place, what))?;
        facts.threads = facts.threads.max(thread + 1);
        let ended = match event {
            Event::Allocate { .. } => None,
            Event::Free { object } => Some(object),
            Event::Reallocate { from, .. } => Some(from),
        };
        if let Some(object) = ended {
            let (size, owner) = live.remove(&object).ok_or((place, "an object that is no more"))?;
            facts.remote += u64::from(owner != thread);
            facts.live_at_end -= size;
        }
        match event {
            Event::Allocate { object, size, align_log2, zeroed } => {
                facts.allocations += 1;
                facts.zeroed += u64::from(zeroed);
                facts.aligned += u64::from(align_log2 > 0);
                facts.grew(size);
                live.insert(object, (size, thread));
            }
            Event::Free { .. } => facts.frees += 1,
            Event::Reallocate { object, size, .. } => {
                facts.reallocations += 1;
                facts.grew(size);
                live.insert(object, (size, thread));
            }
        }
    }
    Ok(facts)
}

impl ProcessTrace {
    /// All events in their order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        Decoder::new(&self.events).map(|step| step.expect("checked when it was made"))
    }
}

/// Makes a [`ProcessTrace`], event by event.
pub struct Builder {
    name: String,
    parent: Option<u32>,
    unknown: u64,
    encoder: Encoder,
    /// The thread whose events follow, by the caller's number.
    thread: u32,
    /// The number in the trace of each thread that has written an event.
    threads: HashMap<u32, u32>,
}

impl Builder {
    /// For a process without events so far.
    pub fn new(name: String, parent: Option<u32>) -> Self {
        Self { name, parent, unknown: 0, encoder: Encoder::default(), thread: 0, threads: HashMap::new() }
    }

    /// The events that follow are this thread's, whatever number the caller gives it. Without any it is no
    /// thread of the trace.
    pub fn thread(&mut self, thread: u32) {
        self.thread = thread;
    }

    /// For an event that is really written: one that is left out gives no number to its thread.
    fn encoder(&mut self) -> &mut Encoder {
        let next = self.threads.len() as u32;
        self.encoder.thread(*self.threads.entry(self.thread).or_insert(next));
        &mut self.encoder
    }

    /// An allocation; sizes above 2^48 and alignments above 2^47 do not exist.
    pub fn allocate(&mut self, size: u64, align_log2: u8, zeroed: bool) -> Object {
        self.encoder().allocate(size, align_log2, zeroed)
    }

    /// The end of `object`.
    pub fn free(&mut self, object: Object) {
        self.encoder().free(object);
    }

    /// A new size for `from`, with a new number.
    pub fn reallocate(&mut self, from: Object, size: u64) -> Object {
        self.encoder().reallocate(from, size)
    }

    /// A free that is left out.
    pub fn unknown(&mut self) {
        self.unknown += 1;
    }

    /// The process.
    ///
    /// # Errors
    ///
    /// If the events are not what they must be: an object ended twice, a size or alignment too large.
    pub fn finish(self) -> anyhow::Result<ProcessTrace> {
        let Self { name, parent, unknown, encoder, .. } = self;
        let facts = check(&encoder.bytes)
            .map_err(|(place, what)| anyhow::anyhow!("byte {place} of its events: {what}"))?;
        Ok(ProcessTrace { name, parent, unknown, facts, events: encoder.bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let mut builder = Builder::new("x".into(), None);
        builder.thread(7);
        let a = builder.allocate(100, 0, false);
        let b = builder.allocate(64, 12, false);
        builder.thread(3);
        let c = builder.allocate(0, 0, true);
        builder.free(a);
        let d = builder.reallocate(b, 5000);
        builder.thread(7);
        builder.free(c);
        builder.free(d);
        let process = builder.finish().unwrap();
        let allocate =
            |object, size, align_log2, zeroed| Event::Allocate { object, size, align_log2, zeroed };
        let expected = [
            (0, allocate(0, 100, 0, false)),
            (0, allocate(1, 64, 12, false)),
            (1, allocate(2, 0, 0, true)),
            (1, Event::Free { object: 0 }),
            (1, Event::Reallocate { object: 3, from: 1, size: 5000 }),
            (0, Event::Free { object: 2 }),
            (0, Event::Free { object: 3 }),
        ];
        let steps: Vec<_> = process.steps().map(|step| (step.thread, step.event)).collect();
        assert_eq!(steps, expected);
        let facts = &process.facts;
        assert_eq!((facts.threads, facts.operations(), facts.remote), (2, 7, 4));
        assert_eq!((facts.peak_live, facts.live_at_end, facts.zeroed, facts.aligned), (5000, 0, 1, 1));
        assert_eq!((facts.sizes[0], facts.sizes[6], facts.sizes[7], facts.sizes[13]), (1, 1, 1, 1));
    }

    #[test]
    fn wrong_events_are_an_error() {
        let mut builder = Builder::new(String::new(), None);
        let object = builder.allocate(1, 0, false);
        builder.free(object);
        builder.free(object);
        let error = builder.finish().unwrap_err().to_string();
        assert_eq!(error, "byte 2 of its events: an object that is no more");
    }

    #[test]
    fn wrong_events_are_named() {
        let what = |bytes: &[u8]| check(bytes).unwrap_err();
        assert_eq!(what(&[3]), (0, "it goes back to before the first object"));
        assert_eq!(what(&[8, 3, 3]), (2, "an object that is no more"));
        assert_eq!(what(&[8, 3, 12, 0]), (2, "an object that is no more"));
        assert_eq!(what(&[8, 21]), (1, "a thread out of turn"));
        assert_eq!(what(&[8, 6]), (1, "an event of no known kind"));
        assert_eq!(what(&[8, 10, 48]), (1, "an alignment that cannot be"));
        assert_eq!(what(&[8, 10]), (1, "it breaks off in an event"));
        assert_eq!(what(&[0x80]), (0, "it breaks off in the middle of a number"));
        let mut huge = Vec::new();
        crate::codec::put(&mut huge, (1 << 48 | 1) << 3);
        assert_eq!(what(&huge), (0, "a size that no machine has"));
    }
}
