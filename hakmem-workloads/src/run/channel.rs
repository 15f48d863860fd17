//! How threads pass blocks on to each other without allocating.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use crate::mapped::Mapped;

/// A batch of blocks: addresses and sizes.
pub struct Batch {
    /// The blocks.
    pub blocks: Mapped<usize>,
    /// Their sizes.
    pub sizes: Mapped<u32>,
}

impl Batch {
    /// Room for `length` blocks.
    pub fn new(length: usize) -> Self {
        Self { blocks: Mapped::new(length), sizes: Mapped::new(length) }
    }
}

/// A queue of batches. It never holds more than there are, so it never grows.
pub struct Channel {
    queue: Mutex<(VecDeque<Batch>, bool)>,
    arrived: Condvar,
}

impl Channel {
    /// With `batches` in it, and room for `capacity`.
    pub fn new(capacity: usize, batches: impl IntoIterator<Item = Batch>) -> Self {
        let mut queue = VecDeque::with_capacity(capacity);
        queue.extend(batches);
        Self { queue: Mutex::new((queue, false)), arrived: Condvar::new() }
    }

    /// Adds a batch.
    pub fn send(&self, batch: Batch) {
        self.queue.lock().expect("no panics inside").0.push_back(batch);
        self.arrived.notify_one();
    }

    /// Takes the oldest batch; waits for one. None once the channel is closed and empty.
    pub fn receive(&self) -> Option<Batch> {
        let mut queue = self.queue.lock().expect("no panics inside");
        loop {
            if let Some(batch) = queue.0.pop_front() {
                return Some(batch);
            }
            if queue.1 {
                return None;
            }
            queue = self.arrived.wait(queue).expect("no panics inside");
        }
    }

    /// Nothing will be added any more.
    pub fn close(&self) {
        self.queue.lock().expect("no panics inside").1 = true;
        self.arrived.notify_all();
    }
}
