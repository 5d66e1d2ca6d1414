"""An open-loop HTTP client: requests leave when the schedule says, however slow the answers are.

The schedule is drawn before the run from a seed. A request's latency counts from its planned time, so a server that
falls behind is seen to fall behind (no coordinated omission). The client is a bare pool of keep-alive connections,
because an HTTP library would cost more than the server under test.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

LATE = 0.010
"""Seconds after its planned time from which a request counts as late: the client itself was the bottleneck."""
PATIENCE = 150.0
"""Seconds after which a request without an answer is given up; it counts as status 0."""
DROPPED = 0
"""The status of a request that got no answer."""
DECISIONS = "/v1/systemone"


class Reply(NamedTuple):
    """An answer as it came; header names are in lower case."""

    status: int
    body: bytes
    headers: dict[str, str]


NO_REPLY = Reply(DROPPED, b"", {})

Exchange = Callable[[bytes], Awaitable[Reply]]
"""Sends one request and waits for its answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go; `headers` are sent with each of them."""

    host: str
    port: int
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    secure: bool = False

    @classmethod
    def at(cls, url: str, key: str | None = None) -> Target:
        """The System One route of the server at this root, or the route itself where the URL has a path."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        secure = parts.scheme == "https"
        path = parts.path if parts.path.strip("/") else DECISIONS
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return cls(parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80), path, headers, secure)

    def request(self, body: bytes) -> bytes:
        """One request, ready to be written."""
        lines = [f"POST {self.path} HTTP/1.1", f"host: {self.host}:{self.port}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines.append(f"content-length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(slots=True)
class Sample:
    """One request: which body, when it was planned, sent and done (seconds from the start of the run), and its answer.

    `done` is infinite where no answer came.
    """

    body: int
    planned: float
    sent: float = math.nan
    done: float = math.inf
    reply: Reply = NO_REPLY

    @property
    def latency(self) -> float:
        """Seconds from the planned send time; infinite for everything but status 200."""
        return self.done - self.planned if self.reply.status == 200 else math.inf


@dataclass(slots=True)
class Outcome:
    """What a run saw: one sample per planned request, in the order of the schedule."""

    offered: float
    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    @property
    def latencies(self) -> list[float]:
        """Seconds from the planned send time, of answers with status 200 only."""
        return [sample.latency for sample in self.samples if sample.reply.status == 200]

    @property
    def statuses(self) -> dict[int, int]:
        """How many answers had which status; 0 is no answer."""
        return dict(Counter(sample.reply.status for sample in self.samples))

    @property
    def late(self) -> int:
        """Requests that left more than `LATE` seconds after their planned time."""
        return sum(sample.sent - sample.planned > LATE for sample in self.samples)

    @property
    def achieved(self) -> float:
        """Answers with status 200 per second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """A latency percentile of the answers with status 200, in seconds; NaN without answers."""
        ranked = sorted(self.latencies)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else math.nan


class Pool:
    """Keep-alive connections, as many as are needed at once."""

    def __init__(self, target: Target, patience: float = PATIENCE) -> None:
        self.target = target
        self.patience = patience
        self._tls = ssl.create_default_context() if target.secure else None
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, request: bytes) -> tuple[int, bytes]:
        """Send one request; its status (0 for a broken connection) and the answer's body."""
        reply = await self.exchange(request)
        return reply.status, reply.body

    async def exchange(self, request: bytes) -> Reply:
        """Send one request; `NO_REPLY` where the connection breaks or nothing comes within `patience` seconds."""
        writer = None
        try:
            async with asyncio.timeout(self.patience):
                reader, writer = await self._connection()
                writer.write(request)
                reply = await read_reply(reader)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            if writer:
                writer.close()
            return NO_REPLY
        if reply.headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        return reply

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self.target.host, self.target.port, ssl=self._tls)

    async def close(self) -> None:
        """Close all connections."""
        for _, writer in self._idle:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in self._idle), return_exceptions=True)
        self._idle.clear()


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """An HTTP/1.1 answer, its body counted or in chunks. Raises `EOFError` or `ValueError` for anything else."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        body = await read_chunks(reader)
    else:
        raise ValueError("an answer of unknown length")
    return Reply(int(first.split(" ")[1]), body, headers)


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks."""
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(parts)


def arrivals(rate: float, seconds: float, seed: int, burstiness: float = 1.0) -> list[float]:
    """Planned send times in seconds from the start: `rate` per second for `seconds`, drawn from a seed.

    The gaps are gamma distributed with this shape: 1 is Poisson, below 1 comes in bursts, infinity is a steady pace.
    """
    generator = random.Random(seed)

    def gap() -> float:
        if math.isinf(burstiness):
            return 1 / rate
        return generator.gammavariate(burstiness, 1 / (rate * burstiness))

    times, now = [], gap()
    while now < seconds:
        times.append(now)
        now += gap()
    return times


async def offer(
    exchange: Exchange, requests: Sequence[bytes], schedule: Sequence[float], tell: Callable[[], None] = lambda: None
) -> list[Sample]:
    """Send the requests in turn at their planned times, and wait for the last answer; `tell` is called at each.

    Time is the event loop's own, so a loop with a clock of its own sees this client as it would be with no delays.
    """
    clock = asyncio.get_running_loop().time
    samples = [Sample(index % len(requests), planned) for index, planned in enumerate(schedule)]
    start = clock()

    async def one(sample: Sample) -> None:
        sample.sent = clock() - start
        sample.reply = await exchange(requests[sample.body])
        if sample.reply.status != DROPPED:
            sample.done = clock() - start
        tell()

    async with asyncio.TaskGroup() as group:
        for sample in samples:
            pause = sample.planned - (clock() - start)
            if pause > 0:
                await asyncio.sleep(pause)
            group.create_task(one(sample))
    return samples


async def take_turns(
    exchange: Exchange, requests: Sequence[bytes], clients: int, tell: Callable[[], None] = lambda: None
) -> list[Sample]:
    """A closed loop: each client sends its next request when its last one is answered. For capacities, not latencies.

    Every request is sent once; its planned time is when it was sent.
    """
    clock = asyncio.get_running_loop().time
    samples = [Sample(index, 0.0) for index in range(len(requests))]
    start, left = clock(), iter(samples)

    async def client() -> None:
        for sample in left:
            sample.planned = sample.sent = clock() - start
            sample.reply = await exchange(requests[sample.body])
            if sample.reply.status != DROPPED:
                sample.done = clock() - start
            tell()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return samples


async def run(target: Target, bodies: Sequence[bytes], rate: float, seconds: float, seed: int = 1) -> Outcome:
    """Offer `rate` requests per second for `seconds`, taking the bodies in turn; waits for the last answer."""
    pool, clock = Pool(target), asyncio.get_running_loop().time
    requests = [target.request(body) for body in bodies]
    start = clock()
    samples = await offer(pool.exchange, requests, arrivals(rate, seconds, seed))
    await pool.close()
    return Outcome(rate, clock() - start, samples)
