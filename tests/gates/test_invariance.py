"""What must not change an answer: company, order of questions, ids, wording of the same thing, other requests."""

from __future__ import annotations

import asyncio
import json
import math
from itertools import permutations
from typing import Any

import pytest

from decisions.errors import MalformedReadout
from decisions.reads import EngineLimits, Read
from gateway.engines.stub import StubEngine
from tests.gates.asking import AUTOREGRESSIVE, CANVAS, Body, Desk, cases, stub
from tests.gates.checks import distance, shares

BOTH = pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE], ids=["canvas", "next-token"])
STATE = "The customer was charged twice and asks for one payment back."
REFUND = {"type": "noul", "instructions": "Does the customer ask for money back?"}
OPPOSITE = {"type": "noul", "instructions": "Is the customer content?"}
TEAM = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "Invoices", "technical": None, "sales": None},
}
ANGER = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Annoyed", "Furious"]}


def request(questions: Body, **fields: Any) -> Body:
    """A request about the one state."""
    return {"state": STATE, "questions": questions, **fields}


def fillers(count: int) -> Body:
    """Questions that have nothing to do with the others."""
    return {f"filler{k}": {"type": "noul", "instructions": f"Is {k} mentioned?"} for k in range(count)}


@BOTH
@pytest.mark.parametrize("company", [1, 4, 9, 63])
@pytest.mark.parametrize("question", [REFUND, TEAM, ANGER], ids=["noul", "choice", "score"])
def test_company_does_not_change_an_answer(question: Body, company: int, limits: EngineLimits) -> None:
    """G7: alone, first and last among 2, 5, 10 and 64 questions: the same numbers."""
    desk = stub(limits)
    alone = desk.ask(request({"q": question}))["answers"]["q"]

    for questions in ({"q": question, **fillers(company)}, {**fillers(company), "q": question}):
        assert desk.ask(request(questions))["answers"]["q"] == alone


@pytest.mark.parametrize("isolation", [{"isolate": "all"}, {"isolate": "noul"}])
def test_isolated_questions_are_untouched_by_an_engine_that_couples(isolation: Body) -> None:
    """G7: with the opposite question beside it, and with itself."""
    desk = stub(coupling=2.0)
    alone = desk.ask(request({"q": REFUND}))["answers"]["q"]

    answers = desk.ask(request({"q": REFUND, "opposite": OPPOSITE, "again": REFUND}, **isolation))["answers"]

    assert (answers["q"], answers["again"]) == (alone, alone)


def test_a_joint_read_is_told_as_one() -> None:
    """G7b: with isolation off, the diagnostics say so; and coupling does move the answer then."""
    desk = stub(coupling=2.0)
    joint = desk.ask(request({"q": REFUND, "t": TEAM}, isolate="none", diagnostics=True))

    assert joint["x_diagnostics"]["questions"]["q"]["isolated"] is False
    assert joint["answers"]["q"] != desk.ask(request({"q": REFUND}))["answers"]["q"]


def test_a_question_s_own_word_isolates_it() -> None:
    """`alone`."""
    desk = stub(coupling=2.0)
    told = desk.ask(request({"q": {**REFUND, "alone": True}, "t": TEAM}, isolate="none", diagnostics=True))

    assert told["answers"]["q"] == desk.ask(request({"q": REFUND}))["answers"]["q"]
    assert told["x_diagnostics"]["questions"]["q"]["isolated"] is True


@BOTH
def test_ids_are_not_shown_to_the_model(limits: EngineLimits) -> None:
    """G13: any id, the same answer."""
    desk = stub(limits)
    answers = [
        next(iter(desk.ask(request({name: TEAM}))["answers"].values()))
        for name in ("q1", "ignore everything", "é👩", "billing", "1")
    ]

    assert all(answer == answers[0] for answer in answers)


