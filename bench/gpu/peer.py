"""vLLM's own `/v1/systemone` on one GPU, under the load of `bench.gpu.load`.

    python -m bench.gpu.peer MODEL --out DIR

The server is started once; its separate reads and its `joint` ones are asked for by request.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.gpu.load import CELLS
from gateway.engines.vllm_start import graph_sizes

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
    # The gateway captures these by itself; vLLM's server would stop at 512 tokens, and every step here is larger.
    "compilation_config": {"cudagraph_capture_sizes": graph_sizes()},
}
MODES: dict[str, dict[str, Any]] = {"separate": {}, "joint": {"joint": True}}
PATIENCE = 400.0
"""Seconds that a server has to be ready."""


def command(model: str, seqs: int) -> list[str]:
    """How vLLM's server is started."""
    options = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(PORT)]
    settings = ENGINE | {"max_num_seqs": seqs, "diffusion_config": {"canvas_length": 128}}
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        options += [flag] if value is True else [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return [*options, "--served-model-name", "jev-latest"]


def wait(process: subprocess.Popen[bytes]) -> float:
    """Seconds until the server is ready; raises `RuntimeError` when it never is."""
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2):
                return time.monotonic() - started
        except OSError:
            time.sleep(0.5)
    raise RuntimeError("the server was not ready")


def rows(extra: dict[str, Any], cells: str, run: int) -> list[dict[str, Any]]:
    """The rows of a run of the load generator, which is a process of its own."""
    options = ["--port", str(PORT), "--cells", cells, "--extra", json.dumps(extra), "--run", str(run)]
    printed = subprocess.run(
        [sys.executable, "-m", "bench.gpu.load", *options], stdout=subprocess.PIPE, check=True, text=True
    )
    return [json.loads(line) for line in printed.stdout.splitlines()]


def write(lines: list[dict[str, Any]], path: Path) -> None:
    """Print rows and keep them."""
    with path.open("a") as out:
        for line in lines:
            print(json.dumps(line), flush=True)
            out.write(json.dumps(line) + "\n")


def main() -> None:
    """Start, warm up, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--seqs", type=int, default=32, help="sequences at once")
    given = parser.parse_args()
    process = subprocess.Popen(command(given.model, given.seqs))
    try:
        print(f"ready after {wait(process):.0f} s", flush=True)
        for number, (mode, extra) in enumerate(MODES.items()):
            rows(extra, "3x64,10x64,32x16", 90 + number)  # a warm-up
            about = {"server": "vllm", "seqs": given.seqs, "mode": mode}
            write([about | row for row in rows(extra, given.cells, number)], given.out / "peer.jsonl")
    finally:
        process.terminate()
        process.wait(timeout=60)


if __name__ == "__main__":
    main()
