"""The in-flight queue: who is worked on now, who waits and who is refused; one contract, and its in-memory form.

Capacity is counted in reads, because reads are what an engine works on. A decision is admitted with all its reads at
once and holds them until it leaves. Who finds room while nobody waits goes in at once; everybody else waits in one of
two lanes, where keys take turns, or is told at once how long the queue needs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from decisions.errors import DeadlineExceeded, Overloaded, QueueUnavailable
from decisions.reads import Cost, Ticket

SMALL_PASSES = 4
"""Small decisions that may pass a large one that waits; then the large one is next, and room is kept for it."""
SMALL_SHARE = 8
SMALL_READS = 4
"""A decision is small up to SMALL_READS reads, or up to 1/SMALL_SHARE of the capacity where that is more."""

RETRY_LEAST = 0.05
RETRY_MOST = 60.0
RETRY_UNKNOWN = 1.0
"""Seconds: bounds of what a refused caller is told to wait, and what it is told before any decision was timed."""

MEMORY = 0.9
"""What one more decision leaves of the weight of all before it, in the estimate of how long reads are held."""


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
    """The queue of one process and one event loop. Everything but waiting itself is synchronous, so nothing races."""

    def __init__(self, bounds: QueueBounds, name: str = "local") -> None:
        """`name` leads the ids of tickets, to tell the queues of several processes apart."""
        self.bounds = bounds
        self.name = name
        self._most_decisions = bounds.decisions or bounds.reads
        self._small_limit = max(SMALL_READS, bounds.reads // SMALL_SHARE)
        self._small = _Lane()
        self._large = _Lane()
        self._passed = 0
        self._decisions = 0
        self._reads = 0
        self._admitted = 0
        self._pace = _Pace()
        self._draining = False
        self._empty = asyncio.Event()

    def admit(self, cost: Cost, *, key: str, timeout: float | None = None) -> _Admission:
        """Hold room for `cost` while the `async with` runs; see `InFlightQueue.admit`."""
        return _Admission(self, cost, key, timeout)

    async def drain(self, timeout: float) -> bool:
        """Admit nobody new and wait until all have left, or `timeout` seconds."""
        self._draining = True
        self._tell_empty()
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

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
            expected_wait=0.0 if self._has_room(1) else self._expected_wait(1, self._small, ""),
            draining=self._draining,
        )

    # --- Entering and leaving -------------------------------------------------------------------------------------

    def _has_room(self, weight: int) -> bool:
        """Whether a decision can start at once: it fits, and it passes nobody."""
        return not self._small.count and not self._large.count and self._fits(weight)

    def _fits(self, weight: int) -> bool:
        return self._decisions < self._most_decisions and self._reads + weight <= self.bounds.reads

    def _take(self, weight: int) -> None:
        self._decisions += 1
        self._reads += weight

    def _give_back(self, weight: int) -> None:
        self._decisions -= 1
        self._reads -= weight
        if self._draining or self._small.count or self._large.count:
            self._start_waiting()

    def _line_up(self, cost: Cost, key: str, timeout: float | None) -> _Entry:
        """A place in a lane. Raises where waiting makes no sense."""
        if self._small.count + self._large.count >= self.bounds.waiting:
            raise Overloaded(f"The queue is full: {self.bounds.waiting} decisions wait.", self._drain_time())
        lane = self._small if cost.reads <= self._small_limit else self._large
        weight = self._weight(cost)
        patience = self.bounds.patience if timeout is None else min(timeout, self.bounds.patience)
        expected = self._expected_wait(weight, lane, key)
        if expected > patience:
            message = f"The wait would be about {expected:.1f} seconds, longer than the {patience:g} allowed."
            raise Overloaded(message, self._drain_time())
        loop = asyncio.get_running_loop()
        entry = _Entry(key, weight, lane, loop.time(), loop.create_future())
        own = timeout is not None and timeout < self.bounds.patience
        entry.timer = loop.call_at(entry.arrived + patience, self._expire, entry, own)
        lane.append(entry)
        self._start_waiting()  # a small entry may fit where the large one that waits does not
        return entry

    def _expire(self, entry: _Entry, own: bool) -> None:
        """The entry's time is up: its own deadline has passed, or we kept it longer than we promise to."""
        if entry.admitted.done():
            return
        waited = asyncio.get_running_loop().time() - entry.arrived
        message = f"No room came free within {waited:.2f} seconds."
        retry = self._drain_time()
        entry.admitted.set_exception(DeadlineExceeded(message, retry) if own else Overloaded(message, retry))
        self._leave_lane(entry)

    def _abandon(self, entry: _Entry) -> None:
        """The entry's caller does not go in: it was cancelled, or it was refused while it waited."""
        entry.timer.cancel()
        if entry.holds:
            entry.holds = False
            self._give_back(entry.weight)
        else:
            self._leave_lane(entry)

    def _leave_lane(self, entry: _Entry) -> None:
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
            self._take(entry.weight)
            entry.holds = True
            entry.timer.cancel()
            entry.admitted.set_result(None)
        self._tell_empty()

    def _next_lane(self) -> _Lane | None:
        if not self._large.count:
            return self._small if self._small.count else None
        if not self._small.count or self._passed >= SMALL_PASSES:
            return self._large
        return self._small

    def _tell_empty(self) -> None:
        if self._draining and not (self._decisions or self._small.count or self._large.count):
            self._empty.set()

    def _weight(self, cost: Cost) -> int:
        """Reads that a decision holds: what is more than the engine takes at once runs alone, in turns."""
        return max(1, min(cost.reads, self.bounds.reads))

    def _ticket(self, cost: Cost, deadline: float) -> Ticket:
        self._admitted += 1
        return Ticket(f"{self.name}-{self._admitted}", cost, deadline)

    # --- How long it takes ----------------------------------------------------------------------------------------

    def _expected_wait(self, weight: int, lane: _Lane, key: str) -> float:
        """Seconds until a new entry of `lane` would start, as far as the decisions timed so far can tell."""
        ahead = lane.ahead_of(key)
        if lane is self._small:
            passing = min(self._large.count, ahead // SMALL_PASSES)
            reads = ahead * lane.mean + passing * self._large.mean
        else:
            passing = min(self._small.count, SMALL_PASSES * (ahead + 1))
            reads = ahead * lane.mean + passing * self._small.mean
        return self._pace.seconds * max(
            (reads + weight - (self.bounds.reads - self._reads)) / self.bounds.reads,
            (ahead + passing + 1 - (self._most_decisions - self._decisions)) / self._most_decisions,
            0.0,
        )

    def _drain_time(self) -> float:
        """Seconds until all that is inside or waits now would be done, within what a caller can be told."""
        if not self._pace.known:
            return RETRY_UNKNOWN
        rounds = max(
            (self._reads + self._small.reads + self._large.reads) / self.bounds.reads,
            (self._decisions + self._small.count + self._large.count) / self._most_decisions,
        )
        return min(max(self._pace.seconds * rounds, RETRY_LEAST), RETRY_MOST)


class _Admission:
    """One use of `MemoryQueue.admit`. A class, because a generator's context manager costs more than all the rest."""

    __slots__ = ("cost", "key", "queue", "started", "timeout", "weight")

    def __init__(self, queue: MemoryQueue, cost: Cost, key: str, timeout: float | None) -> None:
        self.queue = queue
        self.cost = cost
        self.key = key
        self.timeout = timeout
        self.weight = queue._weight(cost)
        self.started = 0.0

    async def __aenter__(self) -> Ticket:
        queue = self.queue
        if queue._draining:
            raise QueueUnavailable("The gateway is stopping and takes no new requests.")
        now = asyncio.get_running_loop().time()
        if queue._has_room(self.weight):
            queue._take(self.weight)
            self.started = now
        else:
            await self._wait()
            self.started = asyncio.get_running_loop().time()
        patience = queue.bounds.patience if self.timeout is None else min(self.timeout, queue.bounds.patience)
        return queue._ticket(self.cost, now + patience)

    async def _wait(self) -> None:
        entry = self.queue._line_up(self.cost, self.key, self.timeout)
        inside = False
        try:
            await entry.admitted
            inside = True
        finally:
            # Cancellation may come after room was given and before this task ran again: then it is given back.
            if not inside:
                self.queue._abandon(entry)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # No await in here, so no cancellation can come between.
        if kind is None:  # a decision that failed or was cancelled tells nothing about how long one takes
            self.queue._pace.learn(self.weight, asyncio.get_running_loop().time() - self.started)
        self.queue._give_back(self.weight)


class _Entry:
    """Somebody who waits. `admitted` is done when the waiting is over, one way or the other."""

    __slots__ = ("admitted", "arrived", "holds", "key", "lane", "timer", "weight")

    timer: asyncio.TimerHandle

    def __init__(self, key: str, weight: int, lane: _Lane, arrived: float, admitted: asyncio.Future[None]) -> None:
        self.key = key
        self.weight = weight
        self.lane = lane
        self.arrived = arrived
        self.admitted = admitted
        self.holds = False
        """Whether room is held for it."""


class _Lane:
    """Entries that wait: each key's in order of arrival, and the keys in turn. Every operation takes constant time.

    Ordered dictionaries, not deques, because an entry leaves from any place when its caller does.
    """

    __slots__ = ("count", "lines", "reads")

    def __init__(self) -> None:
        self.lines: OrderedDict[str, OrderedDict[_Entry, None]] = OrderedDict()
        self.count = 0
        self.reads = 0

    @property
    def mean(self) -> float:
        """Reads per waiting entry."""
        return self.reads / self.count if self.count else 0.0

    def append(self, entry: _Entry) -> None:
        """Behind its key's other entries; a key that had none comes last in turn."""
        line = self.lines.get(entry.key)
        if line is None:
            line = self.lines[entry.key] = OrderedDict()
        line[entry] = None
        self.count += 1
        self.reads += entry.weight

    def first(self) -> _Entry:
        """Whose turn it is; only of a lane that is not empty."""
        return next(iter(next(iter(self.lines.values()))))

    def remove(self, entry: _Entry, *, served: bool = False) -> bool:
        """Whether the entry still was here; when it was `served`, its key's next turn comes after all others."""
        line = self.lines.get(entry.key)
        if line is None or entry not in line:
            return False
        del line[entry]
        if not line:
            del self.lines[entry.key]
        elif served:
            self.lines.move_to_end(entry.key)
        self.count -= 1
        self.reads -= entry.weight
        return True

    def ahead_of(self, key: str) -> int:
        """How many entries would go before a new one of `key`, as the keys take turns."""
        line = self.lines.get(key)
        own = len(line) if line else 0
        keys = len(self.lines) + (line is None)
        return min(self.count, (own + 1) * keys - 1)

    def arrivals(self) -> list[float]:
        """When the oldest entry of each key came."""
        return [next(iter(line)).arrived for line in self.lines.values()]


class _Pace:
    """How long a read is held, in seconds: a mean weighted by reads, in which older decisions count less and less."""

    __slots__ = ("_held", "_reads")

    def __init__(self) -> None:
        self._held = 0.0
        self._reads = 0.0

    @property
    def known(self) -> bool:
        """Whether any decision was timed."""
        return self._reads > 0

    @property
    def seconds(self) -> float:
        """The mean; 0 before any decision was timed, which refuses nobody."""
        return self._held / self._reads if self._reads else 0.0

    def learn(self, reads: int, seconds: float) -> None:
        """A decision held `reads` reads for so many seconds."""
        self._held = MEMORY * self._held + reads * seconds
        self._reads = MEMORY * self._reads + reads
