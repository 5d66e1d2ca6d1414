"""`python -m bench load`: a workload against one server, open loop."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from bench import record, report
from bench.answers import answers_of, faults
from bench.commands.asking import CONSOLE, FIELDS, KEY, MODEL, OUT, SEED, TIMEOUT, URL, WorkloadName, described, telling
from bench.load import SLACK, Bench, Rules, ServerFailed
from bench.openloop import Pool, Target
from bench.workloads import Load, Workload

START_PATIENCE = 900.0
"""Seconds that a server has to give its first right answer."""


@dataclass(frozen=True, slots=True)
class Cells:
    """What to measure: rates in requests per second, shares of the knee, numbers of clients. Empty: the workload's."""

    rates: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    clients: tuple[int, ...] = ()
    seconds: float | None = None
    burstiness: float | None = None
    knee: bool = False

    def loads(self, workload: Workload) -> list[tuple[Load, float | None]]:
        """The loads, each with its rate where that does not depend on the knee."""
        given: list[tuple[Load, float | None]] = [(Load("closed", clients), None) for clients in self.clients]
        given += [(Load("open", 1.0), rate) for rate in self.rates]
        given += [(Load("open", share), None) for share in self.shares]
        if not given and not self.knee:
            given = [(load, None) for load in workload.loads]
        changes = {"seconds": self.seconds, "burstiness": self.burstiness}
        changed: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        return [(replace(load, **changed), rate) for load, rate in given]


@click.command()
@URL
@KEY
@click.option("--workload", type=WorkloadName(), required=True, help="W1 to W13; W4:32, W5:255, W6:8, W7:8192:warm.")
@click.option("--rate", "rates", type=float, multiple=True, help="Requests per second, open loop; may be repeated.")
@click.option(
    "--of-knee", "shares", type=float, multiple=True, help="A share of the knee's rate, which is found first."
)
@click.option("--clients", type=int, multiple=True, help="So many clients in a closed loop; 1 is serial.")
@click.option("--knee", is_flag=True, help="Find the highest rate with p95 within 5 x the unloaded p50 and no error.")
@click.option("--seconds", type=float, help="Length of an open-loop cell, after its warm-up.")
@click.option("--burstiness", type=float, help="Shape of the gamma distributed gaps; 1 is Poisson, 0.25 bursts.")
@click.option("--repeats", default=3, show_default=True, help="Runs of each cell, for its interval.")
@click.option("--warm-up", default=2.0, show_default=True, help="Seconds at the start of a run that do not count.")
@click.option("--slo", type=float, help="Longest good latency in ms.  [default: 5 x the unloaded p50]")
@click.option("--serial", default=200, show_default=True, help="Requests of a closed-loop cell.")
@click.option("--again", default=20, show_default=True, help="Answers of each run that are compared with a second one.")
@click.option("--tolerance", default=5e-3, show_default=True, help="How far these may be apart (total variation).")
@click.option("--start", help="For W13: the command that starts the server.")
@SEED
@FIELDS
@MODEL
@TIMEOUT
@OUT
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with plots here.")
def load(url: str, key: str | None, workload: Workload, **given: Any) -> None:
    """Load a server and report latencies from the planned send time.

    Without --rate, --of-knee, --clients or --knee, the workload's own cells are measured. Ends with 1 where a request
    was dropped or an answer was wrong or another request's.

    \b
    Examples:
      python -m bench load --url http://127.0.0.1:8080 --workload W3 --rate 50 --seconds 10
      python -m bench load --url http://127.0.0.1:8080 --workload W2 --of-knee 0.5 --of-knee 0.8 --html w2.html
      python -m bench load --url http://127.0.0.1:8099 --workload W13 --start "canvasgate serve -s PORT=8099"
    """
    workload = replace(workload, fields={**workload.fields, **given["fields"], "model": given["model"]})
    if workload.name == "W13":
        result = cold_start(url, key, workload, given["start"])
    else:
        result = asyncio.run(measured(url, key, workload, given))
        CONSOLE.print(report.table(result))
    for remark in report.remarks(result) if result.get("cells") else result["remarks"]:
        CONSOLE.print(remark, highlight=False)
    if given["out"]:
        record.write(given["out"], result)
    if given["html"] and result.get("cells"):
        report.write_page(result, given["html"])
    if any(failed(cell["mean"]) for cell in result.get("cells", ())):
        raise SystemExit(1)


