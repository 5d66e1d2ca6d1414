"""The gates on the real CPU model, in float32, within the tolerances that the service states for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.config import load
from gateway.engines.reference import open_reference
from tests.gates.asking import Body, Desk, cases
from tests.gates.checks import check_response, distance, shares

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

COMPANY = 1e-3
"""Total variation by which company may move an answer (G7, G11: dynamic batches, float32)."""
NOUL = {"type": "noul", "instructions": "Does the customer ask for money back?"}
TEAM = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "Invoices", "technical": None, "sales": None},
}
STATE = "I was charged twice for my renewal. Please refund one of the two payments."


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk() -> AsyncIterator[Desk]:
    """A desk at the reference engine with the demonstration model."""
    engine = await open_reference(load({}), print)
    yield Desk(engine)
    await engine.close()


async def ask(desk: Desk, request: Body) -> Body:
    """The response to a request."""
    response: Body = json.loads(await desk.answer(request))
    return response


@pytest.mark.parametrize("file", ["a-*", "b-*", "c-*", "d-*", "e-*", "f-*", "g-*", "h-*"])
async def test_rows_of_every_case_file_are_answered_coherently(desk: Desk, file: str) -> None:
    """G1, G2, G4; one row of 77 and one of 151 options among them."""
    rows = cases(file)
    for row in rows[:1] if file in {"b-*", "d-*"} else rows[:: len(rows) // 2]:
        check_response(row["request"], await ask(desk, row["request"]))


async def test_a_repeated_request_has_the_same_body(desk: Desk) -> None:
    """G10 and G12: the second time the state comes from the cache."""
    asked = {"state": STATE, "questions": {"n": NOUL, "t": TEAM}}
    first, second = await ask(desk, asked), await ask(desk, asked)

    for name, question in asked["questions"].items():  # type: ignore[attr-defined]
        assert distance(shares(question, first["answers"][name]), shares(question, second["answers"][name])) <= 1e-4


async def test_company_in_a_request_moves_nothing(desk: Desk) -> None:
    """G7: every question is its own read."""
    alone = (await ask(desk, {"state": STATE, "questions": {"t": TEAM}}))["answers"]["t"]
    beside = {f"f{k}": {"type": "noul", "instructions": f"Is the number {k} mentioned?"} for k in range(9)}
    joint = (await ask(desk, {"state": STATE, "questions": {**beside, "t": TEAM}}))["answers"]["t"]

    assert distance(shares(TEAM, alone), shares(TEAM, joint)) <= COMPANY


async def test_requests_at_the_same_time_move_nothing(desk: Desk) -> None:
    """G11: each state has its own answer, the one it has alone."""
    asked = [{"state": f"{STATE} Ticket {k}.", "questions": {"t": TEAM}} for k in range(4)]

    together = [json.loads(body) for body in await asyncio.gather(*(desk.answer(one) for one in asked))]

    for one, seen in zip(asked, together, strict=True):
        alone = await ask(desk, one)
        assert distance(shares(TEAM, alone["answers"]["t"]), shares(TEAM, seen["answers"]["t"])) <= COMPANY


async def test_cyclic_debias_answers_every_rotation_alike(desk: Desk) -> None:
    """G6 on a real model: rotations are the same set of reads, so they agree to rounding."""
    names = ["billing", "technical", "sales"]
    seen = []
    for order in (names, [*names[1:], names[0]]):
        choice = {"type": "choice", "instructions": "Which team?", "criteria": dict.fromkeys(order)}
        answer = (await ask(desk, {"state": STATE, "questions": {"t": choice}, "debias": "cyclic"}))["answers"]["t"]
        seen.append([answer["probabilities"][name] for name in names])

    assert distance(seen[0], seen[1]) <= 1e-4
