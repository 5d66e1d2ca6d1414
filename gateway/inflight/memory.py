"""The in-flight queue of one process.

A decision is admitted with all its reads at once and holds them until it leaves. Who finds room while nobody waits
goes in at once; everybody else waits in one of two lanes, where keys take turns, or is told at once how long the queue
needs.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from decisions.errors import QueueUnavailable
from decisions.reads import Cost, Ticket

from .contract import Answer, QueueBounds, QueueSnapshot, Work
from .room import Room


class MemoryQueue:
    """The queue of one process and one event loop."""

    stuck = False

    def __init__(self, bounds: QueueBounds, name: str = "local") -> None:
        """`name` leads the ids of tickets, to tell the queues of several processes apart."""
        self.bounds = bounds
        self.room = Room(bounds, name)

    async def run(self, work: Work) -> Answer:
        """Make the decision once there is room for it; see `InFlightQueue.run`."""
        async with Admission(self.room, work.cost, work.key, work.timeout) as ticket:
            return Answer(await work.compute(ticket))

    def admit(self, cost: Cost, *, key: str, timeout: float | None = None) -> Admission:
        """Hold room for `cost` while the `async with` runs; it is given back however the block ends."""
        return Admission(self.room, cost, key, timeout)

    async def open(self) -> None:
        """Nothing to begin."""

    def retire(self) -> None:
        """Nothing is taken off others."""

    async def drain(self, timeout: float) -> bool:
        """Admit nobody new and wait until all have left, or `timeout` seconds."""
        self.room.close()
        try:
            async with asyncio.timeout(timeout):
                await self.room.empty.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Nothing to end."""

    def snapshot(self) -> QueueSnapshot:
        """The queue as it is now."""
        return self.room.snapshot()

    def fault(self) -> str:
        """Memory is always there."""
        return ""


class Admission:
    """One use of `MemoryQueue.admit`. A class, because a generator's context manager costs more than all the rest."""

    __slots__ = ("cost", "key", "room", "started", "timeout", "weight")

    def __init__(self, room: Room, cost: Cost, key: str, timeout: float | None) -> None:
        self.room = room
        self.cost = cost
        self.key = key
        self.timeout = timeout
        self.weight = room.weight(cost)
        self.started = 0.0

    async def __aenter__(self) -> Ticket:
        room = self.room
        if room.closed:
            raise QueueUnavailable("The gateway is stopping and takes no new requests.")
        now = asyncio.get_running_loop().time()
        if room.is_free_for(self.weight):
            room.take(self.weight)
            self.started = now
        else:
            await self._wait()
            self.started = asyncio.get_running_loop().time()
        return room.ticket(self.cost, now + room.patience(self.timeout))

    async def _wait(self) -> None:
        entry = self.room.line_up(self.cost, self.key, self.timeout)
        inside = False
        try:
            await entry.admitted
            inside = True
        finally:
            # Cancellation may come after room was given and before this task ran again: then it is given back.
            if not inside:
                self.room.abandon(entry)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # No await in here, so no cancellation can come between.
        if kind is None:  # a decision that failed or was cancelled tells nothing about how long one takes
            held = asyncio.get_running_loop().time() - self.started
            self.room.pace.learn(max(1, self.cost.reads), held * self.weight)
        self.room.give_back(self.weight)
