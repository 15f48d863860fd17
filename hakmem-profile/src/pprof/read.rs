//! Reading.

use std::collections::HashMap;
use std::io::Read;
use std::rc::Rc;

use anyhow::{Context, ensure};
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

/// What one profile may stand for, if it is one. A few bytes can stand for any number of functions: a
/// location may have many, and each stack name it as often as it likes. So it is with their names.
struct Limits {
    /// Functions of one stack.
    depth: usize,
    /// Functions of all stacks.
    functions: usize,
    /// Bytes in the names of the functions, files and modules of all locations.
    names: usize,
}

const LIMITS: Limits = Limits { depth: 1 << 14, functions: 1 << 28, names: LARGEST as usize };

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
    let wrong = "it is no profile in pprof's format";
    let message = message.context(wrong)?;
    refuse_endless(&message, &LIMITS)?;
    resolve(&message).context(wrong)
}

/// Refuses what would take more memory than any profile, before it does.
fn refuse_endless(message: &proto::Profile, limits: &Limits) -> anyhow::Result<()> {
    let length = |index: i64| {
        usize::try_from(index).ok().and_then(|index| message.string_table.get(index)).map_or(0, String::len)
    };
    let named = |one: &proto::Function| (one.id, length(one.name) + length(one.filename));
    let functions: HashMap<u64, usize> = message.function.iter().map(named).collect();
    let modules: HashMap<u64, usize> =
        message.mapping.iter().map(|mapping| (mapping.id, length(mapping.filename))).collect();
    let (mut depths, mut names) = (HashMap::new(), 0usize);
    for location in &message.location {
        depths.insert(location.id, location.line.len().max(1));
        let module = modules.get(&location.mapping_id).copied().unwrap_or_default();
        let of_line = |line: &proto::Line| functions.get(&line.function_id).map_or(0, |name| name + module);
        names = location.line.iter().map(of_line).fold(names, usize::saturating_add);
    }
    let most = limits.names;
    ensure!(names <= most, "the names of its functions have {names} bytes together, and {most} may be read");
    let (mut all, most) = (0usize, limits.depth);
    for sample in &message.sample {
        let of_one = |id| depths.get(id).copied().unwrap_or_default();
        let depth = sample.location_id.iter().map(of_one).fold(0, usize::saturating_add);
        ensure!(depth <= most, "one of its call stacks has {depth} functions, and {most} may be read");
        all = all.saturating_add(depth);
    }
    let most = limits.functions;
    ensure!(all <= most, "its call stacks have {all} functions together, and {most} may be read");
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_do_not_stand_for_any_amount() {
        let function = proto::Function { id: 1, name: 1, filename: 2, ..Default::default() };
        let line = vec![proto::Line { function_id: 1, line: 1 }; 100];
        let location = proto::Location { id: 1, mapping_id: 1, line, ..Default::default() };
        let stack = |depth| proto::Sample { location_id: vec![1; depth], ..Default::default() };
        let mut message = proto::Profile {
            string_table: ["", "name", "file", "module"].map(String::from).to_vec(),
            mapping: vec![proto::Mapping { id: 1, filename: 3, ..Default::default() }],
            location: vec![location],
            function: vec![function],
            sample: vec![stack(10), stack(10)],
            ..Default::default()
        };
        let said = |message: &proto::Profile, depth, functions, names| {
            let limits = Limits { depth, functions, names };
            refuse_endless(message, &limits).map_or_else(|error| error.to_string(), |()| String::new())
        };
        assert_eq!(said(&message, 1000, 2000, 1400), "");
        let expected = "one of its call stacks has 1000 functions, and 999 may be read";
        assert_eq!(said(&message, 999, 2000, 1400), expected);
        let expected = "its call stacks have 2000 functions together, and 1999 may be read";
        assert_eq!(said(&message, 1000, 1999, 1400), expected);
        let expected = "the names of its functions have 1400 bytes together, and 1399 may be read";
        assert_eq!(said(&message, 1000, 2000, 1399), expected);
        // A place of which no function is known stands for one.
        message.location[0].line.clear();
        assert_eq!(said(&message, 10, 20, 0), "");
    }
}
