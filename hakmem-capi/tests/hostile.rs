//! Environments that refuse memory or watch closely, through the C library: address space limits, failing
//! system calls, too many mappings, locked memory, control groups, valgrind.

mod support;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::skips::{has, skip};
use support::{compile, expect_ok, lib, preloaded, run};

const LIMIT: Duration = Duration::from_secs(120);

/// `program` in a shell whose address space is limited to 1 GiB, with the library preloaded there.
fn limited(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"ulimit -v 1048576 && library=$1 && shift && exec env LD_PRELOAD="$library" "$@""#,
            "sh",
        ])
        .arg(lib())
        .arg(program)
        .args(args);
    command
}

#[test]
fn python_under_an_address_space_limit() {
    if !has("python3") {
        return;
    }
    let script = "import json,threading\n\
        d={i:[str(i)]*10 for i in range(50000)}\n\
        t=[threading.Thread(target=lambda:json.loads(json.dumps(d))) for _ in range(4)]\n\
        [x.start() for x in t];[x.join() for x in t]\n\
        a=bytearray(200<<20)\n\
        try: b=bytearray(3<<30)\n\
        except MemoryError: print('refused',len(a),sum(map(len,d.values())))\n";
    let out = expect_ok(&mut limited("python3", &["-c", script]), LIMIT);
    assert_eq!(out, "refused 209715200 500000\n");
}

#[test]
fn threads_under_an_address_space_limit() {
    let program = compile("gcc", "thread_foreign.c", &["-pthread"]);
    for mode in ["swap", "exited"] {
        assert_eq!(expect_ok(&mut limited(program.to_str().unwrap(), &[mode]), LIMIT), "ok\n");
    }
}

#[test]
fn the_address_space_limit_falls_in_the_middle() {
    let program = compile("gcc", "hostile_limit.c", &["-pthread", "-ldl"]);
    print!("{}", expect_ok(&mut preloaded(program), LIMIT));
}

/// The worker with the library, and the shim before it.
fn with_shim() -> (PathBuf, String) {
    let worker = compile("gcc", "hostile_worker.c", &["-pthread", "-ldl"]);
    let shim = compile("gcc", "hostile_mmap_shim.c", &["-shared", "-fPIC"]);
    (worker, format!("{} {}", shim.display(), lib().display()))
}

#[test]
fn system_calls_fail_one_after_another() {
    let (worker, preload) = with_shim();
    let out = expect_ok(Command::new(worker).arg("sweep").env("LD_PRELOAD", preload), LIMIT);
    print!("{out}");
    let refused = out.lines().filter(|l| l.contains(" refused") && !l.contains(" 0 allocations")).count();
    assert!(refused >= 10, "the shim made hardly any allocation fail");
}

#[test]
fn system_calls_fail_from_the_start_of_the_process() {
    let (worker, preload) = with_shim();
    for n in 1..=60 {
        let shim = format!("{n} {n} 1");
        expect_ok(Command::new(&worker).arg("once").env("LD_PRELOAD", &preload).env("SHIM", shim), LIMIT);
    }
    for k in 2..=6 {
        let shim = format!("1 1000000 {k}");
        expect_ok(Command::new(&worker).arg("once").env("LD_PRELOAD", &preload).env("SHIM", shim), LIMIT);
    }
}

#[test]
fn what_cannot_be_unmapped_is_used_again() {
    let (worker, preload) = with_shim();
    print!("{}", expect_ok(Command::new(worker).arg("holes").env("LD_PRELOAD", preload), LIMIT));
}

#[test]
fn blocks_that_are_several_mappings_are_not_moved() {
    let (worker, preload) = with_shim();
    print!("{}", expect_ok(Command::new(worker).arg("advised").env("LD_PRELOAD", preload), LIMIT));
}

#[test]
fn the_first_allocation_fails() {
    let (worker, preload) = with_shim();
    let mut command = Command::new(worker);
    expect_ok(command.arg("first").env("LD_PRELOAD", preload).env("SHIM", "1 1000000 1"), LIMIT);
}

#[test]
fn no_mapping_more_is_allowed() {
    let program = compile("gcc", "hostile_maps.c", &[]);
    print!("{}", expect_ok(&mut preloaded(program), LIMIT));
}

