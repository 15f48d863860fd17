//! A profile on the terminal, as wide as that is.

use std::fmt::Write;

use hakmem_profile::diff::Row;
use hakmem_profile::model::{By, Figures, Group, Moment, Profile, What, place};
use hakmem_profile::suspects::{self, Suspect};

use super::columns::{Column, fitted, site};
use super::summary::{amount, how, many, notes, retention};
use super::units::{bytes, change, count, elide, range, share, time, wrap};

/// What is shown.
#[derive(Clone, Copy)]
pub struct Choice {
    /// One thing only; else what is held, at the peak too, and what was allocated.
    pub what: Option<What>,
    /// What sites are added up by.
    pub by: By,
    /// Rows of each table.
    pub top: usize,
    /// Columns of the terminal.
    pub width: usize,
}

/// The least share of a row, unless there are few.
const LEAST: f64 = 0.01;
const FEW: usize = 3;

/// The whole report of one profile.
pub fn render(profile: &Profile, moment: &Moment, choice: &Choice) -> String {
    let mut text = head(profile, moment, choice.width);
    let total = profile.total(moment);
    let mut groups = profile.groups(moment, choice.by);
    let whats = match &choice.what {
        Some(what) => std::slice::from_ref(what),
        None => &[What::Live, What::Peak, What::Allocated][..],
    };
    for &what in whats {
        groups.sort_by(|a, b| b.figures.bytes(what).total_cmp(&a.figures.bytes(what)));
        section(profile, moment, &groups, &total, what, choice, &mut text);
    }
    let _ = writeln!(text, "\n{}", wrap(&retention(profile, moment), choice.width));
    suspected(profile, moment, choice, &mut text);
    text + &said(&notes(profile), choice.width)
}

/// Notes, each on lines of its own.
pub fn said(notes: &[String], width: usize) -> String {
    let printable = |note: &String| crate::report::printable(note.as_ref());
    notes.iter().map(|note| wrap(&format!("note: {}", printable(note)), width) + "\n").collect()
}

/// Which process it was, and how it was sampled.
fn head(profile: &Profile, moment: &Moment, width: usize) -> String {
    let process = &profile.raw.process;
    let line: Vec<String> =
        process.arguments.iter().map(|word| crate::report::printable(word.as_ref())).collect();
    let line = elide(&line.join(" "), width.saturating_sub(20).max(20));
    format!("{line}\n{}\n", wrap(&format!("process {}: {}", process.pid, how(profile, moment)), width))
}

/// One table and its heading.
fn section(
    profile: &Profile,
    moment: &Moment,
    groups: &[Group],
    total: &Figures,
    what: What,
    choice: &Choice,
    text: &mut String,
) {
    let last = moment.snapshot + 1 == profile.raw.snapshots.len();
    let when = if last { "at the end".into() } else { format!("at {}", time(moment.time as f64)) };
    let heading = match (what, moment.peak_time) {
        (What::Live, _) => format!("Held {when}"),
        (What::Peak, None) => "Held at the peak".into(),
        (What::Peak, Some(peak)) => {
            format!("Held at the peak, of the snapshots that at {}", time(peak as f64))
        }
        (What::Allocated, _) => format!("Allocated until {}", time(moment.time as f64)),
        (What::Pinned, _) if moment.pinned_known => format!("Pinned {when} by what is held"),
        (What::Pinned, _) => "Pinned by what is held: known only at the end of a profile".into(),
    };
    let whole = total.bytes(what);
    let heading = format!("{heading}: {}", amount(total, what, profile.raw.process.rate));
    let _ = writeln!(text, "\n{}", wrap(&heading, choice.width));
    let matters = |(i, group): &(usize, &Group)| {
        let bytes = group.figures.bytes(what);
        bytes > 0.0 && (*i < FEW || bytes >= LEAST * whole)
    };
    let shown: Vec<&Group> =
        groups.iter().enumerate().take_while(matters).take(choice.top).map(|(_, group)| group).collect();
    if shown.is_empty() {
        return;
    }
    let name = match choice.by {
        By::Site => "call site",
        By::Stack => "call stack",
        By::Function => "function",
        By::Thread => "thread",
        By::Tag => "tag",
    };
    let column = |title, cell: &dyn Fn(&Group) -> String| Column {
        title,
        cells: shown.iter().map(|group| cell(group)).collect(),
    };
    let pinned = column("pinned", &|group| bytes(group.figures.pinned));
    let lifetime = column("life", &|group| group.figures.lifetimes.quantile(0.5).map_or("".into(), time));
    let interval = column("95% interval", &|group| range(group.figures.estimate(what).interval()));
    let objects = column("objects", &|group| count(group.figures.estimate(what).objects));
    let value = column("bytes", &|group| bytes(group.figures.bytes(what)));
    let part = column("share", &|group| share(group.figures.bytes(what), whole));
    let mut columns = vec![value, part];
    if what != What::Pinned {
        columns.push(interval);
    }
    columns.extend([objects, lifetime]);
    if what != What::Pinned && moment.pinned_known && what == What::Live {
        columns.push(pinned);
    }
    let site = |group: &Group, width: usize| {
        let frames = group.stack.map_or(&[][..], |stack| &profile.stacks[stack]);
        let callers = frames.get(place(frames) + 1..).unwrap_or_default();
        site(&group.label, &group.location, callers, width)
    };
    let sites = |width: usize| shown.iter().map(|group| site(group, width)).collect();
    let _ = writeln!(text, "{}", fitted(columns, name, sites, choice.width));
    let rest = groups.iter().filter(|group| group.figures.bytes(what) > 0.0).count() - shown.len();
    if rest > 0 {
        let others: f64 = whole - shown.iter().map(|group| group.figures.bytes(what)).sum::<f64>();
        let _ = writeln!(text, "and {} in {}", bytes(others.max(0.0)), many(rest as u64, "other"));
    }
}

