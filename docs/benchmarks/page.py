#!/usr/bin/env python3
"""The tables of docs/benchmarks.md, from a folder that run.sh wrote:  docs/benchmarks/page.py FOLDER

Every figure comes from the files there; a table whose file is missing is left out. An archive beside this file is such a
folder, packed."""

import json
import statistics
import sys
from math import exp, log
from pathlib import Path

OURS = "hakmem"
FASTEST = "mimalloc3"
PROGRAMS = "python redis sqlite gcc clang node xz jq perl git ghostscript gdb".split()
RUST = "json maps server ast".split()
MIB = 1 << 20


def out(*lines):
    for line in lines:
        print(line)


def table(head, rows, left=1):
    """Markdown, padded; the first `left` columns are words, the others figures."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    pad = lambda row: "| " + " | ".join(
        cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))) + " |"
    rule = "|" + "|".join("-" * (w + 2) if i < left else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    out(pad(head), rule, *map(pad, rows), "")


def scaled(value, steps):
    for limit, unit, digits in steps:
        if abs(value) < limit:
            break
    return f"{value / unit[0]:.{digits}f} {unit[1]}"


def nanoseconds(value):
    inf = float("inf")
    return scaled(value, [(1e3, (1, "ns"), 1), (1e6, (1e3, "µs"), 1), (1e8, (1e6, "ms"), 2), (1e9, (1e6, "ms"), 0),
                          (inf, (1e9, "s"), 2)])


def shown(value, unit):
    if unit == "nanoseconds":
        return nanoseconds(value)
    if unit == "seconds":
        return nanoseconds(value * 1e9)
    if unit == "bytes":
        return f"{value / MIB:.1f} MiB" if value >= MIB else f"{value / 1024:.1f} KiB"
    return f"{value:,.0f}" if unit == "count" else f"{value:.3f}"


def geometric(values):
    values = [value for value in values if value and value > 0]
    return exp(sum(map(log, values)) / len(values)) if values else None


def three(value):
    return "–" if value is None else f"{value:.3f}"


class Experiment:
    """One file of the lab's."""

    def __init__(self, path):
        self.path = path
        self.data = json.loads(path.read_text())
        self.names = [subject["name"] for subject in self.data["subjects"]]
        self.base = self.data["method"]["baseline"]
        self.units = {metric["key"]: metric["unit"] for metric in self.data["metrics"]}
        self.peers = [name for name in self.names if name != OURS]

    def named(self, name):
        """The same under another name for its only workload."""
        self.data["workloads"][0]["name"] = name
        return self


class Rows:
    """A workload's figures in one metric."""

    def __init__(self, experiment, workload, key):
        self.name, self.experiment, self.key = workload["name"], experiment, key
        self.unit = experiment.units.get(key, "ratio")
        self.median, self.mark, self.ratio, self.runs = {}, {}, {}, {}
        for row in workload["rows"]:
            summary = row["summaries"].get(key)
            if row["failure"] or not summary:
                continue
            name = row["subject"]
            self.median[name] = summary["median"]
            self.runs[name] = {run["round"]: run["values"] for run in row["runs"]}
            interval = summary["ratio"]
            if interval:
                self.ratio[name] = interval["median"]
                # Of fewer than five rounds there is no interval, or one of an older file that says nothing.
                few = len(row["runs"]) < 5
                low, high = (1, 1) if few else (interval["low"], interval["high"])
                self.mark[name] = "+" if high < 1 else "-" if low > 1 else " "

    def against(self, peer, *keys):
        """The median of ours to a peer's run of the same round, in the sum of these metrics."""
        ours, theirs = self.runs.get(OURS, {}), self.runs.get(peer, {})
        figure = lambda values: sum(values.get(key, 0) for key in keys or (self.key,))
        ratios = [figure(ours[i]) / figure(theirs[i]) for i in ours if i in theirs and figure(theirs[i])]
        return statistics.median(ratios) if ratios else None

    def best(self):
        """The peer that ours compares worst with, by runs of the same round."""
        ratios = {name: self.against(name) for name in self.experiment.peers if name in self.median}
        return max((name for name in ratios if ratios[name]), key=ratios.get, default=None)

    def to_median_peer(self):
        peers = [self.median[name] for name in self.experiment.peers if name in self.median]
        middle = statistics.median(peers) if peers else 0
        return self.median[OURS] / middle if middle and OURS in self.median else None

    def cells(self, names):
        for name in names:
            if name not in self.median:
                yield "failed"
            elif name in self.ratio:
                yield f"{self.ratio[name]:.3f}{self.mark[name]}"
            else:
                yield shown(self.median[name], self.unit)


