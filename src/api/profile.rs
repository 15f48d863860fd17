//! The heap profile: who holds the memory, by call stack.
//!
//! While a profile is taken, about one allocation in 512 KiB of allocated bytes is *sampled*: its call stack
//! is noted, and when it is freed. From that the `hakmem profile` command, or any program that reads the file
//! (`docs/profile-format.md` in the repository), estimates how many bytes each call site has allocated and
//! holds. Without a profile there is no cost.
//!
//! ```
//! # #[global_allocator]
//! # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
//! hakmem::profile::start(hakmem::profile::DEFAULT_RATE)?;
//! let words: Vec<String> = (0..100_000).map(|i| format!("word {i}")).collect();
//! # let folder = std::env::temp_dir();
//! hakmem::profile::write(folder.join("words.hakprof").to_str().unwrap())?;
//! hakmem::profile::stop();
//! # drop(words);
//! # Ok::<(), hakmem::profile::Error>(())
//! ```

use crate::api::{control, profile_file};
use crate::base::options;
use crate::front::heap::Heap;
use crate::front::{lease, thread};
use crate::guard;
use crate::os;
use crate::reclaim::idle_heaps;
use crate::sampling::{self, Why};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicU32};
use core::ffi::CStr;
use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

/// The mean number of bytes between two samples, unless told otherwise: 512 KiB.
pub const DEFAULT_RATE: usize = 512 << 10;

/// Whether there has been a profile.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// The last epoch of the gates.
static EPOCHS: AtomicU32 = AtomicU32::new(0);
/// Why a profile cannot be started or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The rate is 0.
    Rate,
    /// There is a profile already.
    Running,
    /// There is none, and there has not been one.
    NotRunning,
    /// There is no memory for it, the allocator may make few system calls only, or it was built without the
    /// feature `profile`.
    Unavailable,
    /// The path is empty, too long or contains a zero byte.
    Path,
    /// The system does not let the file be written.
    File,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Rate => "the rate of a profile is at least 1 byte",
            Error::Running => "there is a profile already: stop it first",
            Error::NotRunning => "there is no profile: start one first",
            Error::Unavailable => "no memory for a profile, few system calls only are allowed, or built without the feature \"profile\"",
            Error::Path => "the path of a profile has 1 to 1312 bytes, and none of them is zero",
            Error::File => "the file of the profile cannot be written",
        })
    }
}

impl core::error::Error for Error {}

/// Starts a profile with one sample in `rate` bytes, on average. All threads take part: this one from now on,
/// others when they next need a block that their magazines do not have. Blocks that were allocated before are
/// unknown to it.
///
/// What an earlier profile has gathered is forgotten.
///
/// # Errors
///
/// [`Error::Rate`], [`Error::Running`] and [`Error::Unavailable`]; then nothing has changed.
pub fn start(rate: usize) -> Result<(), Error> {
    start_with(rate, true)?;
    control::keep_prefix(Some(b""));
    Ok(())
}

#[unsafe(link_section = "hakmem_rare")]
fn start_with(rate: usize, late: bool) -> Result<(), Error> {
    if rate == 0 {
        return Err(Error::Rate);
    }
    // The options are read, and with them what the system allows, before the first heap.
    let none = thread::with_heap(None, |heap| heap.is_null());
    if none || os::is_confined() || !cfg!(feature = "profile") {
        return Err(Error::Unavailable);
    }
    if !sampling::begin(rate as u64, late, || {
        arm(true);
    }) {
        return Err(if sampling::is_gathering() { Error::Running } else { Error::Unavailable });
    }
    BEGUN.store(true, Relaxed);
    profile_file::claim();
    follow();
    idle_heaps::unsettle();
    Ok(())
}

/// Stops the profile. What it has gathered stays, as of now, for [`write()`], until the next [`start()`].
pub fn stop() {
    if !sampling::is_gathering() {
        return;
    }
    profile_file::finish();
    sampling::end(options::get().profile_rate as u64, arm);
    follow();
}

/// Stops the profile, and shows samples to no tracers either: neither can work any more.
pub(super) fn give_up() {
    if sampling::is_on() {
        profile_file::finish();
        sampling::end(0, arm);
        follow();
    }
}

/// Arms all heaps, or disarms them, unless they are armed for [`guard`] as well. Returns whether they are.
fn arm(on: bool) -> bool {
    let on = on || guard::is_on();
    // Never 0, which is none.
    let epoch = || EPOCHS.fetch_add(1, Relaxed).wrapping_add(1).max(1);
    lease::set_epoch(if on { epoch() } else { 0 });
    on
}

/// Takes samples for the tracers that are attached to the probes, if there are any, or takes none any more.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn follow_tracers() {
    // As for a profile.
    let none = thread::with_heap(None, |heap| heap.is_null());
    if os::is_confined() {
        return sampling::refuse_tracers();
    }
    if !none {
        sampling::follow_tracers(options::get().profile_rate as u64, arm);
        follow();
        idle_heaps::unsettle();
    }
}

