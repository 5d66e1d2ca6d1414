"""One answer in itself: nothing made up (G3), ties and extremes (G1, G2, G4), repeats (G10), temperature (G15)."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from decisions.errors import EngineUnavailable, MalformedReadout
from decisions.reads import EngineLimits, Readout
from tests.gates.asking import AUTOREGRESSIVE, CANVAS, Body, cases, stub
from tests.gates.checks import check_response, distance, numbers

BOTH = pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE], ids=["canvas", "next-token"])
REFUND = {"type": "noul", "instructions": "Does the customer ask for money back?"}
TEAM = {"type": "choice", "instructions": "Which?", "criteria": {"billing": "Invoices", "technical": None, "sales": ""}}
ANGER = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Annoyed", "Angry", "Furious"]}
ASKED: Body = {"state": "I was charged twice.", "questions": {"refund": REFUND, "team": TEAM, "anger": ANGER}}
Row = tuple[float, ...]


@BOTH
@pytest.mark.parametrize("fault", ["missing_slot", "missing_label", "not_finite"])
def test_a_broken_readout_is_read_again_or_refused(fault: str, limits: EngineLimits) -> None:
    """G3: the right answer after one more read, else an error; never a number made up."""
    faulty: dict[str, Any] = {fault: 1.0}
    assert stub(limits, **faulty).bytes_of(ASKED) == stub(limits).bytes_of(ASKED)
    with pytest.raises(MalformedReadout):
        stub(limits, **faulty, lasting=True).ask(ASKED)


@BOTH
def test_a_fault_in_any_round_is_refused(limits: EngineLimits) -> None:
    """G3 for brackets, second orders and samples: each request is answered as by a sound engine, or refused."""
    refused = 0
    rows = [{**row["request"], "debias": "reverse", "samples": 2} for row in cases()[::5]]
    broken, sound = stub(limits, missing_slot=0.01, missing_label=0.01, not_finite=0.01, lasting=True), stub(limits)
    for row in rows:
        try:
            assert broken.bytes_of(row) == sound.bytes_of(row)
        except MalformedReadout:
            refused += 1

    assert 0 < refused < len(rows)


def test_a_dead_engine_is_an_error() -> None:
    """G3."""
    with pytest.raises(EngineUnavailable):
        stub(dead=True).ask(ASKED)


def each_row(change: Callable[[Row], Row]) -> Callable[[Sequence[Readout]], Sequence[Readout]]:
    """The readouts with every row changed so."""
    return lambda readouts: [Readout(tuple(change(row) for row in readout.logprobs)) for readout in readouts]


SPOILS = {
    "nothing at all": lambda readouts: [],
    "one readout less": lambda readouts: readouts[:-1],
    "one readout more": lambda readouts: [*readouts, readouts[0]],
    "no slots": lambda readouts: [Readout(()) for _ in readouts],
    "a slot more": lambda readouts: [Readout((*readout.logprobs, readout.logprobs[0])) for readout in readouts],
    "empty rows": each_row(lambda row: ()),
    "top 1 only": each_row(lambda row: row[:1]),
    "a label more": each_row(lambda row: (*row, row[0])),
    "minus infinity": each_row(lambda row: (-math.inf, *row[1:])),
    "infinity": each_row(lambda row: (*row[:-1], math.inf)),
    "no number": each_row(lambda row: (math.nan,) * len(row)),
}


@BOTH
@pytest.mark.parametrize("spoil", SPOILS)
def test_no_readout_that_falls_short_becomes_an_answer(spoil: str, limits: EngineLimits) -> None:
    """G3, for every way in which a readout can be incomplete, over and over."""
    desk = stub(limits)
    desk.engine.spoil = SPOILS[spoil]
    with pytest.raises(MalformedReadout):
        desk.ask(ASKED)


def test_all_equal_shares_go_to_the_first() -> None:
    """G2: ties are the first in request order; confidence 0 for the choice."""
    desk = stub()
    desk.engine.spoil = each_row(lambda row: (-2.0,) * len(row))
    response = desk.ask(ASKED)

    check_response(ASKED, response)
    assert (response["answers"]["team"]["choice"], response["answers"]["team"]["confidence"]) == ("billing", 0.0)


@pytest.mark.parametrize("far", [50.0, 700.0, 800.0, 1e5])
def test_even_a_hopeless_option_keeps_some_mass(far: float) -> None:
    """G1, G2, G4: however far apart the log-probabilities are."""
    desk = stub()
    desk.engine.spoil = each_row(lambda row: (-0.001, *[-far * place for place in range(1, len(row))]))
    options = {f"option {number}": None for number in range(77)}
    asked = {**ASKED, "questions": {**ASKED["questions"], "wide": {"type": "choice", "criteria": options}}}
    for settings in ({}, {"temperature": 0.01}, {"debias": "cyclic"}):
        check_response(asked, desk.ask({**asked, **settings}))


SAMPLE = cases()[::20]
"""Rows of every case file."""
ELSEWHERE = """
import sys
from tests.gates.asking import stub
from tests.gates.test_coherence import SAMPLE
desk = stub(noise=1.0, coupling=1.0)
sys.stdout.buffer.write(b"\\n".join(desk.bytes_of(row["request"]) for row in SAMPLE))
"""


@BOTH
def test_the_same_request_has_the_same_bytes(limits: EngineLimits) -> None:
    """G10: from one engine twice, and from an engine that was made anew."""
    desk = stub(limits, noise=1.0)
    for row in SAMPLE:
        first = desk.bytes_of(row["request"])
        assert (first, first) == (desk.bytes_of(row["request"]), stub(limits, noise=1.0).bytes_of(row["request"]))


def test_another_process_answers_with_the_same_bytes() -> None:
    """G10: whatever its hash seed is; canvas noise is drawn from the request's seed alone."""
    here = b"\n".join(stub(noise=1.0, coupling=1.0).bytes_of(row["request"]) for row in SAMPLE)
    seeded = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", ELSEWHERE], env=seeded, capture_output=True, check=True)

    assert here == there.stdout


