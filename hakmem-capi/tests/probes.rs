//! The probes for tracers (docs/profile.md, "For tracers"): what their notes say, and that they are passed.

mod support;

use object::elf::{FileHeader64, PF_W, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::{compile, expect_ok, lib, lib_dir, scratch};

const LIMIT: Duration = Duration::from_secs(180);

/// What a note says, with the section that the probe is in.
#[derive(Debug)]
struct Probe {
    name: String,
    arguments: String,
    location: u64,
    base: u64,
    semaphore: u64,
}

/// The string before the first zero, and what is behind that.
fn text(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.iter().position(|&byte| byte == 0).expect("a string ends");
    (String::from_utf8(bytes[..end].to_vec()).unwrap(), &bytes[end + 1..])
}

fn probes(data: &[u8]) -> Vec<Probe> {
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (_, section) = sections.section_by_name(endian, b".note.stapsdt").expect("there are probes");
    let mut notes = section.notes(endian, data).unwrap().unwrap();
    let mut probes = Vec::new();
    while let Some(note) = notes.next().unwrap() {
        assert_eq!((note.name(), note.n_type(endian)), (&b"stapsdt"[..], 3));
        let number = |at: usize| u64::from_le_bytes(note.desc()[at..at + 8].try_into().unwrap());
        let (provider, rest) = text(&note.desc()[24..]);
        assert_eq!(provider, "otel_memory");
        let (name, rest) = text(rest);
        let (arguments, _) = text(rest);
        probes.push(Probe { name, arguments, location: number(0), base: number(8), semaphore: number(16) });
    }
    probes.sort_by(|a, b| a.name.cmp(&b.name));
    probes
}

#[test]
fn notes_say_where_the_probes_are() {
    let data = std::fs::read(lib()).unwrap();
    let probes = probes(&data);
    let registers = if cfg!(target_arch = "x86_64") {
        ["8@%rdi 8@%rsi 8@%rdx", "8@%rdi"]
    } else {
        ["8@x0 8@x1 8@x2", "8@x0"]
    };
    let found: Vec<_> = probes.iter().map(|probe| (&*probe.name, &*probe.arguments)).collect();
    assert_eq!(found, [("alloc", registers[0]), ("free", registers[1])]);

    let file = object::File::parse(&*data).unwrap();
    let base = file.section_by_name(".stapsdt.base").expect("what tells that the file was moved").address();
    assert_ne!(base, 0);
    assert!(probes.iter().all(|probe| probe.base == base), "{probes:?}");
    assert_ne!(probes[0].semaphore, probes[1].semaphore);

    // Tracers find both by their place in the file.
    let header = FileHeader64::<Endianness>::parse(&*data).unwrap();
    let endian = header.endian().unwrap();
    let in_file = |address: u64, flag: u32| {
        let loaded = header.program_headers(endian, &*data).unwrap().iter().find(|segment| {
            let from = segment.p_vaddr(endian);
            segment.p_type(endian) == PT_LOAD && (from..from + segment.p_filesz(endian)).contains(&address)
        });
        let segment = loaded.unwrap_or_else(|| panic!("{address:#x} is in no segment's file"));
        assert_ne!(segment.p_flags(endian) & flag, 0, "{address:#x}");
        &data[(address - segment.p_vaddr(endian) + segment.p_offset(endian)) as usize..]
    };
    let nop: &[u8] = if cfg!(target_arch = "x86_64") { &[0x90] } else { &0xd503_201f_u32.to_le_bytes() };
    for probe in &probes {
        assert!(in_file(probe.location, PF_X).starts_with(nop), "{probe:?}");
        assert_eq!(in_file(probe.semaphore, PF_W)[..2], [0, 0], "{probe:?}");
    }
    // It is in pages of code that an unarmed process does not have.
    let rare = file.section_by_name("hakmem_rare").unwrap();
    let rare = rare.address()..rare.address() + rare.size();
    assert!(probes.iter().all(|probe| rare.contains(&probe.location)), "{probes:?}");
}

/// What `who` has said of allocations or frees: block, size and weight of each.
fn said(lines: &str, who: &str, name: &str) -> Vec<(usize, usize, usize)> {
    let event = |line: &str| {
        let mut words = line.strip_prefix(who)?.strip_prefix(name)?.split_whitespace();
        let block = usize::from_str_radix(words.next()?, 16).unwrap();
        let mut number = || words.next().map_or(0, |word| word.parse().unwrap());
        Some((block, number(), number()))
    };
    lines.lines().filter_map(event).collect()
}

/// Fails unless `who` was shown what the program says that it has done.
fn same(output: &str, who: &str, program: &str) {
    let [shown, done] = [said(output, who, "free "), said(program, "program: ", "free ")];
    assert_eq!(shown, done, "{output}");
    let [shown, done] = [said(output, who, "alloc "), said(program, "program: ", "alloc ")];
    assert_eq!(shown.len(), done.len(), "{output}");
    for ((block, size, weight), (ours, asked, _)) in shown.into_iter().zip(done) {
        // The size is the block's: of a small one that of its class.
        assert_eq!(block, ours, "{output}");
        assert!(size >= asked && size <= asked + asked / 7 + 16, "{size}, {asked}");
        // All are samples, so that each stands for itself. Large sizes are rounded, up or down.
        assert!(weight.abs_diff(size) <= if size > 32 << 10 { size / 8 } else { 0 }, "{size}: {weight}");
    }
}

/// A program that says what it allocates and frees.
fn program() -> PathBuf {
    let search = format!("-L{}", lib_dir().display());
    compile("gcc", "probes.c", &[&search, "-lhakmem"])
}

/// Runs the program under gdb, which listens at the probes while it does its work for the first time, and
/// then only looks whether it passes where they are.
fn traced(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let script = scratch("probes").join(format!("{:?}.gdb", std::thread::current().id()));
    let variables: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let text = format!(
        r#"
        set debuginfod enabled off
        set pagination off
        set confirm off
        set exec-wrapper env LD_PRELOAD={} {}
        tbreak attach_here
        run
        break -probe-stap otel_memory:alloc
        commands
        silent
        printf "probe: alloc %lx %lu %lu\n", $_probe_arg0, $_probe_arg1, $_probe_arg2
        printf "arguments: %d\n", $_probe_argc
        set $alloc = $pc
        continue
        end
        break -probe-stap otel_memory:free
        commands
        silent
        printf "probe: free %lx\n", $_probe_arg0
        set $free = $pc
        continue
        end
        tbreak detach_here
        continue
        delete 2 3
        break *$alloc
        commands
        silent
        printf "late: alloc %lx %lu %lu\n", $_probe_arg0, $_probe_arg1, $_probe_arg2
        continue
        end
        break *$free
        commands
        silent
        printf "late: free %lx\n", $_probe_arg0
        continue
        end
        continue
        "#,
        lib().display(),
        variables.join(" ")
    );
    std::fs::write(&script, text).unwrap();
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-x"]).arg(&script).arg("--args").arg(program).args(arguments);
    let output = expect_ok(&mut command, LIMIT);
    assert!(output.contains("exited normally"), "{output}");
    output
}

/// What the program says that it did the first and the second time.
fn rounds(output: &str) -> (&str, &str) {
    let (_, behind) = output.split_once("program: begin\n").unwrap();
    let (first, behind) = behind.split_once("program: end\n").unwrap();
    let (_, second) = behind.split_once("program: begin\n").unwrap();
    assert!(second.ends_with("program: end\n") || second.contains("program: end\n[Inferior"), "{output}");
    (first, second)
}

/// Without the block by which the program sees that somebody listens, or that nobody does any more.
fn without_first(output: &str, who: &str) -> String {
    let mut first = [true; 2];
    let kept = output.lines().filter(|line| {
        let which = ["alloc ", "free "]
            .iter()
            .position(|name| line.strip_prefix(who).is_some_and(|rest| rest.starts_with(name)));
        which.is_none_or(|which| !std::mem::take(&mut first[which]))
    });
    kept.map(|line| format!("{line}\n")).collect()
}

fn is_gdb_missing() -> bool {
    !support::skips::has("gdb")
}

#[test]
fn who_listens_is_shown_what_an_unprepared_process_allocates_and_frees() {
    if is_gdb_missing() {
        return;
    }
    let program = program();
    let output = traced(&program, &[], &[("HAKMEM_PROFILE_RATE", "1")]);
    let (first, _) = rounds(&output);
    same(&without_first(&output, "probe: "), "probe: ", first);
    let counts: Vec<_> = output.lines().filter_map(|line| line.strip_prefix("arguments: ")).collect();
    assert!(!counts.is_empty() && counts.iter().all(|&count| count == "3"), "{counts:?}");
    // As soon as nobody listens no sample is taken.
    assert!(!output.contains("late: "), "{output}");
}

#[test]
fn who_listens_does_not_notice_that_a_profile_begins_and_ends() {
    if is_gdb_missing() {
        return;
    }
    let program = program();
    let file = scratch("probes").join("asked.hakprof");
    let output = traced(&program, &[file.to_str().unwrap()], &[("HAKMEM_PROFILE_RATE", "1")]);
    let (first, _) = rounds(&output);
    same(&without_first(&output, "probe: "), "probe: ", first);
    assert!(!output.contains("late: "), "{output}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"HAKPROF1"));
}

#[test]
fn a_profile_passes_the_probes_whoever_listens() {
    if is_gdb_missing() {
        return;
    }
    let program = program();
    let prefix = scratch("probes").join("profile");
    let environment = [("HAKMEM_PROFILE", prefix.to_str().unwrap()), ("HAKMEM_PROFILE_RATE", "1")];
    let output = traced(&program, &[], &environment);
    let (first, second) = rounds(&output);
    same(&without_first(&output, "probe: "), "probe: ", first);
    same(&without_first(&output, "late: "), "late: ", second);
}

#[test]
fn weights_say_what_samples_stand_for() {
    if is_gdb_missing() {
        return;
    }
    let program = program();
    let output = traced(&program, &[], &[("HAKMEM_PROFILE_RATE", "10000")]);
    let shown = said(&output, "probe: ", "alloc ");
    // Those of 3 MiB, at least.
    assert!(shown.len() >= 3, "{output}");
    for (_, size, weight) in shown.into_iter().filter(|(_, size, _)| *size < 32 << 10) {
        let exact = size as f64 / -(-(size as f64) / 10_000.0).exp_m1();
        assert!((weight as f64 - exact).abs() < 1.0, "{size}: {weight}, {exact}");
    }
}
