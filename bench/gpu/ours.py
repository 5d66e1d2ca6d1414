"""This gateway on one GPU, beside the very engine that it reads with: `python -m bench.gpu.ours MODEL --out DIR`.

The gateway is served from this process, so that one engine answers three kinds of run: HTTP clients in a process of
their own (`bench.gpu.load`), the same reads given to the engine without HTTP, planning or combining ("alone"), and
clients that leave. Also counts answers that change when a request is sent among 63 others. Weights may be random.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench.gpu.load import CELLS, body, requests_of, row, seeds
from bench.gpu.peer import ENGINE
from bench.openloop import Pool, Target
from decisions.reads import Cost, Read, Ticket
from gateway.app import Gateway
from gateway.config import load
from gateway.log_lines import configure_logging
from gateway.serve import listen, server_of

PORT = 8471
MODES: dict[str, dict[str, Any]] = {
    "none": {"isolate": "none"},
    "schema_first": {"isolate": "none", "layout": "schema_first"},
    "all": {"isolate": "all"},
    "noul": {"isolate": "noul"},
    # With --constrained 1, a request for diagnostics is still read over the whole vocabulary.
    "none, full": {"isolate": "none", "diagnostics": True},
    "all, full": {"isolate": "all", "diagnostics": True},
}
CHOSEN = {"max_num_seqs", "compilation_config"}
"""Engine arguments that the gateway chooses by itself; vLLM's server is told them."""
PARTS = ("http", "alone", "changes", "leavers")
CHANGE_REQUESTS = 64
LEAVERS = 200
LEAVE_AFTER = 0.02
"""Seconds after which a client leaves: its reads are in the engine then."""


