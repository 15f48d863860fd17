//! C's `free` finds each double free of a small block at once, wherever the block lies by then, and accuses
//! nobody whose data look like a mark.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use support::{compile, preloaded, run};

const LIMIT: Duration = Duration::from_secs(60);
const SIGABRT: i32 = 6;
/// Classes of all kinds: what once had no room for a mark, one word and more, beyond the table, several
/// slices.
const SIZES: [&str; 8] = ["1", "16", "24", "64", "1000", "4096", "16384", "60000"];

/// One allocation in so many has guard pages.
const RARE: &str = "1000000000";

/// The second free must end the program, with one line that names the block.
fn found(kind: &str, magazines: &[&str]) {
    let program = compile("gcc", "misuse_at_once.c", &["-pthread", "-ldl"]);
    for size in SIZES {
        // With guard pages, though this block has none: heaps are armed.
        for (magazine, guard) in magazines.iter().map(|magazine| (*magazine, "off")).chain([("on", RARE)]) {
            let mut command = preloaded(&program);
            command.args([kind, size]).env("HAKMEM_MAGAZINE", magazine).env("HAKMEM_GUARD", guard);
            // A purge may take a mark that is in free memory.
            command.env("HAKMEM_PURGE_DELAY", "-1");
            let output = run(&mut command, LIMIT);
            let (out, error) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let shown = format!(
                "{kind} {size}, magazine {magazine}, guard {guard}: {}, {error:?}, {out:?}",
                output.status
            );
            assert_eq!(output.status.signal(), Some(SIGABRT), "{shown}");
            let line = format!("hakmem: free({}): double free: the block is free already\n", out.trim());
            assert_eq!(error, line, "{shown}");
        }
    }
}

macro_rules! found {
    ($($name:ident $magazines:expr;)*) => {
        $(#[test]
        fn $name() {
            found(stringify!($name), &$magazines);
        })*
    };
}

found! {
    direct ["on", "off"];
    untouched ["on", "off"];
    interleaved ["on", "off"];
    delayed ["on", "off"];
    listed ["on", "off"];
    calloc ["on", "off"];
    realloc ["on", "off"];
    aligned ["on", "off"];
    moved ["on", "off"];
    remade ["on", "off"];
    ahead ["on", "off"];
    refilled ["on", "off"];
    // Without magazines the block waits in the other thread's outbox.
    there ["on"];
    gone ["on", "off"];
    here ["on", "off"];
    late ["on"];
    starved ["on", "off"];
}

/// Where it is not noticed it does no harm: nobody but the other thread can look into its outbox.
#[test]
fn what_waits_in_an_outbox_is_handed_out_once() {
    let program = compile("gcc", "misuse_elsewhere.c", &["-pthread"]);
    // Of larger ones few blocks are sent at once.
    for size in &SIZES[..6] {
        let output = run(preloaded(&program).arg(size).env("HAKMEM_MAGAZINE", "off"), LIMIT);
        assert!(output.status.success() && output.stderr.is_empty(), "{size}: {output:?}");
    }
}

#[test]
fn marks_in_blocks_in_use_are_data() {
    let program = compile("gcc", "misuse_innocent_marks.c", &["-pthread", "-ldl"]);
    for (option, value) in [
        ("HAKMEM_MAGAZINE", "on"),
        ("HAKMEM_GUARD", RARE),
        ("HAKMEM_MAGAZINE", "off"),
        ("HAKMEM_OUTBOX", "off"),
        // With 0 what the program reads may be unmapped.
        ("HAKMEM_PURGE_DELAY", "1"),
        ("HAKMEM_BACKGROUND", "on"),
    ] {
        let output = run(preloaded(&program).env(option, value), LIMIT);
        assert!(output.status.success() && output.stderr.is_empty(), "{option}={value}: {output:?}");
        assert_eq!(output.stdout, b"ok\n", "{option}={value}");
    }
}
