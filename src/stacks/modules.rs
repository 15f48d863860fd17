//! What is mapped executable: read from `/proc/self/maps` and from the program headers of what is mapped.
//!
//! There are two lists, in memory that stays mapped until the library is unloaded. One is current, the other
//! one is where the next one is made, by one thread at a time. A reader looks up an address in the current
//! list and then makes sure that it still is the current one: until then nobody has begun to overwrite it. So
//! readers never wait, need not say that they read, and cannot be left behind by a fork.
//!
//! The memory of modules is only read by [`peek::copy`], because the program can unmap a module at any
//! moment.

use crate::os::futex::{Inherit, Lock};
use crate::os::{self, peek};
use crate::stacks::copies;
use crate::stacks::elf::{FIRST, fingerprint};
use crate::stacks::list::{Code, Detail, List, MOST, Shared};
use crate::stacks::maps::{LINES, make};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU32, fence};
use core::ptr;

/// What reading the maps costs: so many milliseconds in which they are not read again, and one more for so
/// many lines. A line takes about a microsecond, so that reading takes about 1% of the time at most.
const PAUSE: u32 = 10;
const LINES_PER_MS: u32 = 10;
/// Milliseconds that may be owed: a program that starts loads one module after another.
const MOST_OWED: u32 = 500;

/// Everything that is mapped for this module.
struct Memory {
    lists: [List; 2],
    lines: [u8; LINES],
    /// The beginning of a module, while a list is made.
    first: [u8; FIRST],
}

/// Null until the first reading.
static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(ptr::null_mut());
/// The number of the current list, which is the list at that number modulo 2. 0: there is none yet.
static CURRENT: AtomicU32 = AtomicU32::new(0);
/// How often a module with an unwind table has gone.
static GONE: AtomicU32 = AtomicU32::new(0);

/// When the maps were read last, and what is still to be waited for it.
struct Last {
    at: u32,
    owed: u32,
}

/// Whoever holds it may write to the list that is not current, and read the details of the one that is.
static LAST: Lock<Last> = Lock::new(Last { at: 0, owed: 0 });

impl Inherit for Last {
    /// The list that is not current is made from its beginning each time.
    fn inherit(&mut self, _torn: bool) {}
}

/// In the child of a fork: see [`crate::os::futex`].
pub(crate) fn inherit() {
    LAST.inherit();
    copies::inherit();
}

/// Gives the memory back, when no other thread can be in here: only threads that have heaps walk.
pub(crate) fn unmap() {
    let memory = MEMORY.swap(ptr::null_mut(), Relaxed);
    CURRENT.store(0, Relaxed);
    if !memory.is_null() {
        // SAFETY: the mapping that `reread` has made, which nobody uses any more.
        unsafe { os::discard_uncounted(memory.cast(), mapped_len()) };
    }
}

/// Bytes mapped for the lists, and how many of them are in use.
pub(crate) fn bytes() -> (usize, usize) {
    let memory = MEMORY.load(Relaxed);
    if memory.is_null() {
        return (0, 0);
    }
    // SAFETY: the memory stays mapped, and these fields are atomics.
    let used = |i: usize| unsafe {
        let list = &raw const (*memory).lists[i % 2];
        let modules = (*list).len.load(Relaxed) * (size_of::<Shared>() + size_of::<Detail>());
        modules + (*list).paths_len.load(Relaxed)
    };
    (mapped_len(), used(0) + used(1) + LINES)
}

fn mapped_len() -> usize {
    size_of::<Memory>().next_multiple_of(os::page_size())
}

/// The number of the current list. 0 while there is none.
#[inline]
pub(crate) fn version() -> u32 {
    CURRENT.load(Relaxed)
}

/// Changes when what is known of some module's code does not hold any more.
#[inline]
pub(super) fn gone() -> u32 {
    // Acquire: pairs with the release in `reread`: whoever sees the new number also finds the new list.
    GONE.load(Acquire)
}

/// The module that an address is in, by the current list.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn find(pc: usize) -> Option<Code> {
    for _ in 0..3 {
        // Acquire: pairs with the release in `reread`, so that the list is whole.
        let current = CURRENT.load(Acquire);
        // Relaxed: the pointer was stored before the first number.
        let memory = MEMORY.load(Relaxed);
        if current == 0 || memory.is_null() {
            return None;
        }
        // SAFETY: the memory stays mapped, and these fields are atomics.
        let (code, len) = unsafe {
            let list = &raw const (*memory).lists[current as usize % 2];
            (&(*list).code, (*list).len.load(Relaxed))
        };
        let code = code.get(..len).unwrap_or_default();
        let found =
            code.get(code.partition_point(|code| code.start() <= pc).wrapping_sub(1)).map(Shared::get);
        // Acquire: pairs with the fence in `reread`. If anything of a later list has been read above, the
        // number is not the same any more.
        fence(Acquire);
        if CURRENT.load(Relaxed) == current {
            return found.filter(|code| pc < code.end);
        }
    }
    None
}

