//! The words by which a profile is asked for from outside, and what they say of the profile's file.

use crate::api::folder;
use crate::os::file;
use crate::os::message::{self, Text};
use crate::os::signals;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use core::{iter, mem};

/// What has been asked for, and what came of it. The layout is known to the `hakmem` command.
#[repr(C)]
pub struct Control {
    magic: [u8; 8],
    /// In the lowest byte one of [`START`], [`STOP`] and [`TOGGLE`], in the one above it one of [`STATS`] and
    /// [`FORGET`]; 0 for nothing. Written last by who asks, each byte by itself: a profile and statistics may
    /// be asked for at once.
    pub(super) request: AtomicU32,
    /// What came of the last request: 0 while it is not known, else [`RUNNING`], [`ENDED`], or
    /// [`REFUSED`] and the number of an error.
    pub(super) state: AtomicU32,
    /// Of the profile that [`START`] asks for, as the next two: mean bytes between two samples.
    pub(super) rate: AtomicU64,
    /// Milliseconds between two snapshots.
    pub(super) interval: AtomicU32,
    _reserved: AtomicU32,
    /// What the file's path begins with, ended by a zero byte.
    prefix: [AtomicU8; 256],
    /// The same of the profile that runs, or ran last, which keeps it whatever is asked for meanwhile. Empty
    /// if that has no file of its own.
    running: [AtomicU8; LONGEST],
    /// What follows is here: not in libraries that are older.
    knows_statistics: [u8; 8],
    /// The number of the last question for statistics, which is even for a table, odd for JSON.
    pub(super) asked: AtomicU32,
    /// The number of the one that was answered last.
    pub(super) answered: AtomicU32,
    /// Where the answer is, until another question or [`FORGET`]; 0 if there is none to be had.
    pub(super) text: AtomicU64,
    /// How many bytes it has.
    pub(super) length: AtomicU64,
}

/// Start a profile that goes to a file.
pub(super) const START: u32 = 1;
/// Stop it.
pub(super) const STOP: u32 = 2;
/// One or the other.
pub(super) const TOGGLE: u32 = 3;

/// The bits of these.
const PROFILE: u32 = 0xff;

/// Keep the statistics as text. All bits but the lowest byte's belong to these two.
pub(super) const STATS: u32 = 1 << 8;
/// The text has been read.
pub(super) const FORGET: u32 = 2 << 8;

/// There is a profile.
pub(super) const RUNNING: u32 = 1;
/// It has been stopped.
pub(super) const ENDED: u32 = 2;
/// Below the number of an error.
pub(super) const REFUSED: u32 = 16;

/// The process's one.
pub static CONTROL: Control = Control {
    magic: *b"HAKCTRL2",
    request: AtomicU32::new(0),
    state: AtomicU32::new(0),
    rate: AtomicU64::new(0),
    interval: AtomicU32::new(0),
    _reserved: AtomicU32::new(0),
    prefix: [const { AtomicU8::new(0) }; 256],
    running: [const { AtomicU8::new(0) }; LONGEST],
    knows_statistics: *b"HAKSTAT1",
    asked: AtomicU32::new(0),
    answered: AtomicU32::new(0),
    text: AtomicU64::new(0),
    length: AtomicU64::new(0),
};

// Where the command finds what is for statistics.
const _: () = assert!(mem::offset_of!(Control, knows_statistics) == 1568);

/// What the request asks of profiles, and what of statistics.
pub(super) fn split(request: u32) -> (u32, u32) {
    (request & PROFILE, request & !PROFILE)
}

/// Bytes of the longest path that [`prefix`] gives.
pub(super) const LONGEST: usize = folder::LONGEST + 256;
/// Bytes of the longest path of the profile's file, which has the process's number as well.
pub(super) const LONGEST_FILE: usize = LONGEST + 32;
const _: () = assert!(LONGEST_FILE <= file::LONGEST);

/// Remembers the working directory, if the options' prefix begins there. Called once, when the process
/// starts.
pub(super) fn remember_folder(prefix: &[u8]) {
    if !prefix.starts_with(b"/") {
        folder::remember();
    }
}

/// The profile that begins goes where `given` says, or else where it was asked to from outside.
pub(super) fn keep_prefix(given: Option<&[u8]>) {
    let mut path = Text::<LONGEST>::new();
    match given {
        Some(given) => path.push(given),
        None => add(&mut path, &CONTROL.prefix),
    }
    if path.bytes().first().is_some_and(|&byte| byte != b'/') {
        let relative = mem::replace(&mut path, Text::new());
        folder::push(&mut path);
        path.push(relative.bytes());
    }
    let bytes = path.bytes().iter().copied().chain(iter::repeat(0));
    CONTROL.running.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Relaxed));
}

/// Adds what the path of the profile's file begins with to `path`.
pub(super) fn prefix<const N: usize>(path: &mut Text<N>) {
    add(path, &CONTROL.running);
}

/// Adds what is before the first zero byte.
fn add<const N: usize>(path: &mut Text<N>, text: &[AtomicU8]) {
    let bytes = text.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0);
    bytes.for_each(|byte| path.push(&[byte]));
}

/// Whether [`listen`] has set a handler. Relaxed: by the process's first and last code.
static LISTENS: AtomicBool = AtomicBool::new(false);

/// Starts a profile at the next signal of this number, stops it at the one after that, and so on. Called
/// once, when the process starts.
pub(super) fn listen(signal: i32) {
    if signals::handle(signal, ask) {
        LISTENS.store(true, Relaxed);
    } else {
        message::line(format_args!("HAKMEM_PROFILE_SIGNAL: signal {signal} cannot be handled"));
    }
}

/// Does not listen any more, if it did: for a library that is unloaded.
pub(super) fn stop_listening(signal: i32) {
    if LISTENS.swap(false, Relaxed) {
        signals::unhandle(signal, ask);
    }
}

/// The handler.
extern "C" fn ask(_: i32) {
    // Not an exchange, since it does not matter which statistics are asked for at this very moment: who wants
    // them asks again, and nobody gets them twice.
    let (_, statistics) = split(CONTROL.request.load(Relaxed));
    // Release: pairs with the acquire in `obey`.
    CONTROL.request.store(statistics | TOGGLE, Release);
}
