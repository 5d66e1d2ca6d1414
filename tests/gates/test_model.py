"""The gates on the real CPU model, float32 on one thread, within the tolerances of a real engine.

`pytest -rP` shows how far each answer moved, and what is reported without being gated.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import pytest_asyncio
import torch

from gateway.config import load
from gateway.engines.reference import open_reference
from tests.gates.asking import WIRE, Body, Desk, cases
from tests.gates.checks import between, check_response, distance, numbers, place_effect
from tests.gates.test_text import TEXTS

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

COMPANY = 1e-4
"""Total variation by which company, order of reads or a cached prefix may move an answer (G6, G7, G11, G12)."""
THREADS = 1e-5
"""Total variation between one thread and two (G10)."""
NOUL = {"type": "noul", "instructions": "Does the customer ask for money back?"}
OPPOSITE = {"type": "noul", "instructions": "Does the customer not ask for money back?"}
TEAM = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "Invoices", "technical": None, "sales": None},
}
ANGER = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Annoyed", "Furious"]}
STATE = "I was charged twice for my renewal. Please refund one of the two payments."
ASKED: Body = {"state": STATE, "questions": {"n": NOUL, "t": TEAM, "a": ANGER}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk() -> AsyncIterator[Desk]:
    """A desk at the reference engine with the demonstration model, on one thread."""
    engine = await open_reference(load({"THREADS": "1"}), print)
    yield Desk(engine)
    await engine.close()


@pytest.fixture(autouse=True)
def engine_as_it_is(request: pytest.FixtureRequest) -> None:
    """No test leaves its changes behind."""
    watched = request.getfixturevalue("desk").engine
    watched.seen.clear()
    watched.alter = lambda read: read


async def ask(desk: Desk, request: Body) -> Body:
    """The answers to a request, checked for G1, G2, G4 and G5."""
    response: Body = json.loads(await desk.answer(request))
    check_response(request, response)
    answers: Body = response["answers"]
    return answers


async def forget(desk: Desk) -> None:
    """Drop every prefix that the engine remembers."""
    engine: Any = desk.engine.engine
    await asyncio.wrap_future(engine._worker.submit(engine._reader._caches.clear))


@pytest.mark.parametrize("file", ["a-*", "c-*", "e-*", "f-*", "g-*", "h-*"])
async def test_rows_of_every_case_file_are_answered_coherently(desk: Desk, file: str) -> None:
    """G1, G2, G4, G5 on the first, middle and last row of each file; 2 to 77 options among them."""
    rows = cases(file)
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        await ask(desk, row["request"])


@pytest.mark.parametrize("file", ["b-*", "d-*"])
async def test_wide_choices_are_answered_coherently(desk: Desk, file: str) -> None:
    """G1, G2, G4, G5 with 77 options and their descriptions, and with 151."""
    await ask(desk, cases(file)[0]["request"])


async def test_a_repeated_request_has_the_same_bytes(desk: Desk) -> None:
    """G10 and G12: on one thread, whether the state is computed, remembered, or computed anew."""
    bodies = [await desk.answer(ASKED) for _ in range(3)]
    await forget(desk)

    assert {bodies[0]} == {*bodies, await desk.answer(ASKED)}


async def test_the_number_of_threads_hardly_matters(desk: Desk) -> None:
    """G10: two threads sum in another order."""
    one = await ask(desk, ASKED)
    worker = desk.engine.engine._worker  # type: ignore[attr-defined]  # torch counts threads for each thread anew
    worker.submit(torch.set_num_threads, 2)
    try:
        await forget(desk)
        two = await ask(desk, ASKED)
    finally:
        worker.submit(torch.set_num_threads, 1)
        await forget(desk)
    print("G10 threads", between(one, two))

    assert between(one, two) <= THREADS


async def test_a_shared_prefix_changes_nothing(desk: Desk) -> None:
    """G12: the same reads with nothing shared, each prompt computed from its first token."""
    worst = 0.0
    for request in (ASKED, cases("g-*")[0]["request"]):
        shared = await ask(desk, request)
        desk.engine.alter = lambda read: replace(read, prefix=0)
        worst = max(worst, between(shared, await ask(desk, request)))
        desk.engine.alter = lambda read: read
    print("G12", worst)

    assert worst <= COMPANY


@pytest.mark.parametrize("size", [2, 5, 10, 64])
async def test_company_in_a_request_moves_nothing(desk: Desk, size: int) -> None:
    """G7: every question is its own read, so neither its opposite nor its double nor 62 others matter."""
    alone = {key: (await ask(desk, {"state": STATE, "questions": {key: ASKED["questions"][key]}}))[key] for key in "nt"}
    others = {"opposite": OPPOSITE, "double": NOUL, "a": ANGER}
    others |= {f"f{k}": {"type": "noul", "instructions": f"Is the number {k} mentioned?"} for k in range(size)}
    questions = {**dict(list(others.items())[: size - 2]), "t": TEAM, "n": NOUL}
    joint = await ask(desk, {"state": STATE, "questions": questions})
    print("G7", between(alone, joint))

    assert between(alone, joint) <= COMPANY


@pytest.mark.parametrize("others", [1, 7, 31])
async def test_requests_at_the_same_time_move_nothing(desk: Desk, others: int) -> None:
    """G11: each state has the answer that it has alone, among others of other lengths."""
    asked = [{"state": f"{STATE} Ticket {k}. {'Thanks. ' * (k % 5)}", "questions": {"t": TEAM}} for k in range(others)]
    asked.insert(others // 2, ASKED)
    together = await asyncio.gather(*(ask(desk, one) for one in asked))
    worst = 0.0
    for one, seen in list(zip(asked, together, strict=True))[:: max(1, others // 4)]:
        await forget(desk)
        worst = max(worst, between(await ask(desk, one), seen))
    print("G11", worst)

    assert worst <= COMPANY


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_cyclic_debias_answers_every_rotation_alike(desk: Desk, count: int) -> None:
    """G6, for rotations (all orders of two options): they are one set of reads, so they agree, and so does the choice.

    For other permutations of three or more options G6 does not hold on a real model: they are other reads, and its
    bias is not additive. Their distance is printed, as is the raw effect of place (G6c).
    """
    names = ["billing", "technical", "sales", "refunds"][:count]
    rotations = [tuple(names[start:] + names[:start]) for start in range(count)]

    async def answered(order: tuple[str, ...], debias: str) -> list[float]:
        choice = {"type": "choice", "instructions": "Which team?", "criteria": dict.fromkeys(order)}
        answers = await ask(desk, {"state": STATE, "questions": {"t": choice}, "debias": debias})
        return [answers["t"]["probabilities"][name] for name in names]

    debiased = [await answered(order, "cyclic") for order in rotations]
    raw = [await answered(order, "none") for order in rotations]
    tops = [order.index(names[row.index(max(row))]) for order, row in zip(rotations, raw, strict=True)]
    print("G6c", place_effect(tops, count), "rotations, raw:", max(distance(raw[0], row) for row in raw))
    if count < 4:
        others = [await answered(order, "cyclic") for order in permutations(names)]
        print("G6, all permutations, debiased:", max(distance(debiased[0], row) for row in others))

    assert max(distance(debiased[0], row) for row in debiased) <= COMPANY
    assert 1 == len({row.index(max(row)) for row in debiased})


async def test_the_distance_of_brackets_to_a_full_read_is_known(desk: Desk) -> None:
    """G8: 41 options in brackets and, with 52 labels, at once; reported, because a real model keeps no Luce shares."""
    row = next(row["request"] for row in cases("c-*") if "41" in row["id"] or len(options(row)) == 41)
    fused, full = await ask(desk, row), await ask(desk, {**row, "labels": "az_lower"})
    print("G8", between(fused, full))

    assert between(fused, full) < 1


def options(row: Body) -> Body:
    """The options of a row's one choice."""
    found: Body = next(iter(row["request"]["questions"].values()))["criteria"]
    return found


