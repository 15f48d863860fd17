#!/usr/bin/env python3
"""Heap profilers beside each other, on the same programs in the same run: what each costs, and whether they find
the same call sites. See ../README.md.

    benches/profilers/compare.py [--pairs 10] [--only NAME,...] [--hakmem target/release/libhakmem.so] FOLDER

Writes FOLDER/table.md, and every run's figures to FOLDER/runs.json. Each profiler is compared with its own
unarmed state: Hakmem, jemalloc and tcmalloc with the same library preloaded and no profile, heaptrack with the C
library's allocator. A pair is two runs in random order; before each as much memory is touched, in huge pages, as
the program will need, because on a virtual machine a page fault's price depends on the process before.
"""
import argparse
import collections
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")
RATE, FINE = 512 << 10, 16 << 10
# A profiler under which a program takes more than so many seconds is given so few pairs there.
SLOW = [(15.0, 1), (5.0, 3)]
# What passes allocations on: the allocators' own functions, and wrappers of malloc. What is called "the call
# site" is the function that calls these.
PLUMBING = re.compile(
    r"(?i)^(\(anonymous|tcmalloc|MallocHook|je_|prof_|imalloc|hak_|hakmem|operator new|std::|__gnu_cxx|0x|<unresolved|\(deeper)"
    r"|(malloc|calloc|realloc|memalign|strdup|strndup|mallocatomic)\d*(_default|_impl)?$|DumpProcSelfMaps|RecordAlloc|InitModule|heaptrack"
)


class Profiler:
    """One side: how it is armed, and what it writes."""

    def __init__(self, name, library, rate, armed=None, wrapper=(), reads=None):
        self.name, self.library, self.rate, self.reads = name, library, rate, reads
        self.settings, self.wrapper = armed or {}, wrapper

    def command(self, program, armed, folder):
        """The command and what it adds to the environment."""
        environment = {"PRELOAD": str(self.library)} if self.library else {}
        fill = lambda text: text.replace("FOLDER", str(folder))
        if armed:
            environment |= {name: fill(value) for name, value in self.settings.items()}
        return [*map(fill, self.wrapper), *program] if armed else program, environment


def profilers(hakmem):
    """All of them; the sites come from `reads`, one line for each stack: outermost;...;innermost bytes."""
    command = pathlib.Path(hakmem).with_name("hakmem")

    def ours(folder, what, program):
        file = largest(folder, "*.hakprof")
        return run([command, "profile", file, "--format", "collapsed", "--what", what])

    def jeprof(folder, what, program):
        option = "--alloc_space" if what == "allocated" else "--inuse_space"
        return run(["jeprof", "--collapsed", option, program[0], largest(folder, "*.heap")])

    def pprof(folder, what, program):
        option = "--alloc_space" if what == "allocated" else "--inuse_space"
        # The last of several is the one at the end.
        return run(["google-pprof", "--collapsed", option, program[0], sorted(folder.glob("*.heap"))[-1]])

    def heaptrack(folder, what, program):
        file = folder / "flames"
        run(["heaptrack_print", "-f", largest(folder, "*.zst"), "-F", file, "--flamegraph-cost-type", "peak"])
        return file.read_text()

    sampled, every = "one in 512 KiB", "each"
    return [
        Profiler("hakmem", hakmem, sampled, {"HAKMEM_PROFILE": "FOLDER/p", "HAKMEM_PROFILE_RATE": str(RATE)}, reads=ours),
        Profiler("jemalloc", LIBRARIES / "libjemalloc.so.2", sampled, {"MALLOC_CONF": "prof:true,prof_final:true,lg_prof_sample:19,prof_prefix:FOLDER/p"}, reads=jeprof),
        Profiler("gperftools", LIBRARIES / "libtcmalloc.so.4", every, {"HEAPPROFILE": "FOLDER/p"}, reads=pprof),
        Profiler("heaptrack", None, every, wrapper=("heaptrack", "-o", "FOLDER/p"), reads=heaptrack),
        # What it writes has to be read by heaptrack_interpret before anything can be shown.
        Profiler("heaptrack --raw", None, every, wrapper=("heaptrack", "--raw", "-o", "FOLDER/p")),
    ]


def run(command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, errors="replace").stdout


def largest(folder, pattern):
    """Of the files of several processes, the one with most in it."""
    return max(folder.glob(pattern), key=lambda path: path.stat().st_size)


