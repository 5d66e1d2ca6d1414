"""Works on entries: those that began here, and those that this replica took off the lanes because it had room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from decisions.errors import DeadlineExceeded, DecisionError, EngineUnavailable, Overloaded
from decisions.protocol import Decision
from decisions.reads import Cost, Ticket

from .cluster import Cluster
from .contract import Answer, Form, Sent
from .crossing import pack
from .lanes import SMALL_PASSES
from .link import Link, RedisAway, Refused, Reply
from .memory import Admission
from .room import Room

log = logging.getLogger("canvasgate")

MOST_TRIES = 3
"""Replicas that an entry may outlive; it is then taken for what kills them."""
MOST_TAKEN = 16
"""Entries taken at once."""
AHEAD_PACE = 0.1
"""Seconds per read up to which one entry is taken before there is room for it: else room would lie idle while Redis is
asked. What takes longer is better left to whoever has room first."""
GIVEN_UP = pack(EngineUnavailable(f"{MOST_TRIES} replicas ended while they worked on this request."))

Outcome = Answer | BaseException
Compute = Callable[[Ticket], Coroutine[Any, Any, Decision]]
Making = Callable[[Ticket], Coroutine[Any, Any, Answer]]
ComputeSent = Callable[[Sent, Ticket], Coroutine[Any, Any, Answer]]
"""Makes a decision from a request as it came; its seconds by stage come with it."""


class Running:
    """One entry that is worked on, or that was taken `ahead` and waits here for room.

    `registered`: Redis knows of it, and somebody may be waiting elsewhere. `foreign`: nobody here waits for it.
    """

    __slots__ = ("ahead", "cost", "foreign", "id", "registered", "task", "weight")

    task: asyncio.Task[Answer]

    def __init__(self, entry_id: str, cost: Cost, weight: int, *, registered: bool) -> None:
        self.id = entry_id
        self.cost = cost
        self.weight = weight
        self.registered = registered
        self.foreign = False
        self.ahead = False


class Worker:
    """The computing half of a replica. `limit`: seconds that one decision may be worked on."""

    def __init__(self, link: Link, cluster: Cluster, compute_sent: ComputeSent, limit: float) -> None:
        self.room: Room = cluster.room
        self.running: dict[str, Running] = {}
        self.taken = 0
        self.leases_expired = 0
        self.idle_ms = 0
        """Milliseconds of silence after which an entry is taken from the replica that works on it."""
        self.landed: Callable[[str, Outcome], None] = lambda _id, _outcome: None
        """Called when an entry is done here."""
        self.own: Callable[[str], Compute | None] = lambda _: None
        """How to make the decision of an entry that a client of this replica waits for."""
        self.may_take: Callable[[], bool] = lambda: True
        self.ahead: Running | None = None
        """The entry that was taken ahead and waits for room; nobody goes in before it."""
        self.unfinished: list[str] = []
        """Entries of which Redis could not be told that they are done; they are released when it is there again."""
        self._link = link
        self.cluster = cluster
        self._compute_sent = compute_sent
        self._limit = limit
        self._look = asyncio.Event()

    # --- Working ------------------------------------------------------------------------------------------------------

    def start(self, running: Running, compute: Making) -> None:
        """Work on an entry; there must be room, which is taken here and given back when it ends."""
        self.room.take(running.weight)
        self.running[running.id] = running
        running.task = asyncio.create_task(self._work(running, compute))
        running.task.add_done_callback(partial(self._ended, running))

    def _start_ahead(self, running: Running, compute: Making, remaining: float, patience: float) -> None:
        """Work on an entry as soon as somebody has left; `remaining` seconds are left of its `patience`."""
        running.ahead, self.ahead = True, running
        self.running[running.id] = running
        running.task = asyncio.create_task(self._work_ahead(running, compute, remaining, patience))
        running.task.add_done_callback(partial(self._ended, running))

    async def _work_ahead(self, running: Running, compute: Making, remaining: float, patience: float) -> Answer:
        inside = False
        try:
            async with Admission(self.room, running.cost, "", remaining) as ticket, asyncio.timeout(self._limit):
                inside = True
                self._ahead_is_over(running)
                return await compute(ticket)
        except TimeoutError:
            raise DeadlineExceeded(f"No answer within {self._limit:g} seconds.") from None
        except DeadlineExceeded as error:
            if inside or patience < self.room.patience(None):
                raise
            raise Overloaded(error.message, error.retry_after) from None  # it was our patience, not the caller's

    def _ahead_is_over(self, running: Running) -> None:
        """It found room, or it ended without: another one may be taken ahead."""
        if self.ahead is running:
            self.ahead = None
            self.look()

    async def _work(self, running: Running, compute: Making) -> Answer:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self._limit):
                answer = await compute(self.room.ticket(running.cost, started + self._limit))
        except TimeoutError:
            raise DeadlineExceeded(f"No answer within {self._limit:g} seconds.") from None
        self.room.pace.learn(max(1, running.cost.reads), (loop.time() - started) * running.weight)
        return answer

    def _ended(self, running: Running, task: asyncio.Task[Answer]) -> None:
        del self.running[running.id]
        self._ahead_is_over(running)
        if not task.cancelled():  # else whoever cancelled it has told the others
            outcome: Outcome = task.exception() or task.result()
            self.landed(running.id, outcome)
            if running.registered:
                self._finish(running, outcome)
        if not running.ahead:
            self.room.give_back(running.weight)

    def _finish(self, running: Running, outcome: Outcome) -> None:
        """End the entry. What it came to is written only where somebody elsewhere waits for it."""
        entry_id = running.id

        def done(reply: Reply | Exception) -> None:
            if isinstance(reply, Exception):
                self.unfinished.append(entry_id)
                return
            self.cluster.count(reply[-1])
            if reply[0] == b"waited":
                self._link.tell("finish", entry_id, pack(told(entry_id, outcome)))

        self._link.tell("finish", entry_id, pack(told(entry_id, outcome)) if running.foreign else b"", done=done)

    # --- Taking -------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """There may be something to take, and room for it."""
        if self.cluster.waiting:
            self._look.set()

    async def run(self) -> None:
        """Take entries while there is room; until cancelled."""
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                while self._can_take() and await self._take():
                    pass
            except (RedisAway, Refused) as error:
                log.debug("nothing could be taken: %s", error)

    def _can_take(self) -> bool:
        if self.ahead or not (self._link.up and self.cluster.waiting > 0 and self.may_take()):
            return False
        return all(self.room.free) or self._can_take_ahead()

    def _can_take_ahead(self) -> bool:
        return self.room.full and not self.room.closed and 0 < self.room.pace.seconds <= AHEAD_PACE

    async def _take(self) -> bool:
        """Whether anything was taken. Meanwhile nobody else goes in, so that what is taken has its room."""
        ahead = not all(self.room.free)
        reads, decisions = (self.room.capacity, 1) if ahead else self.room.free
        self.room.hold()
        try:
            taken, expired, counts = await self._link.ask(
                *("take", reads, self.room.capacity, decisions, MOST_TAKEN, self.idle_ms),
                *(MOST_TRIES, GIVEN_UP, SMALL_PASSES),
            )
            self.leases_expired += expired
            self.cluster.left_behind = max(0, self.cluster.left_behind - expired)
            self.cluster.count(counts)
            for entry in taken:
                self._begin(ahead, *entry)
        finally:
            self.room.let_go()
        return bool(taken)

    def _begin(self, ahead: bool, entry_id: bytes, reads: int, *rest: Any) -> None:  # noqa: FBT001 - never a literal
        name = entry_id.decode()
        if name in self.running:  # its lease had run out while this process stood still
            return
        remaining, patience, *sent = rest
        cost = Cost(reads, 0)
        running = Running(name, cost, self.room.weight(cost), registered=True)
        making: Making
        if (own := self.own(name)) is not None:
            making = partial(answered, own)
        elif sent[-1]:
            self.taken += 1
            running.foreign = True
            making = partial(self._compute_sent, sent_of(*sent))
        else:  # its client was here and has left
            self._link.tell("release", name)
            return
        if ahead:
            self._start_ahead(running, making, remaining / 1000, patience / 1000)
        else:
            self.start(running, making)

    # --- Ending -------------------------------------------------------------------------------------------------------

    def cancel(self, entry_id: str) -> None:
        """Stop working on an entry that nobody waits for."""
        running = self.running.get(entry_id)
        if running is not None:
            running.registered = False
            running.task.cancel()

    async def give_back(self, timeout: float) -> None:
        """Give everything back that is worked on for others, and end."""
        leases = [
            asyncio.create_task(self._link.ask("release", each.id))
            for each in self.running.values()
            if each.registered and self._link.up
        ]
        if leases:
            await asyncio.wait(leases, timeout=timeout)
        tasks = [each.task for each in self.running.values()]
        for entry_id in list(self.running):
            self.cancel(entry_id)
        if tasks:
            await asyncio.wait(tasks)


async def answered(compute: Compute, ticket: Ticket) -> Answer:
    """A decision that is made for a client of this replica, as an answer."""
    return Answer(await compute(ticket))


def sent_of(form: bytes, content_type: bytes, wait: bytes, body: bytes) -> Sent:
    """A request as it stood in Redis."""
    named: Form = "decisions" if form == b"decisions" else "systemone"
    return Sent(named, body, content_type.decode() or None, float(wait) if wait else None)


def told(entry_id: str, outcome: Outcome) -> Answer | DecisionError:
    """What others are told of an outcome; of a failure of ours no more than that there was one."""
    if isinstance(outcome, Answer | DecisionError):
        return outcome
    log.error("entry %s failed: %s", entry_id, type(outcome).__name__)
    return DecisionError("Internal error; the log of the replica that worked on it has it.")
