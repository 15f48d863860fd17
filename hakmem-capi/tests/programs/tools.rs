//! Tools for files: sorting, packing, drawing pages, timing other programs.

use crate::inputs;
use crate::twin::{Twin, missing};

#[test]
fn sort_in_memory_and_on_disk() {
    if missing(&[("sort", "coreutils"), ("join", "coreutils")]) {
        return;
    }
    let text = inputs::text(1, 200_000);
    Twin::new("sort", 60).processes(7).compare(|side| {
        side.file("in.txt", &text);
        side.run(&["sort", "--parallel=2", "-o", "plain.txt", "in.txt"]);
        // A small buffer: sorted pieces go to disk, are packed by children, and merged.
        side.run(&[
            "sort",
            "--parallel=2",
            "-S",
            "1M",
            "-T",
            ".",
            "--compress-program=gzip",
            "-o",
            "disk.txt",
            "in.txt",
        ]);
        side.run(&["cmp", "plain.txt", "disk.txt"]);
        side.run(&["sort", "--parallel=2", "-k", "1,1n", "-k", "3r", "-o", "number.txt", "in.txt"]);
        side.run(&["sort", "-s", "-u", "-f", "-k", "2,2", "-o", "unique.txt", "in.txt"]);
        side.run(&["join", "-j", "1", "plain.txt", "plain.txt", "--nocheck-order"]);
    });
}

#[test]
fn tar_with_xz_on_two_threads() {
    if missing(&[("tar", "tar"), ("xz", "xz-utils")]) {
        return;
    }
    let files: Vec<_> = (0..120).map(|n| inputs::text(n, 40 * n as usize)).collect();
    Twin::new("tar", 90).processes(9).compare(|side| {
        for (n, contents) in files.iter().enumerate() {
            side.file(&format!("tree/folder{}/a-file-with-a-rather-long-name-{n}.txt", n % 9), contents);
        }
        let options = [
            "--sort=name",
            "--mtime=@1600000000",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=a=rX",
        ];
        // Blocks of 1 MiB, so that there is work for both threads.
        let pack =
            [&["tar"], &options[..], &["-I", "xz -T2 -6 --block-size=1MiB", "-cf", "tree.tar.xz", "tree"]]
                .concat();
        side.run(&pack);
        side.run(&["xz", "--test", "-T2", "tree.tar.xz"]);
        side.run(&["xz", "--robot", "--list", "--verbose", "tree.tar.xz"]);
        side.run(&["tar", "-tvf", "tree.tar.xz"]);
        side.run(&["mkdir", "out"]);
        side.run(&["tar", "-I", "xz -T2", "-xf", "tree.tar.xz", "-C", "out"]);
        side.run(&["diff", "-r", "tree", "out/tree"]);
    });
}

/// Two pages: text in three fonts, curves, a clipped picture, a dictionary grown by a program.
const PAGES: &str = "%!PS
/words 3000 dict def
0 1 2999 { dup 20 string cvs cvn exch 3 mul words 3 1 roll put } for
/page { % title
  /Times-Roman findfont 30 scalefont setfont 72 760 moveto show
  /Helvetica-Bold findfont 9 scalefont setfont
  0 1 59 { /n exch def 72 730 n 11 mul sub moveto
    0 1 8 { n mul n add 30 string cvs show (  ) show } for } for
  /Courier findfont 7 scalefont setfont
  0 5 355 { gsave 420 400 translate rotate 20 0 moveto (turning around the middle) show grestore } for
  0 1 400 { /n exch def n 400 div 1 n 400 div sub 0.5 setrgbcolor
    n 97 mul 600 mod n 61 mul 800 mod moveto
    n 53 mul 600 mod n 29 mul 800 mod n 83 mul 600 mod n 71 mul 800 mod n 11 mul 600 mod n 13 mul 800 mod curveto stroke } for
  gsave 300 200 120 0 360 arc clip newpath 180 80 translate 240 240 scale
  64 64 8 [64 0 0 64 0 0] { 64 string 0 1 63 { 2 copy dup 5 mul 255 and put pop } for } image grestore
  showpage } def
(The first page) page
words { exch pop 2 mod 0 eq { } { } ifelse } forall
(The second page) page
";

#[test]
fn ghostscript_draws_pages() {
    if missing(&[("gs", "ghostscript")]) {
        return;
    }
    Twin::new("ghostscript", 90).processes(3).compare(|side| {
        side.file("pages.ps", PAGES);
        for (device, resolution, end) in
            [("ppmraw", "-r100", "ppm"), ("png16m", "-r150", "png"), ("txtwrite", "-r72", "txt")]
        {
            let output = format!("-sOutputFile=page-%d.{end}");
            let aliasing = if end == "txt" { "-dQUIET" } else { "-dTextAlphaBits=4" };
            let device = format!("-sDEVICE={device}");
            side.run(&[
                "gs",
                "-q",
                "-dSAFER",
                "-dBATCH",
                "-dNOPAUSE",
                aliasing,
                &device,
                resolution,
                &output,
                "pages.ps",
            ]);
        }
    });
}

#[test]
fn hyperfine_times_a_program() {
    if missing(&[("hyperfine", "hyperfine")]) {
        return;
    }
    // Itself, and two commands warmed up once and run ten times.
    Twin::new("hyperfine", 60).processes(23).ignore("times.json").compare(|side| {
        let step = [
            "hyperfine",
            "-N",
            "--warmup=1",
            "--runs=10",
            "--export-json=times.json",
            "sort /dev/null",
            "expr 1 + 1",
        ];
        side.output(&step);
        // The times are this machine's; that every run is there and ended well is the program's.
        let report = std::fs::read_to_string(side.dir.join("times.json")).unwrap();
        let mut part = "";
        let mut exit_codes = 0;
        for line in report.lines().map(str::trim) {
            match line {
                "\"times\": [" | "\"exit_codes\": [" => part = line,
                "0," | "0" if part.contains("exit_codes") => exit_codes += 1,
                _ => {}
            }
        }
        assert_eq!(exit_codes, 20, "two commands of ten runs each:\n{report}");
    });
}
