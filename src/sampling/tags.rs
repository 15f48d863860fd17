//! The tags that threads carry. Each text has a number, which is found without a lock and is the same for as
//! long as the process lives: to enter a scope is to look up a number. What a profile has of them is in its
//! store.
//!
//! Nothing is ever taken out, so there is an end: what comes too late is charged to [`OTHERS`].

use crate::os;
use crate::sampling::grown::mix;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU32, reads, wrote};
use core::{ptr, slice};

/// Tags at most.
const MOST: u32 = 4 << 10;
/// Places for them: a power of two, so many that those who look for one find it or a free one soon.
const PLACES: usize = 2 * MOST as usize;
/// Bytes of all texts, each with its length in front.
const TEXTS: u32 = 256 << 10;
/// Of longer texts so many bytes count.
const LONGEST: usize = 255;

/// The number of what is charged to more tags than there is room for.
pub(super) const OTHERS: u32 = PLACES as u32 + 1;

/// The process's tags.
static TAGS: Tags = Tags::new();

/// All tags.
struct Tags {
    /// By hash, or behind that: where the text of a tag begins, plus 1; 0 for none.
    places: [AtomicU32; PLACES],
    /// Null until there is a tag.
    texts: AtomicPtr<u8>,
    /// Bytes of them, and how many there are. Relaxed: figures.
    used: AtomicU32,
    count: AtomicU32,
}

impl Tags {
    const fn new() -> Self {
        Self {
            places: [const { AtomicU32::new(0) }; PLACES],
            texts: AtomicPtr::new(ptr::null_mut()),
            used: AtomicU32::new(0),
            count: AtomicU32::new(0),
        }
    }

    /// The number of a text, counted from 1.
    fn number(&self, text: &[u8]) -> u32 {
        let text = text.get(..LONGEST).unwrap_or(text);
        let start = text.iter().fold(0, |hash, &byte| mix(hash, u64::from(byte))) as usize;
        let mut made = 0;
        for i in 0..PLACES {
            let at = start.wrapping_add(i) % PLACES;
            let place = &self.places[at];
            // Acquire, also below: pairs with the release below, so that the text is there.
            let mut found = place.load(Acquire);
            if found == 0 {
                if made == 0 {
                    made = self.make(text);
                }
                if made == 0 {
                    return OTHERS;
                }
                match place.compare_exchange(0, made, Release, Acquire) {
                    Ok(_) => return at as u32 + 1,
                    // Another thread was faster, perhaps with the same text: then this one's is lost.
                    Err(now) => found = now,
                }
            }
            if self.text_at(found) == text {
                return at as u32 + 1;
            }
        }
        OTHERS
    }

    /// Writes a text down: where it begins, plus 1. 0 when there is no room for it.
    #[cold]
    fn make(&self, text: &[u8]) -> u32 {
        let Some(texts) = self.memory() else { return 0 };
        let less = |limit: u32, by: u32| move |now: u32| now.checked_add(by).filter(|&now| now <= limit);
        let len = text.len() as u32;
        if self.count.fetch_update(Relaxed, Relaxed, less(MOST, 1)).is_err() {
            return 0;
        }
        let Ok(at) = self.used.fetch_update(Relaxed, Relaxed, less(TEXTS, len + 1)) else { return 0 };
        // SAFETY: these bytes lie within the mapping, and nobody else has been given them.
        unsafe {
            let to = texts.add(at as usize);
            to.write(len as u8);
            to.add(1).copy_from_nonoverlapping(text.as_ptr(), text.len());
            wrote(to);
        }
        at + 1
    }

    /// The memory for the texts, mapped by whoever needs it first.
    fn memory(&self) -> Option<*mut u8> {
        // Acquire, also below: pairs with the release below.
        let there = self.texts.load(Acquire);
        if !there.is_null() {
            return Some(there);
        }
        let new = os::map_uncounted(TEXTS as usize);
        if new.is_null() {
            return None;
        }
        match self.texts.compare_exchange(ptr::null_mut(), new, Release, Acquire) {
            Ok(_) => Some(new),
            Err(there) => {
                // SAFETY: mapped just above, and nobody else knows of it.
                unsafe { os::discard_uncounted(new, TEXTS as usize) };
                Some(there)
            }
        }
    }

