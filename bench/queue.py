"""The shared queue, its worth and its cost: `python -m bench.queue` starts Redis and replicas on the stub engine.

Three replicas with reads of 20 ms, one of them three times slower, get Poisson load at 80 % of what they can do
together, each a third of it, as from a balancer that knows nothing: once with `REDIS_URL` and once without, in turn.
One replica at a low rate, with and without, shows what the fast path costs. Then twice what the three can do, and how
long until they answer as before. Writes bench/results/queue.json. Needs redis-server on the PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.openloop import Outcome, Pool, Target, run
from bench.overhead import QUESTIONS
from bench.serving import Start, wait_until_ready

RESULTS = Path(__file__).parent / "results" / "queue.json"
READ_MS = 20.0
SLOWER = 3.0
PORTS = (8481, 8482, 8483)
REDIS_PORT = 8480
REPLICAS = (READ_MS, READ_MS, READ_MS * SLOWER)
CAPACITY = sum(1000 / milliseconds for milliseconds in REPLICAS)
"""Decisions per second that the three can make together, one at a time each."""
OVERLOAD_FACTOR = 5
"""How much slower reads are in the part about overload."""
PARTS = ("balance", "fast path", "overload")


def bodies(count: int) -> list[bytes]:
    """Requests that all differ, or they would be joined."""
    start = time.time_ns()
    return [
        json.dumps({"model": "jev-latest", "state": f"Ticket {start + number}.", "questions": QUESTIONS}).encode()
        for number in range(count)
    ]


@contextmanager
def redis() -> Iterator[str]:
    """A Redis that keeps nothing on disk; its URL."""
    binary = shutil.which("redis-server")
    if binary is None:
        sys.exit("redis-server is not on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", ""]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{REDIS_PORT}/0"
        finally:
            process.kill()
            process.wait()


@contextmanager
def replicas(delays: Sequence[float], **settings: str) -> Iterator[list[Target]]:
    """A server process for each delay, in milliseconds, from when all of them answer until the block ends."""
    common = {"ENGINE": "stub", "HOST": "127.0.0.1", "LOG_LEVEL": "error", **settings}
    processes = []
    try:
        for port, delay in zip(PORTS, delays, strict=False):
            environment = {**os.environ, **common, "PORT": str(port), "STUB_DELAY_MS": str(delay)}
            processes.append(subprocess.Popen([sys.executable, "-m", "gateway.cli", "serve"], env=environment))
        for port, process in zip(PORTS, processes, strict=False):
            wait_until_ready(port, process, Start())
        time.sleep(2.0)  # until they know one another
        yield [Target("127.0.0.1", port, "/v1/systemone") for port in PORTS[: len(delays)]]
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def spread(targets: Sequence[Target], rate: float, seconds: float, seed: int) -> Outcome:
    """Poisson load, of which each target gets an equal share; one outcome of all."""
    share = rate / len(targets)
    each = await asyncio.gather(
        *(
            run(target, bodies(int(share * seconds * 2) + 50), share, seconds, seed + at)
            for at, target in enumerate(targets)
        )
    )
    samples = [sample for outcome in each for sample in outcome.samples]
    return Outcome(rate, max(outcome.seconds for outcome in each), samples)


def row(name: str, outcome: Outcome) -> dict[str, Any]:
    """The figures of one run, printed as well."""
    figures = {
        "run": name,
        "offered_per_s": round(outcome.offered, 1),
        "answered_per_s": round(outcome.achieved, 1),
        "p50_ms": round(outcome.percentile(0.5) * 1e3, 2),
        "p99_ms": round(outcome.percentile(0.99) * 1e3, 2),
        "longest_ms": round(max(outcome.latencies, default=0.0) * 1e3, 1),
        "statuses": {str(status): count for status, count in sorted(outcome.statuses.items())},
        "client_late": outcome.late,
    }
    print("  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)
    return figures


def balance(url: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Three replicas at 80 % of their sum, alone and shared, in turn."""
    rows = []
    for at in range(rounds):
        for name, setting in (("alone", {}), ("shared", {"REDIS_URL": url})):
            with replicas(REPLICAS, MAX_INFLIGHT="1", **setting) as targets:
                rows.append(row(name, asyncio.run(spread(targets, 0.8 * CAPACITY, seconds, 10 * at))))
    return rows