def rows_of(experiments, key):
    """`key` is a metric, or None for each workload's own."""
    return [Rows(experiment, workload, key or workload["primary"])
            for experiment in experiments for workload in experiment.data["workloads"]]


def means(rows, names):
    means = [(name, geometric([row.ratio.get(name) for row in rows])) for name in names]
    return ", ".join(f"{name} {mean:.3f}" for name, mean in means if mean)


def best_table(experiments, key=None, limit=1.05, label="workload"):
    """Times: every peer, and ours to the best peer of each workload."""
    rows = rows_of(experiments, key)
    if not rows:
        return
    names = experiments[0].names
    lines, bests = [], []
    for row in rows:
        best = row.best()
        ratio = row.against(best) if best else None
        bests.append((ratio, row.name, best))
        over = " !" if ratio and ratio > limit else ""
        lines.append([row.name, *row.cells(names), best or "–", three(ratio) + over])
    table([label, *names, "best peer", f"{OURS} / best"], lines)
    known = [one for one in bests if one[0]]
    out(f"Geometric mean: {means(rows, names)}.")
    if known:
        worst = max(known)
        over = [f"{name} ({ratio:.3f}, {peer})" for ratio, name, peer in known if ratio > limit]
        out(f"Hakmem to the best peer of each {label}: geometric mean {geometric([r for r, _, _ in known]):.3f}, "
            f"worst {worst[0]:.3f} ({worst[1]}, {worst[2]}); above {limit:.2f} (`!`): {', '.join(over) or 'none'}.")
        each = [(peer, geometric([row.against(peer) for row in rows])) for peer in experiments[0].peers]
        out("Hakmem to each peer: " + ", ".join(f"{peer} {mean:.3f}" for peer, mean in each if mean) + ".")
    out("")


def memory_table(experiments, key, label="workload"):
    """Memory and faults: every peer, and ours to mimalloc 3 and to the median peer."""
    rows = rows_of(experiments, key)
    names = experiments[0].names
    vs_fastest = [row.against(FASTEST) for row in rows]
    vs_median = [row.to_median_peer() for row in rows]
    lines = [[row.name, *row.cells(names), three(a), three(b)] for row, a, b in zip(rows, vs_fastest, vs_median)]
    table([label, *names, f"/ {FASTEST}", "/ median peer"], lines)
    fastest, middle = geometric(vs_fastest), geometric(vs_median)
    out(f"Geometric mean: {means(rows, names)}; hakmem to {FASTEST} {three(fastest)}, to the median peer {three(middle)}.", "")


def plain_table(experiment, key=None, label="workload"):
    """Medians as they are."""
    rows = rows_of([experiment], key)
    lines = [[row.name] + [shown(row.median[n], row.unit) if n in row.median else "failed" for n in experiment.names]
             for row in rows]
    table([label, *experiment.names], lines)


def source(experiment):
    data = experiment.data
    words, skip, files = [], False, False
    for word in data["command"][1:]:
        files = (files or word == "--programs") and (word == "--programs" or not word.startswith("--"))
        if files:
            words += ["--programs", "ab-*.json"] if word == "--programs" else []
            continue
        # Where files went is of no interest.
        if skip or word in ("--json", "--markdown", "--report", "--peers"):
            skip = not skip
            continue
        words.append(word)
    name = experiment.path.stem
    took = f"{data['took'] / 60:.0f} minutes" if data["took"] > 90 else f"{data['took']:.0f} s"
    out(f"`hakmem {' '.join(words)}`: {data['method']['rounds']} rounds, seed {data['method']['seed']}, took {took}. "
        f"Raw: `{name}.json`.", "")


def machine(experiments):
    m = experiments[0].data["machine"]
    seen = {}
    for experiment in experiments:
        for subject in experiment.data["subjects"]:
            if subject.get("version"):
                seen.setdefault(subject["name"], subject["version"])
    versions = ", ".join(f"{name}: {version}" for name, version in sorted(seen.items()) if " " not in name)
    out(f"{m['processor']}, {m['processors']} processors, {m['memory'] / (1 << 30):.1f} GiB of memory, {m['system']}, {m['libc']}, "
        f"Linux {m['kernel']}, transparent huge pages: {m['huge_pages']}. Versions: {versions}.", "")


