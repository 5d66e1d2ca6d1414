"""Several replicas in one process on one Redis, and what the tests ask of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import httpx

from decisions.reads import Read, Readout, Ticket
from gateway.inflight.shared import SharedQueue
from tests.conftest import AppClient
from tests.gateway.asking import PATH, asked


class Replica(AppClient):
    """An app on the shared queue. `begun` and `ended` count the engine's reads by their prompts."""

    def __init__(self, **settings: str) -> None:
        super().__init__(**{"MAX_INFLIGHT": "1", "STUB_DELAY_MS": "60", "REDIS_LEASE": "1", **settings})
        self.begun: Counter[tuple[int, ...]] = Counter()
        self.ended: Counter[tuple[int, ...]] = Counter()

    @property
    def queue(self) -> SharedQueue:
        queue: SharedQueue = self.gateway.serving.queue
        return queue

    @property
    def working(self) -> int:
        working: int = self.gateway.serving.engine.working
        return working

    def count_reads(self) -> None:
        engine = self.gateway.serving.engine
        read_on = engine.read

        async def read(reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
            self.begun.update(each.prompt for each in reads)
            readouts: Sequence[Readout] = await read_on(reads, ticket)
            self.ended.update(each.prompt for each in reads)
            return readouts

        engine.read = read

    async def ask(self, state: object = "I was charged twice.", **fields: Any) -> httpx.Response:
        return await self.post(PATH, json=asked(state, **fields))


async def until(condition: Callable[[], object], seconds: float = 15) -> None:
    """Wait in real time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it looks at plain numbers, which tell nobody of their change
            await asyncio.sleep(0.002)


def idle(replica: Replica) -> bool:
    """Whether nothing is worked on and nothing waits, as far as this replica knows."""
    seen = replica.queue.snapshot()
    waits = seen.waiting_small + seen.waiting_large
    return not (seen.decisions or seen.reads or waits or replica.working or replica.queue.worker.running)


def acquainted(clients: Sequence[Replica], count: int) -> bool:
    """Whether each of them knows of so many replicas."""
    return all(len(client.queue.cluster.replicas) == count for client in clients)


@asynccontextmanager
async def replicas(url: str, count: int = 2, *, there: bool = True, **settings: str) -> AsyncIterator[list[Replica]]:
    """So many replicas that know one another, where Redis is `there`; afterwards each is idle."""
    given = {"REDIS_URL": url, "REDIS_PREFIX": f"{uuid4().hex}:", **settings}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Replica(**given)) for _ in range(count)]
        for client in clients:
            client.count_reads()
        if there:
            await until(lambda: acquainted(clients, count))
        yield clients
        for client in clients:
            await until(partial(idle, client))


async def answers_alone(states: Sequence[object]) -> dict[object, Any]:
    """What a gateway without any others answers, by state."""
    async with AppClient() as client:
        return {str(state): (await client.post(PATH, json=asked(state))).json() for state in states}