def failed(mean: dict[str, Any]) -> bool:
    """Whether a request was dropped, answered wrongly or answered with another one's answer."""
    return any(mean.get(name, 0) for name in ("dropped", "wrong", "swapped"))


async def measured(url: str, key: str | None, workload: Workload, given: dict[str, Any]) -> dict[str, Any]:
    """All cells of a workload."""
    slo = given["slo"] / 1e3 if given["slo"] else None
    names = ("seed", "repeats", "warm_up", "serial", "again", "tolerance")
    rules = Rules(slo=slo, **{name: given[name] for name in names})
    chosen = ("rates", "shares", "clients", "seconds", "burstiness", "knee")
    cells = Cells(**{name: given[name] for name in chosen})
    target = Target.at(url, key)
    pool = Pool(target, given["timeout"])
    head = await asyncio.to_thread(described, url) | {"workload": workload.name, "purpose": workload.purpose}
    with telling() as tell:
        try:
            body = await run_cells(Bench(target, pool.exchange, workload, rules, tell), cells, url)
        except ServerFailed as fault:
            raise click.ClickException(str(fault)) from fault
        finally:
            await pool.close()
    return head | {"rules": asdict(rules), "seed": rules.seed} | body


async def run_cells(bench: Bench, cells: Cells, url: str) -> dict[str, Any]:
    """Unloaded, then the knee where it is needed, then each cell with the server's memory and CPU time around it."""
    unloaded = await bench.unloaded()
    slo = bench.rules.slo or SLACK * unloaded.p50
    loads = cells.loads(bench.workload)
    wanted = cells.knee or any(load.kind == "open" and rate is None for load, rate in loads)
    knee = await bench.knee(unloaded) if wanted else None
    rows = []
    for load, rate in loads:
        offered = rate or (knee["rate_per_s"] * load.amount if knee and load.kind == "open" else 0.0)
        if load.kind == "open" and not offered:
            continue
        before = await asyncio.to_thread(record.gauges, url)
        row = await bench.cell(load, offered, slo)
        rows.append(row | {"server_before": before, "server_after": await asyncio.to_thread(record.gauges, url)})
    return {"unloaded": {"p50_s": unloaded.p50}, "slo_s": slo, "knee": knee, "cells": rows}


def cold_start(url: str, key: str | None, workload: Workload, start: str | None) -> dict[str, Any]:
    """W13: from starting the process to its first right answer, in seconds."""
    if not start:
        raise click.UsageError("W13 needs --start, the command that starts the server.")
    target, body = Target.at(url, key), workload.bodies(1, [0])[0]
    began = time.monotonic()
    process = subprocess.Popen(shlex.split(start), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not asyncio.run(right(target, body, workload)):
            if process.poll() is not None:
                raise click.ClickException(f"the server ended with {process.returncode}")
            if time.monotonic() - began > START_PATIENCE:
                raise click.ClickException(f"no right answer within {START_PATIENCE:.0f} s")
            time.sleep(0.05)
        seconds = time.monotonic() - began
        head = described(url)
    finally:
        process.terminate()
        process.wait()
    said = [f"first right answer after {seconds:.2f} s"]
    return head | {"workload": workload.name, "first_right_answer_s": seconds, "remarks": said}


async def right(target: Target, body: bytes, workload: Workload) -> bool:
    """Whether one request gets a right answer."""
    pool = Pool(target)
    reply = await pool.exchange(target.request(body))
    await pool.close()
    return reply.status == 200 and not faults(workload.body(1, 0), answers_of(reply.body))
