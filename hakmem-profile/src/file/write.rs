//! Writes raw files, for tests and fixtures: the allocator has a writer of its own.

use std::os::unix::ffi::OsStrExt;

use super::{MAGIC, Module, NO_TAG, OTHERS, Process, Row, Site, StackEnd, Totals, VERSION, Why, fnv1a, kind};

/// A file that grows by frames. Identifiers count from 0 in the order of the calls.
pub struct Writer {
    bytes: Vec<u8>,
    stacks: u32,
    tags: u32,
    sites: u32,
}

/// One frame as it is in a file.
pub fn frame(kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(payload);
    bytes.extend(fnv1a(&bytes).to_le_bytes());
    bytes
}

impl Writer {
    /// A file with the first frame.
    pub fn new(process: &Process) -> Self {
        Self::with_version(process, VERSION)
    }

    /// The same, of another version.
    pub fn with_version(process: &Process, version: u32) -> Self {
        let mut payload = version.to_le_bytes().to_vec();
        payload.extend(process.pid.to_le_bytes());
        payload.extend([process.rate, process.start, process.monotonic].map(u64::to_le_bytes).as_flattened());
        payload.extend(process.page_size.to_le_bytes());
        let flags = u32::from(process.armed_late) | u32::from(!process.coarse) << 1;
        payload.extend(flags.to_le_bytes());
        let line: Vec<u8> =
            process.arguments.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
        for text in [&line[..], process.allocator.as_bytes()] {
            payload.extend((text.len() as u32).to_le_bytes());
            payload.extend(text);
        }
        let mut writer = Self { bytes: MAGIC.to_vec(), stacks: 0, tags: 0, sites: 0 };
        writer.push(kind::PROCESS, &payload);
        writer
    }

    /// Any frame.
    pub fn push(&mut self, kind: u32, payload: &[u8]) {
        self.bytes.extend(frame(kind, payload));
    }

    /// What is mapped from now on.
    pub fn modules(&mut self, modules: &[Module]) {
        let mut payload = (modules.len() as u32).to_le_bytes().to_vec();
        for module in modules {
            payload.extend([module.start, module.end, module.offset].map(u64::to_le_bytes).as_flattened());
            payload.push(module.build_id.len() as u8);
            payload.extend(&module.build_id);
            let path = module.path.as_os_str().as_bytes();
            payload.extend((path.len() as u16).to_le_bytes());
            payload.extend(path);
        }
        self.push(kind::MODULES, &payload);
    }

    /// A call stack; its identifier.
    pub fn stack(&mut self, addresses: &[u64], end: StackEnd) -> u32 {
        let mut payload = 1u32.to_le_bytes().to_vec();
        let number = if end == StackEnd::Others { OTHERS } else { self.stacks };
        payload.extend(number.to_le_bytes());
        payload.push(match end {
            StackEnd::Complete => 0,
            StackEnd::Cut => 1,
            StackEnd::Stopped => 2,
            StackEnd::NoWalk | StackEnd::Others => 3,
        });
        payload.extend((addresses.len() as u16).to_le_bytes());
        addresses.iter().for_each(|address| payload.extend(address.to_le_bytes()));
        self.push(kind::STACKS, &payload);
        self.stacks += u32::from(number != OTHERS);
        number
    }

    /// A tag; its identifier.
    pub fn tag(&mut self, text: &str) -> u32 {
        let mut payload = 1u32.to_le_bytes().to_vec();
        payload.extend(self.tags.to_le_bytes());
        payload.extend((text.len() as u16).to_le_bytes());
        payload.extend(text.as_bytes());
        self.push(kind::TAGS, &payload);
        self.tags += 1;
        self.tags - 1
    }

    /// A site, whose stack is given by its identifier; the site's identifier.
    pub fn site(&mut self, site: &Site) -> u32 {
        let mut payload = 1u32.to_le_bytes().to_vec();
        let words = [self.sites, site.stack as u32, site.thread, site.tag.unwrap_or(NO_TAG)];
        payload.extend(words.map(u32::to_le_bytes).as_flattened());
        payload.extend(site.size.to_le_bytes());
        self.push(kind::SITES, &payload);
        self.sites += 1;
        self.sites - 1
    }

    /// The name of a thread.
    pub fn thread(&mut self, thread: u32, name: &str) {
        let mut payload = 1u32.to_le_bytes().to_vec();
        payload.extend(thread.to_le_bytes());
        payload.push(name.len() as u8);
        payload.extend(name.as_bytes());
        self.push(kind::THREADS, &payload);
    }

    /// A snapshot of these rows.
    pub fn snapshot(&mut self, time: u64, why: Why, totals: &Totals, rows: &[(u32, Row)]) {
        let Totals { resident, mapped, live, cached, free, dirty, metadata, fresh } = *totals;
        let totals = [resident, mapped, live, cached, free, dirty, metadata, 0, fresh];
        let mut payload = time.to_le_bytes().to_vec();
        payload.extend(number(why).to_le_bytes());
        payload.extend((totals.len() as u32).to_le_bytes());
        payload.extend(totals.map(u64::to_le_bytes).as_flattened());
        payload.extend((rows.len() as u32).to_le_bytes());
        for (site, row) in rows {
            payload.extend(site.to_le_bytes());
            payload.extend([row.allocated, row.live, row.peak].map(u64::to_le_bytes).as_flattened());
            payload.extend(row.pinned.to_le_bytes());
        }
        self.push(kind::SNAPSHOT, &payload);
    }

    /// How long the blocks of a site lived.
    pub fn lifetimes(&mut self, site: u32, pairs: &[(u8, u64)]) {
        let mut payload = 1u32.to_le_bytes().to_vec();
        payload.extend(site.to_le_bytes());
        payload.push(pairs.len() as u8);
        for (b, count) in pairs {
            payload.push(*b);
            payload.extend(count.to_le_bytes());
        }
        self.push(kind::LIFETIMES, &payload);
    }

    /// The last frame.
    pub fn end(&mut self, why: Why) {
        self.push(kind::END, &number(why).to_le_bytes());
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn number(why: Why) -> u32 {
    match why {
        Why::Timer => 0,
        Why::End => 1,
        Why::Asked => 2,
        Why::Fork => 3,
    }
}
