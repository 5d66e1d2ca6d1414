"""What a replica knows of all that share its Redis: who waits, how busy each is, and how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from decisions.errors import Overloaded

from .contract import RETRY_LEAST, RETRY_MOST, RETRY_UNKNOWN
from .lanes import SMALL_PASSES
from .link import Reply
from .room import Room

FRESH = 0.1
"""Seconds for which what Redis has said about the lanes is good enough to refuse by."""


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """How busy one replica is. `pace`: seconds that it takes per read, with all of its room in use; 0 unknown.

    `waiting` entries are in its memory and not in Redis.
    """

    decisions: int
    reads: int
    capacity: int
    most: int
    pace: float
    waiting: int = 0


class Cluster:
    """The replicas as they were at the last beat, and the lanes as they were at the last reply of any script."""

    def __init__(self, me: str, room: Room) -> None:
        self.me = me
        self.room = room
        self.replicas: dict[str, ReplicaFigures] = {}
        self.left_behind = 0
        """Entries of dead replicas that can be taken over."""
        self._counts = (0, 0, 0, 0)
        self._counted = 0.0
        self._oldest = (0.0, 0.0)

    @property
    def waiting(self) -> int:
        """Entries that a replica with room could take."""
        return self.small + self.large + self.left_behind

    @property
    def small(self) -> int:
        """Entries in the lane of small decisions."""
        return self._counts[0]

    @property
    def large(self) -> int:
        """Entries in the lane of large decisions."""
        return self._counts[2]

    def count(self, counts: Sequence[int]) -> None:
        """Entries and reads that wait, small and large, as a script has told them."""
        now = asyncio.get_running_loop().time()
        small, large = self._oldest
        self._oldest = (small or now if counts[0] else 0.0, large or now if counts[2] else 0.0)
        self._counts = (counts[0], counts[1], counts[2], counts[3])
        self._counted = now

    def hint(self) -> None:
        """Something was added to a lane."""
        if not self.waiting:
            self._counts = (1, 1, 0, 0)

    def beat(self, replicas: Reply, ages: Sequence[int], left_behind: int, counts: Sequence[int]) -> None:
        """Take in what a beat has told; ages in milliseconds."""
        self.replicas = {name.decode(): ReplicaFigures(**orjson.loads(figures)) for name, figures in replicas}
        self.left_behind = left_behind
        self.count(counts)
        now = asyncio.get_running_loop().time()
        self._oldest = (
            now - ages[0] / 1000 if counts[0] else 0.0,
            now - ages[1] / 1000 if counts[2] else 0.0,
        )
        self.room.elsewhere = sum(each.waiting for name, each in self.replicas.items() if name != self.me)

    def forget(self) -> None:
        """Redis is away, and with it the others."""
        self.replicas, self.left_behind, self._counts, self._oldest = {}, 0, (0, 0, 0, 0), (0.0, 0.0)
        self.room.elsewhere = 0

    def own_figures(self) -> bytes:
        """How busy this replica is, for the others."""
        return orjson.dumps(asdict(self._own()))

    def ages(self) -> tuple[float, float]:
        """Seconds that the oldest small and the oldest large entry have waited."""
        now = asyncio.get_running_loop().time()
        small, large = self._oldest
        return (now - small if small else 0.0, now - large if large else 0.0)

    def _own(self) -> ReplicaFigures:
        seen = self.room.snapshot()
        return ReplicaFigures(
            decisions=seen.decisions,
            reads=seen.reads,
            capacity=self.room.capacity,
            most=self.room.most_decisions,
            pace=self.room.pace.seconds,
            waiting=seen.waiting_small + seen.waiting_large,
        )

    # --- How long it takes --------------------------------------------------------------------------------------------

    def _all(self) -> list[ReplicaFigures]:
        others = [figures for name, figures in self.replicas.items() if name != self.me]
        return [self._own(), *others]

    @staticmethod
    def _seconds_per_read(replicas: Sequence[ReplicaFigures]) -> float:
        """Seconds between two reads that are done anywhere; one not timed yet counts like the mean of the others."""
        timed = [each for each in replicas if each.pace]
        if not timed:
            return 0.0
        rate = sum(each.capacity / each.pace for each in timed)
        return len(timed) / len(replicas) / rate

    def expectation(self, weight: int) -> tuple[float, int, int, int, int, int, int]:
        """What the script `enter` needs in order to tell how long an entry of so many reads would wait."""
        replicas = self._all()
        return (
            self._seconds_per_read(replicas),
            sum(each.capacity for each in replicas),
            sum(each.most for each in replicas),
            sum(max(each.capacity - each.reads, 0) for each in replicas),
            sum(max(each.most - each.decisions, 0) for each in replicas),
            weight,
            SMALL_PASSES,
        )

    def expected_wait(self) -> float:
        """Seconds that a decision of one read would wait if it came now."""
        per_read, capacity, most, free_reads, free_decisions, *_ = self.expectation(1)
        small, small_reads, large, large_reads = self._counts
        passing = min(large, small // SMALL_PASSES)
        before = small_reads + passing * (large_reads / large if large else 0)
        rounds = max((before + 1 - free_reads) / capacity, (small + passing + 1 - free_decisions) / most, 0.0)
        return per_read * capacity * rounds

    def drain_time(self) -> float:
        """Seconds until all that is worked on or waits now would be done, within what a caller can be told."""
        replicas = self._all()
        per_read = self._seconds_per_read(replicas)
        if not per_read:
            return RETRY_UNKNOWN
        reads = sum(each.reads for each in replicas) + self._counts[1] + self._counts[3]
        decisions = sum(each.decisions for each in replicas) + self.small + self.large
        capacity, most = sum(each.capacity for each in replicas), sum(each.most for each in replicas)
        rounds = max(reads / capacity, decisions / most)
        return min(max(per_read * capacity * rounds, RETRY_LEAST), RETRY_MOST)

    def bound(self, waiting: int) -> int:
        """Entries that may wait in Redis where `waiting` may in all, as some wait in the memory of replicas."""
        return max(0, waiting - self.room.waiting - self.room.elsewhere)

    def is_full(self, waiting: int) -> bool:
        """Whether Redis has said a moment ago that so many wait: under overload it need not be asked every time."""
        fresh = asyncio.get_running_loop().time() - self._counted < FRESH
        return fresh and self.small + self.large >= self.bound(waiting)

    def full(self, bound: int) -> Overloaded:
        """Why an entry may not wait where as many do as are allowed."""
        return Overloaded(f"The queue is full: {bound} decisions wait.", self.drain_time())
