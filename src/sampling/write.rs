//! The profile's file: `docs/profile-format.md`. A frame is put together in memory and goes to the file by
//! one call, so that a process that is killed leaves whole frames, but for the last.

use crate::os;
use crate::os::file::{self, File};
use crate::sampling::frames::{Frame, seal};
use crate::sampling::grown::Grown;
use crate::sampling::sites::Site;
use crate::sampling::stacks::OTHERS;
use crate::sampling::state::{self, with_store};
use crate::sampling::store::{Store, Written};
use crate::sampling::{pins, tags};
use crate::sync::Ordering::Relaxed;
use core::ffi::CStr;

/// The first bytes of a file.
pub(super) const MAGIC: &[u8; 8] = b"HAKPROF1";
/// The version of the format.
const VERSION: u32 = 1;

/// Kinds of frames.
mod kind {
    pub(super) const PROCESS: u32 = 1;
    pub(super) const MODULES: u32 = 2;
    pub(super) const STACKS: u32 = 3;
    pub(super) const TAGS: u32 = 4;
    pub(super) const SITES: u32 = 5;
    pub(super) const THREADS: u32 = 6;
    pub(super) const SNAPSHOT: u32 = 7;
    pub(super) const LIFETIMES: u32 = 8;
    pub(super) const END: u32 = 9;
}

/// Why a snapshot is written. All but the first have a row for every site.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was time.
    Timer = 0,
    /// The process ends, or the profile.
    End = 1,
    /// The program or the user has asked.
    Asked = 2,
}

/// The figures of a snapshot that the allocator knows: see the format.
pub(crate) type Totals = [u64; 8];

/// Writes all that was gathered to a new file at `path`, which becomes visible when it is whole, or to what
/// is there and is no file. False, after which a file is as it was, when there is no memory, or the system
/// refuses.
pub(crate) fn write_to(path: &CStr, why: Why, totals: &Totals) -> bool {
    look_for_modules();
    let Some(mut out) = with_store(true, |store| {
        let mut out = Grown::new();
        put(store, &mut out, Written::default(), why, totals);
        out
    }) else {
        return false;
    };
    seal(&mut out, MAGIC.len());
    let done = !out.is_empty() && file::write_to(path, &out);
    out.clear();
    done
}

/// Notices the modules that have taken the place of others, as far as a walk has not: those laid out as they
/// were. Stacks that are noted after this are theirs.
pub(super) fn look_for_modules() {
    #[cfg(feature = "profile")]
    {
        use crate::stacks::modules;
        if modules::version() != 0 {
            modules::reread(true);
        }
    }
}

/// Puts the frames into `out`, which is empty, that a file needs which has `have`, and a snapshot. Returns
/// what it has then; `None`, and nothing is put there, without memory: readers would refuse a part of it.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn put(
    store: &mut Store,
    out: &mut Grown<u8>,
    have: Written,
    why: Why,
    totals: &Totals,
) -> Option<Written> {
    let now = put_frames(store, out, have, why, totals);
    if now.is_none() {
        out.truncate(0);
    }
    now
}

