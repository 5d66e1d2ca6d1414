"""What must not change an answer: company, order, other requests at the same time, the type that asks."""

from __future__ import annotations

import asyncio
import json
import math
import random
from itertools import permutations
from typing import Any

import pytest

from decisions.reads import EngineLimits
from tests.conftest import AppClient
from tests.gates.asking import AUTOREGRESSIVE, CANVAS, MANY, Body, Desk, cases, full_read, stub
from tests.gates.checks import distance, numbers, place_effect

BOTH = pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE], ids=["canvas", "next-token"])
STATE = "The customer was charged twice and asks for one payment back."
REFUND = {"type": "noul", "instructions": "Does the customer ask for money back?"}
OPPOSITE = {"type": "noul", "instructions": "Does the customer not ask for money back?"}
TEAM = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "Invoices", "technical": None, "sales": None},
}
ANGER = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Annoyed", "Furious"]}


def request(questions: Body, **fields: Any) -> Body:
    """A request about the one state."""
    return {"state": STATE, "questions": questions, **fields}


def company(count: int) -> Body:
    """Questions of all types that have nothing to do with the others."""
    kinds = (REFUND, TEAM, ANGER)
    return {f"filler{k}": {**kinds[k % 3], "instructions": f"What about number {k}?"} for k in range(count)}


def shuffled(questions: Body, seed: int) -> Body:
    """The same questions in another order."""
    names = list(questions)
    random.Random(seed).shuffle(names)
    return {name: questions[name] for name in names}


# --- Company (G7) ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("size", [2, 5, 10, 64])
def test_company_does_not_change_an_answer(size: int, limits: EngineLimits) -> None:
    """G7: alone, and in any order among 2, 5, 10 and 64 questions, its opposite and its double: the same numbers."""
    desk = stub(limits)
    kinds = {"noul": REFUND, "choice": TEAM, "score": ANGER}
    alone = {name: desk.ask(request({name: question}))["answers"][name] for name, question in kinds.items()}
    for name, question in kinds.items():
        questions = {name: question, "opposite": OPPOSITE, "double": question, **company(size)}
        for seed in range(3):
            cut = dict(list(questions.items())[:size])
            answers = desk.ask(request(shuffled(cut, seed)))["answers"]
            assert answers[name] == alone[name]
            assert answers.get("double", alone[name]) == alone[name]


@pytest.mark.parametrize("size", [2, 5, 10, 64])
@pytest.mark.parametrize("own", [False, True], ids=["isolate", "alone"])
def test_isolation_holds_where_the_engine_couples(size: int, own: bool) -> None:
    """G7: with coupling and noise switched on, every isolated question answers as if it had been asked alone."""
    desk = stub(bounds=MANY, coupling=2.0, noise=1.0)
    questions = dict(list({"refund": REFUND, "opposite": OPPOSITE, "again": REFUND, **company(61)}.items())[:size])
    asked = {name: {**question, "alone": True} for name, question in questions.items()} if own else questions
    alone = {name: desk.ask(request({name: question}))["answers"][name] for name, question in questions.items()}

    for seed in range(2):
        told = desk.ask(request(shuffled(asked, seed), isolate="none" if own else "all", diagnostics=True))
        assert told["answers"] == alone
        assert all(trace["isolated"] for trace in told["x_diagnostics"]["questions"].values())


def test_isolation_holds_on_every_row_of_opposites() -> None:
    """G7 on the case file of 8 yes/no questions side by side, at the default bounds: isolated as `isolate: noul`."""
    desk = stub(coupling=2.0)
    moved = 0
    for row in cases("e-*")[::4]:
        state, questions = row["request"]["state"], row["request"]["questions"]
        alone = {k: desk.ask({"state": state, "questions": {k: q}})["answers"][k] for k, q in questions.items()}
        assert desk.ask({**row["request"], "isolate": "noul"})["answers"] == alone
        moved += desk.ask({**row["request"], "isolate": "none"})["answers"] != alone

    assert moved == len(cases("e-*")[::4])


@pytest.mark.parametrize("size", [2, 64])
def test_a_joint_read_is_told_as_one(size: int) -> None:
    """G7b: where isolation is off, the diagnostics say so of every question; and coupling does move the answers."""
    desk = stub(coupling=2.0)
    questions = dict(list({"refund": REFUND, **company(63)}.items())[:size])
    joint = desk.ask(request(questions, isolate="none", diagnostics=True))

    assert not any(trace["isolated"] for trace in joint["x_diagnostics"]["questions"].values())
    assert joint["answers"]["refund"] != desk.ask(request({"refund": REFUND}))["answers"]["refund"]


def test_a_mode_beyond_its_bound_is_told_too() -> None:
    """G7b: `all` isolates up to 8 questions by default; nine are read together, and the diagnostics say so."""
    traces = {
        size: stub().ask(request(company(size), isolate="all", diagnostics=True))["x_diagnostics"]["questions"]
        for size in (8, 9)
    }

    assert {True} == {trace["isolated"] for trace in traces[8].values()}
    assert {False} == {trace["isolated"] for trace in traces[9].values()}


def test_a_question_alone_leaves_the_others_together() -> None:
    """G7b: `alone` isolates that question; the others are joint, and say so."""
    desk = stub(coupling=2.0)
    told = desk.ask(request({"q": {**REFUND, "alone": True}, "t": TEAM, "a": ANGER}, isolate="none", diagnostics=True))
    traces = told["x_diagnostics"]["questions"]

    assert (True, False, False) == tuple(traces[name]["isolated"] for name in "qta")
    assert told["answers"]["q"] == desk.ask(request({"q": REFUND}))["answers"]["q"]


