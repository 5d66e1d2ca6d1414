"""Beats: several times a lease a replica tells Redis that it lives, and learns what has become of everything.

A beat renews the leases of what is worked on here, and finds out what Redis has lost of that and of what clients of
this replica wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from .awaited import Awaited, Lost
from .link import Link, RedisAway, Refused
from .worker import Worker

BEATS = 5
"""Beats in the time of a lease."""
LONGEST = 1.0
"""Seconds between two beats at most."""
STRIKES = 2
"""Beats at which an entry has to be missing before it is taken for lost; its answer may be on the way."""


class Beats:
    """The beats of one replica. `lease` in seconds; whoever is silent for two beats less than that has lost it."""

    def __init__(self, link: Link, worker: Worker, awaited: dict[str, Awaited], lease: float) -> None:
        self.heard: Callable[[int], None] = lambda _: None
        """Called at each beat with the time on Redis' clock, in milliseconds."""
        self.seconds = min(LONGEST, lease / BEATS)
        self._link = link
        self._worker = worker
        self._awaited = awaited
        self._lease_ms = int(1000 * lease)
        self._now = asyncio.Event()
        worker.idle_ms = int(1000 * (lease - 2 * self.seconds))

    def now(self) -> None:
        """Do not wait for the next one."""
        self._now.set()

    async def run(self) -> None:
        """Beat while Redis is there; until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await self._now.wait()
            self._now.clear()
            if self._link.up:
                with suppress(RedisAway, Refused):  # the next one tells
                    await self._beat()

    async def _beat(self) -> None:
        worker, cluster = self._worker, self._worker.cluster
        running = [each.id for each in worker.running.values() if each.registered]
        awaited = [each.id for each in self._awaited.values() if each.id not in worker.running]
        now, lost, missing, replicas, ages, left, counts = await self._link.ask(
            "beat", cluster.own_figures(), self._lease_ms, worker.idle_ms, len(running), *running, *awaited
        )
        self.heard(int(now))
        cluster.beat(replicas, ages, left, counts)
        for entry_id in lost:
            self._lose(entry_id.decode())
        self._strike({entry_id.decode() for entry_id in missing})
        worker.look()

    def _lose(self, entry_id: str) -> None:
        """Redis no longer has what is worked on here; it goes on only for a client of this replica."""
        running = self._worker.running.get(entry_id)
        if running is not None:
            running.registered = False
            if entry_id not in self._awaited:
                running.task.cancel()

    def _strike(self, missing: set[str]) -> None:
        for awaited in list(self._awaited.values()):
            awaited.strikes = awaited.strikes + 1 if awaited.id in missing else 0
            if awaited.strikes >= STRIKES and awaited.id not in self._worker.running:
                awaited.end(Lost())
