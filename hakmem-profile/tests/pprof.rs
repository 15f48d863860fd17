//! pprof's format: read again by us and by `go tool pprof`.

mod support;

use std::process::Command;

use hakmem_profile::diff::{self, Side};
use hakmem_profile::file::{self, Process, Site, StackEnd, Totals, Why, Writer};
use hakmem_profile::model::{Profile, What};
use hakmem_profile::pprof::{self, proto};
use hakmem_profile::symbols::Symbols;
use prost::Message;
use support::{RATE, go, module, process, row, small};

fn encoded() -> (Profile, Vec<u8>) {
    let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
    let profile = Profile::new(file::read(&small()).unwrap(), &mut symbols);
    let bytes = pprof::encode(&profile, &profile.moment(None).unwrap(), &mut symbols).unwrap();
    (profile, bytes)
}

fn decoded(bytes: &[u8]) -> proto::Profile {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut plain).unwrap();
    proto::Profile::decode(&plain[..]).unwrap()
}

#[test]
fn what_is_written_is_read() {
    let (profile, bytes) = encoded();
    let decoded = pprof::decode(&bytes).unwrap();
    let names: Vec<&str> = decoded.types.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
    assert_eq!((decoded.rate, decoded.samples.len()), (Some(RATE), 3));
    let moment = profile.moment(None).unwrap();
    for (i, sample) in decoded.samples.iter().enumerate() {
        let figures = profile.site(&moment, i);
        let (allocated, live) = (figures.allocated, figures.live);
        let expected =
            [allocated.objects, allocated.bytes, live.objects, live.bytes].map(|f| f.round() as i64);
        assert_eq!(sample.values, expected);
        assert_eq!(sample.size, Some(profile.raw.sites[i].size));
        let names = |frames: &hakmem_profile::symbols::Frames| {
            frames.iter().map(|frame| frame.function.clone()).collect::<Vec<_>>()
        };
        if i < 2 {
            assert_eq!(names(&sample.frames), names(&profile.stacks[profile.stack_of(i)]));
        }
    }
    // Both sides of a comparison agree that nothing has changed, but for rounding.
    let ours = Side::of_profile(&profile, &moment, What::Live);
    let theirs = Side::of_pprof(&decoded, What::Live).unwrap();
    for row in diff::rows(&ours, &theirs) {
        assert!(row.change().abs() < 1.0, "{row:?}");
        assert!(row.error.unwrap() > 0.0);
    }
    assert!(Side::of_pprof(&decoded, What::Peak).unwrap_err().to_string().contains("inuse_space"));
}

#[test]
fn a_rate_beyond_what_the_format_has_is_the_most() {
    let mut raw = file::read(&small()).unwrap();
    raw.process.rate = u64::MAX;
    let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
    let profile = Profile::new(raw, &mut symbols);
    let bytes = pprof::encode(&profile, &profile.moment(None).unwrap(), &mut symbols).unwrap();
    assert_eq!(decoded(&bytes).period, i64::MAX);
}

/// Tools take the first mapping for the program's.
#[test]
fn the_first_mapping_is_the_program_wherever_a_stack_begins() {
    let mut writer = Writer::new(&process());
    writer.modules(&[
        module(0x0f00_0000, ""),
        module(0x1000_0000, "/no/such/server"),
        module(0x4000_0000, "/no/such/libc.so.6"),
    ]);
    let stack = writer.stack(&[0x4000_0101, 0x1000_0201], StackEnd::Complete);
    let site = writer.site(&Site { stack: stack as usize, thread: 1, tag: None, size: 64 });
    writer.snapshot(1, Why::End, &Totals::default(), &[(site, row(1, 1, 1, 0.0))]);
    let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
    let profile = Profile::new(file::read(writer.bytes()).unwrap(), &mut symbols);
    let message = decoded(&pprof::encode(&profile, &profile.moment(None).unwrap(), &mut symbols).unwrap());
    let names: Vec<&str> =
        message.mapping.iter().map(|mapping| &*message.string_table[mapping.filename as usize]).collect();
    assert_eq!(names, ["/no/such/server", "/no/such/libc.so.6"]);
    let of = |location: &proto::Location| (location.address, location.mapping_id);
    assert_eq!(message.location.iter().map(of).collect::<Vec<_>>(), [(0x4000_0100, 2), (0x1000_0200, 1)]);
}

