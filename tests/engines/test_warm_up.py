"""The bursts before the first request: reads that any engine takes, as many at once as it works on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from decisions.reads import EngineLimits, Read, Readout, Ticket
from gateway.engines.stub import StubEngine
from gateway.engines.warm_up import BURSTS, MOST, warm_up

LIMITS = {
    "canvas": EngineLimits(4096, 128, slots=128, reads=64),
    "narrow": EngineLimits(300, 32, label_ids=20, slots=8, reads=3),
    "next token": EngineLimits(2048, reads=500),
}


class Recorder(StubEngine):
    """Keeps what it is given to read and answers nothing."""

    def __init__(self, limits: EngineLimits) -> None:
        super().__init__(limits)
        self.bursts: list[Sequence[Read]] = []

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        self.bursts.append(reads)
        return [Readout(())] * len(reads)


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
async def test_every_burst_fills_the_engine_and_fits_it(limits: EngineLimits) -> None:
    engine, told = Recorder(limits), list[str]()

    await warm_up(engine, told.append)

    assert len(BURSTS) == len(engine.bursts) == len(told)
    assert {min(MOST, limits.reads)} == {len(burst) for burst in engine.bursts}
    reads = [read for burst in engine.bursts for read in burst]
    assert len(reads) == len({read.prompt[:12] for read in reads})
    for read in reads:
        assert read.tokens < limits.context
        assert len(read.canvas) <= limits.canvas
        assert 1 <= len(read.slots) <= limits.slots
        assert 2 <= len(read.label_ids) <= limits.label_ids
