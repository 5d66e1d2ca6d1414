"""The story: one request, from validated to decided."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from decisions.errors import DeadlineExceeded, MalformedReadout
from decisions.plan import Plan, Planner
from decisions.protocol import Decision, DecisionRequest
from decisions.reads import Read, Readout, Ticket, check_readout

from .engines import Engine
from .inflight import InFlightQueue
from .metrics import RequestRecord
from .middleware import HEAVY_BODY


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request may take, in seconds: waiting in the queue, and in all."""

    queue: float
    total: float


class DecisionService:
    """Decides requests on one engine, behind one queue."""

    def __init__(self, engine: Engine, planner: Planner, queue: InFlightQueue, patience: Patience) -> None:
        self.engine = engine
        self.planner = planner
        self.queue = queue
        self.patience = patience

    async def decide(self, request: DecisionRequest, record: RequestRecord, wait: float | None = None) -> Decision:
        """Plan, queue, read round by round, and combine; `record` is told how long each stage took.

        `wait` is how many seconds the caller is willing to wait, where that is shorter than our own patience.
        Cancelling the call leaves the queue, or aborts the reads in the engine. Raises any `DecisionError`.
        """
        patience = (
            self.patience if wait is None else Patience(min(wait, self.patience.queue), min(wait, self.patience.total))
        )
        try:
            async with asyncio.timeout(patience.total):
                return await self._decide(request, record, patience)
        except TimeoutError:
            raise DeadlineExceeded(f"No answer within {patience.total:g} seconds.") from None

    async def _decide(self, request: DecisionRequest, record: RequestRecord, patience: Patience) -> Decision:
        record.enter("plan")
        plan = await self._plan(request, max(record.body_bytes, record.rendered))
        if record.spend is not None:
            await record.spend(plan.cost.tokens)
        if plan.next_reads():
            record.enter("queue")
            async with self.queue.admit(plan.cost, key=record.key, timeout=patience.queue) as ticket:
                await self._read_all(plan, ticket, record)
        record.enter("combine")
        return plan.decision()

    async def _plan(self, request: DecisionRequest, size: int) -> Plan:
        if size > HEAVY_BODY:
            return await asyncio.to_thread(self.planner.plan, request)
        return self.planner.plan(request)

    async def _read_all(self, plan: Plan, ticket: Ticket, record: RequestRecord) -> None:
        while reads := plan.next_reads():
            record.enter("engine")
            readouts = await self._read(reads, ticket)
            record.enter("plan")
            plan.receive(readouts)

    async def _read(self, reads: Sequence[Read], ticket: Ticket) -> list[Readout]:
        """One round, checked. A bad readout is read once more, alone, before the request is given up."""
        try:
            readouts = list(await self.engine.read(reads, ticket))
        except MalformedReadout:
            return [await self._read_again(read, ticket) for read in reads]
        if len(readouts) != len(reads):
            raise MalformedReadout(f"The engine answered {len(readouts)} of {len(reads)} reads.")
        for index, read in enumerate(reads):
            try:
                check_readout(read, readouts[index])
            except MalformedReadout:
                readouts[index] = await self._read_again(read, ticket)
        return readouts

    async def _read_again(self, read: Read, ticket: Ticket) -> Readout:
        readouts = await self.engine.read([read], ticket)
        if len(readouts) != 1:
            raise MalformedReadout("The engine did not answer a read that was sent again.")
        check_readout(read, readouts[0])
        return readouts[0]
