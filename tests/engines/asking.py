"""Questions about states, packed into reads that any engine takes, and measures of what comes back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from decisions.canvas import Manner, Packer
from decisions.protocol import Layout, Option, SeedToken
from decisions.reads import Cost, Read, Readout, Slot, Ticket
from gateway.engines import Engine

TICKET = Ticket("test", Cost(1, 1), math.inf)
MANNER = Manner(0, SeedToken.RANDOM)
QUESTIONS = (
    ("Does the customer ask for money back?", ()),
    ("Which team should handle this?", ("billing", "technical", "sales")),
    ("How angry is the customer?", ("calm", "annoyed", "furious", "raging")),
    ("Which product is meant?", ("phone", "tablet", "laptop", "watch", "cable", "none of these")),
)


def question(engine: Engine, number: int) -> Slot:
    """One of endlessly many questions that differ in wording and in their number of options."""
    text, names = QUESTIONS[number % len(QUESTIONS)]
    labels = tuple("ABCDEFGH"[: len(names)]) or engine.form.nouls
    options = tuple(Option(name) for name in names or ("yes", "no"))
    return Slot(number, f"{text} ({number})", options, labels, alone=True)


def ask(engine: Engine, state: str, numbers: Sequence[int]) -> list[Read]:
    """A read for each of these questions about one state."""
    packer = Packer(engine.tokenizer, engine.limits, engine.form)
    page = packer.writer.page(state, None, Layout.DOCUMENT_FIRST)
    reads, _ = packer.pack(page, [question(engine, number) for number in numbers], MANNER)
    return list(reads)


def story(number: int, sentences: int = 3) -> str:
    """A state that no other number has, from its first words on."""
    parts = [f"Message {number}."]
    parts += [f"Invoice {number * 31 + line} was paid twice, please refund it." for line in range(sentences)]
    return " ".join(parts)


def apart(left: Sequence[Readout], right: Sequence[Readout]) -> float:
    """The largest difference in nats between readouts of the same reads."""
    rows = [
        pair for one, other in zip(left, right, strict=True) for pair in zip(one.logprobs, other.logprobs, strict=True)
    ]
    return max(abs(a - b) for one, other in rows for a, b in zip(one, other, strict=True))
