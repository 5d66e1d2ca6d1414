"""Our gateway beside vLLM's own `/v1/systemone` on one GPU, same engine settings, unique states, closed loop.

    python -m bench.gpu.compare MODEL --server ours --out DIR        (or vllm, or vllm-joint)

Starts the server, warms it up, then offers 3, 10 and 32 questions per request from 1, 16 and 64 clients. Answers per
second count answered questions; latencies are of requests. Closed loop, so these are capacities, not latency claims.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.openloop import Pool, Target

WORDS = "refund invoice second payment team customer option order parcel letter answer month card account"
KINDS = ("noul", "choice", "score", "noul")
PORT = 8470
ENGINE: dict[str, Any] = {
    "load_format": "dummy",
    "language_model_only": True,
    "max_model_len": 4096,
    "max_num_seqs": 32,
    "gpu_memory_utilization": 0.85,
    "max_logprobs": 32,
    "enable_prefix_caching": True,
    "attention_backend": "TRITON_ATTN",
    "diffusion_config": {"canvas_length": 128},
}


def question(number: int) -> dict[str, Any]:
    """A question of about 30 tokens; the types take turns."""
    words = f"Does point {number} of the message need an answer from somebody before the end of the week?"
    kind = KINDS[number % len(KINDS)]
    if kind == "choice":
        return {
            "type": "choice",
            "instructions": words,
            "criteria": dict.fromkeys(("billing", "parcel", "sales", "none")),
        }
    if kind == "score":
        return {"type": "score", "instructions": words, "criteria": ["calm", "annoyed", "furious"]}
    return {"type": "noul", "instructions": words}


def body(questions: int, seed: int, extra: dict[str, Any]) -> bytes:
    """A request about a state of some 480 tokens that no other seed has."""
    generator = random.Random(seed)
    state = " ".join(generator.choice(WORDS.split()) for _ in range(380)) + f" {seed}"
    asked = {f"q{number}": question(number) for number in range(questions)}
    return json.dumps({"model": "jev-latest", "state": state, "questions": asked, **extra}).encode()


async def load(questions: int, clients: int, requests: int, extra: dict[str, Any]) -> dict[str, Any]:
    """One cell: so many requests from so many clients."""
    target = Target("127.0.0.1", PORT, "/v1/systemone")
    pool = Pool(target)
    seeds = iter(range(questions * 10**6 + clients * 10**4, questions * 10**6 + clients * 10**4 + requests))
    latencies: list[float] = []
    statuses: dict[int, int] = {}

    async def client() -> None:
        for seed in seeds:
            started = time.perf_counter()
            status, _ = await pool.post(target.request(body(questions, seed, extra)))
            latencies.append(time.perf_counter() - started)
            statuses[status] = statuses.get(status, 0) + 1

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - started
    await pool.close()
    ranked = sorted(latencies)
    return {
        "questions": questions,
        "clients": clients,
        "requests": requests,
        "answers_per_s": round(statuses.get(200, 0) * questions / seconds, 1),
        "p50_ms": round(ranked[len(ranked) // 2] * 1e3, 1),
        "p99_ms": round(ranked[int(len(ranked) * 0.99)] * 1e3, 1),
        "statuses": statuses,
    }


def tokens() -> dict[str, float]:
    """Tokens computed and cached so far, where the server counts them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.split('"')[1]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("canvasgate_tokens_total{")
    }


def command(server: str, model: str) -> list[str]:
    """How the server is started."""
    if server.startswith("ours"):
        return [sys.executable, "-m", "gateway.cli", "serve"]
    options = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(PORT)]
    for name, value in ENGINE.items():
        flag = f"--{name.replace('_', '-')}"
        options += [flag] if value is True else [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return [*options, "--served-model-name", "jev-latest"]


def wait(path: str, process: subprocess.Popen[bytes], seconds: float) -> float:
    """Seconds until the server is ready; raises `RuntimeError` when it never is."""
    started = time.monotonic()
    while time.monotonic() - started < seconds and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=2):
                return time.monotonic() - started
        except OSError:
            time.sleep(0.5)
    raise RuntimeError("the server was not ready")


def measured(cells: str, extra: dict[str, Any], *, ours: bool) -> Iterator[dict[str, Any]]:
    """A row per cell, after a warm-up of every number of questions."""
    for questions in (3, 10, 32):
        asyncio.run(load(questions, 15, 32, extra))  # 15: states that no cell below asks about
    for cell in cells.split(","):
        questions, clients = map(int, cell.split("x"))
        before = tokens() if ours else {}
        row = extra | asyncio.run(load(questions, clients, max(12, clients * 4), extra))
        if ours:
            row["tokens"] = {name: value - before.get(name, 0.0) for name, value in tokens().items()}
        yield row


def main() -> None:
    """Start, warm up, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--server", default="ours", choices=["ours", "vllm", "vllm-joint"])
    parser.add_argument("--isolate", default="none,all", help="modes of ours, one after another")
    parser.add_argument("--cells", default="3x1,3x16,3x64,10x1,10x16,10x64,32x1,32x16,32x64")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    given = parser.parse_args()
    ours = given.server == "ours"
    engine = {name: value for name, value in ENGINE.items() if name != "diffusion_config"}
    settings = {
        "ENGINE": "vllm", "MODEL": given.model, "PORT": str(PORT), "HOST": "127.0.0.1", "CANVAS": "128",
        "QUEUE_TIMEOUT": "120", "REQUEST_TIMEOUT": "300", "LOG_LEVEL": "warning", "ENFORCE_EAGER": "0",
        "ISOLATE_MAX_QUESTIONS": "64", "EXTRA_ARGS": json.dumps(engine), "SERVED_MODEL_NAME": "jev-latest",
    }  # fmt: skip
    own = [{"joint": True}] if given.server == "vllm-joint" else [{}]
    extras = [{"isolate": mode} for mode in given.isolate.split(",")] if ours else own
    process = subprocess.Popen(command(given.server, given.model), env=os.environ | settings)
    rows: list[dict[str, Any]] = []
    try:
        print(f"ready after {wait('/ready' if ours else '/health', process, 400):.0f} s", flush=True)
        for extra in extras:
            for row in measured(given.cells, extra, ours=ours):
                rows.append({"server": given.server, **row})
                print(json.dumps(rows[-1]), flush=True)
    finally:
        process.terminate()
        process.wait(timeout=60)
        given.out.mkdir(parents=True, exist_ok=True)
        results = json.dumps({"engine": ENGINE, "rows": rows}, indent=1)
        (given.out / f"gpu-{given.server}.json").write_text(results + "\n")


if __name__ == "__main__":
    main()
