//! Reads raw files. What is cut short at the end is taken as far as it goes; what is wrong is refused.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use super::{
    MAGIC, Module, NO_TAG, OTHERS, Process, Raw, Row, Site, Snapshot, Stack, StackEnd, Totals, VERSION, Why,
    fnv1a, kind,
};

/// Why a file was refused, in one line that says what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Damaged(pub String);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Damaged {}

/// Bytes of a frame beside its payload.
const AROUND: usize = 16;

/// No figure is larger: sums of such fit, and so they do as floating point.
const LARGEST: u64 = 1 << 48;

/// What a payload cannot be read by.
type Wrong = &'static str;

/// Reads the file of these bytes.
pub fn read(bytes: &[u8]) -> Result<Raw, Damaged> {
    let refuse = |text: &str| Err(Damaged(text.to_string()));
    if bytes.is_empty() {
        return refuse("the file is empty: the process ended before its profile began, so take another");
    }
    if !bytes.starts_with(&MAGIC) {
        return if MAGIC.starts_with(bytes) {
            refuse("nothing of the profile was written: the process ended too soon, so take another")
        } else if bytes.starts_with(&MAGIC[..7]) {
            refuse("it is of another version of the format: read it with the hakmem command of that version")
        } else {
            refuse("it is no heap profile of Hakmem: give a .hakprof file that `hakmem profile` has written")
        };
    }
    let mut reader = Reader::default();
    let mut at = MAGIC.len();
    while at < bytes.len() {
        let Some((kind, payload, next)) = whole_frame(bytes, at) else {
            reader.raw.cut = Some(at);
            break;
        };
        if fnv1a(&bytes[at..next - 8]).to_le_bytes() != bytes[next - 8..next] {
            // The last one may be half-written, and a crash of the machine leaves zeros behind it.
            if bytes[next..].iter().any(|&byte| byte != 0) {
                return refuse(&format!("it is damaged at byte {at}: take the file from where it was made"));
            }
            reader.raw.cut = Some(at);
            break;
        }
        if reader.raw.end.is_some() {
            return refuse(&format!("it is damaged: it goes on after its end, at byte {at}"));
        }
        let mut payload = Payload(payload);
        if !reader.begun {
            if kind != kind::PROCESS {
                return refuse("it is damaged: the frame about the process is missing");
            }
            if let Some(version) = Payload(payload.0).u32().ok().filter(|version| *version != VERSION) {
                return refuse(&format!(
                    "it is of version {version} of the format, and this command knows version {VERSION}: use \
                     the hakmem command that belongs to the allocator"
                ));
            }
        }
        let read = reader.frame(kind, &mut payload);
        if let Err(wrong) = read {
            return refuse(&format!("it is damaged at byte {at}: {wrong}"));
        }
        at = next;
    }
    if !reader.begun {
        return refuse("nothing of the profile was written: the process ended too soon, so take another");
    }
    reader.sort_stacks();
    Ok(reader.raw)
}

/// The frame at `at`: its kind, its payload, and where the next one begins. `None` where the file ends first.
fn whole_frame(bytes: &[u8], at: usize) -> Option<(u32, &[u8], usize)> {
    let mut head = Payload(&bytes[at..]);
    let (kind, length) = (head.u32().ok()?, head.u32().ok()? as usize);
    let next = at.checked_add(AROUND)?.checked_add(length).filter(|next| *next <= bytes.len())?;
    Some((kind, &bytes[at + 8..next - 8], next))
}

/// What remains of a payload.
struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Wrong> {
        let (head, tail) = self.0.split_at_checked(n).ok_or("a frame is shorter than what it says")?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        Ok(self.take(N)?.try_into().expect("it has that length"))
    }

    fn u8(&mut self) -> Result<u8, Wrong> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Wrong> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Wrong> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Wrong> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, length: usize) -> Result<String, Wrong> {
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    fn why(&mut self) -> Result<Why, Wrong> {
        match self.u32()? {
            0 => Ok(Why::Timer),
            1 => Ok(Why::End),
            2 => Ok(Why::Asked),
            3 => Ok(Why::Fork),
            _ => Err("a reason that does not exist"),
        }
    }
}

