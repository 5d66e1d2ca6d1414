"""The waiting lines of an in-flight queue: whose turn it is, and how long one takes. No clock, no waiting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

SMALL_PASSES = 4
"""Small decisions that may pass a large one that waits; then the large one is next, and room is kept for it."""
SMALL_SHARE = 8
SMALL_READS = 4
"""A decision is small up to SMALL_READS reads, or up to 1/SMALL_SHARE of the capacity where that is more."""
MEMORY = 0.9
"""What one more decision leaves of the weight of all before it, in the estimate of how long reads are held."""


def small_limit(capacity: int) -> int:
    """Most reads of a decision that is small where the engine works on `capacity` reads at once."""
    return max(SMALL_READS, capacity // SMALL_SHARE)


class Entry:
    """Somebody who waits. `admitted` is done when the waiting is over, one way or the other.

    `reads` is what it asks for; `weight` is the room that it needs, which is less when no engine has so much.
    """

    __slots__ = ("admitted", "arrived", "holds", "key", "lane", "reads", "timer", "weight")

    reads: int
    weight: int
    timer: asyncio.TimerHandle

    def __init__(self, key: str, lane: Lane, arrived: float, admitted: asyncio.Future[None]) -> None:
        self.key = key
        self.lane = lane
        self.arrived = arrived
        self.admitted = admitted
        self.holds = False
        """Whether room is held for it."""


class Lane:
    """Entries that wait: each key's in order of arrival, and the keys in turn. Every operation takes constant time.

    Ordered dictionaries, not deques, because an entry leaves from any place when its caller does.
    """

    __slots__ = ("count", "lines", "reads")

    def __init__(self) -> None:
        self.lines: OrderedDict[str, OrderedDict[Entry, None]] = OrderedDict()
        self.count = 0
        self.reads = 0

    @property
    def mean(self) -> float:
        """Reads per waiting entry."""
        return self.reads / self.count if self.count else 0.0

    def append(self, entry: Entry) -> None:
        """Behind its key's other entries; a key that had none comes last in turn."""
        line = self.lines.get(entry.key)
        if line is None:
            line = self.lines[entry.key] = OrderedDict()
        line[entry] = None
        self.count += 1
        self.reads += entry.reads

    def first(self) -> Entry:
        """Whose turn it is; only of a lane that is not empty."""
        return next(iter(next(iter(self.lines.values()))))

    def remove(self, entry: Entry, *, served: bool = False) -> bool:
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
        self.reads -= entry.reads
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


class Pace:
    """How long a read takes, in seconds: a mean over reads in which older decisions count less and less."""

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

    def learn(self, reads: int, held: float) -> None:
        """A decision of so many reads held room for `held` read-seconds."""
        self._held = MEMORY * self._held + held
        self._reads = MEMORY * self._reads + reads
