"""Identical requests in flight in one process are decided once; what differs in anything is not joined."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from decisions.errors import Overloaded
from decisions.protocol import Decision, Usage
from gateway.inflight import Answer, Sent
from gateway.inflight.crossing import digest_of
from gateway.inflight.joined import Flights
from tests.conftest import AppClient
from tests.gateway.asking import PATH, Held, asked, asked_bytes, until
from tests.gateway.test_routes import Caller

SENT = Sent("systemone", b"{}")
ANSWER = Answer(Decision({}, Usage(1, 2, 3)))


class Maker:
    """Makes an answer when told to, and counts how often it was begun and ended."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def make(self) -> Answer:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return ANSWER


async def settle() -> None:
    """Let everybody run who can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def boarded(flights: Flights, maker: Maker, count: int) -> list[asyncio.Task[Answer]]:
    """So many clients that ask the same."""
    tasks = [asyncio.create_task(flights.join(SENT, maker.make)) for _ in range(count)]
    await settle()
    return tasks


async def test_those_who_ask_the_same_share_one_answer() -> None:
    """It is made once, and all but the first are told that they joined."""
    flights, maker = Flights(), Maker()
    tasks = await boarded(flights, maker, 3)
    maker.go.set()

    assert [False, True, True] == [answer.joined for answer in await asyncio.gather(*tasks)]
    assert 1 == maker.begun
    await flights.join(SENT, maker.make)
    assert 2 == maker.begun


async def test_an_error_is_shared_as_well() -> None:
    """Whoever joined is told what went wrong."""
    flights, maker = Flights(), Maker()
    maker.error = Overloaded("The queue is full.", 2.0)
    tasks = await boarded(flights, maker, 3)
    maker.go.set()

    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [maker.error] * 3 == ended


async def test_a_client_that_leaves_takes_nothing_from_the_others() -> None:
    """Neither the first, whose task goes on for them, nor one that joined."""
    flights, maker = Flights(), Maker()
    first, second, third = await boarded(flights, maker, 3)
    flights.leave(SENT, first)
    second.cancel()
    await settle()
    maker.go.set()

    assert (await third).joined
    assert (1, 0) == (maker.begun, maker.cancelled)


async def test_the_work_ends_when_the_last_has_left() -> None:
    """Whoever that is."""
    flights, maker = Flights(), Maker()
    first, second = await boarded(flights, maker, 2)
    flights.leave(SENT, first)
    await settle()
    assert not first.done()
    second.cancel()
    await settle()

    assert first.cancelled()
    assert 1 == maker.cancelled


async def test_one_who_leaves_alone_ends_the_work_at_once() -> None:
    """Nobody has joined."""
    flights, maker = Flights(), Maker()
    (first,) = await boarded(flights, maker, 1)
    flights.leave(SENT, first)
    await settle()

    assert first.cancelled()


async def test_where_the_first_is_cancelled_from_outside_another_begins_anew() -> None:
    """As when the server gives its task up."""
    flights, maker = Flights(), Maker()
    first, second, third = await boarded(flights, maker, 3)
    first.cancel()
    await settle()
    maker.go.set()

    assert [False, True] == sorted(answer.joined for answer in await asyncio.gather(second, third))
    assert 2 == maker.begun


async def test_answers_are_kept_for_as_long_as_was_said() -> None:
    """And no longer."""
    flights, maker = Flights(keep_seconds=0.05), Maker()
    maker.go.set()
    first = await flights.join(SENT, maker.make)
    again = await flights.join(SENT, maker.make)
    await asyncio.sleep(0.06)
    later = await flights.join(SENT, maker.make)

    assert [False, True, False] == [first.joined, again.joined, later.joined]


async def test_kept_answers_take_bounded_memory() -> None:
    """The oldest go first."""
    flights, maker = Flights(keep_seconds=60), Maker()
    maker.go.set()
    for number in range(5):
        await flights.join(Sent("systemone", b"%d" % number + b" " * 20_000_000), maker.make)
    assert flights._kept is not None

    assert 3 == len(flights._kept._answers)


CHOICE = {"type": "choice", "criteria": {"a": None, "b": None}}
BASE: dict[str, Any] = {"model": "jev-latest", "state": {"n": 1}, "questions": {"q": CHOICE}}
OTHERS = [
    {"state": {"n": "1"}},
    {"state": {"n": 1.0}},
    {"questions": {"q": {"type": "choice", "criteria": {"b": None, "a": None}}}},
    {"questions": {"r": CHOICE}},
    {"model": "jev-preview"},
    {"seed": 43},
    {"samples": 2},
    {"isolate": "all"},
    {"instructions": "Be strict."},
    {"diagnostics": True},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_whatever_can_change_an_answer_tells_requests_apart(other: dict[str, Any]) -> None:
    """In this process and in Redis."""
    one, two = (Sent("systemone", json.dumps(body).encode()) for body in (BASE, BASE | other))

    assert one != two
    assert digest_of(one) != digest_of(two)


@pytest.mark.parametrize("other", [{"form": "decisions"}, {"content_type": "x"}, {"wait": 1.0}], ids=str)
def test_the_form_and_the_patience_tell_requests_apart(other: dict[str, Any]) -> None:
    """An answer goes out in its request's form, and a short patience ends in a 504."""
    assert SENT != SENT._replace(**other)
    assert digest_of(SENT) != digest_of(SENT._replace(**other))


@pytest.fixture
async def held() -> AsyncIterator[tuple[AppClient, Held]]:
    """An app whose reads wait until they are let go."""
    async with AppClient() as client:
        yield client, Held(client)


async def test_a_joined_answer_says_so_and_is_counted_once(held: tuple[AppClient, Held]) -> None:
    """In its diagnostics and in the metrics; its reads are the first one's."""
    client, engine = held
    asking = [asyncio.create_task(client.post(PATH, json=asked(diagnostics=True))) for _ in range(2)]
    await engine.begun.wait()
    await settle()
    engine.go.set()
    first, second = [(await each).json() for each in asking]
    text = (await client.get("/metrics")).text

    assert first["answers"] == second["answers"]
    assert "x_joined" not in first["x_diagnostics"]
    assert second["x_diagnostics"]["x_joined"]
    assert "canvasgate_joined_total 1.0" in text
    assert f"canvasgate_reads_total {first['x_diagnostics']['reads']}.0" in text


async def test_a_caller_that_leaves_is_not_missed_by_those_who_joined(held: tuple[AppClient, Held]) -> None:
    """The first one's connection ends; the second gets the answer, read once."""
    client, engine = held
    caller, joiner = Caller(asked_bytes()), Caller(asked_bytes())
    first = asyncio.create_task(client.app(caller.scope, caller.receive, caller.send))
    await engine.begun.wait()
    second = asyncio.create_task(client.app(joiner.scope, joiner.receive, joiner.send))
    flights = client.gateway.serving.service.flights
    await until(lambda: next(iter(flights._flights.values())).clients)
    caller.left.set()
    await until(lambda: next(iter(flights._flights.values())).deserted)
    engine.go.set()
    await asyncio.gather(first, second)

    assert ([], 200) == (caller.sent, joiner.sent[0]["status"])
    assert 'status="499"} 1.0' in (await client.get("/metrics")).text
