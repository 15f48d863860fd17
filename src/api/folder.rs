//! The working directory when the process started. Relative paths of the options begin there: the program may
//! go elsewhere before a file is written.

use crate::os::file;
use crate::os::message::Text;
use crate::sync::AtomicU8;
use crate::sync::Ordering::Relaxed;

/// The longest that is remembered.
pub(super) const LONGEST: usize = 1024;
/// The path, with zeros behind it, and nothing else if there is none. Relaxed, always: written once, before
/// the program runs, or before it hears that the allocator has begun.
static PATH: [AtomicU8; LONGEST] = [const { AtomicU8::new(0) }; LONGEST];

/// Remembers it. Called when the process starts.
pub(super) fn remember() {
    let mut folder = [0; LONGEST];
    let folder = file::working_directory(&mut folder);
    PATH.iter().zip(folder).for_each(|(to, byte)| to.store(*byte, Relaxed));
}

/// Adds it and a slash to `path`; nothing when it is not known.
pub(super) fn push<const N: usize>(path: &mut Text<N>) {
    let before = path.bytes().len();
    PATH.iter()
        .map(|byte| byte.load(Relaxed))
        .take_while(|&byte| byte != 0)
        .for_each(|byte| path.push(&[byte]));
    if path.bytes().len() > before {
        path.push(b"/");
    }
}
