"""`python -m bench peers`: what a request costs in ours, LiteLLM and rlcd-gateway, in one run."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench import record
from bench.answers import answers_of
from bench.capacity import capacity
from bench.commands.asking import CONSOLE, described
from bench.openloop import Pool
from bench.overhead import bodies, measure
from bench.peers.environment import NotRun
from bench.peers.gateways import litellm, rlcd
from bench.serving import GATEWAY, KEY, Server, Start, free_port, on_core, serving

Opener = Callable[[str], AbstractContextManager[Server]]
CLIENTS, SECONDS = 8, 5.0
"""Of the closed loop that finds what a gateway can do."""
HEADS = ("offered/s", "answers/s", "p50 ms", "p99 ms", "CPU ms", "CPU ms of upstream", "errors")


@contextmanager
def ours(_upstream: str) -> Iterator[Server]:
    """Canvasgate with the stub engine inside: key, limits, metrics, log and queue on."""
    port = free_port()
    settings = {"ENGINE": "stub", "PORT": str(port), "HOST": "127.0.0.1", "API_KEY": KEY}
    with serving("canvasgate", GATEWAY, port, Start(core=0), **settings) as server:
        yield server


PEERS: dict[str, Opener] = {"canvasgate": ours, "litellm": litellm, "rlcd-gateway": rlcd}


@click.command()
@click.option("--rate", "rates", type=float, multiple=True, default=(10.0, 30.0), show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Per rate.")
@click.option("--only", type=click.Choice(list(PEERS)), multiple=True, help="Leave the others out.")
@click.option("--out", type=click.Path(path_type=Path), default=record.RESULTS / "peers.json", show_default=False)
def peers(rates: tuple[float, ...], seconds: float, only: tuple[str, ...], out: Path) -> None:
    """Put each gateway in front of the same stub, and load all of them alike, then each to half of what it can do.

    LiteLLM and rlcd-gateway ask a Canvasgate with the stub engine; ours has the stub inside, so its CPU time holds the
    stub's work too. Each peer's environment is made once, in CANVASGATE_PEERS or ~/.cache/canvasgate/peers. A peer that
    cannot run is shown as not run, with the reason.

    \b
    Example:
      python -m bench peers --rate 20 --seconds 20
    """
    port = free_port()
    settings = {"ENGINE": "stub", "PORT": str(port), "HOST": "127.0.0.1", "API_KEY": KEY}
    rows: list[dict[str, Any]] = []
    last = (os.cpu_count() or 1) - 1
    with serving("upstream", GATEWAY, port, Start(core=last), **settings) as upstream:
        on_core(last)
        head = described(f"http://127.0.0.1:{port}")
        for name in only or PEERS:
            CONSOLE.print(f"measuring {name}")
            rows += run_peer(name, upstream, rates, seconds)
    CONSOLE.print(table(rows))
    record.write(out, head | {"rates": list(rates), "seconds": seconds, "rows": rows})


def run_peer(name: str, upstream: Server, rates: Sequence[float], seconds: float) -> list[dict[str, Any]]:
    """A row per rate, or one row that says why there is none."""
    requests, rows = bodies(200, 1000), []
    try:
        with PEERS[name](f"http://127.0.0.1:{upstream.target.port}") as server:
            check(server, requests[0])
            measure(server, requests, rates[0], min(seconds, 3.0))  # a warm-up
            most = asyncio.run(capacity(server.target, itertools.cycle(requests), CLIENTS, SECONDS))
            for rate in (*rates, most / 2):
                before = upstream.cpu_seconds()
                row = measure(server, requests, rate, seconds)
                answered = max(1, sum(row["statuses"].values()))
                row["upstream_cpu_ms_per_request"] = round((upstream.cpu_seconds() - before) / answered * 1e3, 3)
                rows.append(row)
    except NotRun as fault:
        return [{"server": name, "not_run": str(fault)}]
    return rows


def check(server: Server, body: bytes) -> None:
    """Raise `NotRun` where the peer does not answer the first request with answers."""

    async def once() -> tuple[int, bytes]:
        pool = Pool(server.target)
        reply = await pool.post(server.target.request(body))
        await pool.close()
        return reply

    status, said = asyncio.run(once())
    if status != 200 or answers_of(said) is None:
        raise NotRun(f"its first answer was {status}: {said[:200].decode('utf-8', 'replace')}")


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per peer and rate."""
    shown = Table("server", *HEADS, box=None, header_style="bold")
    for row in rows:
        if "not_run" in row:
            shown.add_row(row["server"], f"not run: {row['not_run']}")
            continue
        names = ("offered_per_s", "achieved_per_s", "p50_ms", "p99_ms", "cpu_ms_per_request")
        errors = sum(count for status, count in row["statuses"].items() if status != "200")
        upstream = "-" if row["server"] == "canvasgate" else f"{row['upstream_cpu_ms_per_request']:.4g}"
        shown.add_row(row["server"], *(f"{row[name]:.4g}" for name in names), upstream, str(errors))
    return shown
