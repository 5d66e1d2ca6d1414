"""`python -m bench local`: the gateway with the model that `make serve` has, on this machine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.table import Table

from bench import record
from bench.answers import answers_of, faults
from bench.commands.asking import CONSOLE, SEED, TIMEOUT, WorkloadName, described, telling
from bench.figures import input_tokens, server_timing
from bench.intervals import bootstrap, percentile
from bench.load import Teller
from bench.openloop import Exchange, Pool, Target
from bench.serving import GATEWAY, Start, free_port, serving
from bench.workloads import Workload

DEFAULT = ("W1", "W2", "W3", "W5:77")
WARMING = 2
LOADING = 900.0
"""Seconds that the model has to be fetched and loaded."""


@dataclass(slots=True)
class Column:
    """What the requests of one workload took: seconds in all, in the engine and in the queue; infinite for a miss."""

    workload: Workload
    seconds: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)

    @property
    def gateway_share(self) -> float:
        """The share of all time that was neither the engine's nor the queue's: the gateway's, HTTP and this client."""
        answered = [place for place, seconds in enumerate(self.seconds) if math.isfinite(seconds)]
        total = math.fsum(self.seconds[place] for place in answered)
        inside = math.fsum(self.engine[place] + self.queue[place] for place in answered)
        return 1 - inside / total if total else math.nan


@click.command()
@click.option("--workload", "workloads", type=WorkloadName(), multiple=True, default=DEFAULT, show_default=True)
@click.option("--seconds", default=300.0, show_default=True, help="For all workloads together, after loading.")
@click.option("--most", default=200, show_default=True, help="Requests per workload, at most.")
@SEED
@TIMEOUT
@click.option("--out", type=click.Path(path_type=Path), default=record.RESULTS / "local.json", show_default=False)
def local(workloads: tuple[Workload, ...], seconds: float, most: int, **given: Any) -> None:
    """Start the gateway as `make serve` does, ask it one request of each workload in turn, and compare them.

    Only ratios within the run mean anything on a machine that others use too.

    \b
    Example:
      python -m bench local --seconds 120
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    CONSOLE.print("starting the gateway with the model of `make serve`")
    with serving(
        "canvasgate", GATEWAY, port, Start(patience=LOADING), PORT=str(port), HOST="127.0.0.1", LOG_LEVEL="error"
    ):
        head = described(url)
        pool = Pool(Target.at(url), given["timeout"])
        columns = [Column(workload) for workload in workloads]
        with telling() as tell:
            asyncio.run(rounds(pool, columns, (seconds, most), given["seed"], tell))
    rows = [summary(column, columns) for column in columns]
    CONSOLE.print(table(rows, columns[min(1, len(columns) - 1)].workload.name))
    record.write(given["out"], head | {"seed": given["seed"], "workloads": rows})


async def rounds(pool: Pool, columns: Sequence[Column], limits: tuple[float, int], seed: int, tell: Teller) -> None:
    """One request of each workload per round, so that a slow minute meets all of them alike."""
    seconds, most = limits
    began = time.monotonic()
    tell.begin("rounds", most)
    for number in range(-WARMING, most):
        if number == 0:
            began = time.monotonic()
        if number > 0 and time.monotonic() - began > seconds:
            break
        for column in columns:
            await ask(pool.exchange, pool.target, column if number >= 0 else Column(column.workload), seed, number)
        tell.step()
    await pool.close()


async def ask(exchange: Exchange, target: Target, column: Column, seed: int, number: int) -> None:
    """Ask one request, and note what it took."""
    clock, body = asyncio.get_running_loop().time, column.workload.bodies(seed, [number])[0]
    began = clock()
    reply = await exchange(target.request(body))
    took = clock() - began
    wrong = reply.status != 200 or faults(column.workload.body(seed, number), answers_of(reply.body))
    timing = server_timing(reply)
    column.seconds.append(math.inf if wrong else took)
    column.engine.append(timing.get("engine", 0.0))
    column.queue.append(timing.get("queue", 0.0))
    column.tokens.append(input_tokens(reply))


def summary(column: Column, columns: Sequence[Column]) -> dict[str, Any]:
    """The figures of one workload, and its ratio to the second one, W2 by default, round by round."""
    base = columns[min(1, len(columns) - 1)]
    pairs = zip(column.seconds, base.seconds, strict=True)
    ratios = [one / other for one, other in pairs if math.isfinite(one) and math.isfinite(other)]
    return {
        "workload": column.workload.name,
        "purpose": column.workload.purpose,
        "n": len(column.seconds),
        "misses": sum(map(math.isinf, column.seconds)),
        "input_tokens": percentile(column.tokens, 0.5),
        "p50_s": percentile(column.seconds, 0.5),
        "p95_s": percentile(column.seconds, 0.95),
        "decisions_per_s": column.workload.questions / percentile(column.seconds, 0.5),
        "ratio": median(ratios) if ratios else math.nan,
        "ratio_interval": bootstrap(ratios),
        "gateway_share": column.gateway_share,
        "seconds": column.seconds,
        "engine_seconds": column.engine,
        "queue_seconds": column.queue,
    }


def table(rows: Sequence[dict[str, Any]], base: str) -> Table:
    """A row per workload."""
    heads = ("n", "misses", "tokens", "p50 ms", "p95 ms", f"times {base}", "95 %", "gateway's share")
    shown = Table("workload", "", *heads, box=None, header_style="bold")
    for row in rows:
        interval = row["ratio_interval"]
        shown.add_row(
            *(row["workload"], row["purpose"], str(row["n"]), str(row["misses"]), f"{row['input_tokens']:.0f}"),
            *(f"{row[name] * 1e3:.4g}" for name in ("p50_s", "p95_s")),
            f"{row['ratio']:.2f}",
            f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "-",
            f"{row['gateway_share']:.1%}",
        )
    return shown
