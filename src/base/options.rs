//! Options: `HAKMEM_*` in the environment, or the const builder. Read once, before the first allocation is
//! served.
//!
//! Fast paths read no options: what an option changes is set up in a heap when the heap is made.

use crate::os::{env, message};
use crate::sync::{AtomicU32, Ordering};
use core::cell::UnsafeCell;
use core::fmt;

/// Format of the statistics printed at exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatsFormat {
    /// No statistics are printed.
    None,
    /// A table for people.
    Table,
    /// One line of JSON.
    Json,
}

/// Use of transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Thp {
    /// For new SuperSlabs and mappings of 2 MiB and more, once the process is large and the kernel reports
    /// that earlier ones of the same kind are resident.
    Auto,
    /// For every SuperSlab and mapping.
    Always,
    /// For nothing.
    Never,
}

/// What happens when a pointer that is not ours is freed, or when C or C++ frees a block with the size of
/// another class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// One line on standard error, then abort.
    Abort,
    /// One line on standard error; a foreign pointer is ignored, a block with a wrong size is freed.
    Warn,
}

/// A preset: a set of options for one goal. Single options override it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// Highest throughput, for more memory: huge pages for every SuperSlab, 256 MiB of freed mappings kept,
    /// free pages kept for a second.
    Throughput,
    /// The defaults.
    Balanced,
    /// Least memory, for more page faults: free pages go back at once, no freed mapping is kept, no huge
    /// pages.
    Memory,
    /// Shortest single calls, for more memory: nothing is given back unless asked for, 128 MiB of freed
    /// mappings are kept, and no huge pages, because the first touch of one clears 2 MiB.
    Latency,
}

/// Settings of the allocator. The whole process uses one set: see [`crate::Hakmem::with_options`].
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub(crate) stats: StatsFormat,
    pub(crate) stats_file: Path,
    pub(crate) purge_delay: i64,
    pub(crate) magazine: bool,
    pub(crate) outbox: bool,
    pub(crate) orphans: bool,
    pub(crate) thp: Thp,
    pub(crate) large_cache: usize,
    pub(crate) foreign: Foreign,
    pub(crate) soft_limit: usize,
    pub(crate) hard_limit: usize,
    pub(crate) background: bool,
    pub(crate) few_syscalls: bool,
    /// For the C library only: `HAKMEM_DEEPBIND`.
    pub(crate) keep_deepbind: bool,
}

/// A path, stored without allocating. Empty for none.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    bytes: [u8; 256],
}

impl Path {
    const NONE: Path = Path { bytes: [0; 256] };

    /// A path, or `None` when it is too long.
    fn new(path: &[u8]) -> Option<Self> {
        let mut new = Self::NONE;
        // The last byte stays 0 and ends the path.
        let (_, bytes) = new.bytes.split_last_mut()?;
        bytes.get_mut(..path.len())?.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
        Some(new)
    }

