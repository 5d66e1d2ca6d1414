"""The room of one process: who is inside and who waits. Capacity is counted in reads, for reads are what engines do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from decisions.errors import AdmissionError, DeadlineExceeded, Overloaded
from decisions.reads import Cost, Ticket

from .contract import RETRY_LEAST, RETRY_MOST, RETRY_UNKNOWN, QueueBounds, QueueSnapshot
from .lanes import SMALL_PASSES, Entry, Lane, Pace, small_limit


class Room:
    """Who is inside and who waits. Everything here is synchronous, so nothing can come between."""

    def __init__(self, bounds: QueueBounds, name: str) -> None:
        self.pace = Pace()
        self.closed = False
        self.empty = asyncio.Event()
        """Set when the room is closed and the last one has left it."""
        self.held = False
        """While true nobody goes in: what is free is being offered to others."""
        self.elsewhere = 0
        """Entries that wait in other processes and count towards the same bound."""
        self.freed: Callable[[], None] = lambda: None
        """Called when somebody has left."""
        self.most_decisions = bounds.decisions or bounds.reads
        self._bounds = bounds
        self._small_limit = small_limit(bounds.reads)
        self._small = Lane()
        self._large = Lane()
        self._passed = 0
        self._decisions = 0
        self._reads = 0
        self._name = name
        self._admitted = 0

    @property
    def capacity(self) -> int:
        """Reads that there is room for in all."""
        return self._bounds.reads

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
        return self._decisions < self.most_decisions and self._reads + weight <= self._bounds.reads and not self.held

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
        self.freed()

    @property
    def waiting(self) -> int:
        """Entries that wait here."""
        return self._small.count + self._large.count

    @property
    def full(self) -> bool:
        """Whether nobody fits in, and nobody waits here for who will leave next."""
        return not self.waiting and (self._reads >= self._bounds.reads or self._decisions >= self.most_decisions)

    @property
    def free(self) -> tuple[int, int]:
        """Reads and decisions for which there is room that nobody here waits for."""
        if self._small.count or self._large.count:
            return 0, 0
        return self._bounds.reads - self._reads, self.most_decisions - self._decisions

    def hold(self) -> None:
        """Let nobody in until `let_go`."""
        self.held = True

    def let_go(self) -> None:
        """Let people in again."""
        self.held = False
        self._start_waiting()

    def line_up(self, cost: Cost, key: str, timeout: float | None) -> Entry:
        """A place in a lane. Raises where waiting makes no sense."""
        if self._small.count + self._large.count + self.elsewhere >= self._bounds.waiting:
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
            (ahead + passing + 1 - (self.most_decisions - self._decisions)) / self.most_decisions,
            0.0,
        )

    def _drain_time(self) -> float:
        """Seconds until all that is inside or waits now would be done, within what a caller can be told."""
        if not self.pace.known:
            return RETRY_UNKNOWN
        rounds = max(
            (self._reads + self._small.reads + self._large.reads) / self._bounds.reads,
            (self._decisions + self._small.count + self._large.count) / self.most_decisions,
        )
        return min(max(self.pace.seconds * rounds, RETRY_LEAST), RETRY_MOST)
