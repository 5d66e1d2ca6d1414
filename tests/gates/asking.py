"""Asks an engine without HTTP: body in, body out, through the wire, the planner and the service's checks."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from decisions.isolation import IsolationBounds
from decisions.plan import Planner
from decisions.protocol import ReadSettings
from decisions.reads import EngineLimits, Read, Readout, Thought, Ticket
from gateway.config import MIB
from gateway.engines import Engine, EngineHealth
from gateway.engines.stub import SPREAD, TURN_CLOSE, StubEngine, StubFaults
from gateway.inflight import MemoryQueue, QueueBounds, Sent
from gateway.inflight.joined import Flights
from gateway.metrics import RequestRecord
from gateway.service import DecisionService, Patience
from gateway.wire import ServedNames, ShapeLimits, Wire

CASES = Path(__file__).parent.parent / "cases"
CONTEXT = MIB
CANVAS = EngineLimits(CONTEXT, canvas=128, slots=128, reads=64)
AUTOREGRESSIVE = EngineLimits(CONTEXT, reads=64)
MANY = IsolationBounds(auto_max=64, max_questions=64)
"""So that every mode isolates in requests of up to 64 questions."""
WIRE = Wire(ShapeLimits(options=5000), ReadSettings(), ServedNames("stub"))

Body = dict[str, Any]
Spoil = Callable[[Sequence[Readout]], Sequence[Readout]]


class Watched:
    """An engine that remembers every read it was given; `alter` changes reads, `spoil` what comes back."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kind, self.model, self.limits = engine.kind, engine.model, engine.limits
        self.form, self.tokenizer = engine.form, engine.tokenizer
        self.seen: list[Read] = []
        self.rounds = 0
        self.alter: Callable[[Read], Read] = lambda read: read
        self.spoil: Spoil = lambda readouts: readouts

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        self.seen += reads
        self.rounds += 1
        return self.spoil(await self.engine.read([self.alter(read) for read in reads], ticket))

    async def think(self, thought: Thought, ticket: Ticket) -> tuple[int, ...]:
        return await self.engine.think(thought, ticket)

    async def health(self) -> EngineHealth:
        return await self.engine.health()

    async def close(self) -> None:
        await self.engine.close()


class Desk:
    """An engine with everything between it and the wire."""

    def __init__(self, engine: Engine, bounds: IsolationBounds | None = None) -> None:
        self.engine = Watched(engine)
        planner = Planner(engine.tokenizer, engine.limits, engine.form, bounds)
        queue = MemoryQueue(QueueBounds(engine.limits.reads, waiting=1000))
        self.service = DecisionService(self.engine, planner, queue, Patience(600, 600), Flights())

    async def answer(self, request: Body) -> bytes:
        """The response's bytes."""
        sent = Sent("systemone", json.dumps({"model": "jev-latest", **request}).encode())
        asked = WIRE.parse_systemone(sent.body)
        record = RequestRecord("req", "POST", "/v1/systemone")
        return WIRE.systemone_body(asked, await self.service.decide(asked, sent, record))

    def bytes_of(self, request: Body) -> bytes:
        """The response's bytes, on an event loop of its own."""
        return asyncio.run(self.answer(request))

    def ask(self, request: Body) -> Body:
        """The response, on an event loop of its own."""
        response: Body = json.loads(self.bytes_of(request))
        return response

    def prompts(self) -> list[str]:
        """What the engine was given to read, as text."""
        return [self.engine.tokenizer.decode(read.prompt) for read in self.engine.seen]


def stub(limits: EngineLimits = CANVAS, bounds: IsolationBounds | None = None, **faults: Any) -> Desk:
    """A desk at the stub engine."""
    return Desk(StubEngine(limits, faults=StubFaults(**faults)), bounds)


def cases(pattern: str = "*") -> list[Body]:
    """All rows of the case files whose names match."""
    files = sorted(CASES.glob(f"{pattern}.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").split("\n") if line]


def full_read(desk: Desk, question: Body) -> dict[str, float]:
    """The shares that the stub would give all options of a choice at once, by its documented formula.

    The state is taken from the last read that the desk's engine saw; nothing of brackets or labels enters.
    """
    read = desk.engine.seen[-1]
    close = len(read.prompt) - 1 - read.prompt[::-1].index(TURN_CLOSE)
    state = hash(read.prompt[: read.prefix] + read.prompt[close:]).to_bytes(8, "big", signed=True)
    weights = {}
    for name, description in question["criteria"].items():
        text = f"{question['instructions']}\n{name}" + (f" ({description})" if description else "")
        digest = blake2b(state + text.encode(), digest_size=8).digest()
        weights[name] = math.exp(SPREAD * (int.from_bytes(digest, "big") / 2**63 - 1))
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}
