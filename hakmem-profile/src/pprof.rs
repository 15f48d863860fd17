//! pprof's format: a gzipped protocol buffer (`profile.proto` of github.com/google/pprof).

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{Read, Write};

use anyhow::Context;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use prost::Message;

use crate::model::{Moment, Profile, What};
use crate::symbols::{Frame, Symbols, file_name, module_of};

/// The messages of `profile.proto`; its comments say what is in them.
#[allow(missing_docs)]
pub mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub period: i64,
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Label {
        #[prost(int64, tag = "1")]
        pub key: i64,
        #[prost(int64, tag = "2")]
        pub str: i64,
        #[prost(int64, tag = "3")]
        pub num: i64,
        #[prost(int64, tag = "4")]
        pub num_unit: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub memory_start: u64,
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        #[prost(uint64, tag = "4")]
        pub file_offset: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        #[prost(int64, tag = "2")]
        pub line: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

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
    locations: Numbered<(usize, u64, Vec<Frame>)>,
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
            self.message.function.push(proto::Function { id, name, system_name: name, filename });
        }
        id
    }

    /// A location; `mapping` is the index of its mapping and 1, or 0.
    fn location(&mut self, mapping: usize, address: u64, frames: Vec<Frame>) -> u64 {
        let (id, new) = self.locations.number((mapping, address, frames.clone()), 1);
        if new {
            // Without a name here, another tool may still find one.
            let named: Vec<&Frame> = frames.iter().filter(|frame| frame.is_named()).collect();
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
    let raw = &profile.raw;
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
    builder.message.period = raw.process.rate as i64;
    builder.message.time_nanos = raw.process.start as i64;
    builder.message.duration_nanos = moment.time as i64;
    for comment in [raw.process.arguments.join(" "), format!("hakmem {}", raw.process.allocator)] {
        let comment = builder.string(&comment);
        builder.message.comment.push(comment);
    }

    let mut mappings = Numbered(HashMap::new());
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
                                let build_id: String =
                                    module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
                                let mapping = proto::Mapping {
                                    id,
                                    memory_start: module.start,
                                    memory_limit: module.end,
                                    file_offset: module.offset,
                                    filename: builder.string(&module.path),
                                    build_id: builder.string(&build_id),
                                    ..Default::default()
                                };
                                builder.message.mapping.push(mapping);
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
        let whole = |value: f64| value.round() as i64;
        let (allocated, live) = (figures.allocated, figures.live);
        let value = [allocated.objects, allocated.bytes, live.objects, live.bytes].map(whole).to_vec();
        let mut label = vec![proto::Label {
            key: builder.string("bytes"),
            num: site.size as i64,
            num_unit: builder.string("bytes"),
            str: 0,
        }];
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

/// A profile of any tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    /// The stacks, the innermost function first, with what each stands for.
    pub samples: Vec<Sample>,
    /// The names and units of `Sample::values`.
    pub types: Vec<(String, String)>,
    /// Mean bytes between two samples, where the profile says so.
    pub rate: Option<u64>,
}

/// One stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Its functions.
    pub frames: Vec<Frame>,
    /// Its figures.
    pub values: Vec<i64>,
    /// Bytes of a block, where the profile says so.
    pub size: Option<u64>,
}

/// What a compressed profile may grow to: what is larger is hardly one.
const LARGEST: u64 = 4 << 30;

/// Whether these bytes may be a profile: those of gzip.
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// Reads a profile, gzipped or not.
pub fn decode(bytes: &[u8]) -> anyhow::Result<Decoded> {
    let mut plain = Vec::new();
    let message = if is_gzip(bytes) {
        let mut gzip = MultiGzDecoder::new(bytes).take(LARGEST);
        gzip.read_to_end(&mut plain).context("it is cut short or damaged: no whole gzip file")?;
        &plain
    } else {
        bytes
    };
    let message = proto::Profile::decode(message).ok().filter(|message| !message.sample_type.is_empty());
    message.and_then(|message| resolve(&message)).context("it is no profile in pprof's format")
}

/// Replaces numbers by what they stand for; `None` where they stand for nothing.
fn resolve(message: &proto::Profile) -> Option<Decoded> {
    let string = |index: i64| message.string_table.get(usize::try_from(index).ok()?).map(String::as_str);
    let mappings: HashMap<u64, &proto::Mapping> =
        message.mapping.iter().map(|mapping| (mapping.id, mapping)).collect();
    let functions: HashMap<u64, &proto::Function> =
        message.function.iter().map(|function| (function.id, function)).collect();
    let mut locations: HashMap<u64, Vec<Frame>> = HashMap::new();
    for location in &message.location {
        let mapping = mappings.get(&location.mapping_id);
        let module = mapping.map_or(Some(""), |mapping| string(mapping.filename)).map(file_name)?;
        let mut frames = Vec::new();
        for line in &location.line {
            let function = functions.get(&line.function_id)?;
            let file = Some(string(function.filename)?).filter(|file| !file.is_empty());
            frames.push(Frame {
                function: string(function.name)?.into(),
                file: file.map(String::from),
                line: u32::try_from(line.line).ok().filter(|line| *line > 0),
                module: module.into(),
            });
        }
        if frames.is_empty() {
            let start = mapping.map_or(0, |mapping| mapping.memory_start.wrapping_sub(mapping.file_offset));
            let function = format!("{module}+{:#x}", location.address.wrapping_sub(start));
            frames.push(Frame { function, module: module.into(), ..Frame::default() });
        }
        locations.insert(location.id, frames);
    }
    let types: Option<Vec<_>> = message
        .sample_type
        .iter()
        .map(|one| Some((string(one.r#type)?.to_string(), string(one.unit)?.to_string())))
        .collect();
    let types = types?;
    let mut samples = Vec::new();
    for sample in &message.sample {
        if sample.value.len() != types.len() {
            return None;
        }
        let mut frames = Vec::new();
        for id in &sample.location_id {
            frames.extend(locations.get(id)?.iter().cloned());
        }
        let is_size = |label: &&proto::Label| string(label.key) == Some("bytes") && label.num > 0;
        let size = sample.label.iter().find(is_size).map(|label| label.num as u64);
        samples.push(Sample { frames, values: sample.value.clone(), size });
    }
    let by_space = message.period_type.and_then(|one| string(one.r#type)) == Some("space");
    let rate = u64::try_from(message.period).ok().filter(|rate| by_space && *rate > 0);
    Some(Decoded { samples, types, rate })
}

impl Decoded {
    /// Which of the values are the objects and the bytes of what is asked for.
    pub fn columns(&self, what: What) -> anyhow::Result<(Option<usize>, usize)> {
        let find = |names: &[&str]| {
            names.iter().find_map(|name| self.types.iter().position(|(known, _)| known == name))
        };
        // Those of Go and tcmalloc, then those of jemalloc and gperftools.
        let (objects, bytes): (&[&str], &[&str]) = match what {
            What::Live => (&["inuse_objects", "objects"], &["inuse_space", "space"]),
            What::Allocated => (&["alloc_objects", "allocations"], &["alloc_space", "space"]),
            What::Peak => (&["peak_objects"], &["peak_space"]),
            What::Pinned => (&[], &[]),
        };
        let types = || self.types.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let bytes =
            find(bytes).with_context(|| format!("it has no such figures (--what), only: {}", types()))?;
        Ok((find(objects), bytes))
    }
}
