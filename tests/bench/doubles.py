"""Servers that the harness is tried on: in memory on a clock of their own, or on a socket, each with a known flaw."""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import blake2b
from typing import Any

from bench.load import Bench, Rules, Teller
from bench.openloop import NO_REPLY, Reply, Target
from bench.workloads import Workload, named

Body = dict[str, Any]
RULES = Rules(repeats=1, warm_up=1.0, slo=0.1, serial=50, again=10)


class _Jump(selectors.DefaultSelector):
    """Looks for what is ready and then jumps to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self.now += timeout
        return super().select(None if timeout is None else 0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only by what is slept: a run of minutes takes none, alike on every machine."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now

    def lose(self, seconds: float) -> None:
        """Let time pass while nothing else can run, as when the client's own process is held up."""
        self._jump.now += seconds


def virtually(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def right_answers(request: Body) -> Body:
    """Coherent answers that depend on the state, so that no two requests have the same."""
    return {name: answer(request["state"] + name, question) for name, question in request["questions"].items()}


def answer(text: str, question: Body) -> Body:
    """One coherent answer."""
    draw = random.Random(blake2b(text.encode()).digest())
    if question["type"] == "noul":
        return {"type": "noul", "noul": draw.random()}
    weights = [draw.random() for _ in question["criteria"]]
    shares = [weight / sum(weights) for weight in weights]
    if question["type"] == "choice":
        probabilities = dict(zip(question["criteria"], shares, strict=True))
        choice = max(probabilities, key=probabilities.__getitem__)
        return {"type": "choice", "choice": choice, "confidence": 0.5, "probabilities": probabilities}
    levels = {str(level): share for level, share in enumerate(shares)}
    score = sum(level * share for level, share in enumerate(shares))
    return {"type": "score", "score": score, "confidence": 0.5, "legend": {}, "probabilities": levels}


def reply(answers: Body, **headers: str) -> Reply:
    """An answer as it comes over the wire."""
    body = json.dumps({"answers": answers, "usage": {"input_tokens": 7, "output_tokens": 1}}).encode()
    return Reply(200, body, headers)


def asked(request: bytes) -> Body:
    """The body of a request."""
    found: Body = json.loads(request.split(b"\r\n\r\n", 1)[1])
    return found


class MemoryServer:
    """Answers without a socket. `delay` draws the seconds of an answer; `spoil` may change the n-th answer.

    `capacity` is how many it works on at once, None any number; `stall` holds the n-th request up for some seconds.
    """

    def __init__(
        self,
        delay: Callable[[], float] = lambda: 0.01,
        spoil: Callable[[int, Body, Reply], Reply] = lambda _number, _request, reply: reply,
        capacity: int | None = None,
        stall: dict[int, float] | None = None,
    ) -> None:
        self.delay, self.spoil, self.stall = delay, spoil, stall or {}
        self.delays: list[float] = []
        self.requests: list[Body] = []
        self._room = asyncio.Semaphore(capacity or 10**9)

    async def __call__(self, request: bytes) -> Reply:
        number, body = len(self.requests), asked(request)
        self.requests.append(body)
        async with self._room:
            self.delays.append(self.delay() + self.stall.get(number, 0.0))
            await asyncio.sleep(self.delays[-1])
        return self.spoil(number, body, reply(right_answers(body)))


def bench_of(
    exchange: Callable[[bytes], Awaitable[Reply]], workload: str | Workload = "W1", rules: Rules = RULES
) -> Bench:
    """A bench for a server."""
    chosen = workload if isinstance(workload, Workload) else named(workload)
    return Bench(Target.at("http://double"), exchange, chosen, rules, Teller())


def dropping(every: int) -> Callable[[int, Body, Reply], Reply]:
    """Loses one request in so many."""
    return lambda number, _request, reply: NO_REPLY if number % every == every - 1 else reply
