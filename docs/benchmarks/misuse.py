#!/usr/bin/env python3
"""What allocators do about misuse of memory: misuse.py [--runs N] [--kinds] [--peers] [NAME=LIBRARY...]

Runs each kind of misuse of hakmem-capi/tests/c/security_* under glibc, Hakmem at each level, and those of
mimalloc, jemalloc and tcmalloc that are installed (and the libraries named) as preload libraries, and prints
as Markdown how many kinds of each group each of them stops: reported, trapped, or harmless. A kind that ends
so in half of N runs counts as half. With --kinds it also prints how each kind ends; with --peers it leaves
Hakmem out: that is what misuse.txt keeps, and docs/security.md shows beside what Hakmem's tests keep.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
out = target / "misuse"
LIBRARIES = pathlib.Path("/usr/lib") / f"{os.uname().machine}-linux-gnu"
FLAGS = ["-O2", "-g", "-pthread"] + [f"-fno-builtin-{name}" for name in ("malloc", "free", "calloc", "realloc")]
ENDS = {0: "harmless", 3: "unnoticed", 4: "absent", -6: "reported", -11: "trapped", -7: "trapped", -4: "trapped",
        -5: "trapped", -14: "hung"}

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--kinds", action="store_true")
parser.add_argument("--peers", action="store_true")
parser.add_argument("more", nargs="*")
arguments = parser.parse_args()


def build():
    """The programs, and the library."""
    out.mkdir(parents=True, exist_ok=True)
    cargo = ["cargo", "build", "--release", "--quiet"]
    subprocess.run([*cargo, "-p", "hakmem-capi"], cwd=root, check=True)
    subprocess.run([*cargo, "-p", "hakmem-tests", "--example", "security_layouts"], cwd=root, check=True)
    programs = []
    for source in sorted((root / "hakmem-capi/tests/c").glob("security_*.c*")):
        programs.append(out / source.stem)
        subprocess.run(["g++" if source.suffix == ".cpp" else "gcc", *FLAGS, "-o", programs[-1], source], check=True)
    return [*programs, target / "release/examples/security_layouts"]


def allocators():
    """Name, preload library, variables."""
    hakmem = target / "release/libhakmem.so"
    yield "glibc", None, {}
    if not arguments.peers:
        yield "Hakmem", hakmem, {}
        yield "Hakmem, light", hakmem, {"HAKMEM_HARDENED": "light"}
        yield "Hakmem, hardened", hakmem, {"HAKMEM_HARDENED": "on"}
    for name, library in [("mimalloc", "libmimalloc.so.2"), ("jemalloc", "libjemalloc.so.2"),
                          ("tcmalloc", "libtcmalloc_minimal.so.4")]:
        if (LIBRARIES / library).exists():
            yield name, LIBRARIES / library, {}
    for named in arguments.more:
        name, library = named.split("=", 1)
        yield name, library, {}


def ends(program, kind, library, variables):
    """How often the kind ends how."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
    command = [program, kind]
    rust, ours = program.name == "security_layouts", "libhakmem" in str(library)
    if rust and not ours:
        command.append("system")
    if library and not (rust and ours):
        kept["LD_PRELOAD"] = str(library)
    found = collections.Counter()
    for _ in range(arguments.runs):
        status = subprocess.run(command, env={**kept, **variables}, capture_output=True).returncode
        if status not in ENDS:
            workers.shutdown(wait=False, cancel_futures=True)
            sys.exit(f"{program.name} {kind} with {library}: status {status}")
        found[ENDS[status]] += 1
    return found


programs = build()
compared = list(allocators())
jobs = []
for program in programs:
    listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        group, kind, _ = line.split("\t")
        jobs += [(group, kind, name, program, library, variables) for name, library, variables in compared]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
    found = list(workers.map(lambda job: ends(job[3], job[1], job[4], job[5]), jobs))

STOPPED = ("reported", "trapped", "harmless")
sums = collections.defaultdict(collections.Counter)
for (group, kind, name, *_), counts in zip(jobs, found):
    if arguments.kinds:
        print(f"{kind:28}{name:18}", ", ".join(f"{end} {count}" for end, count in counts.most_common()))
    for end, count in counts.items():
        for total in (group, "**all**"):
            sums[total, name][end] += count / arguments.runs

names = [name for name, *_ in compared]
print(f"| group | {' | '.join(names)} |")
print("|---|" + "--:|" * len(names))


def figure(value):
    return f"{value:.1f}".removesuffix(".0")


def row(title, total, ending):
    cells = []
    for name in names:
        counts = sums[total, name]
        cells.append(f"{figure(sum(counts[end] for end in ending))} of {figure(counts.total() - counts['absent'])}")
    print(f"| {title} | {' | '.join(cells)} |")


for group in dict.fromkeys(group for group, *_ in jobs):
    row(group, group, STOPPED)
row("**all**", "**all**", STOPPED)
for end in STOPPED:
    row(f"of these {end}", "**all**", (end,))
