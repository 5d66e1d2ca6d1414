"""G8 and G9: a choice of any number of options gets the distribution that one read of all of them would give."""

from __future__ import annotations

import random
from typing import Any

import pytest

from decisions.reads import EngineLimits
from tests.gates.asking import AUTOREGRESSIVE, CANVAS, Body, Desk, cases, full_read, stub
from tests.gates.checks import check_response, distance

BOTH = pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE], ids=["canvas", "next-token"])
STATE = "The customer was charged twice."


def among(names: list[str]) -> Body:
    """A choice among these names, the only question."""
    question = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(names)}
    return {"state": STATE, "questions": {"q": question}}


def ordered(count: int) -> list[str]:
    """So many names."""
    return [f"option {number}" for number in range(count)]


def check_full(desk: Desk, request: Body) -> None:
    """Fail unless the one question's answer is the full read's: total variation at most 1e-9, the same winner."""
    response = desk.ask(request)
    check_response(request, response)
    answer = response["answers"].popitem()[1]
    truth = full_read(desk, next(iter(request["questions"].values())))
    assert distance(list(answer["probabilities"].values()), list(truth.values())) <= 1e-9
    assert answer["choice"] == max(truth, key=truth.__getitem__)


@BOTH
@pytest.mark.parametrize("count", [26, 27, 41, 53, 61, 77, 101, 151, 255, 520, 521, 2000])
def test_fusion_equals_the_full_read(count: int, limits: EngineLimits) -> None:
    """G8, against the stub's own formula over all options at once."""
    check_full(stub(limits), among(ordered(count)))


@pytest.mark.parametrize("file", ["b-*", "c-*", "d-*"])
def test_fusion_equals_the_full_read_on_real_options(file: str) -> None:
    """G8 on every row of 2 to 151 options of the case files, with and without descriptions."""
    desk = stub()
    for row in cases(file):
        check_full(desk, row["request"])


@BOTH
@pytest.mark.parametrize(("count", "rounds"), [(26, 1), (27, 2), (77, 2), (255, 2), (520, 2), (521, 3), (2000, 3)])
def test_rounds_are_few(count: int, rounds: int, limits: EngineLimits) -> None:
    """G8's cost: 255 options in two engine rounds, 2,000 in three, in x_diagnostics as the engine saw them."""
    desk = stub(limits)
    told = desk.ask({**among(ordered(count)), "diagnostics": True})["x_diagnostics"]

    assert (told["rounds"], told["questions"]["q"]["rounds"], desk.engine.rounds) == (rounds, rounds, rounds)


@BOTH
@pytest.mark.parametrize("settings", [{}, {"debias": "cyclic"}], ids=["exact", "slot-bias"])
@pytest.mark.parametrize("count", [41, 77])
def test_order_across_brackets_changes_nothing(count: int, settings: Body, limits: EngineLimits) -> None:
    """G9: options that change brackets keep their shares to 1e-9, with a slot bias too where it is debiased."""
    bias: dict[str, Any] = {"slot_bias": 1.5} if settings else {}
    desk, names = stub(limits, **bias), ordered(count)
    shuffler, seen = random.Random(count), []
    for _ in range(3):
        answer = desk.ask({**among(names), **settings})["answers"]["q"]
        seen.append([answer["probabilities"][name] for name in ordered(count)])
        shuffler.shuffle(names)

    assert max(distance(seen[0], other) for other in seen) <= 1e-9