/// Like [`find`]; reads the maps again if nothing is found there, and not too often.
pub(super) fn find_or_reread(pc: usize) -> Option<Code> {
    find(pc).or_else(|| if reread(false) { find(pc) } else { None })
}

/// Whether what is mapped at an address is what was there when the maps were read.
#[cold]
pub(super) fn is_still_at(pc: usize) -> bool {
    find(pc).is_some_and(|code| code.table == 0 || is_still(&code))
}

/// Whether what is mapped at a module's address is still that module.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn is_still(code: &Code) -> bool {
    let mut bytes = [0; FIRST];
    let n = peek::copy(code.base, &mut bytes);
    fingerprint(0, bytes.get(..n).unwrap_or_default()) == code.fingerprint
}

/// A module, for those who write down where code was.
pub(crate) struct Module<'a> {
    /// The first address.
    pub start: usize,
    /// The one behind the last.
    pub end: usize,
    /// Where the mapping begins in the file.
    pub offset: u64,
    /// The file, or a name in brackets, or nothing.
    pub path: &'a [u8],
    /// The linker's build id, if there is one.
    pub build_id: &'a [u8],
}

/// Calls `f` with each module of the current list, whose number is returned.
/// `None` if another thread is reading the maps.
pub(crate) fn each(mut f: impl FnMut(Module<'_>)) -> Option<u32> {
    let _last = LAST.lock_soon()?;
    let current = version();
    let memory = MEMORY.load(Relaxed);
    if current == 0 || memory.is_null() {
        return Some(0);
    }
    // SAFETY: the memory stays mapped, and nobody writes to the current list; the lock keeps it current.
    let list = unsafe { &(*memory).lists[current as usize % 2] };
    let len = list.len.load(Relaxed).min(MOST);
    for (code, detail) in list.code.iter().zip(&list.details).take(len) {
        let Code { start, end, .. } = code.get();
        f(Module {
            start,
            end,
            offset: detail.offset,
            path: list.paths.get(detail.path..detail.path + detail.path_len).unwrap_or_default(),
            build_id: detail.id.get(..detail.id_len).unwrap_or_default(),
        });
    }
    Some(current)
}

/// Calls `f` with the path of the module that an address is in, and where in that it is, as `addr2line` takes
/// it. `None`, and nothing done, where there is no such module, or another thread is reading the maps.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn place(pc: usize, f: impl FnOnce(&[u8], usize)) -> Option<()> {
    /// Of a program that lies where its file says.
    const FIXED: u8 = 2;
    if os::is_confined() {
        // To look at its header takes system calls.
        return None;
    }
    let code = find_or_reread(pc).filter(|code| code.base != 0)?;
    let _last = LAST.lock_soon()?;
    let memory = MEMORY.load(Relaxed);
    // SAFETY: as in `each`: there was a list a moment ago.
    let list = unsafe { &(*memory).lists[version() as usize % 2] };
    let len = list.len.load(Relaxed).min(MOST);
    let mut all = list.code.iter().zip(&list.details).take(len);
    let (_, detail) = all.find(|(at, _)| at.start() == code.start)?;
    let mut kind = [0];
    // The type in the header.
    peek::copy(code.base.wrapping_add(16), &mut kind);
    let at = if kind == [FIXED] { pc } else { pc.wrapping_sub(code.base) };
    f(list.paths.get(detail.path..detail.path + detail.path_len).unwrap_or_default(), at);
    Some(())
}

/// Runs `f` with the buffer that the maps are read into, unless another thread uses it.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn with_buffer<T>(f: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
    let _last = LAST.try_lock()?;
    let memory = MEMORY.load(Relaxed);
    // SAFETY: the memory stays mapped, and the lock is held, by which only this thread uses the buffer.
    (!memory.is_null()).then(|| f(unsafe { &mut (*memory).lines }))
}

/// Reads the maps, unless another thread does so just now or, without `at_once`, it was done too often
/// lately. Whether the list is a new one now.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn reread(at_once: bool) -> bool {
    if os::is_confined() || cfg!(miri) {
        return false;
    }
    let Some(mut last) = LAST.try_lock() else { return false };
    let now = os::now_ms();
    let owed = last.owed.saturating_sub(os::elapsed(last.at, now));
    if !at_once && owed > MOST_OWED {
        return false;
    }
    peek::begin();
    let mut memory = MEMORY.load(Relaxed);
    if memory.is_null() {
        memory = os::map_uncounted(mapped_len()).cast();
        if memory.is_null() {
            return false;
        }
        // Relaxed: see `find`.
        MEMORY.store(memory, Relaxed);
    }
    let current = begin();
    // SAFETY: the lock is held, so only this thread uses the buffer and writes to the list that is not
    // current; others only read its atomics. Zeroed memory is valid as both.
    let (old, next, lines, first) = unsafe {
        let lists = &raw mut (*memory).lists;
        let (old, next) =
            (&raw const (*lists)[current as usize % 2], &raw mut (*lists)[(current as usize + 1) % 2]);
        (old, next, &mut (*memory).lines, &mut (*memory).first)
    };
    let read = make(next, lines, first);
    *last = Last { at: now, owed: owed + PAUSE + read / LINES_PER_MS };
    // SAFETY: as above; nobody writes to the current list.
    let (is_same, has_gone) = unsafe { ((*next).sum == (*old).sum, has_gone(&*old, &*next)) };
    if read == 0 || (is_same && current != 0) {
        return false;
    }
    end(current, has_gone);
    true
}

