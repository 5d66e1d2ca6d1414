"""Many clients at once for a while: `python -m bench.soak --url http://127.0.0.1:8080 --clients 64 --seconds 60`.

Each client asks in a closed loop about states of its own, so this finds errors, swapped answers and growing memory; it
is no latency claim. Every answer is compared with the one that the same request got alone before: the largest
difference of a probability and the number of changed choices are printed, beside statuses and the server's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.answers import numbers
from bench.openloop import Pool, Target
from bench.overhead import bodies

RESULTS = Path(__file__).parent / "results" / "soak.json"
CLOSE = 0.01
"""A choice may change only where its two most probable options are this close."""

Answers = dict[str, Any]


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    worst: float = 0.0
    flips: int = 0
    memory: list[float] = field(default_factory=list)


def compare(seen: Seen, alone: Answers, now: Answers) -> None:
    """Note how far an answer is from the one that the request got alone."""
    for name, answer in alone.items():
        expected, got = numbers(answer), numbers(now[name])
        seen.worst = max(seen.worst, *(abs(a - b) for a, b in zip(expected, got, strict=True)))
        if answer["type"] == "choice" and answer["choice"] != now[name]["choice"]:
            first, second = sorted(expected, reverse=True)[:2]
            seen.flips += first - second > CLOSE


def memory(url: str) -> float:
    """The server's resident memory in MiB, from its metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:  # noqa: S310 - the address is the caller's own
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_resident_memory_bytes")) / 2**20


async def client(pool: Pool, requests: list[tuple[bytes, Answers]], until: float, seen: Seen) -> None:
    """Ask in turn until the time is up."""
    turn = 0
    while time.perf_counter() < until:
        request, alone = requests[turn % len(requests)]
        turn += 1
        status, body = await pool.post(request)
        seen.statuses[status] += 1
        if status == 200:
            compare(seen, alone, json.loads(body)["answers"])
        else:
            await asyncio.sleep(0.2)


async def run(url: str, clients: int, seconds: float) -> Seen:
    """All clients at once, after each request was answered alone."""
    parts = urlsplit(url)
    target = Target(parts.hostname or "127.0.0.1", parts.port or 80, "/v1/systemone")
    pool, seen = Pool(target), Seen()
    requests = [target.request(body) for body in bodies(clients, 120)]
    alone = []
    for request in requests:
        status, body = await pool.post(request)
        if status != 200:
            raise RuntimeError(f"alone, a request was answered {status}: {body[:200]!r}")
        alone.append(json.loads(body)["answers"])
    until = time.perf_counter() + seconds
    pairs = list(zip(requests, alone, strict=True))
    running = [asyncio.create_task(client(pool, pairs[k:] + pairs[:k], until, seen)) for k in range(clients)]
    while time.perf_counter() < until:
        seen.memory.append(round(await asyncio.to_thread(memory, url), 1))
        await asyncio.sleep(seconds / 6)
    await asyncio.gather(*running)
    await pool.close()
    return seen


def main() -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    seen = asyncio.run(run(given.url, given.clients, given.seconds))
    result = {
        "clients": given.clients,
        "seconds": given.seconds,
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "largest_difference": seen.worst,
        "changed_choices": seen.flips,
        "memory_mib": seen.memory,
    }
    print(json.dumps(result, indent=1))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