/// The allocator gives up stacks for want of room, and programs change their command line.
#[test]
fn what_has_changed_is_found_between_files_whose_sites_differ() {
    let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
    let mut read = |arguments: &str, stacks: &[(&[u64], u64)], others: u64| {
        let mut writer = Writer::new(&Process { arguments: vec![arguments.into()], ..process() });
        writer.modules(&[module(0x1000_0000, "/no/such/server")]);
        let mut rows = Vec::new();
        let mut add = |writer: &mut Writer, addresses: &[u64], end, live| {
            let stack = writer.stack(addresses, end) as usize;
            let site = writer.site(&Site { stack, thread: 1, tag: None, size: 1 << 40 });
            rows.push((site, row(live, live, live, 0.0)));
        };
        for &(addresses, live) in stacks {
            add(&mut writer, addresses, StackEnd::Complete, live);
        }
        add(&mut writer, &[], StackEnd::Others, others);
        writer.snapshot(1, Why::Asked, &Totals::default(), &rows);
        Profile::new(file::read(writer.bytes()).unwrap(), &mut symbols)
    };
    let [a, b, c, d]: [&[u64]; 4] = [&[0x1000_0101], &[0x1000_0201], &[0x1000_0301], &[0x1000_0401]];
    let before = read("server", &[(a, 5), (b, 7), (c, 1)], 10);
    // What `a` had, and one more, is among the others now.
    let now = read("server: idle", &[(c, 4), (d, 2), (b, 7)], 10 + 5 + 1);
    let [was, is] = [&before, &now].map(|profile| profile.moment(None).unwrap());
    let bytes = pprof::encode_since(Some((&before, &was)), (&now, &is), &mut symbols).unwrap();
    let objects: Vec<i64> = decoded(&bytes).sample.iter().map(|sample| sample.value[2]).collect();
    assert_eq!(objects, [3, 2, 0, 1]);

    let mut raw = before.raw.clone();
    raw.process.start += 1;
    let other = Profile::new(raw, &mut symbols);
    let error = pprof::encode_since(Some((&other, &was)), (&now, &is), &mut symbols).unwrap_err();
    assert!(error.to_string().contains("two profiles"), "{error}");
}

