//! The words by which a profile is asked for from outside, and what they say of the profile's file.

use crate::api::folder;
use crate::os::message::{self, Text};
use crate::os::signals;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64};
use core::ffi::CStr;

/// What has been asked for, and what came of it. The layout is known to the `hakmem` command.
#[repr(C)]
pub struct Control {
    magic: [u8; 8],
    /// One of [`START`], [`STOP`] and [`TOGGLE`]; 0 for nothing. Written last by who asks.
    pub(super) request: AtomicU32,
    /// What came of the last request: 0 while it is not known, else [`RUNNING`], [`ENDED`], or
    /// [`REFUSED`] and the number of an error.
    pub(super) state: AtomicU32,
    /// Mean bytes between two samples.
    pub(super) rate: AtomicU64,
    /// Milliseconds between two snapshots.
    pub(super) interval: AtomicU32,
    _reserved: AtomicU32,
    /// What the file's path begins with, ended by a zero byte.
    prefix: [AtomicU8; 256],
}

/// Start a profile that goes to a file.
pub(super) const START: u32 = 1;
/// Stop it.
pub(super) const STOP: u32 = 2;
/// One or the other.
pub(super) const TOGGLE: u32 = 3;

/// There is a profile.
pub(super) const RUNNING: u32 = 1;
/// It has been stopped.
pub(super) const ENDED: u32 = 2;
/// Below the number of an error.
pub(super) const REFUSED: u32 = 16;

/// The process's one.
pub static CONTROL: Control = Control {
    magic: *b"HAKCTRL1",
    request: AtomicU32::new(0),
    state: AtomicU32::new(0),
    rate: AtomicU64::new(0),
    interval: AtomicU32::new(0),
    _reserved: AtomicU32::new(0),
    prefix: [const { AtomicU8::new(0) }; 256],
};

/// Bytes of the longest path that [`prefix`] gives.
pub(super) const LONGEST: usize = folder::LONGEST + 256;

/// Sets where the next profile goes, and how it is taken. Called once, when the process starts.
pub(super) fn prepare(prefix: &CStr, rate: usize, interval: u32) {
    let bytes = prefix.to_bytes();
    for (i, to) in CONTROL.prefix.iter().enumerate() {
        to.store(bytes.get(i).copied().unwrap_or(0), Relaxed);
    }
    if !bytes.starts_with(b"/") {
        folder::remember();
    }
    CONTROL.rate.store(rate as u64, Relaxed);
    CONTROL.interval.store(interval, Relaxed);
}

/// Adds what the file's path begins with to `path`.
pub(super) fn prefix<const N: usize>(path: &mut Text<N>) {
    if CONTROL.prefix[0].load(Relaxed) != b'/' {
        folder::push(path);
    }
    let bytes = CONTROL.prefix.iter().map(|byte| byte.load(Relaxed));
    bytes.take_while(|&byte| byte != 0).for_each(|byte| path.push(&[byte]));
}

/// Starts a profile at the next signal of this number, stops it at the one after that, and so on. Called
/// once, when the process starts.
pub(super) fn listen(signal: i32) {
    if !signals::handle(signal, ask) {
        message::line(format_args!("HAKMEM_PROFILE_SIGNAL: signal {signal} cannot be handled"));
    }
}

/// Does not listen any more, if it did: for a library that is unloaded.
pub(super) fn stop_listening(signal: i32) {
    if signal != 0 {
        signals::unhandle(signal, ask);
    }
}

/// The handler.
extern "C" fn ask(_: i32) {
    // Release: pairs with the acquire in `obey`.
    CONTROL.request.store(TOGGLE, Release);
}