/// [`put`], of which something is in `out` after a failure.
#[unsafe(link_section = "hakmem_rare")]
fn put_frames(
    store: &mut Store,
    out: &mut Grown<u8>,
    have: Written,
    why: Why,
    totals: &Totals,
) -> Option<Written> {
    fn or_none(done: bool) -> Option<()> {
        done.then_some(())
    }
    let mut now = have;
    // About what follows, so that it need not be moved while it grows.
    let words = store.stacks.words() * size_of::<usize>();
    out.reserve((64 << 10) + words + store.sites.len() * 64);
    if have.begun == 0 {
        or_none(out.append(MAGIC) && put_process(store, out))?;
        now.begun = 1;
    }
    if why != Why::Timer && state::is_gathering() {
        pins::measure(store);
    }
    store.lists.follow(&mut store.stacks);
    or_none(put_named_stacks(store, out, have, &mut now))?;
    if have.tags < store.tags.len() {
        or_none(put_tags(store, out, have.tags))?;
        now.tags = store.tags.len();
    }
    if have.sites < store.next_site {
        or_none(put_sites(store, out, have.sites))?;
        now.sites = store.next_site;
    }
    let renamed = store.threads.renamed;
    let known = if have.renamed == renamed { have.threads } else { 0 };
    if known < store.threads.len() && put_threads(store, out, known) {
        (now.threads, now.renamed) = (store.threads.len(), renamed);
    }
    if why != Why::Timer {
        put_lifetimes(store, out);
    }
    or_none(put_snapshot(store, out, why, totals, have))?;
    now.gone = store.gone.len();
    if why == Why::End {
        let mut frame = Frame::new(out, kind::END);
        frame.u32(why as u32);
        now.ended = frame.end();
    }
    Some(now)
}

fn put_process(store: &Store, out: &mut Grown<u8>) -> bool {
    let mut frame = Frame::new(out, kind::PROCESS);
    frame.u32(VERSION);
    frame.u32(os::process_id());
    frame.u64(store.rate());
    frame.u64(store.began.real);
    frame.u64(store.began.monotonic);
    frame.u32(os::page_size() as u32);
    // And that large sizes are rounded to 64ths.
    frame.u32(u32::from(store.began.late) | 2);
    let at = frame.later();
    let mut buffer = [0u8; 512];
    let mut length = 0;
    if let Some(file) = File::read_only(c"/proc/self/cmdline") {
        loop {
            let more = file.read(&mut buffer);
            if more.is_empty() || length > 64 << 10 {
                break;
            }
            length += more.len();
            frame.bytes(more);
        }
    }
    frame.set(at, length);
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    frame.u32(version.len() as u32);
    frame.bytes(version);
    frame.end()
}

/// Puts the stacks that a file does not have which has `have`, each behind the list of modules by which it is
/// named.
#[unsafe(link_section = "hakmem_rare")]
fn put_named_stacks(store: &Store, out: &mut Grown<u8>, have: Written, now: &mut Written) -> bool {
    for list in store.lists.earlier().skip(have.lists) {
        now.lists += 1;
        let number = now.lists as u32;
        // The file may have them from before they were left to it.
        if store.stacks.from(have.stacks).any(|(place, _)| store.stacks.list(place) == number) {
            // This is not the last list.
            now.modules = 0;
            if !(put_modules(out, list) && put_stacks(store, out, have.stacks, number)) {
                return false;
            }
        }
    }
    let (last, version) = store.lists.last();
    if now.modules != version && !put_modules(out, last) {
        return false;
    }
    now.modules = version;
    let done = have.stacks == store.stacks.next() || put_stacks(store, out, have.stacks, 0);
    now.stacks = store.stacks.next();
    now.others = have.others || store.has_others;
    done && (now.others == have.others || put_others(out))
}

fn put_modules(out: &mut Grown<u8>, list: &[u8]) -> bool {
    let mut frame = Frame::new(out, kind::MODULES);
    frame.bytes(list);
    frame.end()
}

/// Puts the stack that stands for others, and the thread that does.
#[unsafe(link_section = "hakmem_rare")]
fn put_others(out: &mut Grown<u8>) -> bool {
    let mut frame = Frame::new(out, kind::STACKS);
    [1, OTHERS].iter().for_each(|&number| frame.u32(number));
    // No walk was possible, in which there are no addresses.
    frame.u8(3);
    frame.u16(0);
    let done = frame.end();
    let mut frame = Frame::new(out, kind::THREADS);
    [1, OTHERS].iter().for_each(|&number| frame.u32(number));
    frame.bytes(b"\x08(others)");
    done && frame.end()
}

