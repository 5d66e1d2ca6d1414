"""The in-flight queue: who is worked on now, who waits and who is refused; one contract, and its in-memory form.

Capacity is counted in reads, because reads are what an engine works on. A decision is admitted with all its reads at
once and holds them until it leaves. Who finds room while nobody waits goes in at once; everybody else waits in one of
two lanes, where keys take turns, or is told at once how long the queue needs.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from decisions.errors import AdmissionError, DeadlineExceeded, Overloaded, QueueUnavailable
from decisions.reads import Cost, Ticket

from .lanes import Entry, Lane, Pace

SMALL_PASSES = 4
"""Small decisions that may pass a large one that waits; then the large one is next, and room is kept for it."""
SMALL_SHARE = 8
SMALL_READS = 4
"""A decision is small up to SMALL_READS reads, or up to 1/SMALL_SHARE of the capacity where that is more."""

RETRY_LEAST = 0.05
RETRY_MOST = 60.0
RETRY_UNKNOWN = 1.0
"""Seconds: bounds of what a refused caller is told to wait, and what it is told before any decision was timed."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much is worked on and how much waits.

    `reads`: capacity. `decisions`: most decisions at once, or None where reads alone bound them. `waiting`: most
    entries that wait. `patience`: seconds that an entry waits at most.
    """

    reads: int
    decisions: int | None = None
    waiting: int = 256
    patience: float = 8.0


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue at one moment. Ages and waits are in seconds.

    `oldest` is how long the longest-waiting entry has waited; `expected_wait` is what a decision of one read would
    wait if it came now.
    """

    decisions: int
    reads: int
    waiting_small: int
    waiting_large: int
    oldest: float
    expected_wait: float
    draining: bool


class InFlightQueue(Protocol):
    """Admission to the engine. Every implementation passes the same tests, in `tests/gateway/test_inflight.py`."""

    def admit(self, cost: Cost, *, key: str, timeout: float | None = None) -> AbstractAsyncContextManager[Ticket]:
        """Hold room for `cost` while the `async with` runs; it is given back however the block ends.

        `key` names who asks, for fairness. `timeout` is how many seconds the caller waits at most, where that is less
        than the queue's patience; whichever is less also sets the ticket's deadline. Raises `Overloaded` when the
        queue is full, when the wait would be too long or when it took all of the queue's patience; `DeadlineExceeded`
        when the caller's own, shorter timeout passed; `QueueUnavailable` when the queue drains.
        """

    async def drain(self, timeout: float) -> bool:
        """Admit nobody new, let those inside and those waiting finish; whether they did within `timeout` seconds."""

    def snapshot(self) -> QueueSnapshot:
        """The queue as it is now; cheap."""


class MemoryQueue:
    """The queue of one process and one event loop."""

    def __init__(self, bounds: QueueBounds, name: str = "local") -> None:
        """`name` leads the ids of tickets, to tell the queues of several processes apart."""
        self.bounds = bounds
        self._room = _Room(bounds, name)

    def admit(self, cost: Cost, *, key: str, timeout: float | None = None) -> _Admission:
        """Hold room for `cost` while the `async with` runs; see `InFlightQueue.admit`."""
        return _Admission(self._room, cost, key, timeout)

    async def drain(self, timeout: float) -> bool:
        """Admit nobody new and wait until all have left, or `timeout` seconds."""
        self._room.close()
        try:
            async with asyncio.timeout(timeout):
                await self._room.empty.wait()
        except TimeoutError:
            return False
        return True

    def snapshot(self) -> QueueSnapshot:
        """The queue as it is now."""
        return self._room.snapshot()


class _Admission:
    """One use of `MemoryQueue.admit`. A class, because a generator's context manager costs more than all the rest."""

    __slots__ = ("cost", "key", "room", "started", "timeout", "weight")

    def __init__(self, room: _Room, cost: Cost, key: str, timeout: float | None) -> None:
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