def latency(experiment):
    lines, text = [], []
    for workload in experiment.data["workloads"]:
        tails = {}
        for row in workload["rows"]:
            found = row["latency"]
            if not found:
                lines.append([workload["name"], row["subject"]] + ["failed"] * 8)
                continue
            m, f = found["malloc"], found["free"]
            keys = ("p50", "p99", "p999", "max")
            lines.append([workload["name"], row["subject"], *(f"{one[key]:,.0f}" for one in (m, f) for key in keys)])
            tails[row["subject"]] = (m["p999"], f["p999"])
        peers = [name for name in tails if name != OURS]
        for i, call in enumerate(("malloc", "free")):
            if OURS in tails and peers:
                best = min(peers, key=lambda name: tails[name][i])
                text.append(f"{workload['name']}, {call}: {tails[OURS][i]:.0f} ns against {tails[best][i]:.0f} ({best})")
    table(["workload", "allocator", "malloc p50", "p99", "p99.9", "max", "free p50", "p99", "p99.9", "max"], lines, left=1)
    out("p99.9 of Hakmem and of the best peer: " + "; ".join(text) + ".", "")


def instructions(path):
    data = json.loads(path.read_text())
    names = [one["name"] for one in data["allocators"]]
    figure = lambda one, i: one["figures"][i]["allocator"] if one["figures"][i] else None
    lines, ratios = [], []
    for i, pattern in enumerate(data["patterns"]):
        values = {one["name"]: figure(one, i) for one in data["allocators"]}
        peers = {name: value for name, value in values.items() if value and name != OURS}
        best = min(peers, key=peers.get, default=None)
        ratio = values[OURS] / peers[best] if best and values.get(OURS) else None
        ratios.append((pattern, ratio))
        over = " !" if ratio and pattern.startswith("hit-") and ratio > 0.8 else ""
        cells = ["–" if values[name] is None else f"{values[name]:.1f}" for name in names]
        lines.append([pattern, *cells, best or "–", three(ratio) + over])
    table(["pattern", *names, "best peer", f"{OURS} / best"], lines)
    hits = [ratio for pattern, ratio in ratios if pattern.startswith("hit-")]
    out(f"Hakmem to the best peer of each pattern: geometric mean {three(geometric([r for _, r in ratios]))}, of the hit patterns "
        f"{three(geometric(hits))} (`!`: a hit pattern above 0.8).", "")
    for one in data["allocators"]:
        if one["failure"]:
            out(f"{one['name']} has no more figures: {one['failure']}", "")


def remote(path):
    runs = json.loads(path.read_text())
    names = list(dict.fromkeys(run["subject"] for run in runs))
    forms = [key for key in runs[0] if ":" in key]
    for part, head in (("free", "freed by others"), ("allocate", "allocated again")):
        lines = []
        for form in forms:
            medians = {name: statistics.median([run[form][part] for run in runs if run["subject"] == name]) for name in names}
            best = min((name for name in names if name != OURS), key=medians.get, default=None)
            ratio = medians[OURS] / medians[best] if best and OURS in medians else None
            lines.append([form, *(f"{medians[name]:.1f}" for name in names), best or "–", three(ratio)])
        table([f"ns per block {head}", *names, "best peer", f"{OURS} / best"], lines)


def presets(experiment):
    out("The first column is the defaults, which are the preset `balanced`.", "")
    for key, head in (("per_op", "Time per operation:"), ("peak", "Peak resident memory:")):
        out(head, "")
        rows = rows_of([experiment], key)
        table(["workload", *experiment.names], [[row.name, *row.cells(experiment.names)] for row in rows])
    rows = [row for row in rows_of([experiment], None) if row.key != "per_op"]
    lines = [[row.name] + [shown(row.median[name], row.unit) if name in row.median else "failed" for name in experiment.names] for row in rows]
    if lines:
        out("What each workload is about, where that is not time per operation:", "")
        table(["workload", *experiment.names], lines)


