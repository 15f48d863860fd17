#!/usr/bin/env python3
"""Makes the table of a folder that unseen.sh has written: unseen.py FOLDER."""
import json
import pathlib
import statistics
import sys

OURS, BEFORE = "hakmem", "before"
folder = pathlib.Path(sys.argv[1])
programs = pathlib.Path(__file__).with_name("programs.sh").read_text().partition("each_unseen() {")[2]
# Of either set.
order = [line.split()[1] for line in programs.splitlines() if line.startswith("    program ")]
figures = {}
for name in order:
    path = folder / f"{name}.json"
    if path.exists():
        rows = json.loads(path.read_text())["workloads"][0]["rows"]
        runs = {row["subject"]: [run["values"] for run in sorted(row["runs"], key=lambda run: run["round"])] for row in rows if not row["failure"]}
        figures[name] = runs
if not figures:
    sys.exit(f"{folder}: no results of unseen.sh")
subjects = [s for s in next(iter(figures.values())) if s not in (OURS, BEFORE)]
processor = lambda run: run["user"] + run["system"]
peak = lambda run: run["peak"]
faults = lambda run: run["minor"]


def ratio(runs, one, other, figure):
    """The median of the ratios of the runs of the same round."""
    return statistics.median(figure(a) / figure(b) for a, b in zip(runs[one], runs[other]))


def row(cells):
    print("| " + " | ".join(cells) + " |")


others = ([BEFORE] if all(BEFORE in runs for runs in figures.values()) else []) + subjects
row(["program", "time", "peak", "faults", *others])
print("|---|" + "---:|" * (3 + len(others)))
means = {other: [[], [], []] for other in others}
best = []
for name, runs in figures.items():
    cells = []
    for other in others:
        if other not in runs:
            cells.append("failed")
            continue
        ratios = [ratio(runs, OURS, other, figure) for figure in (processor, peak, faults)]
        for mean, value in zip(means[other], ratios):
            mean.append(value)
        cells.append(" ".join(f"{value:.2f}" for value in ratios))
    # Where some failed, the best of the rest is not the best.
    if all(subject in runs for subject in subjects):
        best.append(max(ratio(runs, OURS, subject, processor) for subject in subjects))
    middle = [statistics.median(map(figure, runs[OURS])) for figure in (processor, peak, faults)]
    row([name, f"{middle[0]:.2f} s", f"{middle[1] / 2**20:.0f} MiB", f"{middle[2]:,.0f}", *cells])
row(["geometric mean", "", "", "", *(" ".join(f"**{statistics.geometric_mean(mean):.3f}**" for mean in means[other]) for other in others)])
print(f"\nProcessor time to the best peer of each of the {len(best)} programs that run with all: {statistics.geometric_mean(best):.3f}.")
