"""Reads that nobody asked for, before the first that somebody does: a GPU compiles kernels when it first needs them.

An H200 that had never read took 26 s over its first 64 requests of ten isolated questions. After six bursts of long
prompts it took these as fast as any later ones, and still 8 s over the first canvases of ten slots, most likely since
no burst had been read as a whole in one step. Short prompts are for that; they have not been tried on one yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from decisions.reads import Cost, EngineLimits, Read, SlotPosition, Ticket, Tokenizer

from . import Engine
from .weights import Progress

LONG, SHORT = 400, 96
"""Tokens of a prompt, as far as the engine takes as many: some fit into a step so that others are read meanwhile, or
all do, so that all are read together in the next."""
MOST = 64
"""Reads of a burst, however many the engine takes."""
LETTERS = " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")


@dataclass(frozen=True, slots=True)
class Burst:
    """Reads that are sent together: tokens of prompt and canvas, slots of each, and label ids of each slot."""

    prompt: int
    width: int
    slots: int
    labels: int


BURSTS = (
    Burst(LONG, 16, 1, 2),
    Burst(SHORT, 16, 1, 4),
    Burst(LONG, 32, 3, 8),
    Burst(SHORT, 64, 10, 26),
    Burst(LONG, 128, 32, 52),
    Burst(SHORT, 128, 32, 4),
    Burst(LONG, 16, 1, 26),
)
"""From one isolated question to a full canvas: each count of label ids up to a power of two has kernels of its own."""


async def warm_up(engine: Engine, progress: Progress) -> None:
    """Read each burst in turn; raises what `read` raises."""
    started = time.monotonic()
    for number, burst in enumerate(BURSTS):
        reads = list(reads_of(burst, number, engine.tokenizer, engine.limits))
        await engine.read(reads, Ticket(f"warm-up-{number}", Cost(len(reads), 0), 0.0))
        progress(f"warming up, {number + 1} of {len(BURSTS)}, for {time.monotonic() - started:.1f} s")


def reads_of(burst: Burst, number: int, tokenizer: Tokenizer, limits: EngineLimits) -> Iterator[Read]:
    """The reads of a burst, narrowed to what the engine takes; no two begin alike, so that none is cached."""
    width = min(burst.width, limits.canvas)
    slots = min(burst.slots, limits.slots, width) or 1
    labels = tuple(dict.fromkeys(tokenizer.encode(LETTERS)))[: min(burst.labels, limits.label_ids)]
    filler = tokenizer.encode(LETTERS * 8)
    for at in range(min(MOST, limits.reads)):
        prompt = (*tokenizer.encode(f"{number} {at}"), *filler)[: min(burst.prompt, limits.context - width - 1)]
        yield Read(prompt, tuple(SlotPosition(slot, labels) for slot in range(slots)), (tokenizer.pad,) * width)