    /// The text that a place names, which is not 0.
    fn text_at(&self, place: u32) -> &[u8] {
        // Relaxed: stored before any place was, and those are acquired.
        let texts = self.texts.load(Relaxed);
        if texts.is_null() {
            return &[];
        }
        // SAFETY: the place names a length and so many bytes behind it, which stay as they are.
        unsafe {
            let at = texts.add(place as usize - 1);
            reads(at);
            slice::from_raw_parts(at.add(1), usize::from(at.read()))
        }
    }

    /// The text of a number; `None` for one that no tag has.
    fn text(&self, number: u32) -> Option<&[u8]> {
        if number == OTHERS {
            return Some(b"(others)");
        }
        // Acquire: as in `number`.
        let place = self.places.get((number as usize).wrapping_sub(1))?.load(Acquire);
        (place != 0).then(|| self.text_at(place))
    }

    /// Bytes that are mapped, and how many of them are resident.
    fn bytes(&self) -> (usize, usize) {
        if self.texts.load(Relaxed).is_null() {
            return (0, 0);
        }
        (TEXTS as usize, (self.used.load(Relaxed) as usize).next_multiple_of(os::page_size()))
    }

    /// Forgets everything, when no other thread can be looking.
    fn unmap(&self) {
        let texts = self.texts.swap(ptr::null_mut(), Relaxed);
        if !texts.is_null() {
            self.places.iter().for_each(|place| place.store(0, Relaxed));
            self.used.store(0, Relaxed);
            self.count.store(0, Relaxed);
            // SAFETY: our mapping, and nobody has a text of it.
            unsafe { os::discard_uncounted(texts, TEXTS as usize) };
        }
    }
}

/// The number of a tag, counted from 1. No lock is taken.
pub(crate) fn number(text: &[u8]) -> u32 {
    TAGS.number(text)
}

/// The text of a tag; `None` if the number is none's.
pub(super) fn text(number: u32) -> Option<&'static [u8]> {
    TAGS.text(number)
}

/// Bytes that are mapped for tags, and how many of them are resident.
pub(super) fn bytes() -> (usize, usize) {
    TAGS.bytes()
}

/// Gives the memory back, when no other thread can be here.
pub(super) fn unmap() {
    TAGS.unmap();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::HashSet;
    use std::{format, thread};

    #[test]
    fn threads_agree_on_numbers() {
        let tags = Box::new(Tags::new());
        let count = if cfg!(miri) { 20 } else { 2000 };
        let numbers = || (0..count).map(|i| tags.number(format!("query {i}").as_bytes())).collect::<Vec<_>>();
        let all: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(numbers)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|numbers| *numbers == all[0]));
        assert_eq!(all[0].iter().collect::<HashSet<_>>().len(), count);
        for (i, &number) in all[0].iter().enumerate() {
            assert_eq!(tags.text(number), Some(format!("query {i}").as_bytes()));
        }
        assert_eq!((tags.text(0), tags.text(PLACES as u32 + 2)), (None, None));
        tags.unmap();
        assert_eq!((tags.text(all[0][0]), tags.bytes()), (None, (0, 0)));
    }

    #[test]
    fn there_is_an_end_of_tags_and_of_text() {
        for text in ["", "a text that is longer than 64 bytes, so that there is no room for MOST of them"] {
            let tags = Box::new(Tags::new());
            let number = |i: usize| tags.number(format!("{i} {text}").as_bytes());
            let first = number(0);
            let count = if cfg!(miri) { 10 } else { 10_000 };
            let more = (1..count).filter(|&i| number(i) != OTHERS).count();
            assert!(more < MOST as usize, "{more}");
            assert!(cfg!(miri) || number(10_001) == OTHERS);
            assert_eq!(number(0), first);
            assert_eq!(tags.text(OTHERS), Some(&b"(others)"[..]));
            assert!(tags.bytes().1 <= TEXTS as usize);
            tags.unmap();
        }
        let tags = Box::new(Tags::new());
        assert_eq!(tags.number(&[7; 300]), tags.number(&[7; 255]));
        assert_eq!(tags.text(tags.number(&[7; 300])).unwrap().len(), LONGEST);
        assert_eq!(tags.text(tags.number(b"")), Some(&b""[..]));
        tags.unmap();
    }
}
