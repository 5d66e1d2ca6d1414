"""One request from validated to decided: bad readouts, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from decisions.errors import DeadlineExceeded, EngineUnavailable, MalformedReadout
from decisions.protocol import Decision
from decisions.reads import Read, Readout, Ticket
from gateway.app import Serving
from gateway.config import load
from gateway.engines.opening import open_stub
from gateway.engines.stub import StubFaults
from gateway.inflight import Sent
from gateway.metrics import RequestRecord
from tests.gateway.asking import asked_bytes, until

BODY = asked_bytes()
Spoil = Callable[[Readout], Readout]


class Service:
    """The service on a stub engine, and every call of the engine's `read`, as the number of its reads."""

    def __init__(self, **settings: str) -> None:
        given = load({"ENGINE": "stub", "DEFAULT_ISOLATE": "all", **settings})
        self.engine = open_stub(given)
        self.serving = Serving(given, self.engine)
        self.calls: list[int] = []
        self.record = RequestRecord(request_id="req_1", method="POST", path="/v1/systemone")

    async def decide(self, wait: float | None = None, body: bytes = BODY) -> Decision:
        sent = Sent("systemone", body, None, wait)
        return await self.serving.service.decide(self.serving.parse(sent), sent, self.record)

    def spoil(self, *spoils: Spoil | None) -> None:
        """Spoil the first readout of each call of `read`, in turn; None and all later calls are left as they are."""
        read_on = self.engine.read

        async def read(reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
            first, *rest = await read_on(reads, ticket)
            self.calls.append(len(reads))
            spoil = spoils[len(self.calls) - 1] if len(self.calls) <= len(spoils) else None
            return [spoil(first) if spoil else first, *rest]

        self.engine.read = read  # type: ignore[method-assign]  # the double


def without_slot(readout: Readout) -> Readout:
    return Readout(readout.logprobs[1:])


def without_label(readout: Readout) -> Readout:
    return Readout((readout.logprobs[0][1:], *readout.logprobs[1:]))


def not_finite(readout: Readout) -> Readout:
    return Readout(((math.nan, *readout.logprobs[0][1:]), *readout.logprobs[1:]))


SPOILS = [without_slot, without_label, not_finite]


@pytest.mark.parametrize("spoil", SPOILS)
async def test_a_bad_readout_is_read_once_more_alone(spoil: Spoil) -> None:
    """The answer is the one that a sound engine gives; the other reads are not repeated."""
    sound, service = Service(), Service()
    service.spoil(spoil)

    assert (await sound.decide()).answers == (await service.decide()).answers
    assert [3, 1] == service.calls


@pytest.mark.parametrize("spoil", SPOILS)
async def test_a_readout_that_stays_bad_is_an_error(spoil: Spoil) -> None:
    """Never a guess; its place is given back."""
    service = Service()
    service.spoil(spoil, spoil)

    with pytest.raises(MalformedReadout):
        await service.decide()
    assert ([3, 1], 0) == (service.calls, service.serving.queue.snapshot().reads)


@pytest.mark.parametrize("answered", [0, 2, 4])
async def test_an_engine_that_answers_more_or_less_than_was_asked_is_not_believed(answered: int) -> None:
    """Nothing tells which readout belongs to which read."""
    service = Service()
    read_on = service.engine.read

    async def read(reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        return [*await read_on(reads, ticket), *await read_on(reads, ticket)][:answered]

    service.engine.read = read  # type: ignore[method-assign]  # the double

    with pytest.raises(MalformedReadout, match=f"{answered} of 3"):
        await service.decide()


async def test_a_dead_engine_is_told_and_its_places_are_given_back() -> None:
    """The error says when to come again."""
    service = Service()
    service.engine.faults = StubFaults(dead=True)

    with pytest.raises(EngineUnavailable):
        await service.decide()
    assert (0, 0) == (service.engine.working, service.serving.queue.snapshot().reads)


@pytest.mark.parametrize(("settings", "wait"), [({"REQUEST_TIMEOUT": "0.01"}, None), ({}, 0.01), ({}, 0.0)])
async def test_a_decision_ends_with_the_shorter_patience(settings: dict[str, str], wait: float | None) -> None:
    """Ours or the caller's; the engine is freed of the work."""
    service = Service(STUB_DELAY_MS="600000", **settings)

    with pytest.raises(DeadlineExceeded):
        await service.decide(wait)
    assert (0, 0) == (service.engine.working, service.serving.queue.snapshot().reads)


async def test_a_callers_patience_cannot_lengthen_ours() -> None:
    """`Prefer: wait=3600` does not hold a place for an hour."""
    service = Service(STUB_DELAY_MS="600000", REQUEST_TIMEOUT="0.01")

    with pytest.raises(DeadlineExceeded, match=r"0\.01 seconds"):
        await service.decide(3600.0)


async def test_a_cancelled_decision_frees_the_engine_and_its_place() -> None:
    """At once."""
    service = Service(STUB_DELAY_MS="600000")
    task = asyncio.create_task(service.decide())
    await until(lambda: service.engine.working)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (0, 0) == (service.engine.working, service.serving.queue.snapshot().reads)


async def test_what_needs_no_model_is_not_queued() -> None:
    """A choice with one option; even a dead engine answers it."""
    service = Service()
    service.engine.faults = StubFaults(dead=True)
    questions: dict[str, Any] = {"q": {"type": "choice", "criteria": {"only": None}}}
    decision = await service.decide(body=asked_bytes(questions=questions))

    assert ("only", 0) == (decision.answers["q"].choice, decision.reads)  # type: ignore[union-attr]  # a choice
    assert "queue" not in service.record.stages


async def test_the_record_tells_the_time_of_each_stage() -> None:
    """Those that a request went through."""
    service = Service()
    await service.decide()
    service.record.leave()

    assert {"plan", "queue", "engine", "combine"} == set(service.record.stages)
