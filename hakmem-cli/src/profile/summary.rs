//! What is said of a whole profile, above its tables and on its page.

use hakmem_profile::file::Totals;
use hakmem_profile::model::{Figures, Moment, Profile, What};

use super::units::{bytes, count, range, share, time};

/// How a process was sampled.
pub fn how(profile: &Profile, moment: &Moment) -> String {
    let reach = profile.reach(moment);
    let whole = match reach.samples {
        0 => String::new(),
        all => format!(", {} of them with their whole call stack", share(reach.whole as f64, all as f64)),
    };
    format!(
        "{} in {}, {}, one for {} on average{whole}; hakmem {}",
        time(moment.time as f64),
        many(moment.snapshot as u64 + 1, "snapshot"),
        many(profile.total(moment).allocated.samples, "sample"),
        bytes(profile.raw.process.rate as f64),
        profile.raw.process.allocator,
    )
}

/// So many of something.
pub fn many(number: u64, name: &str) -> String {
    format!("{} {name}{}", count(number as f64), if number == 1 { "" } else { "s" })
}

/// What the reader has to know before believing a figure.
pub fn notes(profile: &Profile) -> Vec<String> {
    let raw = &profile.raw;
    let mut notes = Vec::new();
    if let Some(at) = raw.cut {
        notes.push(format!(
            "the end of the file is missing, from byte {at} on: the process was killed while it wrote, or the file \
             was cut"
        ));
    } else if raw.end.is_none() {
        notes.push(
            "there is no last snapshot: the process was killed, left by _exit, or is still running".into(),
        );
    }
    if raw.process.armed_late {
        notes.push("blocks that were allocated before the profile began are unknown".into());
    }
    if let Some(lost) = raw.snapshots.last().map(|snapshot| snapshot.lost).filter(|lost| *lost > 0) {
        notes.push(format!(
            "{} could not be noted, for want of memory, or of time while a snapshot was written: take a larger \
             --rate",
            many(lost, "sample")
        ));
    }
    let others = profile.moment(None).map_or(0, |end| profile.reach(&end).others);
    if others > 0 {
        notes.push(format!(
            "{} of call stacks that there was no room for, those that matter least: \"(other call stacks)\"; take a \
             larger --rate to keep apart more",
            many(others, "sample")
        ));
    }
    notes
}

/// How much it is altogether, and how sure that is.
pub fn amount(figures: &Figures, what: What, rate: u64) -> String {
    let estimate = figures.estimate(what);
    match what {
        _ if estimate.samples == 0 => {
            // Of that much, no sample would be there in 1 of 40 cases.
            format!("no sampled block, so less than {} most likely", bytes(40f64.ln() * rate as f64))
        }
        What::Pinned => bytes(figures.pinned),
        _ => format!(
            "{} in {} objects (95%: {})",
            bytes(estimate.bytes),
            count(estimate.objects),
            range(estimate.interval())
        ),
    }
}

/// `at the end`, or at which time.
pub fn when(profile: &Profile, moment: &Moment) -> String {
    let last = moment.snapshot + 1 == profile.raw.snapshots.len();
    if last { "at the end".into() } else { format!("at {}", time(moment.time as f64)) }
}

/// How what is resident is made up: what is held, what the allocator keeps, and what is none of its business.
pub fn retention(profile: &Profile, moment: &Moment) -> String {
    let Totals { resident, live, cached, free, fresh, dirty, metadata, .. } = moment.totals;
    let when = when(profile, moment);
    let [resident, live] = [resident as f64, live as f64];
    let parts = [
        (cached, "cached"),
        (free, "free in slabs"),
        (fresh, "fresh"),
        (dirty, "dirty"),
        (metadata, "metadata"),
    ];
    let kept: f64 = parts.iter().map(|(part, _)| *part as f64).sum();
    let mut text = format!("Resident {when}: {} = {} live", bytes(resident), bytes(live));
    for (part, name) in parts {
        text += &format!(" + {} {name}", bytes(part as f64));
    }
    let rest = resident - live - kept;
    text += &match rest >= 0.0 {
        true => format!(" + {} not the allocator's", bytes(rest)),
        false => format!(" - {} that was never touched", bytes(-rest)),
    };
    let whole = live + kept + rest.max(0.0);
    if whole > 0.0 {
        text += &format!(
            ". The program holds {} of it, the allocator keeps {} beside that.",
            share(live, whole),
            share(kept, whole)
        );
    }
    text
}
