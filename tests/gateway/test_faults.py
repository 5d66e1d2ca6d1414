"""An engine that falls short, behind the whole app: a right answer or an error, never a guess (G3)."""

from __future__ import annotations

import asyncio

import pytest

from tests.conftest import AppClient
from tests.gateway.asking import PATH, asked

FAULTS = ["STUB_MISSING_SLOT", "STUB_MISSING_LABEL", "STUB_NOT_FINITE"]
STATES = [f"Customer {number} was charged twice." for number in range(12)]


async def answers(**settings: str) -> list[tuple[int, bytes]]:
    """Status and body for each of the states, asked at once."""
    async with AppClient(**settings) as client:
        responses = await asyncio.gather(*(client.post(PATH, json=asked(state)) for state in STATES))
    return [(response.status_code, response.content) for response in responses]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_passes_is_not_noticed(fault: str) -> None:
    """Every readout is broken once, and every body is the one that a sound engine gives, byte for byte."""
    assert await answers() == await answers(**{fault: "1"})


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_lasts_is_an_error(fault: str) -> None:
    """503 for every request that met it; not one number is made up."""
    got = await answers(**{fault: "1", "STUB_LASTING": "1"})

    assert {503} == {status for status, _ in got}
    assert all(b"malformed_readout" in body and b"probabilities" not in body for _, body in got)


async def test_a_fault_of_some_reads_is_the_error_of_their_requests_alone() -> None:
    """The others are answered as by a sound engine."""
    sound = await answers()
    got = await answers(STUB_NOT_FINITE="0.1", STUB_LASTING="1")

    assert {200, 503} == {status for status, _ in got}
    assert all(pair in sound for pair in got if pair[0] == 200)


async def test_faults_of_all_kinds_at_once_change_no_answer() -> None:
    """A third of the readouts in each way, once."""
    mixed = {"STUB_MISSING_SLOT": "0.3", "STUB_MISSING_LABEL": "0.3", "STUB_NOT_FINITE": "0.3"}

    assert await answers() == await answers(**mixed)


async def test_an_error_says_when_to_come_again() -> None:
    """503 with both headers, and the error's code in the metrics."""
    async with AppClient(STUB_MISSING_SLOT="1", STUB_LASTING="1") as client:
        response = await client.post(PATH, json=asked())
        metrics = (await client.get("/metrics")).text

    assert (503, "1", "1000") == (
        response.status_code,
        response.headers["retry-after"],
        response.headers["retry-after-ms"],
    )
    assert 'canvasgate_errors_total{code="malformed_readout"} 1.0' in metrics
    assert "canvasgate_inflight_reads 0.0" in metrics