def test_another_seed_is_another_draw() -> None:
    """G10: the seed decides the noise, so another one answers otherwise; a fixed token has no noise to differ."""
    desk = stub(noise=1.0)
    drawn = [desk.ask({**ASKED, "seed": seed})["answers"]["refund"]["noul"] for seed in range(8)]
    fixed = [desk.ask({**ASKED, "seed": s, "seed_token": "fixed"})["answers"]["refund"]["noul"] for s in range(8)]

    assert (8, 1) == (len(set(drawn)), len(set(fixed)))


def tempered(probabilities: list[float], temperature: float) -> list[float]:
    """p^(1/T) over its sum."""
    weights = [p ** (1 / temperature) for p in probabilities]
    return [weight / math.fsum(weights) for weight in weights]


def entropy(probabilities: list[float]) -> float:
    """In nats."""
    return -math.fsum(p * math.log(p) for p in probabilities)


@pytest.mark.parametrize("kind", ["noul", "choice", "score"])
def test_temperature_follows_its_formula(kind: str) -> None:
    """G15: p^(1/T) over its sum to 1e-12, for one type alone; the same winner; entropy rises; T = 1 the same bytes."""
    desk, name = stub(), {"noul": "refund", "choice": "team", "score": "anger"}[kind]
    raw = desk.ask(ASKED)["answers"]
    last = 0.0
    for temperature in (0.25, 0.5, 1.0, 2.0, 5.0):
        answers = desk.ask({**ASKED, "temperature": {kind: temperature}})["answers"]
        hot = numbers(answers.pop(name))
        assert distance(hot, tempered(numbers(raw[name]), temperature)) <= 1e-12
        assert hot.index(max(hot)) == numbers(raw[name]).index(max(numbers(raw[name])))
        assert entropy(hot) > last
        assert all(answers[other] == raw[other] for other in answers)
        last = entropy(hot)

    assert desk.bytes_of(ASKED) == desk.bytes_of({**ASKED, "temperature": 1.0})


@pytest.mark.parametrize("temperature", [0.1, 3.0])
def test_derived_fields_follow_the_temperature(temperature: float) -> None:
    """G2 and G15: score, choice and confidence are computed from the tempered probabilities."""
    asked = {**ASKED, "temperature": temperature}

    check_response(asked, stub().ask(asked))
