"""Half an hour of steady load on a real model: `python -m bench.steady --url http://127.0.0.1:8080`.

First finds what the server can do (a closed loop of a few clients), then offers a share of it, open loop, with states
that all differ. Prints p50 by minute and the server's memory; writes bench/results/steady.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from statistics import median
from typing import Any

from bench.capacity import capacity
from bench.openloop import Outcome, Target, run
from bench.record import machine
from bench.soak import memory

RESULTS = Path(__file__).parent / "results" / "steady.json"
QUESTIONS = {"refund": {"type": "noul", "instructions": "Does the customer ask for money back?"}}
MINUTE = 60.0


def bodies(count: int, first: int) -> list[bytes]:
    """Requests with one question; no two states, and none of another `first`, are alike."""
    text = "I was charged twice for my renewal. Please refund one of the two payments."
    return [
        json.dumps(
            {"model": "jev-latest", "state": f"Ticket {first + number}. {text}", "questions": QUESTIONS}
        ).encode()
        for number in range(count)
    ]


async def steady(target: Target, url: str, rate: float, seconds: float) -> tuple[Outcome, list[float]]:
    """The load, and the server's memory in MiB once a minute."""
    seen: list[float] = []

    async def watch() -> None:
        while True:
            seen.append(round(await asyncio.to_thread(memory, url), 1))
            await asyncio.sleep(MINUTE)

    watching = asyncio.create_task(watch())
    outcome = await run(target, bodies(int(rate * seconds * 1.5) + 50, 0), rate, seconds)
    seen.append(round(await asyncio.to_thread(memory, url), 1))
    watching.cancel()
    return outcome, seen


def by_minute(outcome: Outcome) -> list[float]:
    """The p50 of each minute's answers, in milliseconds, by when they were planned."""
    minutes: dict[int, list[float]] = {}
    for sample in outcome.samples:
        if sample.reply.status == 200:
            minutes.setdefault(int(sample.planned // MINUTE), []).append(sample.latency * 1e3)
    return [round(median(latencies), 1) for _, latencies in sorted(minutes.items())]


def main() -> None:
    """Find the capacity, load, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--share", type=float, default=0.6, help="of the capacity")
    parser.add_argument("--clients", type=int, default=8, help="of the closed loop that finds it")
    given = parser.parse_args()
    target = Target.at(given.url)
    most = asyncio.run(capacity(target, bodies(100_000, 10**9), given.clients, 40.0))
    outcome, seen = asyncio.run(steady(target, given.url, given.share * most, given.seconds))
    minutes = by_minute(outcome)
    result: dict[str, Any] = {
        "capacity_per_s": round(most, 2),
        "offered_per_s": round(outcome.offered, 2),
        "statuses": {str(status): count for status, count in outcome.statuses.items()},
        "p50_ms_by_minute": minutes,
        "last_over_first": round(minutes[-1] / minutes[0], 3),
        "memory_mib": seen,
        "memory_growth": round(seen[-1] / seen[0] - 1, 4),
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps({"machine": machine(), "arguments": vars(given), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