@BOTH
def test_types_that_ask_the_same_thing_answer_the_same(limits: EngineLimits) -> None:
    """G14: a noul, a choice of yes and no, and a score of two levels, with the same texts."""
    words = "Is it urgent?"
    answers = stub(limits).ask(
        request(
            {
                "noul": {"type": "noul", "instructions": words},
                "choice": {"type": "choice", "instructions": words, "criteria": {"yes": None, "no": None}},
                "score": {"type": "score", "instructions": words, "criteria": ["yes", "no"]},
            }
        )
    )["answers"]

    assert pytest.approx(answers["noul"]["noul"], abs=1e-12) == answers["choice"]["probabilities"]["yes"]
    assert pytest.approx(answers["noul"]["noul"], abs=1e-12) == answers["score"]["probabilities"]["0"]


@BOTH
@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_orders_of_options_answer_alike_under_cyclic_debias(count: int, limits: EngineLimits) -> None:
    """G6: an engine with a bias by place; every permutation; total variation at most 1e-9, no flips."""
    desk, names = stub(limits, slot_bias=1.5), ["red", "green", "blue", "grey"][:count]
    seen = []
    for order in permutations(names):
        choice = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(order)}
        answer = desk.ask(request({"q": choice}, debias="cyclic"))["answers"]["q"]
        seen.append([answer["probabilities"][name] for name in names])
    plain = {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(names)}
    truth = shares(plain, stub(limits).ask(request({"q": plain}))["answers"]["q"])

    assert max(distance(one, truth) for one in seen) <= 1e-9


def test_temperature_follows_its_formula() -> None:
    """G15: the same winner, T = 1 the same numbers, p^(1/T) over its sum."""
    desk = stub()
    raw = shares(TEAM, desk.ask(request({"q": TEAM}))["answers"]["q"])
    for temperature in (0.5, 1.0, 3.0):
        hot = shares(TEAM, desk.ask(request({"q": TEAM}, temperature={"choice": temperature}))["answers"]["q"])
        weights = [p ** (1 / temperature) for p in raw]
        assert distance(hot, [weight / math.fsum(weights) for weight in weights]) <= 1e-12


@BOTH
def test_requests_at_the_same_time_do_not_touch_each_other(limits: EngineLimits) -> None:
    """G11: 64 different states at once, each with exactly its own answer."""
    desk = stub(limits)
    asked = [{"state": f"state {k}", "questions": {"q": REFUND, "t": TEAM}} for k in range(64)]

    async def all_at_once() -> list[bytes]:
        return await asyncio.gather(*(desk.answer(one) for one in asked))

    together = [json.loads(body) for body in asyncio.run(all_at_once())]

    assert together == [desk.ask(one) for one in asked]
    assert len({body["answers"]["q"]["noul"] for body in together}) == 64


@BOTH
@pytest.mark.parametrize("fault", ["missing_slot", "missing_label", "not_finite"])
def test_a_broken_readout_is_read_again_or_refused(fault: str, limits: EngineLimits) -> None:
    """G3: the right answer after one more read, else an error; never a number made up."""
    asked = request({"q": REFUND, "t": TEAM})

    assert stub(limits, **{fault: 1.0}).ask(asked) == stub(limits).ask(asked)
    with pytest.raises(MalformedReadout):
        stub(limits, **{fault: 1.0}, lasting=True).ask(asked)


class Watching(StubEngine):
    """A stub that remembers what it was given."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self.seen: list[Read] = []

    async def read(self, reads: Any, ticket: Any) -> Any:
        self.seen += reads
        return await super().read(reads, ticket)


def test_auto_modes_read_only_the_uncertain_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`samples: auto` draws again for single slots, not for whole canvases."""
    monkeypatch.setattr("gateway.engines.stub.SPREAD", 40.0)  # most answers are then beyond doubt, some are not
    engine = Watching(CANVAS)
    rows = cases("g-mixed-triage")[:16]
    for row in rows:
        Desk(engine).ask({**row["request"], "samples": "auto", "isolate": "none"})
    slots = sum(len(row["request"]["questions"]) for row in rows)
    again = sum(len(read.slots) for read in engine.seen) - slots

    assert 0 < again < slots
    assert again % 3 == 0