class _Room:
    """Who is inside and who waits. Everything here is synchronous, so nothing can come between."""

    def __init__(self, bounds: QueueBounds, name: str) -> None:
        self.pace = Pace()
        self.closed = False
        self.empty = asyncio.Event()
        """Set when the room is closed and the last one has left it."""
        self._bounds = bounds
        self._most_decisions = bounds.decisions or bounds.reads
        self._small_limit = max(SMALL_READS, bounds.reads // SMALL_SHARE)
        self._small = Lane()
        self._large = Lane()
        self._passed = 0
        self._decisions = 0
        self._reads = 0
        self._name = name
        self._admitted = 0

    def weight(self, cost: Cost) -> int:
        """Reads that a decision holds: what is more than the engine takes at once runs alone, in turns."""
        return max(1, min(cost.reads, self._bounds.reads))

    def patience(self, timeout: float | None) -> float:
        """Seconds that a decision may wait."""
        return self._bounds.patience if timeout is None else min(timeout, self._bounds.patience)

    def ticket(self, cost: Cost, deadline: float) -> Ticket:
        """Proof that room was taken."""
        self._admitted += 1
        return Ticket(f"{self._name}-{self._admitted}", cost, deadline)

    def close(self) -> None:
        """Take nobody new."""
        self.closed = True
        self._tell_empty()

    def snapshot(self) -> QueueSnapshot:
        """The queue as it is now."""
        now = asyncio.get_running_loop().time()
        arrivals = [*self._small.arrivals(), *self._large.arrivals()]
        return QueueSnapshot(
            decisions=self._decisions,
            reads=self._reads,
            waiting_small=self._small.count,
            waiting_large=self._large.count,
            oldest=now - min(arrivals) if arrivals else 0.0,
            expected_wait=0.0 if self.is_free_for(1) else self._expected_wait(1, self._small, ""),
            draining=self.closed,
        )

    # --- Entering and leaving -------------------------------------------------------------------------------------

    def is_free_for(self, weight: int) -> bool:
        """Whether a decision can start at once: it fits, and it passes nobody."""
        return not self._small.count and not self._large.count and self._fits(weight)

    def _fits(self, weight: int) -> bool:
        return self._decisions < self._most_decisions and self._reads + weight <= self._bounds.reads

    def take(self, weight: int) -> None:
        """Go in; only where there is room."""
        self._decisions += 1
        self._reads += weight

    def give_back(self, weight: int) -> None:
        """Go out, and let in whoever was waiting for it."""
        self._decisions -= 1
        self._reads -= weight
        if self.closed or self._small.count or self._large.count:
            self._start_waiting()

    def line_up(self, cost: Cost, key: str, timeout: float | None) -> Entry:
        """A place in a lane. Raises where waiting makes no sense."""
        if self._small.count + self._large.count >= self._bounds.waiting:
            raise Overloaded(f"The queue is full: {self._bounds.waiting} decisions wait.", self._drain_time())
        lane = self._small if cost.reads <= self._small_limit else self._large
        weight = self.weight(cost)
        patience = self.patience(timeout)
        expected = self._expected_wait(weight, lane, key)
        if expected > patience:
            message = f"The wait would be about {expected:.1f} seconds, longer than the {patience:g} allowed."
            raise Overloaded(message, self._drain_time())
        loop = asyncio.get_running_loop()
        entry = Entry(key, lane, loop.time(), loop.create_future())
        entry.weight, entry.reads = weight, cost.reads
        # Whoever set the deadline that passes: the caller, who is then told so, or we, who promised less waiting.
        refusal = DeadlineExceeded if patience < self._bounds.patience else Overloaded
        entry.timer = loop.call_at(entry.arrived + patience, self._expire, entry, refusal)
        lane.append(entry)
        self._start_waiting()  # a small entry may fit where the large one that waits does not
        return entry

    def _expire(self, entry: Entry, refusal: type[AdmissionError]) -> None:
        """The entry's time is up."""
        if entry.admitted.done():
            return
        waited = asyncio.get_running_loop().time() - entry.arrived
        message = f"No room came free within {waited:.2f} seconds."
        entry.admitted.set_exception(refusal(message, self._drain_time()))
        self._leave_lane(entry)

    def abandon(self, entry: Entry) -> None:
        """The entry's caller does not go in: it was cancelled, or it was refused while it waited."""
        entry.timer.cancel()
        if entry.holds:
            entry.holds = False
            self.give_back(entry.weight)
        else:
            self._leave_lane(entry)

    def _leave_lane(self, entry: Entry) -> None:
        if entry.lane.remove(entry):
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Let in, in order, everybody that there is room for; whoever is next and does not fit is waited for."""
        while (lane := self._next_lane()) is not None:
            entry = lane.first()
            if entry.admitted.done():  # its caller has gone and has not been run yet
                lane.remove(entry)
                continue
            if not self._fits(entry.weight):
                return
            lane.remove(entry, served=True)
            self._passed = self._passed + 1 if lane is self._small and self._large.count else 0
            self.take(entry.weight)
            entry.holds = True
            entry.timer.cancel()
            entry.admitted.set_result(None)
        self._tell_empty()

    def _next_lane(self) -> Lane | None:
        if not self._large.count:
            return self._small if self._small.count else None
        if not self._small.count or self._passed >= SMALL_PASSES:
            return self._large
        return self._small

    def _tell_empty(self) -> None:
        if self.closed and not (self._decisions or self._small.count or self._large.count):
            self.empty.set()

    # --- How long it takes ----------------------------------------------------------------------------------------

    def _expected_wait(self, weight: int, lane: Lane, key: str) -> float:
        """Seconds until a new entry of `lane` would start, as far as the decisions timed so far can tell."""
        ahead = lane.ahead_of(key)
        if lane is self._small:
            passing = min(self._large.count, ahead // SMALL_PASSES)
            reads = ahead * lane.mean + passing * self._large.mean
        else:
            passing = min(self._small.count, SMALL_PASSES * (ahead + 1))
            reads = ahead * lane.mean + passing * self._small.mean
        return self.pace.seconds * max(
            (reads + weight - (self._bounds.reads - self._reads)) / self._bounds.reads,
            (ahead + passing + 1 - (self._most_decisions - self._decisions)) / self._most_decisions,
            0.0,
        )

    def _drain_time(self) -> float:
        """Seconds until all that is inside or waits now would be done, within what a caller can be told."""
        if not self.pace.known:
            return RETRY_UNKNOWN
        rounds = max(
            (self._reads + self._small.reads + self._large.reads) / self._bounds.reads,
            (self._decisions + self._small.count + self._large.count) / self._most_decisions,
        )
        return min(max(self.pace.seconds * rounds, RETRY_LEAST), RETRY_MOST)
