//! Statistics as text: a table for people, one line of JSON for programs.

use crate::os;
use crate::os::message::Lines;
use crate::stats::classes::ClassStats;
use crate::stats::snapshot::{Snapshot, Stats};
use core::fmt::{self, Write};

/// Bytes of the text buffer, which is neither on the stack nor on the heap. It is large enough to write
/// everything in one go: a line of JSON with every class has about 20 KiB. Longer text is written in pieces.
pub(super) const TEXT: usize = 64 << 10;

/// Hands the statistics to `put`, as a table or as one line of JSON: as a whole, or in pieces where there is
/// no memory for it. `put` may be the program's, and do what it likes: no lock is held, and nothing that it
/// asks for is half done.
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn write(json: bool, event: Event, put: &mut dyn FnMut(&[u8])) {
    Snapshot::with(|now| {
        let (s, classes) = (&now.stats.with_kernel(), &now.classes[..]);
        let memory = os::map_uncounted(TEXT);
        let mut few = [0; 256];
        let buffer = if memory.is_null() {
            &mut few[..]
        } else {
            // SAFETY: mapped just above: `TEXT` zeroed bytes that are ours alone until they are unmapped
            // below.
            unsafe { core::slice::from_raw_parts_mut(memory, TEXT) }
        };
        let mut out = Lines::new(put, buffer);
        let _ = if json { line(&mut out, event, s, classes) } else { table(&mut out, s, classes) };
        out.flush();
        if !memory.is_null() {
            // SAFETY: the mapping from above, whole; `out` and its buffer are not used any more.
            unsafe { os::discard_uncounted(memory, TEXT) };
        }
    });
}

/// Writes the statistics of a process that goes on to a new mapping of [`TEXT`] bytes, which is the caller's
/// then, and says how long they are. Not patient, since this runs within an allocation.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn mapped(json: bool) -> Result<(*mut u8, usize), NotMapped> {
    Snapshot::with_patience(false, |now| {
        if now.missed {
            return Err(NotMapped::Busy);
        }
        let (s, classes) = (&now.stats.with_kernel(), &now.classes[..]);
        let memory = os::map_uncounted(TEXT);
        if memory.is_null() {
            return Err(NotMapped::NoMemory);
        }
        // SAFETY: mapped just above: `TEXT` zeroed bytes that nobody else has before this returns.
        let buffer = unsafe { core::slice::from_raw_parts_mut(memory, TEXT) };
        let mut out = Cut { buffer, len: 0 };
        let _ = if json { line(&mut out, Event::Running, s, classes) } else { table(&mut out, s, classes) };
        Ok((memory, out.len))
    })
}

/// Why there is no text.
pub(super) enum NotMapped {
    /// Somebody holds the pool's lock: it may be had in a moment.
    Busy,
    NoMemory,
}

/// Text in a buffer, cut off where that ends.
struct Cut<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl Write for Cut<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let rest = self.buffer.iter_mut().skip(self.len);
        self.len += rest.zip(s.as_bytes()).map(|(to, from)| *to = *from).count();
        Ok(())
    }
}

/// When figures are written.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    /// At the end of the process.
    Exit,
    /// When somebody asks for them.
    Running,
}

/// Writes one line of JSON.
pub(super) fn line(out: &mut impl Write, event: Event, s: &Stats, classes: &[ClassStats]) -> fmt::Result {
    let (version, pid) = (env!("CARGO_PKG_VERSION"), os::process_id());
    let event = match event {
        Event::Exit => "exit",
        Event::Running => "running",
    };
    write!(out, "{{\"hakmem\":\"{version}\",\"event\":\"{event}\",\"pid\":{pid}")?;
    let mut done = Ok(());
    s.each(|name, value| done = done.and_then(|()| write!(out, ",\"{name}\":{value}")));
    done?;
    let mut before = ",\"classes\":[";
    for (row, class) in used(classes) {
        write!(out, "{before}{{\"class\":\"{}\"", Name(row, class))?;
        class.each(|name, value| done = done.and_then(|()| write!(out, ",\"{name}\":{value}")));
        done?;
        out.write_str("}")?;
        before = ",";
    }
    if before.len() > 1 {
        out.write_str(before)?;
    }
    out.write_str("]}\n")
}

/// Writes all figures, where the memory is, and the classes in use.
pub(super) fn table(out: &mut impl Write, s: &Stats, classes: &[ClassStats]) -> fmt::Result {
    write!(out, "hakmem {} statistics\n{s}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "{}", ClassStats::HEADING)?;
    for (row, class) in used(classes) {
        writeln!(out, "{:<8}{}", Name(row, class), Columns(class))?;
    }
    Ok(())
}

/// Two tables: all figures, and where the memory is.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut done = Ok(());
        self.each(|name, value| done = done.and_then(|()| writeln!(f, "  {name:<22}{value:>20}")));
        done?;
        writeln!(f, "{:<22}{:>20}{:>13}", "memory", "bytes", "of resident")?;
        for (what, bytes) in [
            ("  allocated", self.allocated_bytes),
            ("+ cached by threads", self.cached_bytes),
            ("+ free in slabs", self.free_bytes),
            ("+ never handed out", self.fresh_bytes),
            ("+ ends of slabs", self.slack_bytes),
            ("= active", self.active_bytes),
            ("- untouched", self.untouched_bytes),
            ("+ free and dirty", self.dirty_bytes),
            ("+ records", self.metadata_bytes),
            ("= resident", self.resident_bytes),
            ("+ retained", self.retained_bytes),
            ("= mapped", self.bytes_mapped),
        ] {
            writeln!(f, "  {what:<20}{bytes:>20}{}", Part(bytes, self.resident_bytes))?;
        }
        Ok(())
    }
}

