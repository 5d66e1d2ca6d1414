"""The same reads through vLLM and the reference engine, by length of the state: `python -m bench.gpu.parity MODEL`.

MODEL is a folder with weights, small enough for both engines to hold it at once. Prints and keeps the worst difference
of a slot's log-probability, in nats, for each length; and in how many slots the likeliest label differs. Set
TRITON_F32_DEFAULT=ieee with `--dtype float32`: Triton would otherwise multiply in TF32, with 10 bits of mantissa.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu.load import WORDS, question
from decisions.plan import Planner
from decisions.protocol import ReadSettings
from decisions.reads import Cost, Read, Readout, Ticket, check_readout
from gateway.engines import Engine
from gateway.engines.reference import ReferenceEngine, ReferenceOptions
from gateway.engines.vllm import VllmEngine
from gateway.engines.vllm_start import VllmOptions
from gateway.engines.weights import resolve
from gateway.wire import ServedNames, ShapeLimits, Wire

LENGTHS = (250, 700, 1300, 2500)
"""Tokens of a state: within DiffusionGemma's sliding window of 1,024 tokens, and past it."""
QUESTIONS = 6
STATES = 2
CONTEXT = 4096


def state_of(engine: Engine, tokens: int, seed: int) -> str:
    """Words of about so many tokens that no other seed has."""
    generator, text = random.Random(seed), f"{seed}:"
    while len(engine.tokenizer.encode(text)) < tokens:
        text += " " + " ".join(generator.choice(WORDS.split()) for _ in range(8))
    return text


def reads_of(engine: Engine, tokens: int, number: int, isolate: str) -> list[Read]:
    """The reads of one request, as the gateway plans them for this engine."""
    wire = Wire(ShapeLimits(), ReadSettings(), ServedNames(engine.model.name))
    asked = {f"q{at}": question(at) for at in range(QUESTIONS)}
    body = {"model": engine.model.name, "state": state_of(engine, tokens, 100 * tokens + number), "questions": asked}
    request = wire.parse_systemone(json.dumps(body | {"isolate": isolate}).encode())
    planner = Planner(engine.tokenizer, replace(engine.limits, constrained=False), engine.form)
    return list(planner.plan(request).next_reads())


async def checked(engine: Engine, reads: Sequence[Read]) -> list[Readout]:
    """What an engine reads; raises `MalformedReadout`."""
    readouts = list(await engine.read(reads, Ticket("parity", Cost(len(reads), 0), 0.0)))
    for read, readout in zip(reads, readouts, strict=True):
        check_readout(read, readout)
    return readouts


def compared(right: Sequence[Readout], other: Sequence[Readout]) -> tuple[list[float], int]:
    """Each slot's worst difference in nats, and how many slots have another likeliest label."""
    pairs = [
        rows for one, two in zip(right, other, strict=True) for rows in zip(one.logprobs, two.logprobs, strict=True)
    ]
    worst = [max(abs(a - b) for a, b in zip(one, two, strict=True)) for one, two in pairs]
    return worst, sum(one.index(max(one)) != two.index(max(two)) for one, two in pairs)


async def measure(given: argparse.Namespace) -> None:
    """Open both engines, and compare them at each length."""
    source = resolve(given.model, Path(), print)
    reference = await ReferenceEngine.open(source, ReferenceOptions(CONTEXT, dtype=given.dtype), print)
    options = VllmOptions(CONTEXT, dtype=given.dtype, attention=given.attention, gpu_share=0.1, text_only=True)
    vllm = await VllmEngine.open(source, options, print)
    try:
        for isolate, tokens in itertools.product(("none", "all"), LENGTHS):
            reads = [read for number in range(STATES) for read in reads_of(vllm, tokens, number, isolate)]
            right = await checked(reference, reads)
            worst, changed = compared(right, await checked(vllm, reads))
            warm, _ = compared(right, await checked(vllm, reads))
            row: dict[str, Any] = {"tokens": tokens, "isolate": isolate, "slots": len(worst), "changed": changed}
            row |= {"worst": max(worst), "median": sorted(worst)[len(worst) // 2], "cached_worst": max(warm)}
            print(json.dumps(row), flush=True)
            with (given.out / "parity.jsonl").open("a") as out:
                out.write(json.dumps({"dtype": given.dtype, "attention": given.attention} | row) + "\n")
    finally:
        await vllm.close()
        await reference.close()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attention", default="TRITON_ATTN", help="vLLM's attention backend")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