/// What has been read, and the indices of identifiers.
#[derive(Default)]
struct Reader {
    raw: Raw,
    begun: bool,
    stacks: HashMap<u32, usize>,
    sites: HashMap<u32, usize>,
}

impl Reader {
    fn frame(&mut self, kind: u32, payload: &mut Payload) -> Result<(), Wrong> {
        match kind {
            kind::PROCESS if self.begun => return Err("a second frame about the process"),
            kind::PROCESS => self.process(payload)?,
            kind::MODULES => self.modules(payload)?,
            kind::SNAPSHOT => self.snapshot(payload)?,
            kind::END => self.raw.end = Some(payload.why()?),
            kind::STACKS => each(payload, |payload| self.stack(payload))?,
            kind::TAGS => each(payload, |payload| {
                let (tag, length) = (payload.u32()?, payload.u16()?);
                self.raw.tags.insert(tag, payload.text(length.into())?);
                Ok(())
            })?,
            kind::SITES => each(payload, |payload| self.site(payload))?,
            kind::THREADS => each(payload, |payload| {
                let (thread, length) = (payload.u32()?, payload.u8()?);
                self.raw.threads.insert(thread, payload.text(length.into())?);
                Ok(())
            })?,
            kind::LIFETIMES => each(payload, |payload| {
                let (site, pairs) = (payload.u32()?, payload.u8()?);
                let site = *self.sites.get(&site).ok_or("a site that was not defined")?;
                let pairs: Result<Vec<_>, Wrong> =
                    (0..pairs).map(|_| Ok((payload.u8()?, payload.u64()?))).collect();
                let pairs = pairs?;
                if pairs.iter().any(|(b, count)| *b > 63 || *count > LARGEST) {
                    return Err("lifetimes that cannot be");
                }
                self.raw.lifetimes.insert(site, pairs);
                Ok(())
            })?,
            _ => return Ok(()),
        }
        if payload.0.is_empty() { Ok(()) } else { Err("a frame is longer than what it says") }
    }

    fn process(&mut self, payload: &mut Payload) -> Result<(), Wrong> {
        self.begun = true;
        payload.u32()?;
        let pid = payload.u32()?;
        let [rate, start, monotonic] = [payload.u64()?, payload.u64()?, payload.u64()?];
        let (page_size, flags) = (payload.u32()?, payload.u32()?);
        let length = payload.u32()? as usize;
        let line = payload.text(length)?;
        let length = payload.u32()? as usize;
        let allocator = payload.text(length)?;
        if rate == 0 {
            return Err("a rate of 0");
        }
        let arguments = line.strip_suffix('\0').unwrap_or(&line);
        let arguments = match line.is_empty() {
            true => Vec::new(),
            false => arguments.split('\0').map(String::from).collect(),
        };
        let (armed_late, coarse) = (flags & 1 != 0, flags & 2 == 0);
        self.raw.process =
            Process { pid, rate, start, monotonic, page_size, armed_late, coarse, arguments, allocator };
        Ok(())
    }

    fn modules(&mut self, payload: &mut Payload) -> Result<(), Wrong> {
        let mut modules = Vec::new();
        each(payload, |payload| {
            let [start, end, offset] = [payload.u64()?, payload.u64()?, payload.u64()?];
            let length = payload.u8()?;
            let build_id = payload.take(length.into())?.to_vec();
            let length = payload.u16()?;
            let path = OsStr::from_bytes(payload.take(length.into())?).into();
            if start > end || end.checked_add(offset).is_none() {
                return Err("a module that cannot be");
            }
            modules.push(Module { start, end, offset, build_id, path });
            Ok(())
        })?;
        modules.sort_by_key(|module| module.start);
        self.raw.modules.push(modules);
        Ok(())
    }

