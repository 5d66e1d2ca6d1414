"""Shows a load run: a table for the terminal, and a page with plots that needs nothing but itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rich.table import Table

from bench.intervals import ENOUGH

Row = dict[str, Any]
Points = Sequence[tuple[float, float]]

COLUMNS = ("offered/s", "answers/s", "decisions/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "good %", "misses", "late")
FEW = "~"
"""Marks a percentile of fewer requests than it needs."""
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b5ea7", "#b08900")
WIDTH, HEIGHT, LEFT, BOTTOM = 460, 260, 52, 34

PAGE = Template("""<!doctype html><html lang="en"><meta charset="utf-8"><title>$title</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}
figure{display:inline-block;margin:.5rem 1rem .5rem 0}figcaption{font-size:.85em;color:#555}
svg text{font:11px system-ui,sans-serif;fill:#555}pre{background:#f6f6f6;padding:.75rem;overflow-x:auto;font-size:12px}
</style><h1>$title</h1><p>$summary</p>$table<p>$legend</p>$plots<h2>How it was measured</h2><pre>$record</pre></html>
""")
LEGEND = (
    "Latency counts from the planned send time. A request that was refused, dropped or answered wrongly ranks as later "
    "than all others (∞ where a percentile reaches it). ± is half of the 95 % interval of the mean over the repeats. "
    f"{FEW} marks a percentile of fewer requests than it needs. good is the share within the limit; late counts "
    "requests that this client sent more than 10 ms after their time."
)


def milliseconds(seconds: float | None) -> str:
    """A time for a table."""
    if seconds is None or math.isnan(seconds):
        return "-"
    return "∞" if math.isinf(seconds) else f"{seconds * 1e3:.4g}"


def with_interval(cell: Row, name: str, share: float | None = None) -> str:
    """A time of a cell with half its interval, marked where too few requests stand behind it."""
    interval = cell["interval"].get(name)
    half = f" ±{(interval[1] - interval[0]) / 2 * 1e3:.2g}" if interval else ""
    few = FEW if share and cell["mean"]["n"] < ENOUGH[share] else ""
    return few + milliseconds(cell["mean"][name]) + half


def values(cell: Row) -> list[str]:
    """A cell's row of the table."""
    mean = cell["mean"]
    return [
        *(f"{mean[name]:.4g}" for name in ("offered_per_s", "achieved_per_s", "decisions_per_s")),
        *(with_interval(cell, f"p{share * 100:.0f}_s", share) for share in ENOUGH),
        milliseconds(mean["max_s"]),
        f"{mean['good_share'] * 100:.1f}",
        f"{mean['misses']:.4g}",
        f"{mean['client_late']:.4g}",
    ]


def table(result: Row) -> Table:
    """The cells for the terminal."""
    shown = Table("workload", "load", box=None, header_style="bold")
    for column in COLUMNS:
        shown.add_column(column, justify="right", no_wrap=True)
    for cell in result["cells"]:
        shown.add_row(cell["workload"], cell["load"], *values(cell))
    return shown


def remarks(result: Row) -> list[str]:
    """What the table has no column for: the limit, the knee, the server's own time, wrong and changed answers."""
    said = [f"unloaded p50 {milliseconds(result['unloaded']['p50_s'])} ms, limit {milliseconds(result['slo_s'])} ms"]
    if knee := result["knee"]:
        bound = " (this client was the bottleneck: it may be higher)" if knee["client_bound"] else ""
        said.append(f"knee {knee['rate_per_s']:.4g}/s: the highest rate with p95 within 5 x unloaded p50{bound}")
    for cell in result["cells"]:
        mean = cell["mean"]
        facts = [f"{name} {mean[name]:.4g}" for name in ("dropped", "wrong", "swapped", "changed") if mean.get(name)]
        if "gateway_share" in mean:
            parts = ((name, mean[f"{name}_share"]) for name in ("engine", "queue", "gateway"))
            facts.append("time in " + ", ".join(f"{name} {share:.1%}" for name, share in parts))
        if "recovery_s" in mean:
            facts.append(f"good again {mean['recovery_s']:.2f} s after the overload")
        if facts:
            said.append(f"{cell['workload']} {cell['load']}: " + "; ".join(facts))
    return said


def page(result: Row) -> str:
    """The run as one HTML page."""
    rows = [["load", *COLUMNS], *([cell["load"], *values(cell)] for cell in result["cells"])]
    tags = ["th"] + ["td"] * (len(rows) - 1)
    lines = (
        "<tr>" + "".join(f"<{tag}>{escape(value)}</{tag}>" for value in row) + "</tr>"
        for tag, row in zip(tags, rows, strict=True)
    )
    about = {name: result[name] for name in ("command", "rules", "machine", "server", "knee") if name in result}
    return PAGE.substitute(
        title=escape(f"{result['workload']}: {result['purpose']}"),
        summary="<br>".join(map(escape, remarks(result))),
        table=f"<table>{''.join(lines)}</table>",
        legend=LEGEND,
        plots="".join(plots(cell) for cell in result["cells"]),
        record=escape(json.dumps(about, indent=1, default=str)),
    )


def plots(cell: Row) -> str:
    """Distribution of the latency, and latency over time; a line and a colour per repeat."""
    runs = [latencies(run["samples"]) for run in cell["repeats"]]
    ranked = [sorted(latency for _, latency in run) for run in runs]
    steps = [
        [(latency * 1e3, (place + 1) / len(run)) for place, latency in enumerate(run)] for run in map(thinned, ranked)
    ]
    times = [[(planned, latency * 1e3) for planned, latency in thinned(run)] for run in runs]
    head = f"<h2>{escape(cell['workload'])}, {escape(cell['load'])}</h2>"
    return (
        head
        + figure("share of answers within so many ms", steps, line, logarithmic=True)
        + figure("ms, by planned second of the run (warm-up shown too)", times, dots)
    )


def latencies(samples: Row) -> list[tuple[float, float]]:
    """Planned time and latency of the samples that were answered with 200."""
    columns = zip(samples["planned"], samples["done"], samples["status"], strict=True)
    return [(planned, done - planned) for planned, done, status in columns if status == 200 and done is not None]


def thinned(points: Sequence[Any], most: int = 600) -> Sequence[Any]:
    """At most about so many of the points, evenly, the last one among them."""
    step = max(1, len(points) // most)
    return points[::-1][::step][::-1]


def figure(
    caption: str, series: Sequence[Points], draw: Callable[[Points, str], str], *, logarithmic: bool = False
) -> str:
    """A plot with axes; empty where there is nothing to show."""
    xs = [x for points in series for x, _ in points]
    ys = [y for points in series for _, y in points]
    if not xs:
        return ""
    across = axis(xs, LEFT, WIDTH - 8, logarithmic=logarithmic)
    up = axis([0.0, *ys], HEIGHT - BOTTOM, 8)
    placed = [[(across(x), up(y)) for x, y in points] for points in series]
    drawn = "".join(draw(points, COLOURS[place % len(COLOURS)]) for place, points in enumerate(placed))
    marks = "".join(
        f'<text x="{across(x):.0f}" y="{HEIGHT - 12}" text-anchor="{anchor}">{x:.3g}</text>'
        for x, anchor in ((min(xs), "start"), (max(xs), "end"))
    )
    marks += "".join(
        f'<text x="{LEFT - 6}" y="{up(y) + 4:.0f}" text-anchor="end">{y:.3g}</text>'
        for y in (0.0, max(ys) / 2, max(ys))
    )
    frame = f'<path d="M{LEFT} 8V{HEIGHT - BOTTOM}H{WIDTH - 8}" fill="none" stroke="#999"/>'
    picture = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{frame}{drawn}{marks}</svg>'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def axis(found: Sequence[float], start: float, stop: float, *, logarithmic: bool = False) -> Callable[[float], float]:
    """A scale from values to pixels."""
    shape: Callable[[float], float] = (lambda value: math.log(max(value, 1e-6))) if logarithmic else float
    low, high = shape(min(found)), shape(max(found))
    span = (high - low) or 1.0
    return lambda value: start + (shape(value) - low) / span * (stop - start)


def line(points: Points, colour: str) -> str:
    """Points joined."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def dots(points: Points, colour: str) -> str:
    """Points apart."""
    return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.6" fill="{colour}"/>' for x, y in points)


def write_page(result: Row, path: Path) -> None:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(result), encoding="utf-8")