def programs(work):
    """What is run. The first one's every allocation is known."""
    run([HERE / "known.py", work / "known.c"])
    run(["gcc", "-O2", "-g", "-o", work / "known", work / "known.c"])
    run(["gcc", "-O2", "-o", work / "spawn", HERE / "spawn.c"])
    script = f'cd "{HERE.parent.parent}" && . docs/benchmarks/programs.sh && prepare_programs "{work}" && cd "{work}" && prepare_unseen'
    run(["bash", "-ec", script])
    python = run(["python3", "-c", "import sys; print(sys.executable)"]).strip()
    # Without debug information all tools name the functions that there are in the machine code, not what was
    # inlined into them, on which they differ.
    for library in re.findall(r"=> (\S*/libpython\S+)", run(["ldd", python])):
        run(["strip", "-g", "-o", work / pathlib.Path(library).name, library])
    perl = 'my %h; $h{"key$_"} = "value" x ($_ % 7) for 1..200000; my $n = 0; $n += length $h{$_} for sort keys %h; print "$n\\n"'
    query = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<300000) SELECT count(*), sum(length(y)) FROM (SELECT printf('%08d-%s', x, hex(x*7919)) y FROM c ORDER BY y)"
    return {
        "known": [str(work / "known")],
        "python": [python, str(work / "app.py")],
        "perl": [shutil.which("perl"), "-e", perl],
        "jq": [shutil.which("jq"), "-s", "map(select(.id % 3 == 0) | .name) | length", str(work / "lines.json")],
        "sqlite": [shutil.which("sqlite3"), ":memory:", query],
    }


def touch(size):
    """Brings the machine's memory to the same state before each run."""
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        chunk = b"\1" * (2 << 20)
        for at in range(0, size - len(chunk), len(chunk)):
            memory[at : at + len(chunk)] = chunk