/// With fewer blocks than the cache has places, and with more SuperSlabs made of them than a chunk of
/// descriptors is for.
#[test]
fn what_cannot_be_unmapped_serves_smaller_blocks_and_goes_as_soon_as_it_can() {
    let program = compile("gcc", "hostile_kept.c", &[]);
    for blocks in ["101", "701"] {
        print!("{}", expect_ok(preloaded(&program).arg(blocks), LIMIT));
    }
}

/// Many programs take it for granted, and glibc does not refuse it.
#[test]
fn a_block_can_always_be_made_smaller() {
    let program = compile("gcc", "hostile_realloc.c", &["-ldl"]);
    print!("{}", expect_ok(&mut preloaded(&program), LIMIT));
    print!("{}", expect_ok(preloaded(&program).arg("maps"), LIMIT));
}

#[test]
fn a_block_that_moves_needs_no_room_for_both_its_lengths() {
    let program = compile("gcc", "hostile_realloc.c", &["-ldl"]);
    print!("{}", expect_ok(preloaded(program).arg("addresses"), LIMIT));
}

#[test]
fn nothing_is_lost_where_no_mapping_more_is_allowed() {
    let program = compile("gcc", "hostile_gaps.c", &[]);
    print!("{}", expect_ok(&mut preloaded(program), LIMIT));
}

#[test]
fn all_memory_is_locked() {
    let program = compile("gcc", "hostile_locked.c", &[]);
    for mode in ["all", "future"] {
        print!("{mode}: {}", expect_ok(preloaded(&program).arg(mode), LIMIT));
    }
}

/// Needs the right to make groups, as the superuser has where the system's groups are not read-only.
#[test]
fn a_control_group_limits_the_memory() {
    const MOST: &str = "67108864";
    let name = format!("hakmem-test-{}", std::process::id());
    let (one, two) = (PathBuf::from("/sys/fs/cgroup/memory"), PathBuf::from("/sys/fs/cgroup"));
    // What could be written to disk instead would not count: so the second limit.
    let (group, limits) = if one.is_dir() {
        (one.join(name), [("memory.limit_in_bytes", MOST), ("memory.memsw.limit_in_bytes", MOST)])
    } else {
        (two.join(name), [("memory.max", MOST), ("memory.swap.max", "0")])
    };
    let made = std::fs::create_dir(&group).is_ok();
    // The system makes these files. Where it is an ordinary folder there are none.
    let open = |file| std::fs::File::options().write(true).open(group.join(file));
    let [memory, swap] =
        limits.map(|(file, most)| open(file).is_ok_and(|mut file| file.write_all(most.as_bytes()).is_ok()));
    let has_swap = std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1);
    if !made || !memory || (has_swap && !swap) {
        let _ = std::fs::remove_dir(&group);
        return skip("no group can be made, and limited with its swap");
    }
    let program = compile("gcc", "hostile_locked.c", &[]);
    let output = run(preloaded(program).arg("group").arg(&group), LIMIT);
    let _ = std::fs::remove_dir(&group);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text == "ok\n", "{}: {text}", output.status);
}

/// A program gives the same answer under a valgrind tool; valgrind itself finds nothing to say (status 99).
fn under_valgrind(options: &[&str]) {
    if !has("valgrind") {
        return;
    }
    let program = compile("gcc", "hostile_small.c", &["-pthread"]);
    let expected = expect_ok(&mut Command::new(&program), LIMIT);
    for (program, expected) in [(program.to_str().unwrap(), expected.as_str()), ("/bin/true", "")] {
        let mut command = preloaded("valgrind");
        command.args(["--quiet", "--error-exitcode=99"]).args(options).arg(program);
        let output = run(&mut command, LIMIT);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options:?} {program}: {}\n{stderr}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{options:?} {program}");
    }
}

#[test]
fn valgrind_memcheck_with_its_own_malloc() {
    under_valgrind(&["--tool=memcheck"]);
}

#[test]
fn valgrind_memcheck_with_ours() {
    under_valgrind(&["--tool=memcheck", "--soname-synonyms=somalloc=nouserintercepts"]);
}

#[test]
fn valgrind_without_a_tool() {
    under_valgrind(&["--tool=none"]);
}

#[test]
fn valgrind_callgrind() {
    under_valgrind(&["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
}
