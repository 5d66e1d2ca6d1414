"""A tokenizer of bytes and a Luce reader, so that plans can be followed and checked exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from decisions.labels import AnswerForm
from decisions.plan import Plan, Planner
from decisions.protocol import DecisionRequest, Question, ReadSettings
from decisions.reads import EngineLimits, Read, Readout
from gateway.engines.stub import StubTokenizer

CONTEXT = 100_000
AUTOREGRESSIVE = EngineLimits(CONTEXT)
CANVAS = EngineLimits(CONTEXT, canvas=128, slots=128, reads=32)

Utility = Callable[[str], float]


def planner(limits: EngineLimits = CANVAS) -> Planner:
    """A planner on the stub's tokenizer."""
    return Planner(StubTokenizer(), limits, AnswerForm(space=" " if limits.canvas else ""))


def asked(*questions: Question, state: str = "The state.", **settings: Any) -> DecisionRequest:
    """A request with these questions."""
    return DecisionRequest(
        diagnostics=True,
        model="m",
        state=state,
        questions=questions,
        settings=ReadSettings(**settings),
    )


def prompt_text(read: Read) -> str:
    """What the model reads, as text."""
    return StubTokenizer().decode(read.prompt)


def luce_readout(read: Read, utility: Utility, bias: Sequence[float] = ()) -> Readout:
    """Log-probabilities proportional to exp(utility of the option's text), plus a bias by the place it is shown at."""
    tokenizer = StubTokenizer()
    lines = prompt_text(read).split("\n")
    rows, at = [], 0
    for slot in read.slots:
        labels = [tokenizer.decode([label]) for label in slot.label_ids]
        logits = []
        for place, label in enumerate(labels):
            at = next(k for k in range(at, len(lines)) if lines[k] == label or lines[k].startswith(f"{label}: "))
            logits.append(utility(lines[at].removeprefix(f"{label}: ")) + (bias[place] if bias else 0.0))
            at += 1
        offset = math.log(math.fsum(math.exp(logit) for logit in logits)) + 0.25
        rows.append(tuple(logit - offset for logit in logits))
    return Readout(tuple(rows), cached_tokens=1)


def follow(plan: Plan, utility: Utility, bias: Sequence[float] = ()) -> list[tuple[Read, ...]]:
    """Answer every round of a plan; the rounds, as they were read."""
    rounds = []
    while reads := plan.next_reads():
        rounds.append(reads)
        plan.receive([luce_readout(read, utility, bias) for read in reads])
    return rounds


def by_hash(text: str) -> float:
    """A utility between -2 and 2 that depends on nothing but the text."""
    return (sum((index + 3) * byte * byte for index, byte in enumerate(text.encode())) * 7919 % 4001) / 1000 - 2
