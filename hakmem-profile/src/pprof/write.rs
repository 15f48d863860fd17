//! Writing.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::io::Write;
use std::rc::Rc;

use anyhow::ensure;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::proto;
use crate::file::{Module, Raw, StackEnd};
use crate::model::{Figures, Moment, Profile};
use crate::symbols::{Frame, Frames, Symbols, module_of};

/// Things that have a number by being named for the first time.
struct Numbered<T>(HashMap<T, u64>);

impl<T: Hash + Eq> Numbered<T> {
    /// The number of `thing`, and whether it is new.
    fn number(&mut self, thing: T, first: u64) -> (u64, bool) {
        let next = self.0.len() as u64 + first;
        let number = *self.0.entry(thing).or_insert(next);
        (number, number == next)
    }
}

/// A message that is being made.
struct Builder {
    message: proto::Profile,
    strings: Numbered<String>,
    functions: Numbered<(String, Option<String>)>,
    locations: Numbered<(usize, u64, Frames)>,
}

impl Builder {
    fn new() -> Self {
        let mut builder = Self {
            message: proto::Profile::default(),
            strings: Numbered(HashMap::new()),
            functions: Numbered(HashMap::new()),
            locations: Numbered(HashMap::new()),
        };
        // The first must be empty.
        builder.string("");
        builder
    }

    fn string(&mut self, text: &str) -> i64 {
        let (number, new) = self.strings.number(text.into(), 0);
        if new {
            self.message.string_table.push(text.into());
        }
        number as i64
    }