class Bench:
    """A gateway that is ready, and where the rows go."""

    def __init__(self, gateway: Gateway, out: Path, run: int) -> None:
        self.gateway = gateway
        self.out = out
        self.run = run

    def write(self, kind: str, line: dict[str, Any]) -> None:
        """Print a row and keep it."""
        text = json.dumps({"kind": kind} | line)
        print(text, flush=True)
        with (self.out / "ours.jsonl").open("a") as out:
            out.write(text + "\n")

    def tokens(self) -> dict[str, float]:
        """Tokens computed and cached so far."""
        lines = self.gateway.metrics.exposition()[0].decode().splitlines()
        counted = [line for line in lines if line.startswith("canvasgate_tokens_total{")]
        return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in counted}

    async def over_http(self, mode: str, extra: dict[str, Any], cells: str) -> None:
        """Rows of the load generator."""
        self.run += 1
        for cell in cells.split(","):
            before = self.tokens()
            options = ["--port", str(PORT), "--cells", cell, "--extra", json.dumps(extra), "--run", str(self.run)]
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.gpu.load", *options, stdout=asyncio.subprocess.PIPE
            )
            printed, _ = await client.communicate()
            used = {name: value - before.get(name, 0.0) for name, value in self.tokens().items()}
            self.write("http", {"mode": mode} | json.loads(printed) | {"tokens": used})

    def planned(self, questions: int, clients: int, extra: dict[str, Any]) -> list[tuple[Read, ...]]:
        """The reads of a cell's requests, about states that no other cell has."""
        serving, count = self.gateway.serving, requests_of(questions, clients, extra)
        requests = [
            serving.wire.parse_systemone(body(questions, seed, extra))
            for seed in seeds(self.run, questions, clients, count)
        ]
        return [serving.service.planner.plan(request).next_reads() for request in requests]

    async def alone(self, mode: str, extra: dict[str, Any], cells: str) -> None:
        """The engine without the gateway: as many callers, each with one request's reads at a time."""
        self.run += 1
        engine = self.gateway.serving.engine
        for cell in cells.split(","):
            questions, callers = map(int, cell.split("x"))
            left = iter(self.planned(questions, callers, extra))
            latencies: list[float] = []

            async def caller(left: Any = left, latencies: list[float] = latencies) -> None:
                for reads in left:
                    started = time.perf_counter()
                    await engine.read(reads, Ticket("alone", Cost(len(reads), 0), 0.0))
                    latencies.append(time.perf_counter() - started)

            started = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(callers)))
            seconds = time.perf_counter() - started
            self.write("alone", {"mode": mode} | row(questions, callers, latencies, seconds, {200: len(latencies)}))

    async def changes(self, mode: str, extra: dict[str, Any]) -> None:
        """Answers of requests sent alone, against the same ones sent all at once; states are cached in both."""
        self.run += 1
        target = Target("127.0.0.1", PORT, "/v1/systemone")
        pool = Pool(target)
        requests = [target.request(body(10, seed, extra)) for seed in seeds(self.run, 10, 1, CHANGE_REQUESTS)]
        await asyncio.gather(*(pool.post(request) for request in requests))
        alone = [orjson.loads((await pool.post(request))[1])["answers"] for request in requests]
        together = [orjson.loads(raw)["answers"] for _, raw in await asyncio.gather(*map(pool.post, requests))]
        again = [orjson.loads(raw)["answers"] for _, raw in await asyncio.gather(*map(pool.post, requests))]
        await pool.close()
        for name, other in (("alone/together", alone), ("together/together", again)):
            pairs = [(a[key], b[key]) for a, b in zip(other, together, strict=True) for key in a]
            changed = sum(top(a) != top(b) for a, b in pairs)
            distance = max(far(a, b) for a, b in pairs)
            self.write(
                "changes", {"mode": mode, "pair": name, "answers": len(pairs), "changed": changed, "far": distance}
            )

    async def leavers(self) -> None:
        """Clients that leave while ten isolated reads are in the engine: how long until nothing of them is left."""
        self.run += 1
        target = Target("127.0.0.1", PORT, "/v1/systemone")
        serving = self.gateway.serving
        processor: Any = serving.engine._llm.output_processor  # type: ignore[attr-defined]  # noqa: SLF001 - what vLLM still works on
        freed, busy = [], 0
        for seed in seeds(self.run, 10, 1, LEAVERS):
            _, writer = await asyncio.open_connection("127.0.0.1", PORT)
            writer.write(target.request(body(10, seed, {"isolate": "all"})))
            await asyncio.sleep(LEAVE_AFTER)
            busy += processor.get_num_unfinished_requests() > 0
            writer.transport.abort()
            started = time.perf_counter()
            while serving.queue.snapshot().decisions or processor.get_num_unfinished_requests():  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
            freed.append(time.perf_counter() - started)
        ranked = sorted(freed)
        figures = {"p50_ms": ranked[len(ranked) // 2] * 1e3, "max_ms": ranked[-1] * 1e3}
        left = serving.queue.snapshot()
        self.write(
            "leavers", {"left": len(freed), "busy": busy, "inflight_after": left.decisions + left.reads} | figures
        )


def top(answer: dict[str, Any]) -> object:
    """What an answer comes to."""
    if answer["type"] == "noul":
        return answer["noul"] >= 0.5
    shares = answer["probabilities"]
    return max(shares, key=shares.__getitem__)


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Total variation distance between two answers."""
    if one["type"] == "noul":
        return abs(float(one["noul"]) - float(other["noul"]))
    pairs = [(one["probabilities"][name], other["probabilities"][name]) for name in one["probabilities"]]
    return sum(abs(float(a) - float(b)) for a, b in pairs) / 2


async def measure(given: argparse.Namespace) -> None:
    """Serve, warm up, measure, stop."""
    settings = load(
        overrides={
            "ENGINE": "vllm", "MODEL": given.model, "PORT": str(PORT), "HOST": "127.0.0.1", "CANVAS": "128",
            "QUEUE_TIMEOUT": "120", "REQUEST_TIMEOUT": "300", "ISOLATE_MAX_QUESTIONS": "64",
            "CONSTRAINED": given.constrained, "MAX_SEQS": given.seqs, "SERVED_MODEL_NAME": "jev-latest",
            "EXTRA_ARGS": json.dumps({name: ENGINE[name] for name in ENGINE.keys() - CHOSEN} | given.engine),
        }
    )  # fmt: skip
    configure_logging("warning", settings.log_format)
    server = server_of(settings)
    listener = listen(settings.host, settings.port)
    serving = asyncio.create_task(server.serve([listener]))
    started = time.perf_counter()
    await server.gateway.opened.wait()
    bench = Bench(server.gateway, given.out, 10)
    bench.write(
        "ready",
        {
            "seconds": time.perf_counter() - started,
            "settings": vars(given) | {"model": Path(given.model).name, "out": ""},
        },
    )
    try:
        modes = {name: MODES[name] for name in given.modes.split(";")}
        for name, extra in modes.items():
            await bench.over_http(f"{name} (warm-up)", extra, given.warm_up)
        if "leavers" in given.parts:
            await bench.leavers()
        for name, extra in modes.items():
            if "http" in given.parts:
                await bench.over_http(name, extra, given.cells)
            if "alone" in given.parts:
                await bench.alone(name, extra, given.cells)
            if "changes" in given.parts:
                await bench.changes(name, extra)
    finally:
        server.should_exit = True
        await serving


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--constrained", default="0", choices=["0", "1"])
    parser.add_argument("--seqs", default="auto", help="sequences at once")
    parser.add_argument("--engine", type=json.loads, default={}, help="further engine arguments of vLLM, as JSON")
    parser.add_argument("--modes", default=";".join(MODES))
    parser.add_argument("--cells", default=CELLS, help="questions x clients, in turn")
    parser.add_argument("--warm-up", default="3x64,10x64,32x16", help="cells before any that counts")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure, in each mode")
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
