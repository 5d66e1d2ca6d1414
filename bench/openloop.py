"""An open-loop HTTP client: requests leave when the schedule says, however slow the answers are.

The schedule is drawn before the run from a seed (Poisson arrivals). A request's latency counts from its planned time,
so a server that falls behind is seen to fall behind (no coordinated omission). The client is a bare pool of keep-alive
connections, because an HTTP library would cost more than the server under test.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go; `headers` are sent with each of them."""

    host: str
    port: int
    path: str
    headers: dict[str, str] = field(default_factory=dict)

    def request(self, body: bytes) -> bytes:
        """One request, ready to be written."""
        lines = [f"POST {self.path} HTTP/1.1", f"host: {self.host}:{self.port}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines.append(f"content-length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(slots=True)
class Outcome:
    """What a run saw. Latencies are in seconds from the planned send time, of answers with status 200 only."""

    offered: float
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    late: int = 0
    """Requests that left more than 10 ms after their planned time: the client itself was the bottleneck."""

    @property
    def achieved(self) -> float:
        """Answers with status 200 per second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """A latency percentile in seconds; NaN without answers."""
        if not self.latencies:
            return float("nan")
        ranked = sorted(self.latencies)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


class Pool:
    """Keep-alive connections, as many as are needed at once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, request: bytes) -> tuple[int, bytes]:
        """Send one request; its status (0 for a broken connection) and the answer's body."""
        try:
            reader, writer = (
                self._idle.pop() if self._idle else await asyncio.open_connection(self.target.host, self.target.port)
            )
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError, IndexError):
            return 0, b""
        self._idle.append((reader, writer))
        return int(head[9:12]), body

    async def close(self) -> None:
        """Close all connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Planned send times in seconds from the start: arrivals at `rate` per second for `seconds`."""
    generator = random.Random(seed)
    times, now = [], generator.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += generator.expovariate(rate)
    return times


async def run(target: Target, bodies: Sequence[bytes], rate: float, seconds: float, seed: int = 1) -> Outcome:
    """Offer `rate` requests per second for `seconds`, taking the bodies in turn; waits for the last answer."""
    pool, outcome = Pool(target), Outcome(rate)
    requests = [target.request(body) for body in bodies]
    schedule = poisson(rate, seconds, seed)
    start = time.perf_counter()

    async def one(index: int, planned: float) -> None:
        if time.perf_counter() - start - planned > 0.010:
            outcome.late += 1
        status, _ = await pool.post(requests[index % len(requests)])
        outcome.statuses[status] = outcome.statuses.get(status, 0) + 1
        if status == 200:
            outcome.latencies.append(time.perf_counter() - start - planned)

    waiting: set[asyncio.Task[None]] = set()
    for index, planned in enumerate(schedule):
        pause = planned - (time.perf_counter() - start)
        if pause > 0:
            await asyncio.sleep(pause)
        task = asyncio.create_task(one(index, planned))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    if waiting:
        await asyncio.wait(waiting)
    outcome.seconds = time.perf_counter() - start
    await pool.close()
    return outcome
