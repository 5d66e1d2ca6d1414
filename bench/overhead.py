"""What the gateway itself costs: `python -m bench.overhead` serves the stub engine at zero delay and measures.

One server process on one core, with key, limits, metrics and queue on; the client runs on the other core. A bare ASGI
app that reads the body and answers is measured in turn with it, so that "added" means: over what uvicorn and this
machine take anyway. All of it is done in rounds, for a machine that others share is not equally fast all the time.
Prints a table, and CPU milliseconds per request by stage; writes bench/results/overhead.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.openloop import Outcome, run
from bench.record import machine
from bench.serving import GATEWAY, KEY, Server, Start, on_core, serving

RESULTS = Path(__file__).parent / "results" / "overhead.json"
QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this?",
        "criteria": {"billing": "Invoices, charges, refunds", "technical": "Bugs and errors", "sales": None},
    },
    "anger": {
        "type": "score",
        "instructions": "How angry is the customer?",
        "criteria": ["Calm", "Annoyed", "Furious"],
    },
}
FIGURES = {
    "achieved_per_s": "requests/s",
    "p50_ms": "p50 ms",
    "p95_ms": "p95 ms",
    "p99_ms": "p99 ms",
    "cpu_ms_per_request": "CPU ms",
}
STATE = "I was charged twice for my renewal on the third of the month. Please refund one of the two payments. "


def bodies(count: int, state_characters: int) -> list[bytes]:
    """Requests with three questions and states that all differ."""
    text = (STATE * (state_characters // len(STATE) + 1))[:state_characters]
    return [
        json.dumps({"model": "jev-latest", "state": f"Ticket {number}. {text}", "questions": QUESTIONS}).encode()
        for number in range(count)
    ]


def measure(server: Server, requests: list[bytes], rate: float, seconds: float) -> dict[str, Any]:
    """One row of the table: a run at one rate."""
    cpu = server.cpu_seconds()
    outcome: Outcome = asyncio.run(run(server.target, requests, rate, seconds))
    used = server.cpu_seconds() - cpu
    answered = sum(outcome.statuses.values())
    return {
        "server": server.name,
        "offered_per_s": rate,
        "achieved_per_s": round(outcome.achieved, 1),
        "p50_ms": round(outcome.percentile(0.50) * 1e3, 3),
        "p95_ms": round(outcome.percentile(0.95) * 1e3, 3),
        "p99_ms": round(outcome.percentile(0.99) * 1e3, 3),
        "cpu_ms_per_request": round(used / max(answered, 1) * 1e3, 3),
        "statuses": {str(status): count for status, count in outcome.statuses.items()},
        "client_late": outcome.late,
    }


def pace() -> float:
    """Milliseconds of a fixed piece of Python, least of a few: how fast this machine is at the moment."""
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        sum(range(200_000))
        taken.append(time.perf_counter() - started)
    return round(min(taken) * 1e3, 2)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All rounds of one server at one rate: medians, and the best round, which others' work slowed least."""
    best = min(rows, key=lambda row: row["cpu_ms_per_request"])
    middle = {name: median(row[name] for row in rows) for name in FIGURES}
    errors = sum(count for row in rows for status, count in row["statuses"].items() if status != "200")
    of = {name: rows[0][name] for name in ("server", "offered_per_s")}
    return of | {"median": middle, "best": {name: best[name] for name in FIGURES}, "errors": errors}


def show(line: dict[str, Any]) -> None:
    """Print one line of the table: median (best round)."""
    cells = [f"{line['median'][name]:.2f} ({line['best'][name]:.2f})" for name in FIGURES]
    print(f"{line['server']:<11} {line['offered_per_s']:>7.0f} " + " ".join(f"{cell:>17}" for cell in cells), end="")
    print(f" {line['errors']:>7}")


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="50,500,1000,1250,1500", help="requests/s to offer, in turn")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per rate and round")
    parser.add_argument("--rounds", type=int, default=3, help="how often all of it is measured")
    parser.add_argument("--state", type=int, default=1000, help="characters of a state")
    parser.add_argument("--canvas", default="128", help="CANVAS of the stub engine")
    given = parser.parse_args()
    rates = [float(rate) for rate in given.rates.split(",")]
    requests = bodies(200, given.state)
    on_core(1)
    bare = [sys.executable, "-m", "uvicorn", "bench.bare:app", "--port", "8471", "--no-access-log"]
    settings = {"ENGINE": "stub", "PORT": "8472", "HOST": "127.0.0.1", "API_KEY": KEY, "CANVAS": given.canvas}
    rows: list[dict[str, Any]] = []
    with ExitStack() as both:
        servers = [
            both.enter_context(serving("bare", bare, 8471, Start(core=0))),
            both.enter_context(serving("canvasgate", GATEWAY, 8472, Start(core=0), **settings)),
        ]
        for number in range(given.rounds):
            for server, rate in itertools.product(servers, rates):
                print(
                    f"\rround {number + 1} of {given.rounds}: {server.name}, {rate:.0f}/s   ", end="", file=sys.stderr
                )
                rows.append({"round": number, "pace_ms": pace()} | measure(server, requests, rate, given.seconds))
        spent = servers[1].stage_seconds()
    stages = {stage: total / count * 1e3 for stage, (total, count) in spent.items() if count}
    print("\r", end="", file=sys.stderr)
    print(f"median of {given.rounds} rounds (the round with the least CPU time)\n")
    print(f"{'server':<11} {'offered':>7} " + " ".join(f"{name:>17}" for name in FIGURES.values()) + "  errors")
    by_line = itertools.groupby(sorted(rows, key=line_of), key=line_of)
    lines = [summary(list(group)) for _, group in by_line]
    for line in lines:
        show(line)
    print("\nmean ms per request by stage: " + ", ".join(f"{stage} {value:.3f}" for stage, value in stages.items()))
    added = [line for line in lines if line["offered_per_s"] == rates[0]]
    for kind in ("median", "best"):
        low = {line["server"]: line[kind]["p50_ms"] for line in added}
        print(f"added p50 at {rates[0]:.0f}/s, {kind}: {low['canvasgate'] - low['bare']:.2f} ms")
    RESULTS.parent.mkdir(exist_ok=True)
    result = {"machine": machine(), "arguments": vars(given), "summary": lines, "rows": rows, "stages_ms": stages}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def line_of(row: dict[str, Any]) -> tuple[str, float]:
    """Which line of the table a row belongs to."""
    return row["server"], row["offered_per_s"]


if __name__ == "__main__":
    main()
