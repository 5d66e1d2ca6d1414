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

    async def join(self, sent: Sent, start: Start) -> Answer:
        """The answer to `sent`, from `start()` unless somebody has asked the same; raises what making it raises.

        Whoever comes first makes it in its own task. Where that is cancelled, one of those who joined begins anew.
        """
        while (flight := self._flights.get(sent)) is not None:
            answer = await flight.answer()
            if answer is not None:
                return answer._replace(joined=True)
        if self._kept is not None and (kept := self._kept.find(sent)) is not None:
            return kept._replace(joined=True)
        flight = self._flights[sent] = _Flight()
        try:
            answer = await start()
        except BaseException as error:
            del self._flights[sent]
            flight.fail(error)
            raise
        del self._flights[sent]
        flight.land(answer)
        if self._kept is not None:
            self._kept.add(sent, answer)
        return answer

    def leave(self, sent: Sent, task: asyncio.Task[Any]) -> None:
        """The client that `task` works for has gone: it is cancelled once nobody who joined needs what it makes."""
        flight = self._flights.get(sent)
        if flight is not None and flight.maker is task and flight.clients:
            flight.deserted = True
        else:
            task.cancel()


class _Flight:
    """A decision that its `maker` makes; `clients` came later and joined. `deserted`: the maker's own client left."""

    __slots__ = ("clients", "deserted", "maker")

    def __init__(self) -> None:
        self.maker = asyncio.current_task()
        self.clients: list[asyncio.Future[Answer | None]] = []
        self.deserted = False

    async def answer(self) -> Answer | None:
        """Wait for it as one who joined; None where the maker was cancelled."""
        client: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self.clients.append(client)
        try:
            return await client
        finally:
            self.clients.remove(client)
            if self.deserted and not self.clients and self.maker is not None:
                self.maker.cancel()

    def land(self, answer: Answer | None) -> None:
        """Hand the answer to everybody who still waits."""
        self.deserted = False
        for client in self.clients:
            if not client.done():
                client.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Tell everybody who still waits; a cancellation is the maker's own affair."""
        if isinstance(error, asyncio.CancelledError):
            self.land(None)
        self.deserted = False
        for client in self.clients:
            if not client.done():
                client.set_exception(error)


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