/// Call sites that grow, as far as is known by then.
fn suspected(profile: &Profile, moment: &Moment, choice: &Choice, text: &mut String) {
    let suspects = suspects::find(profile, moment.snapshot + 1);
    if suspects.is_empty() {
        return;
    }
    let heading = "Leak suspects: live bytes of these call sites grow and do not stop";
    let _ = writeln!(text, "\n{}", wrap(heading, choice.width));
    for suspect in suspects.iter().take(choice.top) {
        let frames = &profile.stacks[suspect.stack];
        let at = place(frames);
        let frame = frames.get(at).cloned().unwrap_or_default();
        let callers = frames.get(at + 1..).unwrap_or_default();
        let name = site(&frame.function, &frame.location(), callers, choice.width.saturating_sub(2));
        for line in name.lines() {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(
            text,
            "    {}",
            wrap(&evidence(suspect), choice.width.saturating_sub(4)).replace('\n', "\n    ")
        );
    }
}

/// Why a call site is suspected.
pub fn evidence(suspect: &Suspect) -> String {
    let mut text = format!(
        "{} a minute: from {} to {} ({} more samples); grew in {:.0}% of the intervals, shrank in {:.0}%",
        change(suspect.slope * 60.0),
        bytes(suspect.from),
        bytes(suspect.to),
        suspect.samples,
        suspect.grew * 100.0,
        suspect.shrank * 100.0,
    );
    text += &match suspect.of_growth {
        Some(part) => format!("; that is {:.0}% of what everything together grew by", part * 100.0),
        None => "; everything together did not grow".into(),
    };
    text
}

/// What has changed between two profiles: what has grown first, then what has shrunk.
pub fn changes(rows: &[Row], totals: (f64, f64), top: usize, width: usize) -> String {
    let (before, after) = totals;
    let mut text = format!("{} before, {} after: {}\n", bytes(before), bytes(after), change(after - before));
    let grown: Vec<&Row> = rows.iter().filter(|row| row.change() >= 0.5).collect();
    let shrunk: Vec<&Row> = rows.iter().rev().filter(|row| row.change() <= -0.5).collect();
    for (heading, rows) in [("Grown", grown), ("Shrunk", shrunk)] {
        if rows.is_empty() {
            continue;
        }
        let sum = rows.iter().map(|row| row.change()).sum();
        let _ = writeln!(text, "\n{heading}: {} by {}", change(sum), many(rows.len() as u64, "call site"));
        let shown = &rows[..rows.len().min(top)];
        let column = |title, cell: &dyn Fn(&Row) -> String| Column {
            title,
            cells: shown.iter().map(|row| cell(row)).collect(),
        };
        let columns = vec![
            column("change", &|row| change(row.change())),
            column("± 95%", &|row| row.error.map_or(String::new(), |error| bytes(error * 1.96))),
            column("before", &|row| bytes(row.bytes.0)),
            column("after", &|row| bytes(row.bytes.1)),
            column("objects", &|row| {
                let change = row.objects.1 - row.objects.0;
                if change >= 0.5 { format!("+{}", count(change)) } else { count(change) }
            }),
        ];
        let sites = |width: usize| {
            let name = |row: &&Row| {
                let frame = row.place();
                let callers = row.frames.get(place(&row.frames) + 1..).unwrap_or_default();
                site(&frame.function, &frame.location(), callers, width)
            };
            shown.iter().map(name).collect()
        };
        let _ = writeln!(text, "{}", fitted(columns, "call site", sites, width));
        if rows.len() > shown.len() {
            let _ =
                writeln!(text, "and {} (--top shows more)", many((rows.len() - shown.len()) as u64, "other"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hakmem_profile::file::{self, Process, Row, Site, StackEnd, Totals, Why, Writer};
    use hakmem_profile::symbols::Symbols;

    /// Many stacks, a leak, and a long command line.
    fn profile() -> Profile {
        let arguments = vec!["server".to_string(), "--option-with-a-value".repeat(20)];
        let mut writer = Writer::new(&Process { pid: 7, rate: 1 << 19, arguments, ..Process::default() });
        for i in 0..30 {
            let stack =
                writer.stack(&[0x1000_0000 * i + 1, 0x9999_0000_0000, 0x8888_0000_0000], StackEnd::Stopped);
            writer.site(&Site { stack: stack as usize, thread: 7, tag: None, size: 1 << (3 + i % 20) });
        }
        for t in 0..20 {
            let row =
                |i: u32| (i, Row { allocated: 100, live: if i == 3 { t } else { 20 }, ..Row::default() });
            let rows: Vec<_> = (0..30).map(row).collect();
            writer.snapshot(
                t * 1_000_000_000,
                Why::Timer,
                &Totals { resident: 1 << 40, ..Totals::default() },
                &rows,
            );
        }
        Profile::new(file::read(writer.bytes()).unwrap(), &mut Symbols::new())
    }

    #[test]
    fn what_was_lost_is_said() {
        let mut profile = profile();
        assert!(notes(&profile).iter().all(|note| !note.contains("could not be noted")));
        profile.raw.snapshots.last_mut().unwrap().lost = 1234;
        assert!(notes(&profile).iter().any(|note| note.starts_with("1,234 samples could not be noted")));
    }

    #[test]
    fn what_there_was_no_room_for_is_said() {
        let mut writer = Writer::new(&Process { pid: 7, rate: 1 << 19, ..Process::default() });
        let known = writer.stack(&[0x1000], StackEnd::Complete);
        let others = writer.stack(&[], StackEnd::Others);
        writer.thread(file::OTHERS, "(others)");
        for (stack, thread) in [(known, 7), (others, file::OTHERS)] {
            // The writer's number is not an index of this file.
            writer.site(&Site { stack: stack as usize, thread, tag: None, size: 64 });
        }
        let row = |allocated| Row { allocated, ..Row::default() };
        writer.snapshot(1, Why::Timer, &Totals::default(), &[(0, row(10)), (1, row(1234))]);
        let profile = Profile::new(file::read(writer.bytes()).unwrap(), &mut Symbols::new());
        let moment = profile.moment(None).unwrap();
        let choice = |by| Choice { what: Some(What::Allocated), by, top: 10, width: 100 };
        let text = render(&profile, &moment, &choice(By::Site));
        assert!(text.contains(" (other call stacks) "), "{text}");
        assert!(text.contains("note: 1,234 samples of call stacks that there was no room for"), "{text}");
        let text = render(&profile, &moment, &choice(By::Thread));
        assert!(text.contains(" (others) ") && !text.contains("(4294967295)"), "{text}");
        assert_eq!(profile.total(&moment).allocated.samples, 1244);
    }

    #[test]
    fn tables_fit_any_terminal() {
        let profile = profile();
        let moment = profile.moment(None).unwrap();
        for width in 44..200 {
            let text = render(&profile, &moment, &Choice { what: None, by: By::Site, top: 10, width });
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}:\n{line}");
            }
            assert!(text.contains("Leak suspects") && text.contains("others"), "{text}");
        }
    }
}
