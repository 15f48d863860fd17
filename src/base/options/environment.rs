//! The options in the environment: their names, what their values mean, and how those are read.

use crate::base::options::{
    Foreign, GUARD, Hardened, MOST_GUARD_SLOTS, Options, Path, Preset, StatsFormat, Thp,
};
use crate::os::env;
use crate::os::message::{self, Shown};
use core::fmt;
use core::str::FromStr;

/// The preset, which is applied before all other options.
const PRESET: &str = "HAKMEM_PRESET";

/// An option: its name; which values it takes, and that others are ignored; and how it is set to a value.
/// That returns false, and changes nothing, if the value is a bad one.
type Known = (&'static str, &'static str, fn(&mut Options, &[u8]) -> bool);

static KNOWN: [Known; 24] = [
    (PRESET, "throughput, balanced, memory or latency; ignored", |o, v| {
        let preset = choice(v, &PRESETS).map(|which| o.preset(which));
        set(o, preset)
    }),
    ("HAKMEM_STATS", "none, table or json; ignored", |o, v| set(&mut o.stats, choice(v, &FORMATS))),
    ("HAKMEM_STATS_FILE", "a path of at most 255 bytes; ignored", |o, v| {
        set(&mut o.stats_file, Path::new(v))
    }),
    ("HAKMEM_PURGE_DELAY", "milliseconds, or -1 for never; ignored", |o, v| {
        set(&mut o.purge_delay, delay(v))
    }),
    ("HAKMEM_MAGAZINE", SWITCHED, |o, v| set(&mut o.magazine, choice(v, &SWITCH))),
    ("HAKMEM_OUTBOX", SWITCHED, |o, v| set(&mut o.outbox, choice(v, &SWITCH))),
    ("HAKMEM_ORPHANS", SWITCHED, |o, v| set(&mut o.orphans, choice(v, &SWITCH))),
    ("HAKMEM_THP", "auto, folios, always or never; ignored", |o, v| set(&mut o.thp, choice(v, &THP))),
    ("HAKMEM_LARGE_CACHE", "bytes, as 1048576, 1024K, 32M or 1G; ignored", |o, v| {
        set(&mut o.large_cache, bytes(v))
    }),
    ("HAKMEM_FOREIGN", "abort or warn; ignored", |o, v| set(&mut o.foreign, choice(v, &FOREIGN))),
    ("HAKMEM_SOFT_LIMIT", LIMIT, |o, v| set(&mut o.soft_limit, bytes(v))),
    ("HAKMEM_HARD_LIMIT", LIMIT, |o, v| set(&mut o.hard_limit, bytes(v))),
    ("HAKMEM_BACKGROUND", SWITCHED, |o, v| set(&mut o.background, choice(v, &SWITCH))),
    ("HAKMEM_FEW_SYSCALLS", SWITCHED, |o, v| set(&mut o.few_syscalls, choice(v, &SWITCH))),
    ("HAKMEM_PROFILE", "a path of at most 255 bytes; ignored", |o, v| set(&mut o.profile, Path::new(v))),
    ("HAKMEM_PROFILE_RATE", "bytes between two samples, as 524288 or 512K, not 0; ignored", |o, v| {
        set(&mut o.profile_rate, bytes(v).filter(|&rate| rate != 0))
    }),
    ("HAKMEM_PROFILE_INTERVAL", "milliseconds, or 0 for never; ignored", |o, v| {
        set(&mut o.profile_interval, number(v))
    }),
    (
        "HAKMEM_PROFILE_SIGNAL",
        "USR1, USR2, HUP, WINCH or a number up to 64 that stands for no fault; ignored",
        |o, v| set(&mut o.profile_signal, signal(v)),
    ),
    (
        "HAKMEM_HARDENED",
        "on, off, or some of light,checks,random,quarantine,zero,canary,guard; ignored",
        |o, v| set(&mut o.hardened, parts(v)),
    ),
    ("HAKMEM_QUARANTINE", "bytes, as 65536, 256K or 1M; ignored", |o, v| {
        set(&mut o.quarantine_bytes, bytes(v))
    }),
    ("HAKMEM_QUARANTINE_BLOCKS", "blocks, at most 8192; ignored", |o, v| {
        set(&mut o.quarantine_blocks, number(v).filter(|&blocks: &usize| blocks <= 8192))
    }),
    (
        "HAKMEM_GUARD",
        "off, on, or the number of allocations in which one gets guard pages; ignored",
        |o, v| set(&mut o.guard, choice(v, &[("off", 0), ("on", GUARD)]).or_else(|| number(v))),
    ),
    ("HAKMEM_GUARD_SLOTS", "blocks, 1 to 4096; ignored", |o, v| {
        set(&mut o.guard_slots, number(v).filter(|slots| (1..=MOST_GUARD_SLOTS).contains(slots)))
    }),
    ("HAKMEM_DEEPBIND", "remove or keep; ignored", |o, v| {
        set(&mut o.keep_deepbind, choice(v, &[("remove", false), ("keep", true)]))
    }),
];