/// A row of the table under [`ClassStats::HEADING`]. It starts with the block size, or `large`.
impl fmt::Display for ClassStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block_bytes {
            0 => write!(f, "{:<8}", "large")?,
            bytes => write!(f, "{bytes:<8}")?,
        }
        Columns(self).fmt(f)
    }
}

impl ClassStats {
    /// The heading above the rows that `Display` writes.
    pub const HEADING: &str = concat!(
        "class         blocks           bytes    cached      free     fresh    slabs",
        "          active        resident       in use"
    );
}

/// A row without its name.
struct Columns<'a>(&'a ClassStats);

impl fmt::Display for Columns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.0;
        write!(
            f,
            "{:>12}{:>16}{:>10}{:>10}{:>10}{:>9}{:>16}{:>16}{}",
            class.blocks,
            class.allocated_bytes,
            class.cached_blocks,
            class.free_blocks,
            class.fresh_blocks,
            class.slabs,
            class.active_bytes,
            class.resident_bytes,
            Part(class.allocated_bytes, class.active_bytes),
        )
    }
}

fn used(classes: &[ClassStats]) -> impl Iterator<Item = (usize, &ClassStats)> {
    classes.iter().enumerate().filter(|(_, class)| class.is_used())
}

/// The name of a row.
struct Name<'a>(usize, &'a ClassStats);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ClassStats::RUNS => f.pad("runs"),
            ClassStats::DIRECT => f.pad("direct"),
            _ => self.1.block_bytes.fmt(f),
        }
    }
}

/// One number as a percentage of another, in a column of 13 characters.
struct Part(u64, u64);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 as u128 * 1000).checked_div(self.1 as u128).unwrap_or(0);
        write!(f, "{:>9}.{} %", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::String;
    use std::vec::Vec;

    /// Every figure at its longest, and every class in use.
    fn longest() -> (Stats, [ClassStats; ClassStats::COUNT]) {
        let most = u64::MAX;
        let mut classes = [ClassStats::default(); ClassStats::COUNT];
        ClassStats::clear(&mut classes);
        for c in &mut classes {
            let block_bytes = c.block_bytes;
            // SAFETY: `ClassStats` is `repr(C)` and consists of ten `u64`, which all values are valid for.
            *c = unsafe { core::mem::transmute::<[u64; 10], ClassStats>([most; 10]) };
            c.block_bytes = block_bytes;
        }
        const FIGURES: usize = size_of::<Stats>() / size_of::<u64>();
        // SAFETY: `Stats` is `repr(C)` and consists of `FIGURES` fields of type `u64`.
        (unsafe { core::mem::transmute::<[u64; FIGURES], Stats>([most; FIGURES]) }, classes)
    }

    #[test]
    fn the_longest_text_is_written_in_one_go() {
        let (s, classes) = longest();
        let mut text = String::new();
        line(&mut text, Event::Running, &s, &classes).unwrap();
        assert!(text.len() <= TEXT, "{}", text.len());
        assert!(text.ends_with("]}\n") && text.lines().count() == 1);
        assert_eq!(text.matches("\"class\":").count(), ClassStats::COUNT);
        text.clear();
        table(&mut text, &s, &classes).unwrap();
        assert!(text.len() <= TEXT, "{}", text.len());
    }

    #[test]
    fn what_does_not_fit_is_cut_off() {
        let mut buffer = [0; 7];
        let mut out = Cut { buffer: &mut buffer, len: 0 };
        for word in ["four", "", "more", "and more"] {
            out.write_str(word).unwrap();
        }
        assert_eq!((out.len, &buffer), (7, b"fourmor"));
    }

    #[test]
    fn only_classes_in_use_are_shown() {
        let mut classes = [ClassStats::default(); ClassStats::COUNT];
        ClassStats::clear(&mut classes);
        let mut text = String::new();
        line(&mut text, Event::Exit, &Stats::default(), &classes).unwrap();
        assert!(text.ends_with(",\"guard_blocks\":0,\"classes\":[]}\n"), "{text}");
        classes[2].blocks = 3;
        classes[2].allocated_bytes = 72;
        classes[2].active_bytes = 65536;
        classes[ClassStats::RUNS].active_bytes = 65536;
        text.clear();
        line(&mut text, Event::Exit, &Stats::default(), &classes).unwrap();
        assert!(text.contains(r#""classes":[{"class":"24","block_bytes":24,"blocks":3,"#), "{text}");
        assert!(text.contains(r#"},{"class":"runs","block_bytes":0,"#), "{text}");
        text.clear();
        table(&mut text, &Stats::default(), &classes).unwrap();
        let rows: Vec<&str> = text.lines().rev().take(3).collect();
        assert!(rows[2].starts_with("class ") && rows[1].starts_with("24 ") && rows[0].starts_with("runs "));
        assert!(rows[1].ends_with("  0.1 %"), "{text}");
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{text}");
        assert_eq!(std::format!("{}", classes[2]), rows[1]);
        assert_eq!(std::format!("{}", classes[ClassStats::RUNS]), rows[0].replace("runs ", "large"));
        assert_eq!(ClassStats::HEADING, rows[2]);
    }

    #[test]
    fn figures_display_as_in_the_table() {
        let stats = Stats { allocated_bytes: 5, resident_bytes: 40, bytes_mapped: 80, ..Stats::default() };
        let shown = std::format!("{stats}");
        let mut text = String::new();
        table(&mut text, &stats, &[]).unwrap();
        assert_eq!(text.split_once('\n').unwrap().1, std::format!("{shown}{}\n", ClassStats::HEADING));
        assert!(
            shown.contains("allocated_bytes")
                && shown.contains("= resident")
                && shown.ends_with(" 200.0 %\n"),
            "{shown}"
        );
    }
}