/// Writes what has been gathered to a new file at `path`, which replaces one that is there, when it is whole.
/// A relative path begins in the working directory; a path has at most 1312 bytes. What is no file, such as a
/// pipe or a link, stays, and is written to. The profile goes on.
///
/// # Errors
///
/// [`Error::Path`], [`Error::NotRunning`], [`Error::Unavailable`] after
/// [`few_syscalls`](crate::few_syscalls), and [`Error::File`]; then a file that was at `path` is as it was,
/// but what a link leads to may be empty.
pub fn write(path: &str) -> Result<(), Error> {
    // With the zero that ends it.
    let mut bytes = [0; os::file::LONGEST + 1];
    if path.len() < bytes.len() && !path.contains('\0') {
        bytes.iter_mut().zip(path.as_bytes()).for_each(|(to, from)| *to = *from);
    }
    write_to(CStr::from_bytes_until_nul(&bytes).map_err(|_| Error::Path)?)
}

/// [`write()`] with a C string.
pub(super) fn write_to(path: &CStr) -> Result<(), Error> {
    // A longer one would come back as a file that cannot be written.
    if path.is_empty() || path.count_bytes() > os::file::LONGEST {
        return Err(Error::Path);
    }
    if !BEGUN.load(Relaxed) {
        return Err(Error::NotRunning);
    }
    if os::is_confined() {
        return Err(Error::Unavailable);
    }
    if sampling::write_to(path, Why::Asked, &profile_file::totals(Why::Asked)) {
        Ok(())
    } else {
        Err(Error::File)
    }
}

/// Charges what the calling thread allocates to `tag` until the result is dropped: a request, a query, a
/// task. Reports can group by it. Scopes may be nested; the innermost counts, and its end puts back what was
/// when it began, so end them in the reverse order. Tags are remembered for as long as the process lives, so
/// use few different ones: the kind of a request rather than its number. Up to 255 bytes of each are kept,
/// and up to 4,096 tags; what comes after them is charged to `(others)`. To enter a scope takes no lock.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
/// let _scope = hakmem::scope("login");
/// let answer = vec![0u8; 10_000]; // charged to "login" in a profile
/// # drop(answer);
/// ```
#[must_use = "the scope ends when this is dropped"]
pub fn scope(tag: &str) -> Scope {
    Scope { before: enter(Some(tag.as_bytes())), _here: PhantomData }
}

/// [`scope()`] for code that has no destructors: what [`leave`] has to be called with.
pub(super) fn enter(tag: Option<&[u8]>) -> u32 {
    thread::set_tag(tag.map_or(0, sampling::tag))
}

/// Ends a scope. `before` is what [`enter`] returned.
pub(super) fn leave(before: u32) {
    thread::set_tag(before);
}

/// A scope: see [`scope()`].
#[derive(Debug)]
pub struct Scope {
    before: u32,
    /// The tag is the thread's that made it.
    _here: PhantomData<*mut ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        leave(self.before);
    }
}

/// A future whose polls run in a scope: what it allocates is charged to its tag on whatever thread it is
/// polled. Depends on no runtime.
///
/// ```
/// # #[global_allocator]
/// # static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
/// let task = hakmem::profile::Scoped::new("query", async { vec![0u8; 10_000].len() });
/// # let _ = task;
/// ```
#[derive(Debug)]
pub struct Scoped<F> {
    tag: u32,
    future: F,
}

impl<F> Scoped<F> {
    /// Charges what `future` allocates to `tag`.
    pub fn new(tag: &str, future: F) -> Self {
        Self { tag: sampling::tag(tag.as_bytes()), future }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _scope = Scope { before: thread::set_tag(self.tag), _here: PhantomData };
        // SAFETY: `future` is pinned as this is: it is never moved out, nothing here is `Unpin` unless it is,
        // and there is no destructor.
        unsafe { self.map_unchecked_mut(|scoped| &mut scoped.future) }.poll(context)
    }
}

/// In the child of a fork: its profile goes to a file of its own.
pub(super) fn inherit() {
    sampling::inherit();
    profile_file::claim();
}

/// Arms or disarms the calling thread's heap.
fn follow() {
    thread::with_heap(None, |heap| {
        if !heap.is_null() {
            // SAFETY: `with_heap` passes a heap that the calling thread owns.
            unsafe {
                let _entered = Heap::enter(heap);
                Heap::follow(heap);
            }
        }
    });
}

/// Starts a profile that goes to a file of its own, at `prefix` or where [`control`] was told to, with a
/// snapshot every `interval` milliseconds, if that is not 0.
pub(super) fn start_to_file(
    prefix: Option<&[u8]>,
    rate: usize,
    interval: u32,
    late: bool,
) -> Result<(), Error> {
    start_with(rate, late)?;
    // Not before it is known that it begins: one that runs already goes on to its own file.
    control::keep_prefix(prefix);
    profile_file::begin(interval);
    Ok(())
}

/// Whether there is a profile.
pub(super) fn is_on() -> bool {
    sampling::is_gathering()
}

/// A large block has been resized in place, or moved by the system, and has `size` bytes now.
#[cold]
#[inline(never)]
pub(super) fn resized(block: *mut u8, size: usize) {
    sampling::allocated_large(block, size, thread::tag());
}