/// What the command, the tests and the scripts read from the environment.
const OTHERS: [&str; 12] = [
    "HAKMEM_CORPUS_PART",
    "HAKMEM_DEEP_MINUTES",
    "HAKMEM_KEEP_REPORT",
    "HAKMEM_SECURITY_RUNS",
    "HAKMEM_SONAME",
    "HAKMEM_LIB",
    "HAKMEM_LONG",
    "HAKMEM_RECORD_FILE",
    "HAKMEM_BLESS",
    "HAKMEM_REQUIRE_PROGRAMS",
    "HAKMEM_SHADOW_ROUNDS",
    "HAKMEM_SHADOW_SEED",
];

const SWITCHED: &str = "on or off; ignored";
const LIMIT: &str = "bytes, as 1048576, 1024K, 32M or 1G, or 0 for no limit; ignored";

const SIGNALS: [(&str, i32); 4] =
    [("USR1", libc::SIGUSR1), ("USR2", libc::SIGUSR2), ("HUP", libc::SIGHUP), ("WINCH", libc::SIGWINCH)];
/// Signals that tell of a fault, or cannot be handled: what they stand for would be lost.
const FAULTS: [i32; 9] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGKILL,
    libc::SIGSEGV,
    libc::SIGSTOP,
    libc::SIGSYS,
];
const PARTS: [(&str, Hardened); 7] = [
    ("light", Hardened::LIGHT),
    ("checks", Hardened::CHECKS),
    ("random", Hardened::RANDOM),
    ("quarantine", Hardened::QUARANTINE),
    ("zero", Hardened::ZERO),
    ("canary", Hardened::CANARY),
    ("guard", Hardened::GUARD),
];
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
const FORMATS: [(&str, StatsFormat); 3] =
    [("none", StatsFormat::None), ("table", StatsFormat::Table), ("json", StatsFormat::Json)];
const THP: [(&str, Thp); 4] =
    [("auto", Thp::Auto), ("folios", Thp::Folios), ("always", Thp::Always), ("never", Thp::Never)];
const FOREIGN: [(&str, Foreign); 2] = [("abort", Foreign::Abort), ("warn", Foreign::Warn)];
const PRESETS: [(&str, Preset); 4] = [
    ("throughput", Preset::Throughput),
    ("balanced", Preset::Balanced),
    ("memory", Preset::Memory),
    ("latency", Preset::Latency),
];

/// Sets `option` if there is a value for it. Returns whether there is.
fn set<T>(option: &mut T, value: Option<T>) -> bool {
    value.map(|value| *option = value).is_some()
}

/// What `value` stands for.
fn choice<T: Copy>(value: &[u8], choices: &[(&str, T)]) -> Option<T> {
    choices.iter().find(|(name, _)| name.as_bytes() == value).map(|(_, choice)| *choice)
}

/// A whole number without a sign.
fn number<T: FromStr>(digits: &[u8]) -> Option<T> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Milliseconds, or -1.
fn delay(value: &[u8]) -> Option<i64> {
    if value == b"-1" { Some(-1) } else { number::<i32>(value).map(i64::from) }
}

/// The number of a signal, by that or by a name.
fn signal(value: &[u8]) -> Option<i32> {
    let by_name = choice(value.strip_prefix(b"SIG").unwrap_or(value), &SIGNALS);
    by_name.or_else(|| number(value)).filter(|number| (1..=64).contains(number) && !FAULTS.contains(number))
}

/// Parts of hardened mode, by their names.
fn parts(value: &[u8]) -> Option<Hardened> {
    let mut names = value.split(|&byte| byte == b',');
    let single = choice(value, &[("on", Hardened::ON), ("off", Hardened::OFF)]);
    single.or_else(|| names.try_fold(Hardened::OFF, |all, name| Some(all.with(choice(name, &PARTS)?))))
}