# --- Order of options (G6) ------------------------------------------------------------------------------------------


def rotations(names: list[str]) -> list[list[str]]:
    """All rotations, each name at each place once."""
    return [names[start:] + names[:start] for start in range(len(names))]


def among(names: tuple[str, ...] | list[str]) -> Body:
    """A choice among these names."""
    return {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(names)}


def seen_in(desk: Desk, orders: list[Any], **settings: Any) -> list[Body]:
    """The answer in each of the orders."""
    return [desk.ask(request({"q": among(order)}, **settings))["answers"]["q"] for order in orders]


@BOTH
@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_orders_answer_alike_under_cyclic_debias(count: int, limits: EngineLimits) -> None:
    """G6 and G6b: on an engine with a bias by place, every permutation gives the truth to 1e-9, and no flips."""
    names = ["red", "green", "blue", "grey"][:count]
    desk = stub(limits, slot_bias=1.5)
    answers = seen_in(desk, list(permutations(names)), debias="cyclic")
    truth = full_read(desk, among(names))

    assert all(distance([a["probabilities"][n] for n in names], list(truth.values())) <= 1e-9 for a in answers)
    assert {max(truth, key=truth.__getitem__)} == {answer["choice"] for answer in answers}


@pytest.mark.parametrize("row", [row for row in cases("h-*") if len(row["request"]["questions"]) == 1][:12])
def test_real_options_are_debiased_exactly(row: Body) -> None:
    """G6b: up to 18 options whose text is the key: cyclic orders remove the bias, whatever it is."""
    name, question = next(iter(row["request"]["questions"].items()))
    if question["type"] != "choice":
        question = {"type": "choice", "instructions": "Which?", "criteria": {"yes": None, "no": None}}
    asked = {"state": row["request"]["state"], "questions": {name: question}, "debias": "cyclic"}
    desk = stub(slot_bias=3.0)

    assert distance(numbers(desk.ask(asked)["answers"][name]), list(full_read(desk, question).values())) <= 1e-9


def test_the_raw_effect_of_place_is_measured() -> None:
    """G6c: reported, not gated; 0 on an exact engine and under cyclic debias, so that a real engine's is its own."""
    names, effects = ["red", "green", "blue", "grey"], {}
    for label, desk, settings in (
        ("exact", stub(), {}),
        ("biased", stub(slot_bias=9.0), {}),
        ("debiased", stub(slot_bias=9.0), {"debias": "cyclic"}),
    ):
        orders = rotations(names)
        chosen = [answer["choice"] for answer in seen_in(desk, orders, **settings)]
        places = [order.index(choice) for order, choice in zip(orders, chosen, strict=True)]
        effects[label] = (max(map(abs, place_effect(places, 4))), len(set(chosen)) > 1)
    print("place_effect", effects)

    assert effects["exact"] == effects["debiased"] == (0.0, False)
    assert effects["biased"][0] > 0


# --- Types (G14) and other requests (G11) ---------------------------------------------------------------------------


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
def test_requests_at_the_same_time_do_not_touch_each_other(limits: EngineLimits) -> None:
    """G11: 64 different states at once, each with exactly its own bytes."""
    desk = stub(limits, noise=1.0)
    asked = [{"state": f"state {k}", "questions": {"q": REFUND, "t": TEAM}} for k in range(64)]

    async def all_at_once() -> list[bytes]:
        return await asyncio.gather(*(desk.answer(one) for one in asked))

    together = asyncio.run(all_at_once())

    assert together == [desk.bytes_of(one) for one in asked]
    assert len({json.loads(body)["answers"]["q"]["noul"] for body in together}) == 64


@pytest.mark.parametrize("others", [1, 7, 31])
async def test_a_request_over_http_is_the_same_in_company(others: int) -> None:
    """G11: byte-equal bodies alone and among others of other lengths, through the whole app, with a slow engine."""
    mine = {"model": "jev-latest", **request({"r": REFUND, "t": TEAM, "a": ANGER})}
    rows = [{"model": "jev-latest", **row["request"]} for row in cases()[:: math.ceil(266 / others)]][:others]
    async with AppClient(STUB_DELAY_MS="5", STUB_NOISE="1") as client:
        alone = (await client.post("/v1/systemone", json=mine)).content
        among_others = [*rows[: others // 2], mine, *rows[others // 2 :]]
        got = await asyncio.gather(*(client.post("/v1/systemone", json=body) for body in among_others))
        again = [(await client.post("/v1/systemone", json=body)).content for body in among_others]

    assert {200} == {response.status_code for response in got}
    assert got[others // 2].content == alone
    assert again == [response.content for response in got]


# --- Modes that read again ------------------------------------------------------------------------------------------


def test_auto_samples_read_only_the_uncertain_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`samples: auto` draws again for single slots, not for whole canvases."""
    monkeypatch.setattr("gateway.engines.stub.SPREAD", 40.0)  # most answers are then beyond doubt, some are not
    desk = stub()
    rows = cases("g-mixed-triage")[:16]
    for row in rows:
        desk.ask({**row["request"], "samples": "auto", "isolate": "none"})
    slots = sum(len(row["request"]["questions"]) for row in rows)
    again = sum(len(read.slots) for read in desk.engine.seen) - slots

    assert 0 < again < slots
    assert again % 3 == 0
