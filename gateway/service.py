"""The story: one request, from validated to decided."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from decisions.errors import DeadlineExceeded, MalformedReadout
from decisions.plan import Plan, Planner
from decisions.protocol import Decision, DecisionRequest
from decisions.reads import Read, Readout, Ticket, check_readout

from .engines import Engine
from .inflight import Answer, InFlightQueue, Sent, Work
from .inflight.joined import Flights
from .metrics import RequestRecord
from .middleware import HEAVY_BODY


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request may take, in seconds: waiting in the queue, and in all."""

    queue: float
    total: float


class DecisionService:
    """Decides requests on one engine, behind one queue; identical ones in flight are decided once."""

    def __init__(
        self, engine: Engine, planner: Planner, queue: InFlightQueue, patience: Patience, flights: Flights
    ) -> None:
        self.engine = engine
        self.planner = planner
        self.queue = queue
        self.patience = patience
        self.flights = flights

    async def decide(self, request: DecisionRequest, sent: Sent, record: RequestRecord) -> Decision:
        """Plan, queue, read round by round, and combine; `record` is told how long each stage took.

        `sent` is the request as it came. Its `wait` is how many seconds the caller is willing to wait, where that is
        shorter than our own patience. Cancelling the call leaves the queue, or aborts the reads in the engine, unless
        somebody else has asked the same. Raises any `DecisionError`.
        """
        record.enter("plan")
        if record.spend is not None:  # before it may join others, of whom each pays for its own
            plan = await self._plan(request, record)
            await record.spend(plan.cost.tokens)
        answer = await self.flights.join(sent, partial(self._decide, request, sent, record))
        if answer.joined or answer.seconds:
            record.answered(answer.seconds, joined=answer.joined)
        return answer.decision

    async def decide_sent(self, request: DecisionRequest, ticket: Ticket, record: RequestRecord) -> Answer:
        """Decide a request that another replica has sent; its place is held already."""
        record.enter("plan")
        plan = await self._plan(request, record)
        decision = await self._read_all(plan, record, ticket)
        record.leave()
        return Answer(decision, dict(record.stages))

    async def _decide(self, request: DecisionRequest, sent: Sent, record: RequestRecord) -> Answer:
        wait, patience = sent.wait, self.patience
        if wait is not None:
            patience = Patience(min(wait, patience.queue), min(wait, patience.total))
        try:
            async with asyncio.timeout(patience.total):
                plan = await self._plan(request, record)
                if not plan.next_reads():
                    return Answer(plan.decision())
                record.enter("queue")
                compute = partial(self._read_all, plan, record)
                return await self.queue.run(Work(sent, plan.cost, compute, record.key, patience.queue))
        except TimeoutError:
            raise DeadlineExceeded(f"No answer within {patience.total:g} seconds.") from None

    async def _plan(self, request: DecisionRequest, record: RequestRecord) -> Plan:
        if max(record.body_bytes, record.rendered) > HEAVY_BODY:
            return await asyncio.to_thread(self.planner.plan, request)
        return self.planner.plan(request)

    async def _read_all(self, plan: Plan, record: RequestRecord, ticket: Ticket) -> Decision:
        if plan.thought is not None:
            record.enter("engine")
            thought = await self.engine.think(plan.thought, ticket)
            record.enter("plan")
            plan.receive_thought(thought)
        while reads := plan.next_reads():
            record.enter("engine")
            readouts = await self._read(reads, ticket)
            record.enter("plan")
            plan.receive(readouts)
        record.enter("combine")
        return plan.decision()

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
