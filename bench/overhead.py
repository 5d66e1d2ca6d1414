"""What the gateway itself costs: `python -m bench.overhead` serves the stub engine at zero delay and measures.

One server process on one core, with key, limits, metrics and queue on; the client runs on the other core. A bare ASGI
app that reads the body and answers is measured in the same run, so that "added" means: over what uvicorn and this
machine take anyway. Prints a table, and CPU milliseconds per request by stage; writes bench/results/overhead.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from bench.openloop import Outcome, run
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


def show(row: dict[str, Any]) -> None:
    """Print one row."""
    errors = sum(count for status, count in row["statuses"].items() if status != "200")
    print(
        f"{row['server']:<11} {row['offered_per_s']:>8.0f} {row['achieved_per_s']:>9.1f} {row['p50_ms']:>8.2f} "
        f"{row['p95_ms']:>8.2f} {row['p99_ms']:>8.2f} {row['cpu_ms_per_request']:>8.3f} {errors:>6} "
        f"{row['client_late']:>6}"
    )


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="50,500,1000,1200,1500,2000", help="requests/s to offer, in turn")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per rate")
    parser.add_argument("--state", type=int, default=1000, help="characters of a state")
    parser.add_argument("--canvas", default="128", help="CANVAS of the stub engine")
    given = parser.parse_args()
    rates = [float(rate) for rate in given.rates.split(",")]
    requests = bodies(200, given.state)
    on_core(1)
    columns = ("offered", "achieved", "p50 ms", "p95 ms", "p99 ms", "CPU ms")
    print(f"{'server':<11} " + " ".join(f"{name:>8}" for name in columns) + "  errors   late")
    rows: list[dict[str, Any]] = []
    bare = [sys.executable, "-m", "uvicorn", "bench.bare:app", "--port", "8471", "--no-access-log"]
    settings = {
        "ENGINE": "stub",
        "PORT": "8472",
        "HOST": "127.0.0.1",
        "API_KEY": KEY,
        "CANVAS": given.canvas,
        "MAX_INFLIGHT": "auto",
    }
    with serving("bare", bare, 8471, Start(core=0)) as server:
        for rate in rates:
            rows.append(measure(server, requests, rate, given.seconds))
            show(rows[-1])
    with serving("canvasgate", GATEWAY, 8472, Start(core=0), **settings) as server:
        for rate in rates:
            rows.append(measure(server, requests, rate, given.seconds))
            show(rows[-1])
        stages = {stage: total / count * 1e3 for stage, (total, count) in server.stage_seconds().items() if count}
    print("\nmean ms per request by stage: " + ", ".join(f"{stage} {value:.3f}" for stage, value in stages.items()))
    low = {row["server"]: row["p50_ms"] for row in rows if row["offered_per_s"] == rates[0]}
    print(f"added p50 at {rates[0]:.0f}/s: {low['canvasgate'] - low['bare']:.2f} ms")
    RESULTS.parent.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    RESULTS.write_text(
        json.dumps({"machine": machine, "arguments": vars(given), "rows": rows, "stages_ms": stages}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