/// A number of bytes, which may end in K, M or G.
fn bytes(value: &[u8]) -> Option<usize> {
    let (digits, shift) = match value.split_last()? {
        (b'K' | b'k', digits) => (digits, 10),
        (b'M' | b'm', digits) => (digits, 20),
        (b'G' | b'g', digits) => (digits, 30),
        _ => (value, 0),
    };
    number::<usize>(digits)?.checked_mul(1 << shift)
}

/// The names of all options.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for (name, ..) in &KNOWN {
            write!(f, "{before}{name}")?;
            before = ", ";
        }
        Ok(())
    }
}

impl Options {
    /// These options, overridden by those of the environment.
    pub(super) fn with_environment(&self) -> Self {
        let mut options = *self;
        // The preset first, wherever it stands, so that single options override it.
        for first in [true, false] {
            env::each(b"HAKMEM_", |name, value| {
                if (name == PRESET.as_bytes()) == first {
                    options.set(name, value);
                }
            });
        }
        options.check_limits();
        options
    }

    /// The defaults, but for what the environment says about foreign pointers.
    pub(super) fn with_foreign() -> Self {
        let mut options = Self::new();
        env::each(b"HAKMEM_FOREIGN", |name, value| options.set(name, value));
        options
    }

    /// Drops a soft limit that could never be reached.
    pub(super) fn check_limits(&mut self) {
        let Options { soft_limit: soft, hard_limit: hard, .. } = *self;
        if hard != 0 && soft > hard {
            message::line(format_args!(
                "HAKMEM_SOFT_LIMIT: {soft} is above the hard limit of {hard}; using the hard limit only"
            ));
            self.soft_limit = 0;
        }
    }

    /// Sets the option `name`, or complains.
    pub(super) fn set(&mut self, name: &[u8], value: &[u8]) {
        let is_name = |known: &str| known.as_bytes() == name;
        if let Some((_, expected, set)) = KNOWN.iter().find(|(known, ..)| is_name(known)) {
            if !set(self, value) {
                let value = Shown(&value[..value.len().min(64)]);
                message::line(format_args!("{}={value}: expected {expected}", Shown(name)));
            }
        } else if !OTHERS.iter().any(|other| is_name(other)) {
            message::line(format_args!("{}: unknown option; known: {Names}", Shown(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(bytes(b"0"), Some(0));
        assert_eq!(bytes(b"250"), Some(250));
        for (text, shift) in [(b"3K", 10), (b"3k", 10), (b"3M", 20), (b"3m", 20), (b"3G", 30), (b"3g", 30)] {
            assert_eq!(bytes(text), Some(3 << shift), "{text:?}");
        }
        for bad in [&b""[..], b"M", b"-1", b"+1", b"1x", b"99999999999999999999", b"18446744073709551615G"] {
            assert_eq!(bytes(bad), None, "{bad:?}");
        }
        assert_eq!((delay(b"250"), delay(b"-1")), (Some(250), Some(-1)));
        for bad in [&b""[..], b"1K", b"-2", b"2147483648"] {
            assert_eq!(delay(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn names() {
        let names = std::format!("{Names}");
        assert!(names.split(", ").eq(KNOWN.iter().map(|(name, ..)| *name)), "{names}");
    }

    #[test]
    fn signals() {
        let known = [(&b"USR1"[..], libc::SIGUSR1), (b"SIGUSR2", libc::SIGUSR2), (b"10", 10), (b"64", 64)];
        for (value, number) in known {
            assert_eq!(signal(value), Some(number), "{value:?}");
        }
        for bad in [&b""[..], b"0", b"9", b"11", b"19", b"65", b"-1", b"SEGV", b"usr1"] {
            assert_eq!(signal(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn parts_of_hardened_mode() {
        let light = Hardened::CANARY.with(Hardened::ZERO).with(Hardened::GUARD);
        for (value, expected) in [
            (&b"on"[..], Hardened::ON),
            (b"off", Hardened::OFF),
            (b"checks", Hardened::CHECKS),
            (b"light", light),
            (b"guard,canary,zero", light),
            (b"light,canary", light),
            (b"light,random,quarantine", Hardened::ON),
        ] {
            assert_eq!(parts(value), Some(expected), "{value:?}");
        }
        assert_eq!(
            [Hardened::OFF, Hardened::CHECKS, Hardened::LIGHT, Hardened::ON].map(Hardened::bits),
            [0, 1, 57, 63]
        );
        for bad in [&b""[..], b"on,off", b"light,", b"LIGHT", b"canary;guard", b"light, zero"] {
            assert_eq!(parts(bad), None, "{bad:?}");
        }
    }
}
