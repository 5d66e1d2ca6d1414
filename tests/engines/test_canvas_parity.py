"""Real canvases through vLLM on a CPU: the reference engine reads the same, slot by slot, constrained or not.

The requests are planned as the gateway plans them. `pytest -rP` shows the worst differences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from decisions.plan import Planner
from decisions.reads import Read, Readout, check_readout
from gateway.engines import Engine
from gateway.engines.warm_up import BURSTS, reads_of
from tests.gates.asking import WIRE

from .asking import TICKET, apart, story

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
    pytest.mark.parametrize("other", ["canvas_vllm", "canvas_vllm_http"], indirect=True),
]

PARITY = 1e-5
"""Nats by which a slot's log-probabilities may differ in float32; 9.5e-7 was measured by hand."""
QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "Invoices", "technical": None, "sales": None},
    },
    "anger": {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Annoyed", "Furious"]},
    "letter": {"type": "choice", "instructions": "Which letter?", "criteria": {f"the {k}th": None for k in range(26)}},
}
WIDE = {"wide": {"type": "choice", "instructions": "Which number?", "criteria": {f"n{k}": None for k in range(40)}}}
"""More options than letters, so with labels that other reads are not constrained to."""


def planned(engine: Engine, state: str, constrained: bool = False, **fields: Any) -> list[Read]:
    """The first round's reads of a request, as the gateway would make them for this engine."""
    planner = Planner(engine.tokenizer, replace(engine.limits, constrained=constrained), engine.form)
    body = {"model": "jev-latest", "state": state, "questions": QUESTIONS, **fields}
    return list(planner.plan(WIRE.parse_systemone(json.dumps(body).encode())).next_reads())


async def checked(engine: Engine, reads: Sequence[Read]) -> list[Readout]:
    """The readouts of these reads, read together."""
    readouts = list(await engine.read(reads, TICKET))
    for read, readout in zip(reads, readouts, strict=True):
        check_readout(read, readout)
    return readouts


async def expected(reference: Engine, reads: Sequence[Read]) -> list[Readout]:
    """What vLLM should read, from full reads of the reference engine: it knows no constraint, so that is made here."""
    everything = [
        replace(read, slots=tuple(replace(slot, label_ids=read.constrained or slot.label_ids) for slot in read.slots))
        for read in reads
    ]
    readouts = []
    for read, full in zip(reads, await checked(reference, everything), strict=True):
        rows = []
        for slot, row in zip(read.slots, full.logprobs, strict=True):
            if read.constrained:
                among = math.log(math.fsum(map(math.exp, row)))
                shares = dict(zip(read.constrained, row, strict=True))
                row = tuple(shares[label] - among for label in slot.label_ids)  # noqa: PLW2901
            rows.append(row)
        readouts.append(Readout(tuple(rows)))
    return readouts


def shares(readouts: Sequence[Readout]) -> list[Readout]:
    """The same, each slot among its own labels."""
    return [
        Readout(tuple(tuple(value - math.log(math.fsum(map(math.exp, row))) for value in row) for row in one.logprobs))
        for one in readouts
    ]


async def test_vllm_reads_what_the_reference_reads(canvas_reference: Engine, other: Engine) -> None:
    """Isolated and joint, about states of three lengths, the second time on cached prefixes."""
    assert canvas_reference.model == other.model
    assert canvas_reference.form == other.form
    reads = planned(other, "Refund me!", isolate="none")
    reads += planned(other, story(1, 3), isolate="all")
    reads += planned(other, story(2, 30), isolate="noul", layout="schema_first")
    assert {16, 32} == {len(read.canvas) for read in reads}
    assert {1, 3, 4} <= {len(read.slots) for read in reads}
    right = await expected(canvas_reference, reads)
    assert len(reads) == len({round(readout.logprobs[0][0], 3) for readout in right}), "swapped answers would not show"
    cold, warm = await checked(other, reads), await checked(other, reads)
    worst = apart(right, cold), apart(right, warm)
    print(f"worst difference over {len(reads)} reads: {worst[0]:.2e} nats, on cached prefixes {worst[1]:.2e}")

    assert PARITY >= max(worst)
    assert all(readout.cached_tokens for readout in warm)


async def test_constrained_reads_are_shares_of_full_ones(canvas_reference: Engine, other: Engine) -> None:
    """Over the ids that the read names, whatever its slots ask for; so each slot's own distribution is the same."""
    assert other.limits.constrained
    asked: list[dict[str, Any]] = [{"isolate": "none"}, {"isolate": "all"}]
    reads = [read for fields in asked for read in planned(other, story(3), constrained=True, **fields)]
    full = [read for fields in asked for read in planned(other, story(3), **fields)]
    assert {len(reads[0].constrained)} == {len(read.constrained) for read in reads}
    assert full == [replace(read, constrained=()) for read in reads]
    readouts = await checked(other, reads)
    worst = apart(await expected(canvas_reference, reads), readouts)
    among = apart(shares(await checked(other, full)), shares(readouts))
    print(f"worst difference {worst:.2e} nats, {among:.2e} among the labels")

    assert PARITY >= max(worst, among)


async def test_constrained_reads_are_the_same_among_any_others(canvas_reference: Engine, other: Engine) -> None:
    """In one batch with full ones, and with ones over another set of ids: then vLLM masks, and computes all logits."""
    narrow = planned(other, story(4), constrained=True, isolate="all")
    wide = planned(other, story(5), constrained=True, questions=WIDE, labels="az_lower")
    full = planned(other, story(4), isolate="all")
    assert narrow[0].constrained != wide[0].constrained
    mixed = [read for pair in zip(narrow, full, strict=True) for read in pair]
    mixed = [*mixed[:3], *wide, *mixed[3:]]
    differences = [
        apart(await expected(canvas_reference, reads), await checked(other, reads))
        for reads in ([*narrow, *wide], mixed)
    ]
    print("worst differences", *(f"{one:.2e}" for one in differences))

    assert PARITY >= max(differences)


async def test_a_thought_is_written_on_canvases_of_its_own(other: Engine) -> None:
    """Within its budget, without control tokens, and reads behind it are read as any others."""
    planner = Planner(other.tokenizer, other.limits, other.form)
    body = {"model": "jev-latest", "state": story(6), "questions": QUESTIONS, "think": 40}
    plan = planner.plan(WIRE.parse_systemone(json.dumps(body).encode()))
    assert plan.thought is not None
    thought = await other.think(plan.thought, TICKET)
    assert len(thought) <= 40
    assert not set(thought) & {other.tokenizer.turn_close, *other.tokenizer.thought_close}
    plan.receive_thought(thought)
    await checked(other, plan.next_reads())


async def test_the_reads_that_warm_a_gpu_up_are_answered_in_full(other: Engine) -> None:
    for number, burst in enumerate(BURSTS):
        reads = list(reads_of(burst, number, other.tokenizer, other.limits))[:2]
        await checked(other, reads)
