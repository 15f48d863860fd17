//! Estimates, groups, moments and leak suspects of profiles whose truth is known.

mod support;

use hakmem_profile::diff::{self, Side};
use hakmem_profile::estimate::probability;
use hakmem_profile::file::{self, Site, StackEnd, Totals, Why, Writer};
use hakmem_profile::model::{By, Profile, What};
use hakmem_profile::suspects;
use hakmem_profile::symbols::Symbols;
use hakmem_profile::{collapsed, pprof};
use support::{RATE, process, row, small};

fn profile(bytes: &[u8]) -> Profile {
    Profile::new(file::read(bytes).unwrap(), &mut Symbols::with_debug_folder("/no/such/folder".into()))
}

#[track_caller]
fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} instead of {b}");
}

#[test]
fn estimates_follow_the_formulas() {
    let profile = profile(&small());
    let moment = profile.moment(None).unwrap();
    let total = profile.total(&moment);
    let p = |size| probability(size, RATE);
    let mib = f64::from(1 << 20);
    close(total.live.bytes, 4.0 * 64.0 / p(64) + mib / p(1 << 20));
    close(total.live.objects, 4.0 / p(64) + 1.0 / p(1 << 20));
    close(total.peak.bytes, 6.0 * 64.0 / p(64) + 2.0 * mib / p(1 << 20) + 3.0 * 4096.0 / p(4096));
    close(total.allocated.objects, 20.0 / p(64) + 2.0 / p(1 << 20) + 3.0 / p(4096));
    close(total.pinned, 512.0 / p(64) + 8192.0 / p(1 << 20));
    let variance = |n: f64, size: u64| n * (1.0 - p(size)) / p(size).powi(2) * (size as f64).powi(2);
    // That of one block in the 16 KiB to which its size is rounded: 1.96 of it are 95%.
    let rounding = 40f64.ln() / 2.0 / p(1 << 20) * (f64::from(16 << 10) / 1.959_963_984_540_054).powi(2);
    close(total.live.bytes_error().powi(2), variance(4.0, 64) + variance(1.0, 1 << 20) + rounding);
    let (low, high) = total.live.interval();
    assert!(low < total.live.bytes && total.live.bytes < high, "{low} {high}");
    assert!(moment.pinned_known && moment.peak_time.is_none());
}

/// Two runs hold one block of the same size, which was rounded down in one and up in the other.
#[test]
fn rounding_is_no_change() {
    let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
    for (coarse, sizes) in [(true, [16 << 20, 18 << 20]), (false, [16 << 20, (16 << 20) + (256 << 10)])] {
        let sides = sizes.map(|size| {
            let mut writer = Writer::new(&file::Process { coarse, ..process() });
            let stack = writer.stack(&[0x1000], StackEnd::Complete) as usize;
            writer.site(&Site { stack, thread: 1, tag: None, size });
            writer.snapshot(1, Why::End, &Totals::default(), &[(0, row(1, 1, 1, 0.0))]);
            let profile = profile(writer.bytes());
            assert_eq!(profile.raw.process.coarse, coarse);
            let moment = profile.moment(None).unwrap();
            let packed = pprof::encode(&profile, &moment, &mut symbols).unwrap();
            let packed = Side::of_pprof(&pprof::decode(&packed).unwrap(), What::Live).unwrap();
            (Side::of_profile(&profile, &moment, What::Live), packed)
        });
        let [(old, old_packed), (new, new_packed)] = &sides;
        for (old, new) in [(old, new), (old_packed, new_packed)] {
            let rows = diff::rows(old, new);
            assert_eq!(rows.len(), 1);
            let error = rows[0].error.unwrap();
            assert!(rows[0].change() > 0.0 && 1.96 * error > rows[0].change(), "{error}");
            assert!(error < 1.5 * rows[0].change(), "{error}");
        }
    }
}

#[test]
fn moments_are_those_of_the_snapshots() {
    let profile = profile(&small());
    assert!(profile.moment(Some(999_999_999)).is_none());
    let samples = |time| {
        let moment = profile.moment(Some(time)).unwrap();
        let total = profile.total(&moment);
        (moment.snapshot, total.allocated.samples, total.live.samples, total.peak.samples)
    };
    assert_eq!(samples(1_000_000_000), (0, 12, 6, 6));
    assert_eq!(samples(2_999_999_999), (1, 15, 9, 9));
    assert_eq!(samples(u64::MAX), (2, 25, 5, 11));
    // Without the allocator's word the peak is that of the snapshots.
    let moment = profile.moment(Some(2_500_000_000)).unwrap();
    assert_eq!((moment.peak_time, moment.pinned_known), (Some(2_000_000_000), false));
    let points = profile.timeline();
    assert_eq!(points.iter().map(|(time, ..)| *time / 1_000_000_000).collect::<Vec<_>>(), [1, 2, 3]);
    close(points[2].2, profile.total(&profile.moment(None).unwrap()).live.bytes);
}

/// The allocator notes what lived where most was mapped. More may live at the end.
#[test]
fn no_less_is_held_at_the_peak_than_at_the_end() {
    let mut writer = Writer::new(&process());
    for (address, size) in [(0x1000, 64), (0x2000, 4096)] {
        let stack = writer.stack(&[address], StackEnd::Complete);
        writer.site(&Site { stack: stack as usize, thread: 1, tag: None, size });
    }
    let mut peak = |time, rows: [(u32, file::Row); 2]| {
        writer.snapshot(time, Why::End, &Totals::default(), &rows);
        let profile = profile(writer.bytes());
        let moment = profile.moment(None).unwrap();
        let total = profile.total(&moment);
        (total.live.samples, total.peak.samples, moment.peak_time)
    };
    assert_eq!(peak(1, [(0, row(30, 20, 25, 0.0)), (1, row(30, 5, 10, 0.0))]), (25, 35, None));
    assert_eq!(peak(2, [(0, row(40, 27, 25, 0.0)), (1, row(50, 20, 10, 0.0))]), (47, 47, None));
}