/// Puts the stacks from a number on that are named by this list.
fn put_stacks(store: &Store, out: &mut Grown<u8>, from: u32, list: u32) -> bool {
    let mut frame = Frame::new(out, kind::STACKS);
    let at = frame.later();
    let mut count = 0;
    for (place, number) in store.stacks.from(from).filter(|&(place, _)| store.stacks.list(place) == list) {
        count += 1;
        let (end, addresses) = store.stacks.get(place);
        frame.u32(number);
        frame.u8(end);
        frame.u16(addresses.len() as u16);
        addresses.iter().for_each(|&address| frame.u64(address as u64));
    }
    frame.set(at, count);
    frame.end()
}

fn put_tags(store: &Store, out: &mut Grown<u8>, from: usize) -> bool {
    let mut frame = Frame::new(out, kind::TAGS);
    frame.u32((store.tags.len() - from) as u32);
    for (at, &number) in store.tags.iter().enumerate().skip(from) {
        let text = tags::text(number).unwrap_or_default();
        frame.u32(at as u32);
        frame.u16(text.len() as u16);
        frame.bytes(text);
    }
    frame.end()
}

fn put_sites(store: &Store, out: &mut Grown<u8>, from: u32) -> bool {
    let first = store.sites.partition_point(|site| site.number < from);
    let mut frame = Frame::new(out, kind::SITES);
    frame.u32((store.sites.len() - first) as u32);
    for site in store.sites.iter().skip(first) {
        frame.u32(site.number);
        frame.u32(site.stack);
        frame.u32(site.thread);
        frame.u32(site.tag);
        frame.u64(site.size);
    }
    frame.end()
}

fn put_threads(store: &Store, out: &mut Grown<u8>, from: usize) -> bool {
    let mut frame = Frame::new(out, kind::THREADS);
    frame.u32((store.threads.len() - from) as u32);
    for thread in store.threads.rows().iter().skip(from) {
        let name = thread.name.split(|&byte| byte == 0).next().unwrap_or_default();
        frame.u32(thread.id);
        frame.u8(name.len() as u8);
        frame.bytes(name);
    }
    frame.end()
}

fn put_snapshot(store: &Store, out: &mut Grown<u8>, why: Why, totals: &Totals, have: Written) -> bool {
    let all = have.sites == 0 || why != Why::Timer;
    let mut frame = Frame::new(out, kind::SNAPSHOT);
    frame.u64(os::now_ns().saturating_sub(store.began.monotonic));
    frame.u32(why as u32);
    frame.u32(totals.len() as u32 + 1);
    // What came later lies behind.
    let (first, later) = totals.split_at(7);
    first.iter().for_each(|&total| frame.u64(total));
    frame.u64(store.lost + state::MISSED.load(Relaxed));
    later.iter().for_each(|&total| frame.u64(total));
    let at = frame.later();
    let mut rows = 0;
    let is_due = |site: &Site| all || site.changed != 0;
    for &number in store.gone.iter().skip(have.gone).filter(|&&number| number < have.sites) {
        rows += 1;
        frame.u32(number);
        // Others have what it had.
        frame.bytes(&[0; 32]);
    }
    for site in store.sites.iter().filter(|site| is_due(site)) {
        rows += 1;
        frame.u32(site.number);
        frame.u64(site.allocated);
        frame.u64(site.live.into());
        frame.u64(store.at_peak(site));
        frame.u64(site.pinned.to_bits());
    }
    frame.set(at, rows);
    frame.end()
}

fn put_lifetimes(store: &Store, out: &mut Grown<u8>) -> bool {
    let mut frame = Frame::new(out, kind::LIFETIMES);
    let at = frame.later();
    let mut rows = 0;
    for site in store.sites.iter() {
        let pairs = store.lifetimes(site).count();
        if pairs != 0 {
            rows += 1;
            frame.u32(site.number);
            frame.u8(pairs as u8);
            for known in store.lifetimes(site) {
                frame.u8(known.log as u8);
                frame.u64(known.count);
            }
        }
    }
    frame.set(at, rows);
    frame.end()
}

#[cfg(test)]
mod tests;