def targets(experiment):
    """What `hakmem memory` judged."""
    words = {"met": "met", "missed": "**missed**", "unknown": "**unknown**"}
    judged = experiment.data["targets"]
    lines = [[one["scenario"], one["figure"], one["limit"], words[one["outcome"]],
              *("–" if value is None else shown(value, one["unit"]) for value in one["values"])] for one in judged]
    table(["target", "figure", "at most", "result", *experiment.names], lines, left=4)
    met = sum(one["outcome"] == "met" for one in judged)
    out(f"{met} of {len(judged)} targets met.", "")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]).resolve()
    files = [path for path in sorted(folder.glob("*.json")) if path.stem not in ("instructions", "remote-free")]
    # The lab makes its file at the start and fills it at the end.
    empty = [path.name for path in files if path.stat().st_size == 0]
    found = {path.stem: Experiment(path) for path in files if path.name not in empty}
    programs = [found[f"ab-{name}"].named(name) for name in PROGRAMS if f"ab-{name}" in found]
    rust = [found[f"rust-{name}"].named(name) for name in RUST if f"rust-{name}" in found]
    if not found:
        sys.exit(f"{folder}: no results there")
    out(f"## The run of {folder.name}", "")
    commit = folder / "commit.txt"
    build = f"commit {commit.read_text().strip()}" if commit.exists() else "a commit that the run did not write down"
    out(f"Hakmem is built from {build}. The raw data is in [`{folder.name}.tar.xz`](benchmarks/{folder.name}.tar.xz).", "")
    machine(list(found.values()))
    out("Times and memory: the first column is the baseline's median, the others are ratios of runs of the same round, under 1 is better; "
        "`+`: the 95% interval lies under 1, `-`: above. The last columns compare Hakmem with peers, round by round, too.", "")

    def section(title, name):
        if name in found:
            out(f"### {title}", "")
            source(found[name])
        return name in found

    if section("Workloads: time per operation", "bench"):
        best_table([found["bench"]])
        out("Peak resident memory of the same runs:", "")
        memory_table([found["bench"]], "peak")
        out("Minor page faults:", "")
        memory_table([found["bench"]], "minor")
    if section("Large blocks: each size by itself", "sizes"):
        best_table([found["sizes"]], limit=1.1)
        out("Peak resident memory:", "")
        memory_table([found["sizes"]], "peak")
    if (folder / "remote-free.json").exists():
        out("### Remote frees alone", "", "[`remote-free.c`](benchmarks/remote-free.c), owners to freers; processor time of the threads "
            "that free, and of the owners when they allocate as much again; medians.", "")
        remote(folder / "remote-free.json")
    if section("Memory: the targets, and what stays resident", "memory"):
        if found["memory"].data.get("targets"):
            targets(found["memory"])
        else:
            plain_table(found["memory"])
    if section("Latency of single calls", "latency"):
        latency(found["latency"])
    if section("Recorded programs, replayed", "replay"):
        best_table([found["replay"]], label="trace")
    for title, experiments, limit in (("Real programs under preload", programs, 1.01), ("Rust programs with the allocator built in", rust, 1.0)):
        if experiments:
            took = sum(experiment.data["took"] for experiment in experiments) / 60
            out(f"### {title}", "", "Wall time from start to end; the programs are in [`run.sh`](benchmarks/run.sh). "
                f"{experiments[0].data['method']['rounds']} rounds, {took:.0f} minutes. "
                f"Raw: `{experiments[0].path.stem.split('-')[0]}-*.json`.", "")
            best_table(experiments, "wall", limit=limit, label="program")
            out("Processor time, user and system:", "")
            lines = [[row.name, row.best(), *(three(row.against(peer, "user", "system")) for peer in (row.best(), FASTEST))]
                     for row in rows_of(experiments, "wall") if row.best()]
            table(["program", "best peer by wall time", "hakmem / it", f"hakmem / {FASTEST}"], lines, left=2)
            out("Peak resident memory of the largest process:", "")
            memory_table(experiments, "peak", label="program")
    if section("Presets of Hakmem", "presets"):
        presets(found["presets"])
    if (folder / "instructions.json").exists():
        out("### Instructions per operation", "", "`hakmem instructions`, under callgrind: the allocator and what it calls. "
            "Raw: `instructions.json`.", "")
        instructions(folder / "instructions.json")
    if (folder / "fairness.txt").exists():
        tries = [line for line in (folder / "fairness.txt").read_text().splitlines() if line.endswith("tries NEUTRAL")]
        out("### Fairness", "", "`hakmem ab --allocators hakmem --fairness N`: an allocator against itself. " + "; ".join(tries) + ".", "")
    out("### Warnings", "")
    warnings = [f"* {name}: {warning}" for name, experiment in found.items() for warning in experiment.data["warnings"]]
    failures = [f"* {name}: {workload['name']}: {row['subject']} FAILED: {row['failure']}" for name, experiment in found.items()
                for workload in experiment.data["workloads"] for row in workload["rows"] if row["failure"]]
    unfinished = [f"* {name}: NOT FINISHED: the file is empty" for name in empty]
    out(*(unfinished + failures + warnings or ["None."]))


if __name__ == "__main__":
    main()