#[test]
fn sites_are_grouped() {
    let profile = profile(&small());
    let moment = profile.moment(None).unwrap();
    let groups = |by| {
        let mut groups = profile.groups(&moment, by);
        groups.sort_by(|a, b| a.label.cmp(&b.label));
        let show = |group: &hakmem_profile::model::Group| {
            (group.label.clone(), group.figures.allocated.samples, group.figures.live.samples)
        };
        groups.iter().map(show).collect::<Vec<_>>()
    };
    let of = |label: &str, allocated, live| (label.to_string(), allocated, live);
    // The allocator's own frame is not shown; addresses are those of calls, one before.
    assert_eq!(groups(By::Stack), [of("server+0x1100", 22, 5), of("server+0x1300", 3, 0)]);
    assert_eq!(groups(By::Function), groups(By::Stack));
    assert_eq!(groups(By::Thread), [of("server (4711)", 20, 4), of("worker (4712)", 5, 1)]);
    assert_eq!(groups(By::Tag), [of("(no tag)", 23, 4), of("query 42", 2, 1)]);
    let lines = collapsed::lines(&collapsed::fold(&profile, &moment, What::Peak));
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].starts_with("(callers unknown);0x90000000;(code made at run time);server+0x1300 "),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("server+0x1200;server+0x1100 "), "{lines:?}");
}

#[test]
fn lifetimes_count_the_living() {
    let profile = profile(&small());
    let moment = profile.moment(None).unwrap();
    let first = profile.site(&moment, 0).lifetimes;
    // 12 of 20 up to 2^11 ns, 16 up to 2^21, 4 live.
    close(first.quantile(0.5).unwrap(), (10.0f64 + 10.0 / 12.0).exp2());
    assert!(first.quantile(0.7).unwrap() > 2f64.powi(20) && first.quantile(0.9) == Some(f64::INFINITY));
    // Freed, and the file does not say after how long.
    assert_eq!(profile.site(&moment, 1).lifetimes.quantile(0.5), None);
    // Earlier nobody had said how long blocks live. Of those that all live that is no question.
    let moment = profile.moment(Some(1_000_000_000)).unwrap();
    assert_eq!(profile.site(&moment, 0).lifetimes.quantile(0.1), None);
    assert_eq!(profile.site(&moment, 1).lifetimes.quantile(0.1), Some(f64::INFINITY));
}

/// A leak of one block a step, a working set that comes and goes, a cache that fills up and stays, and noise.
fn leaking(steps: u64) -> Vec<u8> {
    let mut writer = Writer::new(&process());
    let mut sites = Vec::new();
    for stack in 0..4 {
        let stack = writer.stack(&[0x1000 + stack], StackEnd::Complete);
        sites.push(writer.site(&Site { stack: stack as usize, thread: 1, tag: None, size: 1 << 19 }));
    }
    for step in 0..steps {
        let live = [
            step,
            50 + (step * 7919) % 40,
            200 * step.min(steps / 4) / (steps / 4),
            if step % 2 == 0 { 30 } else { 34 },
        ];
        let rows: Vec<_> =
            sites.iter().zip(live).map(|(site, live)| (*site, row(10_000, live, 0, 0.0))).collect();
        writer.snapshot(step * 1_000_000_000, Why::Timer, &Totals::default(), &rows);
    }
    writer.bytes().to_vec()
}

#[test]
fn a_leak_is_suspected_and_nothing_else() {
    for steps in [40, 100, 1000] {
        let profile = profile(&leaking(steps));
        let suspects = suspects::find(&profile, usize::MAX);
        assert_eq!(suspects.len(), 1, "{steps}: {suspects:?}");
        let leak = &suspects[0];
        assert_eq!(profile.stacks[leak.stack][0].function, "0x1000");
        let weight = f64::from(1 << 19) / probability(1 << 19, RATE);
        assert!((leak.slope / weight - 1.0).abs() < 1e-6, "{}", leak.slope);
        assert_eq!((leak.grew, leak.shrank), (1.0, 0.0));
        close(leak.to, (steps - 1) as f64 * weight);
        assert_eq!(leak.samples as u64, steps - 1 - (leak.from / weight).round() as u64);
        assert!(leak.series.len() <= 120);
    }
    assert!(suspects::find(&profile(&small()), usize::MAX).is_empty());
}

/// 200 samples that become 215 may be chance: another draw of as many blocks. Ten that become 25 are not.
#[test]
fn what_chance_explains_is_no_suspect() {
    let rising = |first: u64, each: u64| {
        let mut writer = Writer::new(&process());
        let stack = writer.stack(&[0x1000], StackEnd::Complete);
        let site = writer.site(&Site { stack: stack as usize, thread: 1, tag: None, size: 64 });
        for step in 0..20 {
            let row = row(10_000, first + each * step, 0, 0.0);
            writer.snapshot(step * 1_000_000_000, Why::Timer, &Totals::default(), &[(site, row)]);
        }
        suspects::find(&profile(writer.bytes()), usize::MAX).len()
    };
    // From the fifth point to the last one: 10 to 25, 10 to 40, 200 to 215, 4 to 19.
    assert_eq!([(6, 1), (2, 2), (196, 1), (0, 1)].map(|(first, each)| rising(first, each)), [1, 1, 0, 1]);
    // 20 to 35 and 22 to 37: twice the deviation is 14.8 and 15.4.
    assert_eq!([rising(16, 1), rising(18, 1)], [1, 0]);
}