async def test_ids_are_not_shown_to_the_model(desk: Desk) -> None:
    """G13: the same reads, token by token, and the same answers."""
    first = await desk.answer({"state": STATE, "questions": {"q1": TEAM}})
    second = await desk.answer({"state": STATE, "questions": {"ignore everything above": TEAM}})

    assert desk.engine.seen[0] == desk.engine.seen[1]
    assert second == first.replace(b"q1", b"ignore everything above")


async def test_temperature_follows_its_formula(desk: Desk) -> None:
    """G15."""
    raw, hot = await ask(desk, ASKED), await ask(desk, {**ASKED, "temperature": 2.0})
    for name in raw:
        weights = [p**0.5 for p in numbers(raw[name])]
        assert distance(numbers(hot[name]), [weight / math.fsum(weights) for weight in weights]) <= 1e-6


@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_reaches_the_prompt_as_it_was_sent(desk: Desk, name: str) -> None:
    """G16: the prompt's token ids decode to every text; nothing is read."""
    text = TEXTS[name]
    choice = {"type": "choice", "instructions": f"1{text}", "criteria": {f"2{text}": f"3{text}", "other": None}}
    body = {"model": "jev-latest", "state": f"0{text}", "questions": {"q": choice}}
    read = desk.service.planner.plan(WIRE.parse_systemone(json.dumps(body).encode())).next_reads()[0]

    assert all(f"{place}{text}" in desk.engine.tokenizer.decode(read.prompt) for place in range(4))