#[test]
fn the_message_is_as_the_specification_says() {
    let (_, bytes) = encoded();
    let message = decoded(&bytes);
    let string = |index: i64| message.string_table[index as usize].as_str();
    assert_eq!(string(0), "");
    assert_eq!(string(message.default_sample_type), "inuse_space");
    let period = message.period_type.unwrap();
    assert_eq!((string(period.r#type), string(period.unit), message.period), ("space", "bytes", RATE as i64));
    assert_eq!((message.time_nanos, message.duration_nanos), (1_700_000_000_000_000_000, 3_000_000_000));
    let server =
        message.mapping.iter().find(|mapping| string(mapping.filename) == "/no/such/server").unwrap();
    assert_eq!((string(server.build_id), server.memory_start), ("abcdef", 0x1000_0000));
    // Nothing is known of it, so that another tool may look.
    assert!(!server.has_functions);
    let labels: Vec<(&str, &str, i64, &str)> = message.sample[1]
        .label
        .iter()
        .map(|label| (string(label.key), string(label.str), label.num, string(label.num_unit)))
        .collect();
    let expected = [
        ("bytes", "", 1 << 20, "bytes"),
        ("rounded to", "", 16 << 10, "bytes"),
        ("thread", "worker (4712)", 0, ""),
        ("tag", "query 42", 0, ""),
    ];
    assert_eq!(labels, expected);
    // The allocator's frame is left out.
    assert_eq!(message.sample[0].location_id.len(), 2);
}

#[test]
fn what_is_no_profile_is_refused() {
    let (_, bytes) = encoded();
    for end in 0..bytes.len() {
        assert!(pprof::decode(&bytes[..end]).is_err(), "{end}");
    }
    assert!(pprof::decode(b"hello").unwrap_err().to_string().contains("pprof's format"));
    // Numbers that stand for nothing.
    let mut message = proto::Profile { string_table: vec![String::new()], ..Default::default() };
    message.sample_type.push(proto::ValueType { r#type: 7, unit: -1 });
    assert!(pprof::decode(&message.encode_to_vec()).is_err());
}

/// As jemalloc's and gperftools' converters name them.
#[test]
fn profiles_of_others_are_read() {
    let strings = ["", "objects", "count", "space", "bytes", "main", "leak", "/bin/app"];
    let mut message = proto::Profile {
        string_table: strings.map(String::from).to_vec(),
        sample_type: vec![proto::ValueType { r#type: 1, unit: 2 }, proto::ValueType { r#type: 3, unit: 4 }],
        ..Default::default()
    };
    message.mapping.push(proto::Mapping { id: 9, memory_start: 0x4000, filename: 7, ..Default::default() });
    for (id, name) in [(1, 5), (2, 6)] {
        message.function.push(proto::Function { id, name, ..Default::default() });
        let line = vec![proto::Line { function_id: id, line: 12 }];
        message.location.push(proto::Location { id, line, ..Default::default() });
    }
    message.location.push(proto::Location { id: 3, mapping_id: 9, address: 0x4010, line: vec![] });
    message.sample.push(proto::Sample { location_id: vec![2, 3, 1], value: vec![2, 100], label: vec![] });
    let decoded = pprof::decode(&message.encode_to_vec()).unwrap();
    let names: Vec<&str> = decoded.samples[0].frames.iter().map(|frame| frame.function.as_str()).collect();
    assert_eq!(names, ["leak", "app+0x10", "main"]);
    let side = Side::of_pprof(&decoded, What::Live).unwrap();
    let rows = diff::rows(&Side::default(), &side);
    assert_eq!(
        (rows.len(), rows[0].bytes, rows[0].objects, rows[0].error),
        (1, (0.0, 100.0), (0.0, 2.0), None)
    );
}

/// A location of 8,192 functions that is named twice, and one that is named once more; then 2^28 functions in
/// stacks that are deep but not too deep.
#[test]
fn endless_stacks_are_refused() {
    let mut message = proto::Profile { string_table: vec![String::new()], ..Default::default() };
    message.sample_type.push(proto::ValueType::default());
    message.function.push(proto::Function { id: 1, ..Default::default() });
    let line = vec![proto::Line { function_id: 1, line: 1 }; 8192];
    message.location.push(proto::Location { id: 1, line, ..Default::default() });
    let stack = |depth| proto::Sample { location_id: vec![1; depth], value: vec![1], label: vec![] };
    let mut read = |samples| {
        message.sample = samples;
        let decoded = pprof::decode(&message.encode_to_vec());
        decoded.map(|read| read.samples[0].frames.len()).map_err(|error| error.to_string())
    };
    assert_eq!(read(vec![stack(2)]), Ok(16384));
    let expected = "one of its call stacks has 24576 functions, and 16384 may be read";
    assert_eq!(read(vec![stack(3)]), Err(expected.into()));
    let expected = "its call stacks have 268451840 functions together, and 268435456 may be read";
    assert_eq!(read(vec![stack(2); (1 << 14) + 1]), Err(expected.into()));
}

#[test]
fn go_opens_it() {
    let Some(go) = go() else { return };
    let (_, bytes) = encoded();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heap.pb.gz");
    std::fs::write(&path, bytes).unwrap();
    let pprof = |arguments: &[&str]| {
        let mut command = Command::new(go);
        command.args(["tool", "pprof"]).args(arguments).arg(&path);
        // Where it would keep what it is given.
        command.env("PPROF_TMPDIR", dir.path()).env("GOTELEMETRY", "off");
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{text:?}");
        text[0].clone()
    };
    let top = pprof(&["-top"]);
    assert!(top.contains("Type: inuse_space") && top.contains("MB"), "{top}");
    assert!(pprof(&["-top", "-sample_index=alloc_objects"]).contains("Type: alloc_objects"));
    let tags = pprof(&["-tags"]);
    assert!(tags.contains("query 42") && tags.contains("worker (4712)"), "{tags}");
}
