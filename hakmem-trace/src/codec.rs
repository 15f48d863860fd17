//! The events of a process as bytes.
//!
//! Every event is a LEB128 number whose lower three bits are a tag and whose others are its main figure:
//!
//! | tag | event                        | figure              | then                              |
//! |-----|------------------------------|---------------------|-----------------------------------|
//! | 0   | allocation                   | size                |                                   |
//! | 1   | allocation of zeros          | size                |                                   |
//! | 2   | allocation with an alignment | size                | one byte: its logarithm           |
//! | 3   | free                         | distance            |                                   |
//! | 4   | new size                     | size                | the distance of the object before |
//! | 5   | this thread's events follow  | the thread's number |                                   |
//!
//! Objects are numbered in the order of allocation, and a new size makes a new object. A distance counts back
//! from the newest object, which is 0. Threads are numbered in the order of their first event; the first
//! events are thread 0's.

/// An object: the n-th allocation of its process.
pub type Object = u64;

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It allocated an object.
    Allocate {
        /// The next number.
        object: Object,
        /// Bytes; may be 0.
        size: u64,
        /// The logarithm of the alignment asked for, 0 where none was.
        align_log2: u8,
        /// Whether it was to be zeros.
        zeroed: bool,
    },
    /// It freed one.
    Free {
        /// Which.
        object: Object,
    },
    /// It gave one a new size.
    Reallocate {
        /// The next number: from here on the object goes by this.
        object: Object,
        /// The one before, which is no more.
        from: Object,
        /// Bytes; not 0.
        size: u64,
    },
}

/// An event and its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The thread, in the order of their first events.
    pub thread: u32,
    /// What it did.
    pub event: Event,
}

/// The largest size that is taken for one: no machine's address space has more.
pub(crate) const LARGEST: u64 = 1 << 48;
/// The largest alignment, likewise.
pub(crate) const STRICTEST: u8 = 47;

/// Appends `value`.
pub(crate) fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes a number off the front of `bytes`; `None` if there is no whole one of 64 bits.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Writes events.
#[derive(Default)]
pub(crate) struct Encoder {
    pub(crate) bytes: Vec<u8>,
    thread: u32,
    objects: u64,
}

impl Encoder {
    fn event(&mut self, tag: u64, figure: u64) {
        put(&mut self.bytes, figure << 3 | tag);
    }

    /// The events that follow are this thread's.
    pub(crate) fn thread(&mut self, thread: u32) {
        if self.thread != thread {
            self.thread = thread;
            self.event(5, thread.into());
        }
    }

    pub(crate) fn allocate(&mut self, size: u64, align_log2: u8, zeroed: bool) -> Object {
        self.event(if align_log2 > 0 { 2 } else { zeroed.into() }, size);
        if align_log2 > 0 {
            self.bytes.push(align_log2);
        }
        self.next()
    }

    pub(crate) fn free(&mut self, object: Object) {
        self.event(3, self.objects - 1 - object);
    }

    pub(crate) fn reallocate(&mut self, from: Object, size: u64) -> Object {
        self.event(4, size);
        put(&mut self.bytes, self.objects - 1 - from);
        self.next()
    }

    fn next(&mut self) -> Object {
        self.objects += 1;
        self.objects - 1
    }
}

/// Reads events. After an error it ends.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
    thread: u32,
    threads: u32,
    objects: u64,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, thread: 0, threads: 1, objects: 0 }
    }

    /// Bytes not yet read.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        take(&mut self.rest).ok_or("it breaks off in the middle of a number")
    }

    fn earlier(&self, distance: u64) -> Result<Object, &'static str> {
        self.objects
            .checked_sub(1)
            .and_then(|newest| newest.checked_sub(distance))
            .ok_or("it goes back to before the first object")
    }

    fn event(&mut self) -> Result<Event, &'static str> {
        loop {
            let number = self.number()?;
            let (tag, figure) = (number & 7, number >> 3);
            let object = self.objects;
            if matches!(tag, 0..=2 | 4) {
                if figure > LARGEST {
                    return Err("a size that no machine has");
                }
                self.objects += 1;
            }
            return Ok(match tag {
                0 | 1 => Event::Allocate { object, size: figure, align_log2: 0, zeroed: tag == 1 },
                2 => {
                    let (&align_log2, rest) = self.rest.split_first().ok_or("it breaks off in an event")?;
                    self.rest = rest;
                    if !(1..=STRICTEST).contains(&align_log2) {
                        return Err("an alignment that cannot be");
                    }
                    Event::Allocate { object, size: figure, align_log2, zeroed: false }
                }
                3 => Event::Free { object: self.earlier(figure)? },
                4 => {
                    let distance = self.number()?;
                    let from = object.checked_sub(1).and_then(|newest| newest.checked_sub(distance));
                    Event::Reallocate {
                        object,
                        from: from.ok_or("it goes back to before the first object")?,
                        size: figure,
                    }
                }
                5 if figure <= u64::from(self.threads) => {
                    self.thread = figure as u32;
                    self.threads = self.threads.max(self.thread + 1);
                    continue;
                }
                5 => return Err("a thread out of turn"),
                _ => return Err("an event of no known kind"),
            });
        }
    }
}

impl Iterator for Decoder<'_> {
    type Item = Result<Step, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let step = self.event().map(|event| Step { thread: self.thread, event });
        if step.is_err() {
            self.rest = &[];
        }
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(take(&mut &bytes[..]), Some(value));
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(take(&mut &[0xff; 10][..]), None);
        assert_eq!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]), None);
    }
}
