"""`python -m bench versus`: the same bodies to two servers, pair by pair."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import click
from rich.table import Table

from bench import record
from bench.answers import Body, answers_of, apart, faults
from bench.commands.asking import CONSOLE, FIELDS, MODEL, OUT, SEED, TIMEOUT, WorkloadName, described, posting, telling
from bench.figures import changed_choices, input_tokens
from bench.intervals import bootstrap, percentile
from bench.load import Teller
from bench.openloop import Pool, Reply, Target
from bench.workloads import Workload

WARMING = 3


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two servers."""

    name: str
    url: str
    target: Target
    pool: Pool


@dataclass(frozen=True, slots=True)
class Pair:
    """One body, answered by both: latencies in seconds, infinite without a right answer."""

    seconds: tuple[float, float]
    tokens: tuple[float, float]
    statuses: tuple[int, int]
    distance: float | None
    flips: int


@click.command()
@click.argument("servers", nargs=2, metavar="NAME=URL NAME=URL")
@click.option(
    "--workload", "workloads", type=WorkloadName(), multiple=True, required=True, help="W1 to W8; repeatable."
)
@click.option("--count", default=50, show_default=True, help="Pairs per workload.")
@click.option("--key", "keys", multiple=True, metavar="NAME=KEY", help="Bearer key of a server.")
@SEED
@FIELDS
@MODEL
@TIMEOUT
@OUT
def versus(servers: tuple[str, str], workloads: tuple[Workload, ...], keys: tuple[str, ...], **given: Any) -> None:
    """Ask two servers the same, one after the other, and compare latencies and answers.

    Who is asked first takes turns. A ratio is the first server's latency over the second's, of the same body.

    \b
    Example:
      python -m bench versus ours=http://127.0.0.1:8080 other=http://127.0.0.1:8000 --workload W2 --workload W3
    """
    known = dict(pair_of(key) for key in keys)
    named = [pair_of(server) for server in servers]
    sides = [Side(name, url, *posting(url, known.get(name), given["timeout"])) for name, url in named]
    rows = []
    for workload in workloads:
        changed = replace(workload, fields={**workload.fields, **given["fields"], "model": given["model"]})
        with telling() as tell:
            pairs = asyncio.run(ask_both(sides, changed, given["count"], given["seed"], tell))
        rows.append(summary(workload, pairs))
    CONSOLE.print(table(sides, rows))
    if given["out"]:
        heads = {side.name: described(side.url) for side in sides}
        record.write(given["out"], {"servers": heads, "seed": given["seed"], "workloads": rows})


def pair_of(text: str) -> tuple[str, str]:
    """Name and value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


async def ask_both(sides: Sequence[Side], workload: Workload, count: int, seed: int, tell: Teller) -> list[Pair]:
    """All pairs, after a few that warm both servers up."""
    pairs = []
    tell.begin(workload.name, count)
    for number in range(-WARMING, count):
        body = workload.bodies(seed, [number])[0]
        order = (0, 1) if number % 2 == 0 else (1, 0)
        took: dict[int, float] = {}
        replies: dict[int, Reply] = {}
        for place in order:
            side, clock = sides[place], asyncio.get_running_loop().time
            began = clock()
            replies[place] = await side.pool.exchange(side.target.request(body))
            took[place] = clock() - began
        if number >= 0:
            pairs.append(pair(workload.body(seed, number), (replies[0], replies[1]), (took[0], took[1])))
            tell.step()
    for side in sides:
        await side.pool.close()
    return pairs


def pair(request: Body, replies: tuple[Reply, Reply], took: tuple[float, float]) -> Pair:
    """Judge and compare both answers."""
    first, second = (right_answers(request, reply) for reply in replies)
    seconds = (took[0] if first else math.inf, took[1] if second else math.inf)
    tokens = (input_tokens(replies[0]), input_tokens(replies[1]))
    statuses = (replies[0].status, replies[1].status)
    if not first or not second:
        return Pair(seconds, tokens, statuses, None, 0)
    return Pair(seconds, tokens, statuses, apart(first, second), changed_choices(first, second))


def right_answers(request: Body, reply: Reply) -> Body | None:
    """The answers where they are coherent."""
    answers = answers_of(reply.body) if reply.status == 200 else None
    return answers if answers is not None and not faults(request, answers) else None


def summary(workload: Workload, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The figures of one workload; ratios are of pairs that both answered."""
    both = [one for one in pairs if one.distance is not None]
    ratios = [one.seconds[0] / one.seconds[1] for one in both]
    sides = [[one.seconds[place] for one in pairs] for place in (0, 1)]
    return {
        "workload": workload.name,
        "n": len(pairs),
        "answered_by_both": len(both),
        "p50_s": [percentile(side, 0.5) for side in sides],
        "p95_s": [percentile(side, 0.95) for side in sides],
        "misses": [sum(math.isinf(seconds) for seconds in side) for side in sides],
        "input_tokens": [percentile([one.tokens[place] for one in pairs], 0.5) for place in (0, 1)],
        "ratio": median(ratios) if ratios else math.nan,
        "ratio_interval": bootstrap(ratios),
        "largest_difference": max((one.distance or 0.0 for one in both), default=math.nan),
        "mean_difference": sum(one.distance or 0.0 for one in both) / max(1, len(both)),
        "changed_choices": sum(one.flips for one in both),
        "pairs": [asdict(one) for one in pairs],
    }


def table(sides: Sequence[Side], rows: Sequence[dict[str, Any]]) -> Table:
    """A row per workload."""
    one, other = (side.name for side in sides)
    shown = Table("workload", "n", f"{one} p50 ms", f"{other} p50 ms", box=None, header_style="bold")
    for head in (f"ratio {one}/{other}", "95 %", "misses", "tokens", "mean apart", "most", "other choices"):
        shown.add_column(head)
    for row in rows:
        interval = row["ratio_interval"]
        shown.add_row(
            row["workload"],
            str(row["n"]),
            *(f"{seconds * 1e3:.4g}" for seconds in row["p50_s"]),
            f"{row['ratio']:.3f}",
            f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "-",
            " / ".join(map(str, row["misses"])),
            " / ".join(f"{tokens:.0f}" for tokens in row["input_tokens"]),
            f"{row['mean_difference']:.2g}",
            f"{row['largest_difference']:.2g}",
            str(row["changed_choices"]),
        )
    return shown
