#!/usr/bin/env python3
"""What docs/benchmarks/ keeps of a run:  docs/benchmarks/pack.py FOLDER OUT

Writes to OUT: FOLDER's raw data as NAME.tar.xz, chart.svg (the geometric means), and time.svg and memory.svg, which are
the overview plots of FOLDER/bench in fewer bytes. run.sh calls it at its end."""

import io
import json
import lzma
import re
import sys
import tarfile
from pathlib import Path

# No folder of compiled files beside the scripts.
sys.dont_write_bytecode = True
from page import OURS, PROGRAMS, Experiment, geometric, rows_of

# Tables and pages can be made again from these (`hakmem report FILE`, page.py).
RAW = (".json", ".txt")
# Their resident memory over time is left out: no table has it, and it takes much room.
WITHOUT_TIMELINE = ("sizes.json", "presets.json")
# Of the others so many points of each line are kept at most.
POINTS = 100


def with_points(data, most):
    """The same experiment with lines of at most so many points."""
    experiment = json.loads(data)
    for workload in experiment["workloads"]:
        for row in workload["rows"]:
            line = row["timeline"]
            row["timeline"] = line[::-(-len(line) // most)] if line and most else []
    return json.dumps(experiment, separators=(",", ":"), ensure_ascii=False).encode()


def archive(folder, out):
    """The same bytes for the same files, whoever packs them."""
    with tarfile.open(out / f"{folder.name}.tar.xz", "w:xz", preset=9 | lzma.PRESET_EXTREME) as tar:
        for path in sorted(path for path in folder.iterdir() if path.suffix in RAW):
            entry = tarfile.TarInfo(f"{folder.name}/{path.name}")
            data = path.read_bytes()
            if b'"timeline"' in data:
                data = with_points(data, 0 if path.name in WITHOUT_TIMELINE else POINTS)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))


def lighter(svg):
    """The same picture: what shapes have in common becomes a style, and spaces go."""
    styles = {}

    def element(match):
        name, attributes, end = match.groups()
        pairs = re.findall(r'([\w:-]+)="([^"]*)"', attributes)
        look = [pair for pair in pairs if pair[0] in ("fill", "stroke", "stroke-width", "font-family", "font-size", "text-anchor")]
        place = [(key, value.strip()) for key, value in pairs if (key, value) not in look and (key, value) != ("opacity", "1")]
        if look:
            sizes = {"font-size", "stroke-width"}
            style = ";".join(f"{key}:{value}{'px' if key in sizes else ''}" for key, value in look)
            place.append(("class", styles.setdefault(style, f"s{len(styles)}")))
        return f"<{name}" + "".join(f' {key}="{value}"' for key, value in place) + end

    head, body = re.match(r"(<svg.*?</desc>)(.*)", svg, re.S).groups()
    body = re.sub(r"<(rect|text|polyline|circle|line|path|polygon)\b([^>]*?)(/?>)", element, body)
    body = re.sub(r"\s*\n\s*", "", body)
    rules = "".join(f".{name}{{{style}}}" for style, name in styles.items())
    return f"{head}<style>{rules}</style>{body}\n"


def chart(panels):
    """Bars of geometric means, two panels beside each other."""
    width, bar, left, top = 420, 18, 96, 64
    rows = max(len(means) for _, means in panels)
    height = top - 24 + bar * rows + 16
    full_height = 34 + height * ((len(panels) + 1) // 2)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" height="{full_height}" '
           'font-family="sans-serif" font-size="12" role="img"><title>Time and peak memory, relative to glibc</title>'
           "<style>text{fill:#1f2328}.n{text-anchor:end}.o{fill:#d55e00}.p{fill:#8c959f}.g{stroke:#1f2328;stroke-dasharray:3 3}</style>"
           '<rect width="100%" height="100%" fill="#fff"/>'
           '<text x="12" y="22" font-size="14">Relative to glibc (dashed line): geometric means, less is better</text>']
    for i, (title, means) in enumerate(panels):
        x0, y0 = width * (i % 2), 34 + height * (i // 2)
        scale = (width - left - 56) / max([1, *(mean for _, mean in means)])
        out.append(f'<text x="{x0 + left}" y="{y0 + 18}" font-weight="bold">{title}</text>')
        for row, (name, mean) in enumerate(means):
            y, kind = y0 + 28 + bar * row, "o" if name == OURS else "p"
            length = mean * scale
            out.append(f'<text class="n" x="{x0 + left - 6}" y="{y + 11}">{name}</text>'
                       f'<rect class="{kind}" x="{x0 + left}" y="{y}" width="{length:.0f}" height="13"/>'
                       f'<text x="{x0 + left + max(length, scale) + 5:.0f}" y="{y + 11}">{mean:.3f}</text>')
        x = x0 + left + scale
        out.append(f'<path class="g" d="M{x:.0f} {y0 + 24}v{bar * len(means) + 4}"/>')
    return "".join(out) + "</svg>\n"


def means(experiments, key):
    """Each allocator's geometric mean of the ratios to glibc, best first."""
    rows = rows_of(experiments, key)
    base = experiments[0].base
    found = [(name, geometric([row.ratio.get(name) for row in rows])) for name in experiments[0].names if name != base]
    return sorted(((name, mean) for name, mean in found if mean), key=lambda one: one[1])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    archive(folder, out)
    for name in ("time", "memory"):
        plot = folder / "bench/plots" / f"overview-{name}.svg"
        if plot.exists():
            (out / f"{name}.svg").write_text(lighter(plot.read_text()))
    finished = lambda name: (path := folder / f"{name}.json").exists() and path.stat().st_size
    panels = []
    if finished("bench"):
        bench = [Experiment(folder / "bench.json")]
        count = len(bench[0].data["workloads"])
        panels += [(f"{count} workloads: time", means(bench, None)), (f"{count} workloads: peak memory", means(bench, "peak"))]
    programs = [Experiment(folder / f"ab-{name}.json") for name in PROGRAMS if finished(f"ab-{name}")]
    if programs:
        count = len(programs)
        panels += [(f"{count} real programs: time", means(programs, "wall")), (f"{count} real programs: peak memory", means(programs, "peak"))]
    if panels:
        (out / "chart.svg").write_text(chart(panels))


if __name__ == "__main__":
    main()
