"""Computes identical requests once: those that come while the first is in flight join it and share its answer.

Clients send a request again when they have waited long enough, and a gateway that is late would then be later still.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from .contract import Answer, Sent

KEPT_BYTES = 64 * 1024 * 1024
"""Most bytes of requests whose answers are kept; the oldest go first."""

Start = Callable[[], Coroutine[Any, Any, Answer]]


class Flights:
    """The decisions of this process that are on their way.

    `keep_seconds`: how long an answer also serves identical requests that come after it; 0 keeps none.
    """

    def __init__(self, keep_seconds: float = 0.0) -> None:
        self._flights: dict[Sent, _Flight] = {}
        self._kept = _Kept(keep_seconds) if keep_seconds else None

    def __contains__(self, sent: Sent) -> bool:
        return sent in self._flights

    async def join(self, sent: Sent, start: Start) -> Answer:
        """The answer to `sent`, from `start()` unless somebody has asked the same; raises what making it raises.

        Cancelling the call takes one client away; the work is cancelled when the last one has gone.
        """
        flight = self._flights.get(sent)
        if flight is not None:
            return (await flight.answer())._replace(joined=True)
        if self._kept is not None and (kept := self._kept.find(sent)) is not None:
            return kept._replace(joined=True)
        flight = self._flights[sent] = _Flight(self, sent, start)
        return await flight.answer()

    def end(self, sent: Sent, flight: _Flight, answer: Answer | None) -> None:
        """Nobody can join this flight any more; where it has an answer, that may be kept."""
        if self._flights.get(sent) is flight:
            del self._flights[sent]
        if answer is not None and self._kept is not None:
            self._kept.add(sent, answer)


class _Flight:
    """One piece of work in a task of its own, so that it outlives any one of its clients."""

    __slots__ = ("clients", "flights", "sent", "task")

    def __init__(self, flights: Flights, sent: Sent, start: Start) -> None:
        self.flights = flights
        self.sent = sent
        self.clients: set[asyncio.Future[Answer]] = set()
        self.task = asyncio.create_task(start())
        self.task.add_done_callback(self._landed)

    async def answer(self) -> Answer:
        """Wait for it as one more client."""
        client: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.clients.add(client)
        try:
            return await client
        except asyncio.CancelledError:
            self.clients.discard(client)
            if not self.clients and not self.task.done():
                self.flights.end(self.sent, self, None)
                self.task.cancel()
                await asyncio.wait([self.task])  # so that its room is free when the client has gone
            raise

    def _landed(self, task: asyncio.Task[Answer]) -> None:
        error = None if task.cancelled() else task.exception()
        answer = None if task.cancelled() or error is not None else task.result()
        self.flights.end(self.sent, self, answer)
        for client in self.clients:
            if client.done():
                continue
            if answer is not None:
                client.set_result(answer)
            elif error is not None:
                client.set_exception(error)
            else:
                client.cancel()


class _Kept:
    """Answers that are kept for a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._answers: OrderedDict[Sent, tuple[float, Answer]] = OrderedDict()
        self._bytes = 0

    def find(self, sent: Sent) -> Answer | None:
        """The answer to an identical request, where it is not too old."""
        self._forget(asyncio.get_running_loop().time() - self.seconds)
        kept = self._answers.get(sent)
        return None if kept is None else kept[1]

    def add(self, sent: Sent, answer: Answer) -> None:
        """Keep an answer; an identical request's earlier one goes."""
        now = asyncio.get_running_loop().time()
        if (earlier := self._answers.pop(sent, None)) is not None:
            self._bytes -= _size(sent, earlier[1])
        self._answers[sent] = now, answer
        self._bytes += _size(sent, answer)
        self._forget(now - self.seconds)

    def _forget(self, before: float) -> None:
        while self._answers:
            sent, (at, answer) = next(iter(self._answers.items()))
            if at > before and self._bytes <= KEPT_BYTES:
                return
            del self._answers[sent]
            self._bytes -= _size(sent, answer)


def _size(sent: Sent, answer: Answer) -> int:
    """About how many bytes a kept answer takes; a probability and its name some 100."""
    shares = sum(len(getattr(each, "probabilities", "-")) for each in answer.decision.answers.values())
    return 1000 + len(sent.body) + 100 * shares
