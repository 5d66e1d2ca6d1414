"""The in-flight queue of all replicas that share a Redis.

A decision starts at once where it arrived when there is room and nobody waits, and Redis hears of it on the side, so
that an identical one can join it. Otherwise it waits in Redis, and whichever replica has room makes it. While Redis is
away each replica goes on alone, or refuses where `REDIS_REQUIRED` says so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from decisions.errors import AdmissionError, DeadlineExceeded, Overloaded, QueueUnavailable

from ..config import Settings
from .awaited import Awaited, Lost
from .beats import Beats
from .cluster import Cluster
from .contract import Answer, ClusterSnapshot, QueueBounds, QueueSnapshot, Work
from .crossing import digest_of, space_of, unpack
from .inbox import Inbox
from .lanes import small_limit
from .link import Link, RedisAway, Refused, Reply, Value
from .memory import MemoryQueue
from .worker import Compute, ComputeSent, Outcome, Running, Worker, answered

log = logging.getLogger("canvasgate")

REGISTER_AFTER = 0.002
"""Seconds after which Redis hears of a decision that started at once; one that is done sooner is no news."""
LARGEST_BODY = 1024 * 1024
"""Bytes of the largest request that goes through Redis; a larger one waits where it arrived."""


class SharedQueue:
    """One replica's part of the shared queue."""

    def __init__(
        self, bounds: QueueBounds, settings: Settings, alike: Mapping[str, Any], compute_sent: ComputeSent
    ) -> None:
        """`alike`: what all replicas must have in common that make decisions for one another."""
        self.bounds = bounds
        self.settings = settings
        self.me = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self.local = MemoryQueue(bounds, self.me)
        self.room = self.local.room
        url, lease, timeout = settings.redis_url, settings.redis_lease, settings.redis_timeout
        lifetime = int(1000 * (bounds.patience + settings.request_timeout + 2 * lease))
        prefix = f"{settings.redis_prefix}{space_of(alike)}:"
        self.link = Link(url, timeout, prefix, (lifetime, self.me))
        self.cluster = Cluster(self.me, self.room)
        self.worker = Worker(self.link, self.cluster, compute_sent, settings.request_timeout)
        self._inbox = Inbox(url, timeout, self.link, prefix, self.me)
        self._awaited: dict[str, Awaited] = {}
        self._beats = Beats(self.link, self.worker, self._awaited, lease)
        self._beats.heard = self._inbox.start_from
        self._left_behind: list[str] = []
        self._entries = 0
        self._entering = 0
        self._freed = asyncio.Event()
        self._handed_off = 0
        self._retired = False
        self._tasks: list[asyncio.Task[None]] = []
        self.worker.landed = self._land
        self.worker.own = self._own
        self.worker.may_take = self._may_take
        self.room.freed = self._room_freed
        self.link.changed = self._link_changed

    # --- The life of the queue ----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin to reach Redis; the first beat follows once it is there."""
        tasks = [self.link.run(), self.worker.run(), self._beats.run()]
        if self.settings.redis_payloads:
            tasks.append(self._inbox.run(self._hear, self._wait_for_room, self._hear_of_work))
        self._tasks = [asyncio.create_task(task) for task in tasks]
        for each in self._tasks:
            each.add_done_callback(_tell_of_failure)

    def retire(self) -> None:
        """Take only as long as a client of this replica waits for something that nobody has taken."""
        self._retired = True

    async def drain(self, timeout: float) -> bool:
        """Admit nobody new and wait until all have left, or `timeout` seconds."""
        self.retire()
        self.room.close()
        try:
            async with asyncio.timeout(timeout):
                await self.room.empty.wait()
                while self._awaited:  # noqa: ASYNC110 - looked at once a beat, by nobody in a hurry
                    await asyncio.sleep(self._beats.seconds / 10)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Give everything back and leave the cluster."""
        self.room.close()
        self._retired = True
        for awaited in list(self._awaited.values()):
            awaited.end(QueueUnavailable("The gateway has stopped."))
        await self.worker.give_back(self.settings.redis_timeout)
        with suppress(RedisAway, Refused):  # then what is left of this replica runs out by itself
            await self.link.ask("bye")
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    @property
    def stuck(self) -> bool:
        """Whether Redis is away and required."""
        return self.settings.redis_required and not self.link.up

    def fault(self) -> str:
        """That Redis is away, with the reason."""
        return "" if self.link.up else f"Redis is away: {self.link.why_down}"

    def snapshot(self) -> QueueSnapshot:
        """This replica's room, and the cluster's lanes with what waits in memory here."""
        seen, (small, large) = self.room.snapshot(), self.cluster.ages()
        inflight = {name: each.decisions for name, each in self.cluster.replicas.items()}
        return replace(
            seen,
            waiting_small=seen.waiting_small + self.cluster.small,
            waiting_large=seen.waiting_large + self.cluster.large,
            oldest=max(seen.oldest, small, large),
            expected_wait=seen.expected_wait and max(seen.expected_wait, self.cluster.expected_wait()),
            cluster=ClusterSnapshot(
                up=self.link.up,
                inflight=inflight | {self.me: seen.decisions},
                oldest_small=small,
                oldest_large=large,
                handed_off=self._handed_off,
                taken=self.worker.taken,
                leases_expired=self.worker.leases_expired,
            ),
        )

    # --- One decision -------------------------------------------------------------------------------------------------

    async def run(self, work: Work) -> Answer:
        """Make the decision here or elsewhere; see `InFlightQueue.run`."""
        if self.room.closed:
            raise QueueUnavailable("The gateway is stopping and takes no new requests.")
        while True:
            if self.stuck:
                raise QueueUnavailable("Redis is away, and nothing is decided without it.")
            if not (self.link.up and self.settings.redis_payloads) or len(work.sent.body) > LARGEST_BODY:
                return await self.local.run(work)
            try:
                return await self._run(work)
            except Lost:
                continue
            except Refused:
                return await self.local.run(work)

    async def _run(self, work: Work) -> Answer:
        self._entries += 1
        awaited = Awaited(f"{self.me}-{self._entries}", work)
        self._awaited[awaited.id] = awaited
        try:
            if self.room.is_free_for(self.room.weight(work.cost)) and not self._somebody_waits():
                self._start(awaited)
            else:
                await self._line_up(awaited)
            return await awaited.future
        except asyncio.CancelledError:
            await self._leave(awaited)
            raise
        finally:
            awaited.stop_timers()
            self._awaited.pop(awaited.id, None)

    def _somebody_waits(self) -> bool:
        """Anywhere, or on the way there or from there."""
        return bool(self.cluster.waiting or self._entering or self.worker.ahead)

    def _start(self, awaited: Awaited) -> None:
        """At once. Redis is told a moment later, on the side."""
        work = awaited.work
        running = Running(awaited.id, work.cost, self.room.weight(work.cost), registered=False)
        self.worker.start(running, partial(answered, work.compute))
        loop = asyncio.get_running_loop()
        awaited.registering = loop.call_later(REGISTER_AFTER, self._register, awaited, running)

    def _register(self, awaited: Awaited, running: Running) -> None:
        running.registered = True
        done = partial(self._registered, awaited, running)
        self.link.tell("enter", *self._entry(awaited, "start"), done=done)

    def _registered(self, awaited: Awaited, running: Running, reply: Reply | Exception) -> None:
        """Where the same is on its way elsewhere, that one is waited for, and this one need not go on."""
        if isinstance(reply, Exception):
            running.registered = False
            self.worker.unfinished.append(running.id)
            return
        kind, name, counts = reply
        self.cluster.count(counts)
        if kind != b"joined":
            return
        if awaited.future.done() or awaited.id not in self._awaited:
            self.link.tell("leave", name.decode(), 0)
            return
        self._rename(awaited, name.decode())
        self.worker.cancel(running.id)

    async def _line_up(self, awaited: Awaited) -> None:
        """In Redis, for whoever has room. Raises `Overloaded` where it may not wait."""
        if self.cluster.is_full(self.bounds.waiting):
            raise self.cluster.full(self.bounds.waiting)
        self._entering += 1  # nobody who comes after it may go in before it
        try:
            kind, name, counts = await self.link.ask("enter", *self._entry(awaited, "queue"))
        except RedisAway:
            self._left_behind.append(awaited.id)  # it may have been added all the same
            raise Lost from None
        finally:
            self._entering -= 1
        self.cluster.count(counts)
        if kind == b"full":
            raise self.cluster.full(self.bounds.waiting)
        patience = self.room.patience(awaited.work.timeout)
        if kind == b"late":
            message = f"The wait would be about {float(name):.1f} seconds, longer than the {patience:g} allowed."
            raise Overloaded(message, self.cluster.drain_time())
        if kind == b"joined":
            self._rename(awaited, name.decode())
        awaited.queued = True
        awaited.patience = asyncio.get_running_loop().call_later(patience, self._expire, awaited, patience)
        self.worker.look()

    def _entry(self, awaited: Awaited, mode: str) -> tuple[Value, ...]:
        work, weight = awaited.work, self.room.weight(awaited.work.cost)
        lane = "small" if work.cost.reads <= small_limit(self.room.capacity) else "large"
        patience = int(1000 * self.room.patience(work.timeout))
        sent, body = work.sent, work.sent.body if mode == "queue" else b""
        wait = "" if sent.wait is None else sent.wait
        return (
            *(awaited.id, digest_of(sent), mode, lane, work.key, work.cost.reads, patience),
            *(sent.form, sent.content_type or "", wait, body, self.cluster.bound(self.bounds.waiting)),
            *self.cluster.expectation(weight),
        )

    def _rename(self, awaited: Awaited, name: str) -> None:
        """The client waits for another entry, which was there before."""
        self._awaited.pop(awaited.id, None)
        awaited.id, awaited.joined = name, True
        self._awaited[name] = awaited

    # --- How it ends --------------------------------------------------------------------------------------------------

    def _own(self, entry_id: str) -> Compute | None:
        awaited = self._awaited.get(entry_id)
        if awaited is None:
            return None
        if awaited.patience is not None:
            awaited.patience.cancel()
        return awaited.work.compute

    def _land(self, entry_id: str, outcome: Outcome) -> None:
        """Done here."""
        awaited = self._awaited.get(entry_id)
        if awaited is not None:
            awaited.end(outcome)

    def _expire(self, awaited: Awaited, patience: float) -> None:
        """It has waited as long as it may; unless somebody works on it, it is refused."""
        kind: type[AdmissionError] = DeadlineExceeded if patience < self.bounds.patience else Overloaded

        def done(reply: Reply | Exception) -> None:
            if isinstance(reply, Exception):
                return  # it finds room elsewhere, or is refused there
            self.cluster.count(reply[-1])
            if reply[0] != b"running":
                self._awaited.pop(awaited.id, None)
                awaited.end(kind(f"No room came free within {patience:.2f} seconds.", self.cluster.drain_time()))
                self.worker.look()

        self.link.tell("leave", awaited.id, 1, done=done)

    async def _leave(self, awaited: Awaited) -> None:
        """The client has gone. What is worked on here goes on only if somebody elsewhere waits for it."""
        running = self.worker.running.get(awaited.id)
        if running is not None and not running.registered:
            awaited.stop_timers()
            running.task.cancel()
            await asyncio.wait([running.task])
            return

        def done(reply: Reply | Exception) -> None:
            if isinstance(reply, Exception):
                self._left_behind.append(awaited.id)
            elif reply[0] == b"waited":
                return
            else:
                self.cluster.count(reply[-1])
            self.worker.cancel(awaited.id)
            self.worker.look()

        self.link.tell("leave", awaited.id, 0, done=done)

    # --- What comes from Redis ----------------------------------------------------------------------------------------

    def _hear(self, kind: str, entry_id: str, body: bytes) -> None:
        if kind == "cancel":
            self.worker.cancel(entry_id)
            return
        awaited = self._awaited.get(entry_id)
        if awaited is None:
            return
        if kind == "lost":
            awaited.end(Lost())
            return
        self._handed_off += not awaited.joined
        try:
            awaited.end(unpack(body))
        except (ValueError, LookupError, TypeError):
            log.warning("the answer to entry %s could not be read", entry_id)
            awaited.end(Lost())
        self.worker.cancel(entry_id)  # another replica took it over, and was sooner

    def _room_freed(self) -> None:
        self._freed.set()
        self.worker.look()

    async def _wait_for_room(self) -> None:
        while not all(self.room.free):
            self._freed.clear()
            await self._freed.wait()

    def _hear_of_work(self) -> None:
        self.cluster.hint()
        self.worker.look()

    def _may_take(self) -> bool:
        waits = any(each.queued and each.id not in self.worker.running for each in self._awaited.values())
        return self.settings.redis_payloads and (not self._retired or waits)

    def _link_changed(self) -> None:
        """Redis came or went. When it went, whatever waits there finds room here."""
        if self.link.up:
            self._beats.now()
            left, self._left_behind = self._left_behind, []
            for entry_id in left:
                self.link.tell("leave", entry_id, 0)
            unfinished, self.worker.unfinished = self.worker.unfinished, []
            for entry_id in unfinished:
                self.link.tell("release", entry_id)
            return
        self.cluster.forget()
        for awaited in list(self._awaited.values()):
            running = self.worker.running.get(awaited.id)
            if running is not None:
                self.worker.unfinished += [running.id] if running.registered else []
                running.registered = False
            elif awaited.queued or awaited.joined:
                self._left_behind.append(awaited.id)
                awaited.end(Lost())


def _tell_of_failure(task: asyncio.Task[None]) -> None:
    """A part of the queue that ends by itself is a fault of ours."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("a part of the queue has failed", exc_info=task.exception())