def measure(command, environment, seen, work):
    """One run: seconds from start to end, processor time of all its processes, and the peak of the largest."""
    # In a process of its own, so that this one stays small.
    if os.fork() == 0:
        touch(seen + seen // 4 + (64 << 20))
        os._exit(0)
    os.wait()
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": str(work), **environment}
    command = [str(work / "spawn"), str(work / "figures"), *command]
    status = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if status.returncode != 0:
        sys.exit(f"{command}: status {status.returncode}")
    wall, cpu, peak = (work / "figures").read_text().split()
    return {"wall": float(wall), "cpu": float(cpu), "peak": int(peak) << 10}


def sites(text):
    """Bytes by call site: the innermost function that is no plumbing."""
    found = collections.Counter()
    for line in text.splitlines():
        stack, _, value = line.rpartition(" ")
        frames = [name(frame) for frame in stack.split(";")]
        site = next((frame for frame in reversed(frames) if frame and not PLUMBING.search(frame)), None)
        if site:
            found[site] += float(value)
    return found


def name(frame):
    """A function as every tool can say it: without parameters, clones, library versions and lines."""
    frame = re.sub(r"@.*| \[.*|\(.*|<[0-9a-f]{16}>|\[inline\]", "", frame).strip()
    return re.sub(r"\.(isra|part|constprop|cold|lto_priv)\b.*", "", frame)


def top(found, number=10):
    return [site for site, _ in found.most_common(number)]


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def spread(values, form):
    low, *_, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{form.format(statistics.median(values))} ({form.format(low)} – {form.format(high)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--hakmem", default=str(HERE.parent.parent / "target/release/libhakmem.so"))
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="profilers"))
    try:
        compare(args, work)
    finally:
        shutil.rmtree(work)


def compare(args, work):
    runs_file = args.folder / "runs.json"
    known = json.loads(runs_file.read_text()) if runs_file.exists() else {}
    chosen = {key: value for key, value in programs(work).items() if not args.only or key in args.only}
    everyone = profilers(os.path.abspath(args.hakmem))
    for key, program in chosen.items():
        peaks, runs = {}, {profiler.name: [] for profiler in everyone}
        for number in range(args.pairs):
            for profiler in random.sample(everyone, len(everyone)):
                pair = {}
                before = [pair["armed"]["wall"] for pair in runs[profiler.name]]
                if any(number >= few and min(before) > seconds for seconds, few in SLOW):
                    continue
                for armed in random.sample([False, True], 2):
                    folder = work / "profile"
                    folder.mkdir()
                    command, environment = profiler.command(program, armed, folder)
                    figures = measure(command, environment, peaks.get((profiler.name, armed), 0), work)
                    peaks[profiler.name, armed] = figures["peak"]
                    if armed:
                        figures["files"] = sum(path.stat().st_size for path in folder.iterdir())
                    pair["armed" if armed else "unarmed"] = figures
                    shutil.rmtree(folder)
                runs[profiler.name].append(pair)
        # Of the others not every function has a name, and each tool makes up its own.
        known[key] = {"runs": runs, "sites": found(everyone, program, work) if key in ("known", "python") else {}}
        runs_file.write_text(json.dumps(known))
        print(key, file=sys.stderr)
    table(args.folder, known, everyone)


def found(everyone, program, work):
    """The call sites that each profiler finds, the largest first: by what was allocated, and by what was held at
    the end of the known program (which frees nothing then), at the peak of the others."""
    is_known = program[0].endswith("/known")
    result = {"allocated": {}, "live at the end" if is_known else "at the peak": {}}
    for what, by_profiler in result.items():
        for profiler in everyone:
            # jemalloc and gperftools know no peak, heaptrack no bytes allocated.
            lacks = {"allocated": ["heaptrack"], "at the peak": ["jemalloc", "gperftools"]}.get(what, [])
            if not profiler.reads or profiler.name in lacks:
                continue
            folder = work / "profile"
            folder.mkdir()
            command, environment = profiler.command(program, True, folder)
            if profiler.name == "jemalloc" and what == "allocated":
                environment["MALLOC_CONF"] += ",prof_accum:true"
            if not is_known:
                # It allocates less than a hundred samples at the usual rate.
                environment = {name: value.replace(str(RATE), str(FINE)).replace("sample:19", "sample:14") for name, value in environment.items()}
            measure(command, environment, 0, work)
            word = {"live at the end": "live", "at the peak": "peak"}.get(what, what)
            by_profiler[profiler.name] = sites(profiler.reads(folder, word, program)).most_common()
            shutil.rmtree(folder)
        if is_known:
            truth = [line.split() for line in run(program).splitlines()]
            figures = {name: int(all if what == "allocated" else kept) for name, kept, all in truth}
            by_profiler["truth"] = collections.Counter(figures).most_common()
    return result


def table(folder, known, everyone):
    text = row(["program", "profiler", "samples", "pairs", "processor time armed / unarmed", "wall", "peak unarmed", "more", "files"])
    text += "|---|---|---|--:|--:|--:|--:|--:|--:|\n"
    means = collections.defaultdict(list)
    for key, program in known.items():
        for profiler in everyone:
            pairs = program["runs"][profiler.name]
            ratio = lambda what: [pair["armed"][what] / pair["unarmed"][what] for pair in pairs]
            more = statistics.median(pair["armed"]["peak"] - pair["unarmed"]["peak"] for pair in pairs) / 2**20
            means[profiler.name].append((statistics.median(ratio("cpu")), statistics.median(ratio("wall")), more))
            text += row([key, profiler.name, profiler.rate, str(len(pairs)), spread(ratio("cpu"), "{:.2f}"), spread(ratio("wall"), "{:.2f}"),
                         f"{statistics.median(pair['unarmed']['peak'] for pair in pairs) / 2**20:.1f} MiB", f"{more:+.1f} MiB",
                         f"{statistics.median(pair['armed']['files'] for pair in pairs) / 2**10:,.0f} KiB"])
    text += "\n" + row(["geometric mean", "processor time", "wall", "more memory, mean"]) + "|---|--:|--:|--:|\n"
    for name, figures in means.items():
        mean = [statistics.geometric_mean(figure[i] for figure in figures) for i in (0, 1)]
        text += row([name, f"{mean[0]:.3f}", f"{mean[1]:.3f}", f"{statistics.mean(figure[2] for figure in figures):+.1f} MiB"])
    text += "\nOf the ten largest call sites of the first, so many are among the ten largest of the other:\n\n"
    text += row(["program", "figure", "reference", "others"]) + "|---|---|---|---|\n"
    for key, program in known.items():
        for what, by_profiler in program["sites"].items():
            listed = {name: dict(sites) for name, sites in by_profiler.items() if sites}
            reference = "truth" if "truth" in listed else "hakmem"
            if reference not in listed:
                continue
            ten = set(list(listed[reference])[:10])
            cells = []
            for name, sites in listed.items():
                if name == reference:
                    continue
                common = ten & set(list(sites)[:10])
                off = [abs(sites.get(site, 0) / listed[reference][site] - 1) for site in ten]
                cells.append(f"{name} {len(common)}/{len(ten)}, off by {100 * statistics.median(off):.1f}% (median), {100 * max(off):.1f}% (most)")
            text += row([key, what, reference, "; ".join(cells)])
    (folder / "table.md").write_text(text)
    print(text)


main()
