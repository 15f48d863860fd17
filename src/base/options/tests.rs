//! Tests of options.

use crate::base::options::*;

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