    /// The path as a C string, or `None` if there is none.
    pub(crate) fn as_c_str(&self) -> Option<&core::ffi::CStr> {
        core::ffi::CStr::from_bytes_until_nul(&self.bytes).ok().filter(|path| !path.is_empty())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_c_str().fmt(f)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            stats: StatsFormat::None,
            stats_file: Path::NONE,
            purge_delay: 250,
            magazine: true,
            outbox: true,
            orphans: true,
            thp: Thp::Auto,
            large_cache: 32 << 20,
            foreign: Foreign::Abort,
            soft_limit: 0,
            hard_limit: 0,
            background: false,
            few_syscalls: false,
            keep_deepbind: false,
        }
    }

    /// `HAKMEM_PROFILE`: sets all options of the preset. Call it before you set single options.
    pub const fn profile(self, profile: Profile) -> Self {
        match profile {
            Profile::Throughput => self.purge_delay_ms(1000).large_cache(256 << 20).thp(Thp::Always),
            Profile::Balanced => {
                let new = Self::new();
                let mut own = self;
                (own.purge_delay, own.large_cache, own.thp) = (new.purge_delay, new.large_cache, new.thp);
                own
            }
            Profile::Memory => self.purge_delay_ms(0).large_cache(0).thp(Thp::Never),
            Profile::Latency => self.purge_delay_ms(-1).large_cache(128 << 20).thp(Thp::Never),
        }
    }

    /// `HAKMEM_STATS`: print statistics to standard error at exit.
    pub const fn stats(mut self, format: StatsFormat) -> Self {
        self.stats = format;
        self
    }

    /// `HAKMEM_PURGE_DELAY`: milliseconds until a free page is given back to the system. With -1, pages go
    /// back only when asked for.
    pub const fn purge_delay_ms(mut self, delay: i32) -> Self {
        self.purge_delay = if delay < 0 { -1 } else { delay as i64 };
        self
    }

    /// `HAKMEM_MAGAZINE`: whether threads cache blocks. Without it every call takes the slow path and is
    /// counted.
    pub const fn magazine(mut self, on: bool) -> Self {
        self.magazine = on;
        self
    }

    /// `HAKMEM_OUTBOX`: whether remote frees are collected in bundles before they are sent to their slabs.
    pub const fn outbox(mut self, on: bool) -> Self {
        self.outbox = on;
        self
    }

    /// `HAKMEM_ORPHANS`: whether a thread adopts slabs of threads that have exited.
    pub const fn orphans(mut self, on: bool) -> Self {
        self.orphans = on;
        self
    }

    /// `HAKMEM_THP`: use of transparent huge pages.
    pub const fn thp(mut self, thp: Thp) -> Self {
        self.thp = thp;
        self
    }

    /// `HAKMEM_LARGE_CACHE`: how many bytes of freed large mappings are kept for reuse. Up to half of the
    /// bytes of the large blocks in use are kept where that is more, plus up to four times this option while
    /// memory that was released is soon wanted again. 0 keeps none.
    pub const fn large_cache(mut self, bytes: usize) -> Self {
        self.large_cache = bytes;
        self
    }

    /// `HAKMEM_FOREIGN`: what happens when a pointer that is not ours is freed, or when C or C++ frees a
    /// block with the size of another class.
    pub const fn foreign(mut self, foreign: Foreign) -> Self {
        self.foreign = foreign;
        self
    }

    /// `HAKMEM_SOFT_LIMIT`: bytes held from the system. Before more are held, memory is given back. 0 is no
    /// limit. See [`crate::set_limits`].
    pub const fn soft_limit(mut self, bytes: usize) -> Self {
        self.soft_limit = bytes;
        self
    }

    /// `HAKMEM_HARD_LIMIT`: bytes held from the system beyond which allocations fail. 0 is no limit. A soft
    /// limit above it is ignored. See [`crate::set_limits`].
    pub const fn hard_limit(mut self, bytes: usize) -> Self {
        self.hard_limit = bytes;
        self
    }

    /// `HAKMEM_BACKGROUND`: whether a thread of the allocator gives free memory back
    /// ([`crate::start_background`]). It starts once the process holds a few MiB.
    pub const fn background(mut self, on: bool) -> Self {
        self.background = on;
        self
    }

    /// `HAKMEM_FEW_SYSCALLS`: only the system calls that any allocator makes, for programs that restrict
    /// themselves. See [`crate::api::global::few_syscalls`].
    pub const fn few_syscalls(mut self, on: bool) -> Self {
        self.few_syscalls = on;
        self
    }
}

struct Global(UnsafeCell<Options>);

// SAFETY: written once, by the thread that moved `STATE` from `UNREAD` to `READING`, and read once it is
// `READ`.
unsafe impl Sync for Global {}

static OPTIONS: Global = Global(UnsafeCell::new(Options::new()));
static STATE: AtomicU32 = AtomicU32::new(UNREAD);
const UNREAD: u32 = 0;
const READING: u32 = 1;
const READ: u32 = 2;

/// What is in force before the options have been read.
static DEFAULTS: Options = Options::new();