    fn value_type(&mut self, r#type: &str, unit: &str) -> proto::ValueType {
        proto::ValueType { r#type: self.string(r#type), unit: self.string(unit) }
    }

    fn function(&mut self, frame: &Frame) -> u64 {
        let (id, new) = self.functions.number((frame.function.clone(), frame.file.clone()), 1);
        if new {
            let name = self.string(&frame.function);
            let filename = self.string(frame.file.as_deref().unwrap_or_default());
            // Without a system's name. `go tool pprof` takes names that are equal to it for mangled ones, and
            // leaves out of them what is between angle brackets, which is half of a name of Rust's.
            self.message.function.push(proto::Function { id, name, system_name: 0, filename });
        }
        id
    }

    /// A mapping, whose identifier is 1 more than its index.
    fn mapping(&mut self, id: u64, module: &Module) {
        let build_id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let mapping = proto::Mapping {
            id,
            memory_start: module.start,
            memory_limit: module.end,
            file_offset: module.offset,
            filename: self.string(&module.path.to_string_lossy()),
            build_id: self.string(&build_id),
            ..Default::default()
        };
        self.message.mapping.push(mapping);
    }

    /// A location; `mapping` is the index of its mapping and 1, or 0.
    fn location(&mut self, mapping: usize, address: u64, frames: Frames) -> u64 {
        let (id, new) = self.locations.number((mapping, address, frames.clone()), 1);
        if new {
            // Without a name here, another tool may still find one.
            let named: Vec<&Frame> = frames.iter().map(Rc::as_ref).filter(|frame| frame.is_named()).collect();
            if let Some(mapping) = mapping.checked_sub(1) {
                let mapping = &mut self.message.mapping[mapping];
                mapping.has_functions |= !named.is_empty();
                mapping.has_filenames |= named.iter().any(|frame| frame.file.is_some());
                mapping.has_line_numbers |= named.iter().any(|frame| frame.line.is_some());
                mapping.has_inline_frames |= named.len() > 1;
            }
            let line = |frame: &&Frame| proto::Line {
                function_id: self.function(frame),
                line: frame.line.unwrap_or(0).into(),
            };
            let line = named.iter().map(line).collect();
            self.message.location.push(proto::Location { id, mapping_id: mapping as u64, address, line });
        }
        id
    }
}

/// The profile at a moment, gzipped: allocated and held, objects and bytes.
pub fn encode(profile: &Profile, moment: &Moment, symbols: &mut Symbols) -> anyhow::Result<Vec<u8>> {
    encode_since(None, (profile, moment), symbols)
}

/// [`encode`], without what there was at an earlier moment, of the same profile or of a file that the same
/// process wrote earlier. What is held may have become less.
pub fn encode_since(
    before: Option<(&Profile, &Moment)>,
    (profile, moment): (&Profile, &Moment),
    symbols: &mut Symbols,
) -> anyhow::Result<Vec<u8>> {
    let raw = &profile.raw;
    if let Some((before, _)) = before {
        // What the command line is may have changed.
        let of = |raw: &Raw| (raw.process.pid, raw.process.start, raw.process.monotonic, raw.process.rate);
        ensure!(of(&before.raw) == of(raw), "these are two profiles: another one was started in between");
    }
    let earlier = before.map_or_else(HashMap::new, |(before, _)| earlier(&before.raw, raw));
    let mut builder = Builder::new();
    let types = [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ];
    for (r#type, unit) in types {
        let value_type = builder.value_type(r#type, unit);
        builder.message.sample_type.push(value_type);
    }
    builder.message.default_sample_type = builder.string("inuse_space");
    builder.message.period_type = Some(builder.value_type("space", "bytes"));
    builder.message.period = i64::try_from(raw.process.rate).unwrap_or(i64::MAX);
    let since = before.map_or(0, |(_, moment)| moment.time);
    builder.message.time_nanos = (raw.process.start + since) as i64;
    builder.message.duration_nanos = moment.time.saturating_sub(since) as i64;
    for comment in [raw.process.arguments.join(" "), format!("hakmem {}", raw.process.allocator)] {
        let comment = builder.string(&comment);
        builder.message.comment.push(comment);
    }

    let mut mappings = Numbered(HashMap::new());
    // The first one has to be the program's: tools show its name, and look in the file that they are given
    // for what lies there. It mostly has the lowest addresses, and modules are listed by these.
    if let Some(program) = raw.modules.first().and_then(|list| list.iter().find(|module| is_file(module))) {
        let (id, _) = mappings.number(program, 1);
        builder.mapping(id, program);
    }
    let mut stacks: HashMap<usize, Vec<u64>> = HashMap::new();
    for (i, site) in raw.sites.iter().enumerate() {
        let figures = profile.site(moment, i);
        if figures.allocated.samples == 0 {
            continue;
        }
        let location_id = match stacks.get(&site.stack) {
            Some(known) => known.clone(),
            None => {
                let list = raw.stacks[site.stack].modules;
                let mut ids = Vec::new();
                for (address, frames) in symbols.calls(raw, site.stack) {
                    let mapping = match module_of(raw, list, address) {
                        None => 0,
                        Some(module) => {
                            let (id, new) = mappings.number(module, 1);
                            if new {
                                builder.mapping(id, module);
                            }
                            id as usize
                        }
                    };
                    ids.push(builder.location(mapping, address, frames));
                }
                stacks.insert(site.stack, ids.clone());
                ids
            }
        };
        let values = |figures: &Figures| {
            let (allocated, live) = (&figures.allocated, &figures.live);
            [allocated.objects, allocated.bytes, live.objects, live.bytes].map(|value| value.round() as i64)
        };
        let mut value = values(&figures).to_vec();
        if let Some((before, moment)) = before {
            for &site in earlier.get(&i).into_iter().flatten() {
                value.iter_mut().zip(values(&before.site(moment, site))).for_each(|(new, old)| *new -= old);
            }
        }
        let mut label = vec![proto::Label {
            key: builder.string("bytes"),
            num: site.size as i64,
            num_unit: builder.string("bytes"),
            str: 0,
        }];
        let step = profile.step(i);
        if step != 0 {
            let (key, num_unit) = (builder.string(super::STEP), builder.string("bytes"));
            label.push(proto::Label { key, num: step as i64, num_unit, str: 0 });
        }
        for (key, text) in
            [("thread", Some(profile.thread(site.thread))), ("tag", profile.tag(site.tag).map(String::from))]
        {
            if let Some(text) = text {
                let (key, str) = (builder.string(key), builder.string(&text));
                label.push(proto::Label { key, str, ..Default::default() });
            }
        }
        builder.message.sample.push(proto::Sample { location_id, value, label });
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&builder.message.encode_to_vec())?;
    Ok(gzip.finish()?)
}

fn is_file(module: &Module) -> bool {
    !module.path.as_os_str().is_empty()
}

/// For each site of a file the sites of an earlier one whose samples it has: the same one, and, if it stands
/// for others, those that were given up meanwhile.
fn earlier(before: &Raw, now: &Raw) -> HashMap<usize, Vec<usize>> {
    type Key<'a> = (StackEnd, &'a [u64], u32, Option<u32>, u64);
    fn keys(raw: &Raw) -> impl Iterator<Item = Key<'_>> {
        raw.sites.iter().map(|site| {
            let stack = &raw.stacks[site.stack];
            (stack.end, &stack.addresses[..], site.thread, site.tag, site.size)
        })
    }
    // Stacks of the same addresses, through libraries that took each other's place, are in the same order.
    let mut left: HashMap<Key, VecDeque<usize>> = HashMap::new();
    let mut others: HashMap<u64, Vec<usize>> = HashMap::new();
    for (i, key) in keys(now).enumerate() {
        left.entry(key).or_default().push_back(i);
        if key.0 == StackEnd::Others {
            others.entry(key.4).or_default().push(i);
        }
    }
    let mut earlier: HashMap<usize, Vec<usize>> = HashMap::new();
    for (i, key) in keys(before).enumerate() {
        let same = left.get_mut(&key).and_then(VecDeque::pop_front);
        let given_up = || {
            let others = others.get(&key.4)?;
            let alike = |&&i: &&usize| (now.sites[i].thread, now.sites[i].tag) == (key.2, key.3);
            others.iter().find(alike).or(others.first()).copied()
        };
        if let Some(site) = same.or_else(given_up) {
            earlier.entry(site).or_default().push(i);
        }
    }
    earlier
}
