"""Work that a client of this replica waits for, wherever it is done."""

from __future__ import annotations

import asyncio

from .contract import Answer, Work
from .worker import Outcome


class Lost(Exception):
    """The entry is no longer in Redis, or Redis is away: the work has to find room once more."""


class Awaited:
    """Work that a client of this replica waits for, wherever it is done."""

    __slots__ = ("future", "id", "joined", "patience", "queued", "registering", "strikes", "work")

    def __init__(self, entry_id: str, work: Work) -> None:
        self.id = entry_id
        self.work = work
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.queued = False
        self.joined = False
        """Whether it is somebody else's entry, whose request is identical."""
        self.registering: asyncio.TimerHandle | None = None
        self.patience: asyncio.TimerHandle | None = None
        self.strikes = 0

    def end(self, outcome: Outcome) -> None:
        """Hand the outcome to whoever waits."""
        self.stop_timers()
        if self.future.done():
            return
        if isinstance(outcome, Answer):
            self.future.set_result(outcome._replace(joined=True) if self.joined else outcome)
        else:
            self.future.set_exception(outcome)

    def stop_timers(self) -> None:
        """What was to happen later does not."""
        for timer in (self.registering, self.patience):
            if timer is not None:
                timer.cancel()
