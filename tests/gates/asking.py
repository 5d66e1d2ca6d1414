"""Asks an engine without HTTP: body in, body out, through the wire, the planner and the service's checks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from decisions.plan import Planner
from decisions.protocol import ReadSettings
from decisions.reads import EngineLimits, Read
from gateway.config import MIB
from gateway.engines import Engine
from gateway.engines.stub import StubEngine, StubFaults
from gateway.inflight import MemoryQueue, QueueBounds
from gateway.metrics import RequestRecord
from gateway.service import DecisionService, Patience
from gateway.wire import ServedNames, ShapeLimits, Wire

CASES = Path(__file__).parent.parent / "cases"
CONTEXT = MIB
CANVAS = EngineLimits(CONTEXT, canvas=128, slots=128, reads=64)
AUTOREGRESSIVE = EngineLimits(CONTEXT, reads=64)
WIRE = Wire(ShapeLimits(options=5000), ReadSettings(), ServedNames("stub"))

Body = dict[str, Any]


class Desk:
    """An engine with everything between it and the wire; remembers every prompt that the engine was given."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.reads: list[Read] = []
        self.planner = Planner(engine.tokenizer, engine.limits, engine.form)
        queue = MemoryQueue(QueueBounds(engine.limits.reads, waiting=1000))
        self.service = DecisionService(engine, self.planner, queue, Patience(600, 600))

    async def answer(self, request: Body) -> bytes:
        """The response's bytes."""
        asked = WIRE.parse_systemone(json.dumps({"model": "jev-latest", **request}).encode())
        record = RequestRecord("req", "POST", "/v1/systemone")
        return WIRE.systemone_body(asked, await self.service.decide(asked, record))

    def ask(self, request: Body) -> Body:
        """The response, on an event loop of its own."""
        response: Body = json.loads(asyncio.run(self.answer(request)))
        return response


def stub(limits: EngineLimits = CANVAS, **faults: Any) -> Desk:
    """A desk at the stub engine."""
    return Desk(StubEngine(limits, faults=StubFaults(**faults)))


def cases(pattern: str = "*") -> list[Body]:
    """All rows of the case files whose names match."""
    files = sorted(CASES.glob(f"{pattern}.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").split("\n") if line]
