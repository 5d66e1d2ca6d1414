"""What an in-flight queue promises, whichever of the two it is, and the nouns that it is asked with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from decisions.protocol import Decision
from decisions.reads import Cost, Ticket

Form = Literal["systemone", "decisions"]
Stage = Literal["parse", "plan", "queue", "engine", "combine"]

RETRY_LEAST = 0.05
RETRY_MOST = 60.0
RETRY_UNKNOWN = 1.0
"""Seconds: bounds of what a refused caller is told to wait, and what it is told before any decision was timed."""


class Sent(NamedTuple):
    """A request as it came: equal ones have equal answers, and any replica can compute it.

    `wait` is how many seconds the caller said it would wait; it is here because it can turn an answer into a 504.
    """

    form: Form
    body: bytes
    content_type: str | None = None
    wait: float | None = None


class Answer(NamedTuple):
    """A decision, the seconds that each stage took where it was computed elsewhere, and whether others asked as well.

    `joined`: it was computed for somebody else, whose request was identical.
    """

    decision: Decision
    seconds: Mapping[Stage, float] = {}
    joined: bool = False


class Work(NamedTuple):
    """A decision that is to be made. `compute` makes it here, once there is room; it may be made elsewhere instead.

    `key` names who asks, for fairness. `timeout` is how many seconds the caller waits at most, where that is less than
    the queue's patience.
    """

    sent: Sent
    cost: Cost
    compute: Callable[[Ticket], Coroutine[Any, Any, Decision]]
    key: str = ""
    timeout: float | None = None


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
class ClusterSnapshot:
    """What a replica knows of all that share its Redis. Ages are in seconds; the totals count this replica's doings.

    `inflight` has the decisions worked on by replica. `handed_off` decisions of this replica were computed by others,
    `taken` ones of others here; `leases_expired` entries were taken over from a replica that had died.
    """

    up: bool
    inflight: Mapping[str, int]
    oldest_small: float = 0.0
    oldest_large: float = 0.0
    handed_off: int = 0
    taken: int = 0
    leases_expired: int = 0


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue at one moment. Ages and waits are in seconds.

    `oldest` is how long the longest-waiting entry has waited; `expected_wait` is what a decision of one read would
    wait if it came now. On Redis the waiting entries are the cluster's, and what is worked on is this replica's.
    """

    decisions: int
    reads: int
    waiting_small: int
    waiting_large: int
    oldest: float
    expected_wait: float
    draining: bool
    cluster: ClusterSnapshot | None = None


class InFlightQueue(Protocol):
    """Admission to the engine. Every implementation passes the same tests, in `tests/gateway/test_inflight.py`."""

    async def run(self, work: Work) -> Answer:
        """Make the decision once there is room for it; cancelling the call takes it back wherever it is.

        Raises `Overloaded` when the queue is full, when the wait would be too long or when it took all of the queue's
        patience; `DeadlineExceeded` when the caller's own, shorter timeout passed while it waited; `QueueUnavailable`
        when the queue drains or what it needs is away; and whatever making the decision raises.
        """

    async def open(self) -> None:
        """Begin; called once, on the event loop that will use the queue."""

    def retire(self) -> None:
        """This process will stop soon: go on, but take nothing more off others."""

    async def drain(self, timeout: float) -> bool:
        """Admit nobody new, let those inside and those waiting finish; whether they did within `timeout` seconds."""

    async def close(self) -> None:
        """End; what was taken off others is given back to them."""

    def snapshot(self) -> QueueSnapshot:
        """The queue as it is now; cheap."""

    def fault(self) -> str:
        """What the queue lacks, such as Redis; empty where all is well."""

    @property
    def stuck(self) -> bool:
        """Whether nothing can be admitted because of that."""