/// The options in force; the defaults until [`init`] has run.
pub(crate) fn get() -> &'static Options {
    // Acquire: pairs with the release in `init_first`.
    if STATE.load(Ordering::Acquire) != READ {
        return &DEFAULTS;
    }
    // SAFETY: written before that, and not again.
    unsafe { &*OPTIONS.0.get() }
}

/// What to do about foreign pointers, which somebody may free before the process has allocated anything.
#[cold]
pub(crate) fn foreign() -> Foreign {
    if STATE.load(Ordering::Acquire) == READ {
        return get().foreign;
    }
    let mut options = Options::new();
    env::each(b"HAKMEM_FOREIGN", |name, value| options.set(name, value));
    options.foreign
}

/// Reads the options: `base`, overridden by the environment. Then runs `then` with them. Only the first call
/// does so; the others wait until it is done.
#[inline]
pub(crate) fn init(base: &Options, then: impl FnOnce(&Options)) {
    // Acquire: pairs with the release in `init_first`.
    if STATE.load(Ordering::Acquire) != READ {
        init_first(base, then);
    }
}

#[cold]
#[inline(never)]
fn init_first(base: &Options, then: impl FnOnce(&Options)) {
    // Acquire, also in the loop below: pairs with the release at the end.
    match STATE.compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Acquire) {
        Err(READ) => return,
        Err(_) => {
            while STATE.load(Ordering::Acquire) != READ {
                crate::os::futex::pause();
            }
            return;
        }
        Ok(_) => {}
    }
    let mut options = *base;
    // The preset first, wherever it stands in the environment, so that single options override it.
    env::each(b"HAKMEM_PROFILE", |name, value| options.preset(name, value));
    env::each(b"HAKMEM_", |name, value| options.set(name, value));
    options.check_limits();
    then(&options);
    // SAFETY: only the thread that moved `STATE` to `READING` gets here, once per process, and nobody reads
    // before it is `READ`.
    unsafe { *OPTIONS.0.get() = options };
    // Release: pairs with the acquires in `init` and above.
    STATE.store(READ, Ordering::Release);
}

const KNOWN: &str = "HAKMEM_PROFILE, HAKMEM_STATS, HAKMEM_STATS_FILE, HAKMEM_PURGE_DELAY, HAKMEM_MAGAZINE, \
                     HAKMEM_OUTBOX, HAKMEM_ORPHANS, HAKMEM_THP, HAKMEM_LARGE_CACHE, HAKMEM_FOREIGN, \
                     HAKMEM_SOFT_LIMIT, HAKMEM_HARD_LIMIT, HAKMEM_BACKGROUND, HAKMEM_FEW_SYSCALLS, \
                     HAKMEM_DEEPBIND";

impl Options {
    /// Applies the preset; complains about an unknown one.
    fn preset(&mut self, name: &[u8], value: &[u8]) {
        // Another variable that starts with that name is left to `set`.
        if name != b"HAKMEM_PROFILE" {
            return;
        }
        let mut profile = Profile::Balanced;
        let unknown = choose(
            &mut profile,
            value,
            &[
                (b"throughput", Profile::Throughput),
                (b"balanced", Profile::Balanced),
                (b"memory", Profile::Memory),
                (b"latency", Profile::Latency),
            ],
        );
        if unknown {
            complain(name, value, "throughput, balanced, memory or latency; using none");
        } else {
            *self = self.profile(profile);
        }
    }

    /// Drops a soft limit that could never be reached.
    fn check_limits(&mut self) {
        let Options { soft_limit: soft, hard_limit: hard, .. } = *self;
        if hard != 0 && soft > hard {
            message::line(format_args!(
                "HAKMEM_SOFT_LIMIT: {soft} is above the hard limit of {hard}; using the hard limit only"
            ));
            self.soft_limit = 0;
        }
    }

