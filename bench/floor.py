"""The physical floor of a read: the bytes that must be moved and the operations that must be done, at measured rates.

A read of T tokens needs about 2 x N x T floating point operations for a model of N weights, and 4 x L x d x T x T / 2
for attention over L layers of width d; it moves every weight once. The floor is the larger of the two times, at the
rates that this device reaches with nothing else to do. Weights of the output matrix count once per answer position
only, but the embedding that shares it is looked up, not multiplied: N leaves embeddings out and adds the output matrix
for one position.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

REPEATS = 7
COPIED = 2**28
"""Bytes that the copy moves: more than any cache holds."""
SIDE = {"cpu": 1536, "cuda": 8192}
"""Rows and columns of the matrices that are multiplied."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the device reaches: bytes per second read and written by a copy, operations per second of a product."""

    device: str
    threads: int
    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a dense decoder. `inner` are the weights that every token is multiplied with."""

    name: str
    layers: int
    width: int
    vocabulary: int
    inner: int
    bytes_per_weight: int

    @property
    def output(self) -> int:
        """Weights of the output matrix."""
        return self.width * self.vocabulary

    @property
    def weight_bytes(self) -> int:
        """Bytes of what one read must touch."""
        return (self.inner + self.output) * self.bytes_per_weight

    def flops(self, tokens: int, answers: int) -> float:
        """Operations to read so many tokens of one sequence and give so many answers."""
        attention = 4 * self.layers * self.width * tokens * tokens / 2
        return 2.0 * self.inner * tokens + attention + 2.0 * self.output * answers


def model_of(folder: Path, name: str, bytes_per_weight: int) -> Model:
    """The sizes that a dense model's `config.json` tells. Raises `KeyError` for a model of another build."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    width, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    head = config.get("head_dim") or width // heads
    kept = config.get("num_key_value_heads", heads)
    attention = width * head * (2 * heads + 2 * kept)
    inner = layers * (attention + 3 * width * config["intermediate_size"])
    return Model(name, layers, width, config["vocab_size"], inner, bytes_per_weight)


def rates() -> Rates:
    """Measure this device; the best of several runs, for a floor is what can be reached."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    source = torch.ones(COPIED // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    side = SIDE[device]
    matrix = torch.ones(side, side, dtype=kind, device=device)
    copy = best(lambda: target.copy_(source), device)
    product = best(lambda: torch.matmul(matrix, matrix), device)
    named = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return Rates(named, torch.get_num_threads(), 2 * COPIED / copy, 2 * side**3 / product)


def best(work: Callable[[], Any], device: str) -> float:
    """Seconds of the fastest of several runs."""
    found = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds that a request takes at least, by operations and by bytes."""

    tokens: int
    by_flops: float
    by_bytes: float

    @property
    def seconds(self) -> float:
        """Whichever binds."""
        return max(self.by_flops, self.by_bytes)


def floor_of(model: Model, measured: Rates, tokens: int, answers: int) -> Floor:
    """The floor of a request whose texts have so many tokens, each read once, with so many answers."""
    return Floor(tokens, model.flops(tokens, answers) / measured.flops_per_s, model.weight_bytes / measured.bytes_per_s)
