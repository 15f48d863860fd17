#!/usr/bin/env python3
"""Makes the tables of a folder that scaling.sh has written: scaling.py FOLDER."""
import json
import pathlib
import statistics
import sys

OURS = "hakmem"
folder = pathlib.Path(sys.argv[1])
# Of each workload, of each number of threads, of each allocator: nanoseconds for an operation, and peak bytes.
times, peaks = {}, {}
for path in folder.glob("*-*.json"):
    name, _, threads = path.stem.rpartition("-")
    rows = json.loads(path.read_text())["workloads"][0]["rows"]
    for into, key in ((times, "per_op"), (peaks, "peak")):
        into.setdefault(name, {})[int(threads)] = {
            row["subject"]: row["summaries"][key]["median"] for row in rows if not row["failure"]
        }
if not times:
    sys.exit(f"{folder}: no results of scaling.sh")
threads = sorted(set.union(*(set(by_threads) for by_threads in times.values())))
names = sorted(times)
peers = sorted({peer for name in names for row in times[name].values() for peer in row} - {OURS})


def row(cells):
    print("| " + " | ".join(cells) + " |")


def head(first):
    row([first, *map(str, threads)])
    print("|---|" + "---:|" * len(threads))


print("Nanoseconds for an operation with Hakmem, and how many times as long as with the best other allocator:\n")
head("workload \\ threads")
best = {n: [] for n in threads}
for name in names:
    cells = []
    for n in threads:
        ours, others = times[name][n][OURS], {peer: t for peer, t in times[name][n].items() if peer != OURS}
        if not others:
            sys.exit("scaling.py: no other allocator was measured")
        first = min(others, key=others.get)
        best[n].append(ours / others[first])
        cells.append(f"{ours:.3g} ns, {ours / others[first]:.2f} {first}")
    row([name, *cells])
row(["geometric mean", *(f"**{statistics.geometric_mean(best[n]):.3f}**" for n in threads)])
print("\nGeometric means of Hakmem's time, and of its peak memory, to that of each of the others:\n")
head("allocator \\ threads")
for peer in peers:
    cells = []
    for n in threads:
        means = []
        for of in (times, peaks):
            rows = [of[name][n] for name in names if peer in of[name][n]]
            means.append(statistics.geometric_mean(row[OURS] / row[peer] for row in rows))
        cells.append(f"{means[0]:.2f}, {means[1]:.2f}")
    row([peer, *cells])