    fn set(&mut self, name: &[u8], value: &[u8]) {
        let complaint = match name {
            b"HAKMEM_STATS" => choose(
                &mut self.stats,
                value,
                &[(b"none", StatsFormat::None), (b"table", StatsFormat::Table), (b"json", StatsFormat::Json)],
            )
            .then_some("none, table or json; using none"),
            b"HAKMEM_STATS_FILE" => {
                let path = Path::new(value);
                if let Some(path) = path {
                    self.stats_file = path;
                }
                path.is_none().then_some("a path of at most 255 bytes; using standard error")
            }
            b"HAKMEM_PURGE_DELAY" => match number(value, false) {
                Some(delay) if delay <= i32::MAX as u64 => {
                    self.purge_delay = delay as i64;
                    None
                }
                _ if value == b"-1" => {
                    self.purge_delay = -1;
                    None
                }
                _ => Some("milliseconds, or -1 for never; using 250"),
            },
            b"HAKMEM_MAGAZINE" => switch(&mut self.magazine, value),
            b"HAKMEM_OUTBOX" => switch(&mut self.outbox, value),
            b"HAKMEM_ORPHANS" => switch(&mut self.orphans, value),
            b"HAKMEM_BACKGROUND" => switch_off(&mut self.background, value),
            b"HAKMEM_FEW_SYSCALLS" => switch_off(&mut self.few_syscalls, value),
            b"HAKMEM_THP" => choose(
                &mut self.thp,
                value,
                &[(b"auto", Thp::Auto), (b"always", Thp::Always), (b"never", Thp::Never)],
            )
            .then_some("auto, always or never; using auto"),
            b"HAKMEM_LARGE_CACHE" => bytes(&mut self.large_cache, value)
                .then_some("bytes, as 1048576, 1024K, 32M or 1G; using 32M"),
            b"HAKMEM_SOFT_LIMIT" => bytes(&mut self.soft_limit, value).then_some(NO_LIMIT),
            b"HAKMEM_HARD_LIMIT" => bytes(&mut self.hard_limit, value).then_some(NO_LIMIT),
            b"HAKMEM_DEEPBIND" => {
                choose(&mut self.keep_deepbind, value, &[(b"remove", false), (b"keep", true)])
                    .then_some("remove or keep; using remove")
            }
            b"HAKMEM_FOREIGN" => {
                choose(&mut self.foreign, value, &[(b"abort", Foreign::Abort), (b"warn", Foreign::Warn)])
                    .then_some("abort or warn; using abort")
            }
            // The preset has been applied already; the others are for the command and the tests.
            b"HAKMEM_PROFILE"
            | b"HAKMEM_LIB"
            | b"HAKMEM_LONG"
            | b"HAKMEM_RECORD_FILE"
            | b"HAKMEM_BLESS"
            | b"HAKMEM_REQUIRE_PROGRAMS"
            | b"HAKMEM_SHADOW_ROUNDS"
            | b"HAKMEM_SHADOW_SEED" => None,
            _ => {
                message::line(format_args!("{}: unknown option; known: {KNOWN}", message::Shown(name)));
                None
            }
        };
        if let Some(expected) = complaint {
            complain(name, value, expected);
        }
    }
}

const NO_LIMIT: &str = "bytes, as 1048576, 1024K, 32M or 1G, or 0 for no limit; using 0";

fn complain(name: &[u8], value: &[u8], expected: &str) {
    let value = message::Shown(&value[..value.len().min(64)]);
    message::line(format_args!("{}={value}: expected {expected}", message::Shown(name)));
}

/// Sets `option` to the choice that `value` names. True when there is none of that name.
fn choose<T: Copy>(option: &mut T, value: &[u8], choices: &[(&[u8], T)]) -> bool {
    match choices.iter().find(|(name, _)| *name == value) {
        Some((_, choice)) => *option = *choice,
        None => return true,
    }
    false
}

fn switch(option: &mut bool, value: &[u8]) -> Option<&'static str> {
    choose(option, value, &[(b"on", true), (b"off", false)]).then_some("on or off; using on")
}

/// Sets `option` to a number of bytes. True when `value` is not one.
fn bytes(option: &mut usize, value: &[u8]) -> bool {
    match number(value, true).and_then(|bytes| usize::try_from(bytes).ok()) {
        Some(bytes) => *option = bytes,
        None => return true,
    }
    false
}

