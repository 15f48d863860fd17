//! Reading.

use std::collections::HashMap;
use std::io::Read;
use std::rc::Rc;

use anyhow::Context;
use flate2::read::MultiGzDecoder;
use prost::Message;

use super::proto;
use crate::model::What;
use crate::symbols::{Frame, Frames, file_name};

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
    pub frames: Frames,
    /// Its figures.
    pub values: Vec<i64>,
    /// Bytes of a block, where the profile says so.
    pub size: Option<u64>,
    /// How far apart the sizes are that this one was rounded to, in files of ours; 0: it was not.
    pub step: u64,
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
    let mut locations: HashMap<u64, Frames> = HashMap::new();
    for location in &message.location {
        let mapping = mappings.get(&location.mapping_id);
        let module = mapping.map_or(Some(""), |mapping| string(mapping.filename)).map(file_name)?;
        let mut frames = Vec::new();
        for line in &location.line {
            let function = functions.get(&line.function_id)?;
            let file = Some(string(function.filename)?).filter(|file| !file.is_empty());
            frames.push(Rc::new(Frame {
                function: string(function.name)?.into(),
                file: file.map(String::from),
                line: u32::try_from(line.line).ok().filter(|line| *line > 0),
                module: module.into(),
            }));
        }
        if frames.is_empty() {
            let start = mapping.map_or(0, |mapping| mapping.memory_start.wrapping_sub(mapping.file_offset));
            let function = format!("{module}+{:#x}", location.address.wrapping_sub(start));
            frames.push(Rc::new(Frame { function, module: module.into(), ..Frame::default() }));
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
        let number = |name| {
            let is_it = |label: &&proto::Label| string(label.key) == Some(name) && label.num > 0;
            sample.label.iter().find(is_it).map(|label| label.num as u64)
        };
        let (size, step) = (number("bytes"), number(super::STEP).unwrap_or(0));
        samples.push(Sample { frames, values: sample.value.clone(), size, step });
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
