#!/usr/bin/env python3
"""Makes the tables of a folder that armed.sh has written: armed.py FOLDER."""
import json
import math
import pathlib
import random
import statistics
import sys

folder = pathlib.Path(sys.argv[1])
RESAMPLES = 2000
# The intervals do not change from call to call.
random.seed(1)


def row(cells):
    print("| " + " | ".join(cells) + " |")


def interval(values):
    values = sorted(values)
    return values[round(0.025 * (len(values) - 1))], values[round(0.975 * (len(values) - 1))]


def resampled(ratios):
    """The median of as many of the ratios, drawn again."""
    return statistics.median(random.choices(ratios, k=len(ratios)))


def shown(value, bounds):
    return f"{value:.3f} [{bounds[0]:.3f}, {bounds[1]:.3f}]"


figures = {"processor time": lambda run: run["user"] + run["system"], "peak memory": lambda run: run["peak"]}
programs = {}
for path in sorted(folder.glob("*.json")):
    rows = json.loads(path.read_text() or "null")
    rows = rows and rows["workloads"][0]["rows"]
    if not rows or len(rows) != 2 or any(one["failure"] for one in rows):
        print(f"{path.stem}: no figures")
        continue
    sides = [[run["values"] for run in sorted(one["runs"], key=lambda run: run["round"])] for one in rows]
    programs[path.stem] = list(zip(*sides))

if programs:
    print(f"Armed beside unarmed, build {(folder / 'commit.txt').read_text().strip()}; rounds:", end=" ")
    print(", ".join(sorted({str(len(pairs)) for pairs in programs.values()}, key=int)))
    print("Medians of the ratios of runs of the same round, and their 95% bootstrap intervals.\n")
    row(["program", "processor time unarmed", "armed / unarmed", "peak unarmed", "armed / unarmed", "more"])
    print("|---|--:|--:|--:|--:|--:|")
    ratios = {figure: {} for figure in figures}
    for name, pairs in programs.items():
        cells = [name]
        for figure, value in figures.items():
            mine = ratios[figure][name] = [value(armed) / value(unarmed) for unarmed, armed in pairs]
            middle = statistics.median(value(unarmed) for unarmed, _ in pairs)
            cells.append(f"{middle:.2f} s" if figure == "processor time" else f"{middle / 2**20:.1f} MiB")
            cells.append(shown(statistics.median(mine), interval([resampled(mine) for _ in range(RESAMPLES)])))
        more = statistics.median(armed["peak"] - unarmed["peak"] for unarmed, armed in pairs)
        row([*cells, f"{more / 2**10:+.0f} KiB"])
    print(f"\nGeometric means of {len(programs)} programs:")
    for figure, by_program in ratios.items():
        mean = statistics.geometric_mean(statistics.median(mine) for mine in by_program.values())
        again = [statistics.geometric_mean(resampled(mine) for mine in by_program.values()) for _ in range(RESAMPLES)]
        print(f"* {figure}: {shown(mean, interval(again))}")

def results(kind, *columns):
    """What the files of a kind say; if there are any, a table with these columns begins."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*.{kind}"))]
    if found:
        print()
        row(["program", *columns])
        print("|---" + "|--:" * len(columns) + "|")
    return found

counts = results("instructions", "million instructions unarmed", "armed", "armed / unarmed")
if counts:
    for count in counts:
        row([count["name"], *(f"{count[side] / 1e6:,.1f}" for side in ("unarmed", "armed")), f"{count['armed'] / count['unarmed']:.3f}"])
    mean = math.exp(statistics.mean(math.log(count["armed"] / count["unarmed"]) for count in counts))
    print(f"\nGeometric mean of {len(counts)} programs: {mean:.3f}.")
stacks = results("stacks", "samples", "whole stacks", "that come to the start of the program or of a thread")
if stacks:
    for one in stacks:
        share = lambda part: f"{100 * one[part] / one['samples']:.1f}%" if one["samples"] else ""
        row([one["name"], f"{one['samples']:,}", share("whole"), share("to_start")])
    total = {part: sum(one[part] for one in stacks) for part in ("samples", "whole", "to_start")}
    print(f"\nOf {total['samples']:,} samples {100 * total['whole'] / total['samples']:.2f}% are whole, {100 * total['to_start'] / total['samples']:.2f}% come to a start.")
if not programs and not counts and not stacks:
    sys.exit(f"{folder}: no results of armed.sh")