def fast_path(url: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """One replica that always has room, in memory and on Redis, in turn."""
    rows = []
    for at in range(rounds):
        for name, setting in (("fast path in memory", {}), ("fast path on Redis", {"REDIS_URL": url})):
            with replicas((READ_MS,), **setting) as targets:
                rows.append(row(name, asyncio.run(spread(targets, 20.0, seconds, at))))
    return rows


def overload(url: str, seconds: float) -> list[dict[str, Any]]:
    """Twice what three replicas can do, alone and shared, then how many seconds until each answers promptly again.

    With slower reads than in the other parts: refusals cost the processor too, and what the engines can do is to be the
    limit here, not what two cores can do for three replicas, Redis and the client.
    """
    delays = [OVERLOAD_FACTOR * delay for delay in REPLICAS]
    capacity = CAPACITY / OVERLOAD_FACTOR
    rows = []
    for name, setting in (("overload alone", {}), ("overload shared", {"REDIS_URL": url})):
        with replicas(delays, MAX_INFLIGHT="1", **setting) as targets:
            figures = row(name, asyncio.run(spread(targets, 2 * capacity, seconds, 5)))
            figures["of_capacity"] = round(figures["answered_per_s"] / capacity, 3)
            figures["recovery_s"] = round(asyncio.run(recovery(targets, 2 * max(delays) / 1000)), 2)
            rows.append(figures)
    return rows


async def recovery(targets: Sequence[Target], promptly: float) -> float:
    """Seconds until every target has answered within so many seconds."""
    start = time.perf_counter()
    for target in targets:
        pool = Pool(target)
        while True:
            asked = time.perf_counter()
            status, _ = await pool.post(target.request(bodies(1)[0]))
            if status == 200 and time.perf_counter() - asked < promptly:
                break
            await asyncio.sleep(0.05)
        await pool.close()
    return time.perf_counter() - start


def kept(parts: str) -> list[dict[str, Any]]:
    """Rows of earlier runs in the results, but those of the parts that are measured now."""
    if not RESULTS.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rows"]
    return [each for each in rows if part_of(each) not in parts]


def part_of(row: dict[str, Any]) -> str:
    """Which part a row belongs to."""
    return next((part for part in PARTS if row["run"].startswith(part)), "balance")


def median(rows: Sequence[dict[str, Any]], name: str, figure: str) -> float:
    """The middle of a figure over the runs of that name."""
    found = sorted(each[figure] for each in rows if each["run"] == name)
    return float(found[len(found) // 2]) if found else float("nan")


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--overload", type=float, default=60.0, help="seconds of overload")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure; other parts' rows stay")
    given = parser.parse_args()
    rows = kept(given.parts)
    with redis() as url:
        if "balance" in given.parts:
            rows += balance(url, given.seconds, given.rounds)
        if "fast path" in given.parts:
            rows += fast_path(url, given.seconds, given.rounds)
        if "overload" in given.parts:
            rows += overload(url, given.overload)
    summary = {
        "p99_ms_alone": median(rows, "alone", "p99_ms"),
        "p99_ms_shared": median(rows, "shared", "p99_ms"),
        "added_p50_ms_on_the_fast_path": round(
            median(rows, "fast path on Redis", "p50_ms") - median(rows, "fast path in memory", "p50_ms"), 2
        ),
        "overload_of_capacity_alone": median(rows, "overload alone", "of_capacity"),
        "overload_of_capacity_shared": median(rows, "overload shared", "of_capacity"),
        "recovery_s": median(rows, "overload shared", "recovery_s"),
    }
    print(json.dumps(summary, indent=1))
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    told = {"machine": machine, "arguments": vars(given), "capacity_per_s": round(CAPACITY, 1)}
    RESULTS.write_text(json.dumps({**told, "summary": summary, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