    fn stack(&mut self, payload: &mut Payload) -> Result<(), Wrong> {
        let stack = payload.u32()?;
        let end = match payload.u8()? {
            0 => StackEnd::Complete,
            1 => StackEnd::Cut,
            2 => StackEnd::Stopped,
            3 => StackEnd::NoWalk,
            _ => return Err("a stack's end that does not exist"),
        };
        let number = payload.u16()?;
        let end = if stack == OTHERS { StackEnd::Others } else { end };
        let addresses: Result<_, Wrong> = (0..number).map(|_| payload.u64()).collect();
        let modules = self.raw.modules.len().checked_sub(1);
        define(&mut self.stacks, stack, self.raw.stacks.len())?;
        self.raw.stacks.push(Stack { end, addresses: addresses?, modules });
        Ok(())
    }

    /// Puts the stacks into the order of their identifiers. That of the file may be another one in the next
    /// file of the same process, whose sites are compared.
    fn sort_stacks(&mut self) {
        let mut order: Vec<(u32, usize)> = self.stacks.iter().map(|(&id, &index)| (id, index)).collect();
        order.sort_unstable();
        if order.iter().map(|(_, index)| *index).is_sorted() {
            return;
        }
        let mut now = vec![0; order.len()];
        order.iter().enumerate().for_each(|(to, &(_, from))| now[from] = to);
        let stacks = &mut self.raw.stacks;
        self.raw.stacks = order.iter().map(|&(_, from)| std::mem::take(&mut stacks[from])).collect();
        self.raw.sites.iter_mut().for_each(|site| site.stack = now[site.stack]);
    }

    fn site(&mut self, payload: &mut Payload) -> Result<(), Wrong> {
        let [site, stack, thread, tag] = [payload.u32()?, payload.u32()?, payload.u32()?, payload.u32()?];
        let size = payload.u64()?;
        let stack = *self.stacks.get(&stack).ok_or("a stack that was not defined")?;
        let tag = (tag != NO_TAG).then_some(tag);
        if tag.is_some_and(|tag| !self.raw.tags.contains_key(&tag)) {
            return Err("a tag that was not defined");
        }
        if !(1..=LARGEST).contains(&size) {
            return Err("blocks of a size that cannot be");
        }
        define(&mut self.sites, site, self.raw.sites.len())?;
        self.raw.sites.push(Site { stack, thread, tag, size });
        Ok(())
    }

    fn snapshot(&mut self, payload: &mut Payload) -> Result<(), Wrong> {
        let (time, why) = (payload.u64()?, payload.why()?);
        let mut totals = [0; 9];
        for i in 0..payload.u32()? as usize {
            let value = payload.u64()?;
            // A newer allocator may append some.
            if let Some(total) = totals.get_mut(i) {
                *total = value.min(u64::MAX / 8);
            }
        }
        let [resident, mapped, live, cached, free, dirty, metadata, lost, fresh] = totals;
        let totals = Totals { resident, mapped, live, cached, free, dirty, metadata, fresh };
        let mut rows = Vec::new();
        each(payload, |payload| {
            let site = *self.sites.get(&payload.u32()?).ok_or("a site that was not defined")?;
            let [allocated, live, peak] = [payload.u64()?, payload.u64()?, payload.u64()?];
            let pinned = f64::from_le_bytes(payload.array()?);
            if !(0.0..1e18).contains(&pinned) || allocated.max(live).max(peak) > LARGEST {
                return Err("figures that cannot be");
            }
            rows.push((site, Row { allocated, live, peak, pinned }));
            Ok(())
        })?;
        if self.raw.snapshots.last().is_some_and(|last| last.time > time) {
            return Err("a snapshot that is older than the one before");
        }
        self.raw.snapshots.push(Snapshot { time, why, totals, lost, rows });
        Ok(())
    }
}

/// Reads as many things as the payload says. Memory is asked for only as they come.
fn each(payload: &mut Payload, mut read: impl FnMut(&mut Payload) -> Result<(), Wrong>) -> Result<(), Wrong> {
    (0..payload.u32()?).try_for_each(|_| read(payload))
}

fn define(known: &mut HashMap<u32, usize>, id: u32, index: usize) -> Result<(), Wrong> {
    match known.insert(id, index) {
        None => Ok(()),
        Some(_) => Err("something that was defined twice"),
    }
}
