"""Closed-loop clients for the GPU benches: so many at once, each sends its next request when the last one is answered.

    python -m bench.gpu.load --port 8470 --cells 3x1,10x64 --extra '{"isolate": "all"}'

A cell is questions x clients. All states differ, about 480 tokens; questions have about 30 tokens. One JSON row per
cell: answers per second count answered questions, latencies are of requests. Closed loop, so these are capacities.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from typing import Any

from bench.openloop import Pool, Target

WORDS = "refund invoice second payment team customer option order parcel letter answer month card account"
KINDS = ("noul", "choice", "score", "noul")
CELLS = "3x1,3x16,3x64,10x1,10x16,10x64,32x1,32x16,32x64"


def question(number: int) -> dict[str, Any]:
    """A question of about 30 tokens; the types take turns."""
    words = f"Does point {number} of the message need an answer from somebody before the end of the week?"
    kind = KINDS[number % len(KINDS)]
    if kind == "choice":
        return {"type": kind, "instructions": words, "criteria": dict.fromkeys(("billing", "parcel", "sales", "none"))}
    if kind == "score":
        return {"type": kind, "instructions": words, "criteria": ["calm", "annoyed", "furious"]}
    return {"type": kind, "instructions": words}


def body(questions: int, seed: int, extra: dict[str, Any]) -> bytes:
    """A request about a state of some 480 tokens that no other seed has."""
    generator = random.Random(seed)
    state = " ".join(generator.choice(WORDS.split()) for _ in range(380)) + f" {seed}"
    asked = {f"q{number}": question(number) for number in range(questions)}
    return json.dumps({"model": "jev-latest", "state": state, "questions": asked, **extra}).encode()


def requests_of(questions: int, clients: int, extra: dict[str, Any]) -> int:
    """How many requests a cell sends: enough to settle, few enough for a short lease."""
    alone = questions if extra.get("isolate") == "all" else 1
    return max(40, clients * (4 if alone < 10 else 2))


def seeds(run: int, questions: int, clients: int, count: int) -> range:
    """Seeds of a cell's states; no other run or cell has them."""
    start = run * 10**8 + questions * 10**6 + clients * 10**4
    return range(start, start + count)


def row(
    questions: int, clients: int, latencies: list[float], seconds: float, statuses: dict[int, int]
) -> dict[str, Any]:
    """One row of a table."""
    ranked = sorted(latencies)
    return {
        "questions": questions,
        "clients": clients,
        "requests": len(ranked),
        "answers_per_s": round(statuses.get(200, 0) * questions / seconds, 1),
        "p50_ms": round(ranked[len(ranked) // 2] * 1e3, 1),
        "p99_ms": round(ranked[int(len(ranked) * 0.99)] * 1e3, 1),
        "statuses": statuses,
    }


async def offered(port: int, run: int, questions: int, clients: int, extra: dict[str, Any]) -> dict[str, Any]:
    """One cell."""
    target = Target("127.0.0.1", port, "/v1/systemone")
    pool = Pool(target)
    bodies = [
        target.request(body(questions, seed, extra))
        for seed in seeds(run, questions, clients, requests_of(questions, clients, extra))
    ]
    left = iter(bodies)
    latencies: list[float] = []
    statuses: dict[int, int] = {}

    async def client() -> None:
        for request in left:
            started = time.perf_counter()
            status, _ = await pool.post(request)
            latencies.append(time.perf_counter() - started)
            statuses[status] = statuses.get(status, 0) + 1

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - started
    await pool.close()
    return row(questions, clients, latencies, seconds, statuses)


def main() -> None:
    """Offer every cell in turn, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8470)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--extra", type=json.loads, default={}, help="fields that every request has, as JSON")
    parser.add_argument("--run", type=int, default=0, help="number that tells this run's states from others'")
    given = parser.parse_args()
    for cell in given.cells.split(","):
        questions, clients = map(int, cell.split("x"))
        print(json.dumps(asyncio.run(offered(given.port, given.run, questions, clients, given.extra))))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