/// Like [`switch`], for an option that is off by default.
fn switch_off(option: &mut bool, value: &[u8]) -> Option<&'static str> {
    switch(option, value).and(Some("on or off; using off"))
}

/// A whole number. With `suffix`, it may end in K, M or G.
fn number(value: &[u8], suffix: bool) -> Option<u64> {
    let (digits, shift) = match value.split_last() {
        Some((b'K' | b'k', rest)) if suffix => (rest, 10),
        Some((b'M' | b'm', rest)) if suffix => (rest, 20),
        Some((b'G' | b'g', rest)) if suffix => (rest, 30),
        _ => (value, 0),
    };
    if digits.is_empty() {
        return None;
    }
    let mut n = 0u64;
    for &b in digits {
        if !b.is_ascii_digit() {
            return None;
        }
        n = n.checked_mul(10)?.checked_add((b - b'0') as u64)?;
    }
    n.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"0", false), Some(0));
        assert_eq!(number(b"250", false), Some(250));
        assert_eq!(number(b"32M", true), Some(32 << 20));
        assert_eq!(number(b"1g", true), Some(1 << 30));
        for bad in [&b""[..], b"M", b"-1", b"1x", b"99999999999999999999", b"18446744073709551615G"] {
            assert_eq!(number(bad, true), None, "{bad:?}");
        }
        assert_eq!(number(b"1K", false), None);
    }

    #[test]
    fn presets() {
        let preset = |value: &[u8]| {
            let mut o = Options::new().foreign(Foreign::Warn).purge_delay_ms(7);
            o.preset(b"HAKMEM_PROFILE", value);
            assert_eq!(o.foreign, Foreign::Warn, "a preset does not change it");
            (o.purge_delay, o.large_cache, o.thp)
        };
        assert_eq!(preset(b"throughput"), (1000, 256 << 20, Thp::Always));
        assert_eq!(preset(b"balanced"), (250, 32 << 20, Thp::Auto));
        assert_eq!(preset(b"memory"), (0, 0, Thp::Never));
        assert_eq!(preset(b"latency"), (-1, 128 << 20, Thp::Never));
        assert_eq!(preset(b"fast"), (7, 32 << 20, Thp::Auto), "an unknown one changes nothing");
        let mut o = Options::new();
        o.preset(b"HAKMEM_PROFILE_X", b"memory");
        assert_eq!(o.purge_delay, 250);
    }

    #[test]
    fn values_are_taken_and_bad_ones_leave_the_default() {
        let mut o = Options::new();
        o.set(b"HAKMEM_STATS", b"json");
        o.set(b"HAKMEM_PURGE_DELAY", b"-1");
        o.set(b"HAKMEM_MAGAZINE", b"off");
        o.set(b"HAKMEM_THP", b"sometimes");
        o.set(b"HAKMEM_NO_SUCH", b"1");
        o.set(b"HAKMEM_STATS_FILE", b"/tmp/x");
        assert_eq!((o.stats, o.purge_delay, o.magazine, o.thp), (StatsFormat::Json, -1, false, Thp::Auto));
        assert_eq!(o.stats_file.as_c_str(), Some(c"/tmp/x"));
        o.set(b"HAKMEM_LARGE_CACHE", b"2M");
        o.set(b"HAKMEM_SOFT_LIMIT", b"3M");
        o.set(b"HAKMEM_HARD_LIMIT", b"1G");
        o.set(b"HAKMEM_HARD_LIMIT", b"plenty");
        assert_eq!((o.large_cache, o.soft_limit, o.hard_limit), (2 << 20, 3 << 20, 1 << 30));
    }

    #[test]
    fn a_soft_limit_above_the_hard_one_is_given_up() {
        let checked = |soft, hard| {
            let mut o = Options::new().soft_limit(soft).hard_limit(hard);
            o.check_limits();
            (o.soft_limit, o.hard_limit)
        };
        for good in [(0, 0), (5, 0), (0, 5), (4, 5), (5, 5)] {
            assert_eq!(checked(good.0, good.1), good);
        }
        assert_eq!(checked(6, 5), (0, 5));
    }
}
