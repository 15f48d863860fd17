//! Tests of options.

use crate::base::options::*;
#[cfg(not(any(loom, miri)))]
use crate::os::child::is_so;
use std::string::ToString;
use std::{format, fs, vec};

#[test]
fn presets() {
    let preset = |value: &[u8]| {
        let mut o = Options::new().foreign(Foreign::Warn).purge_delay_ms(7);
        o.set(b"HAKMEM_PRESET", value);
        assert_eq!(o.foreign, Foreign::Warn, "a preset does not change it");
        (o.purge_delay, o.large_cache, o.thp)
    };
    assert_eq!(preset(b"throughput"), (1000, 256 << 20, Thp::Always));
    assert_eq!(preset(b"balanced"), (250, 32 << 20, Thp::Auto));
    assert_eq!(preset(b"memory"), (0, 0, Thp::Never));
    assert_eq!(preset(b"latency"), (-1, 128 << 20, Thp::Never));
    assert_eq!(preset(b"fast"), (7, 32 << 20, Thp::Auto), "an unknown one changes nothing");
    let mut o = Options::new();
    o.set(b"HAKMEM_PRESET_X", b"memory");
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
    assert_eq!(format!("{:?} {:?}", o.stats_file, o.profile), "Some(\"/tmp/x\") None");
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

#[test]
fn there_is_a_guard_slot_and_no_more_than_there_can_be() {
    for (slots, taken) in [(0, 1), (1, 1), (2, 2), (4096, 4096), (4097, 4096)] {
        assert_eq!(Options::new().guard_slots(slots).guard_slots, taken);
    }
}

/// The least and the most that an option takes, and the words for both in the guide.
type Range = (&'static str, fn(&Options) -> i128, i128, i128, &'static str);

#[test]
#[cfg_attr(miri, ignore)]
fn the_guide_has_the_ranges_and_defaults_of_numbers() {
    let Ok(guide) = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/options.md")) else {
        // In the package of the crate there is none.
        return;
    };
    let most = usize::MAX as i128;
    assert!(guide.contains(&format!("up to {most},\nas any number for which nothing else is said")));
    let ranges: [Range; 10] = [
        (
            "HAKMEM_PURGE_DELAY",
            |o| o.purge_delay.into(),
            -1,
            i32::MAX.into(),
            "0 to 2147483647 (24 days), `-1`",
        ),
        ("HAKMEM_LARGE_CACHE", |o| o.large_cache as i128, 0, most, "bytes |"),
        ("HAKMEM_SOFT_LIMIT", |o| o.soft_limit as i128, 0, most, "bytes |"),
        ("HAKMEM_HARD_LIMIT", |o| o.hard_limit as i128, 0, most, "bytes |"),
        ("HAKMEM_PROFILE_RATE", |o| o.profile_rate as i128, 1, most, "bytes, at least 1 |"),
        (
            "HAKMEM_PROFILE_INTERVAL",
            |o| o.profile_interval.into(),
            0,
            u32::MAX.into(),
            "0 to 4294967295 (49 days)",
        ),
        ("HAKMEM_QUARANTINE", |o| o.quarantine_bytes as i128, 0, most, "bytes |"),
        ("HAKMEM_QUARANTINE_BLOCKS", |o| o.quarantine_blocks as i128, 0, 8192, "0 to 8192 |"),
        ("HAKMEM_GUARD", |o| o.guard as i128, 0, most, "number |"),
        ("HAKMEM_GUARD_SLOTS", |o| o.guard_slots as i128, 1, 4096, "1 to 4096 |"),
    ];
    let row = |name: &str| guide.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).unwrap();
    for (name, get, least, most, words) in ranges {
        assert!(row(name).contains(words), "{name}: {words}");
        for (value, is_taken) in [(least, true), (most, true), (least - 1, false), (most + 1, false)] {
            // None of these is another option's value.
            let before = Options { purge_delay: 77, guard: 77, ..Options::new() };
            let mut o = before;
            o.set(name.as_bytes(), value.to_string().as_bytes());
            assert_eq!(get(&o), if is_taken { value } else { get(&before) }, "{name}={value}");
        }
        // The first value there is the default, and 5 of none.
        let mut o = Options::new();
        for value in ["5", row(name).split('`').nth(3).unwrap()] {
            o.set(name.as_bytes(), value.as_bytes());
            assert_eq!(get(&o) == get(&Options::new()), value != "5", "{name}={value}");
        }
    }
    for name in ["HAKMEM_STATS_FILE", "HAKMEM_PROFILE"] {
        assert!(row(name).contains("| path of at most 255 bytes |"));
        for (length, is_taken) in [(255, true), (256, false)] {
            let mut o = Options::new();
            o.set(name.as_bytes(), &vec![b'p'; length]);
            let path = if name == "HAKMEM_PROFILE" { o.profile } else { o.stats_file };
            assert_eq!(path.as_c_str().map(CStr::count_bytes), Some(length).filter(|_| is_taken));
        }
    }
}

#[test]
#[cfg(not(any(loom, miri)))]
fn options_are_read_once_and_single_ones_override_the_preset() {
    assert!(is_so(|| {
        // SAFETY: no other thread runs here. Another test may have had the options read, before.
        unsafe {
            OPTIONS.unmake();
            std::env::set_var("HAKMEM_FOREIGN", "warn");
            std::env::set_var("HAKMEM_LARGE_CACHE", "7");
            std::env::set_var("HAKMEM_PRESET", "memory");
        }
        assert_eq!(Options::with_foreign().foreign, Foreign::Warn);
        let mut told = None;
        init(&Options::new().guard(3), |options| told = Some(options.guard));
        init(&Options::new().guard(4), |_| told = None);
        let o = get();
        assert_eq!((o.purge_delay, o.large_cache, o.thp), (0, 7, Thp::Never));
        assert_eq!((o.foreign, foreign()), (Foreign::Warn, Foreign::Warn));
        (told, o.guard) == (Some(3), 3)
    }));
}

#[test]
#[cfg(not(any(loom, miri)))]
fn bad_values_and_unknown_names_are_reported() {
    for (name, value, expected) in [
        ("HAKMEM_MAGAZINE", "off", ""),
        ("HAKMEM_MAGAZINE", "maybe", "hakmem: HAKMEM_MAGAZINE=maybe: expected on or off; ignored\n"),
        ("HAKMEM_SHADOW_SEED", "maybe", ""),
        (
            "HAKMEM_MAGAZIN",
            "off",
            "hakmem: HAKMEM_MAGAZIN: unknown option; known: HAKMEM_PRESET, HAKMEM_STATS,",
        ),
    ] {
        assert!(is_so(|| {
            let mut ends = [0; 2];
            let mut said = [0; 4096];
            // SAFETY: room for what is asked for; the descriptors are the child's own.
            let len = unsafe {
                assert!(libc::pipe(ends.as_mut_ptr()) == 0 && libc::dup2(ends[1], 2) == 2);
                Options::new().set(name.as_bytes(), value.as_bytes());
                libc::close(2);
                libc::close(ends[1]);
                libc::read(ends[0], said.as_mut_ptr().cast(), said.len())
            };
            let said = &said[..len as usize];
            said.starts_with(expected.as_bytes()) && said.is_empty() == expected.is_empty()
        }));
    }
}