/// The number of the current list. The caller, who holds the lock, is about to write to the other one.
fn begin() -> u32 {
    let current = version();
    // Release: pairs with the fence in `find`. Whoever reads what is written after this also sees that the
    // list which was current before the one that is now is no more.
    fence(Release);
    current
}

/// Makes the list current that the caller has written since [`begin`] has returned `current`.
fn end(current: u32, has_gone: bool) {
    // 0 is none. Release: pairs with the acquire in `find`.
    let number = if current == u32::MAX { 2 } else { current + 1 };
    CURRENT.store(number, Release);
    if has_gone {
        // After the list: what is found in the old list from now on must not be remembered for the new
        // number. Release: pairs with the acquire in `gone`.
        GONE.fetch_add(1, Release);
    }
}

/// Models of [`find`] beside a thread that writes lists.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::loom::{aside, beside, model_of_statics as model, second};
    use std::cell::Cell;

    std::thread_local! {
        static MAPPED: Cell<*mut Memory> = const { Cell::new(ptr::null_mut()) };
    }

    /// Lists of one module, at 100 and `number` bytes long, with `number` everywhere else.
    fn write(number: u32, memory: usize) {
        let memory: *mut Memory = ptr::with_exposed_provenance_mut(memory);
        assert_eq!(begin() + 1, number);
        let n = number as usize;
        let code = Code { start: 100, end: 100 + n, base: n, table: n, entries: n, fingerprint: n };
        // SAFETY: the memory stays; only this thread writes.
        unsafe {
            let list = &raw const (*memory).lists[n % 2];
            (*list).code[0].set(&code);
            (*list).len.store(1, Relaxed);
        }
        end(number - 1, true);
    }

    /// Memory with the first list in it.
    fn memory() -> usize {
        let memory = aside(|| {
            if MAPPED.get().is_null() {
                MAPPED.set(os::map_uncounted(mapped_len()).cast());
            }
            // SAFETY: our memory, which nobody else uses now.
            unsafe { (*MAPPED.get()).lists.iter().for_each(|list| list.len.store(0, Relaxed)) };
            MAPPED.get()
        });
        MEMORY.store(memory, Relaxed);
        memory.expose_provenance()
    }

    #[test]
    fn what_is_found_is_of_one_list() {
        model(Some(2), || {
            let memory = memory();
            write(1, memory);
            let other = beside(move || {
                write(2, memory);
                write(3, memory);
            });
            second(|| {
                if let Some(code) = find(100) {
                    let all = [code.base, code.table, code.entries, code.fingerprint];
                    assert_eq!(all, [code.end - 100; 4]);
                }
            });
            other.join().unwrap();
        });
    }

    #[test]
    fn the_first_list_is_found_whole() {
        model(None, || {
            let memory = memory();
            let other = beside(move || write(1, memory));
            second(|| {
                if let Some(code) = find(100) {
                    assert_eq!([code.base, code.table, code.entries, code.fingerprint], [1; 4]);
                }
            });
            other.join().unwrap();
        });
    }

    /// Whoever knows that something has gone does not find it any more.
    #[test]
    fn what_has_gone_is_not_found() {
        model(Some(3), || {
            let memory = memory();
            write(1, memory);
            let other = beside(move || write(2, memory));
            second(|| {
                if gone() == 2 {
                    assert_eq!(version(), 2);
                    assert!(find(100).is_none_or(|code| code.base == 2));
                }
            });
            other.join().unwrap();
        });
    }
}

/// Whether a module with an unwind table is not in the new list any more.
fn has_gone(old: &List, new: &List) -> bool {
    let mut at = new.code.iter().take(new.len.load(Relaxed)).map(Shared::get).peekable();
    old.code.iter().take(old.len.load(Relaxed)).map(Shared::get).any(|old| {
        while at.next_if(|new| new.start < old.start).is_some() {}
        let is_there = at.peek().is_some_and(|new| {
            (new.start, new.end, new.fingerprint) == (old.start, old.end, old.fingerprint)
        });
        old.table != 0 && !is_there
    })
}
