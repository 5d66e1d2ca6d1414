"""The client on real sockets: answers of any framing, and what does not come back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from bench.openloop import DECISIONS, Pool, Target, arrivals, run

Handler = Callable[[int, asyncio.StreamWriter], Awaitable[None]]
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[Target, list[float]]]:
    """A server on a free port that gives each request to `handler`; it notes when each came, and how long it took."""
    seen: list[float] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while not writer.is_closing() and (head := await reader.readuntil(b"\r\n\r\n")):
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            number, came = len(seen), clock()
            seen.append(math.nan)
            await handler(number, writer)
            seen[number] = clock() - came

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError):
            await connected(reader, writer)
        writer.close()

    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Target.at(f"http://127.0.0.1:{port}"), seen
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler_of_connection in handlers:
            handler_of_connection.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


async def statuses(handler: Handler, count: int = 3, patience: float = 20.0) -> list[int]:
    """The statuses of so many requests in turn."""
    async with serving(handler) as (target, _):
        pool = Pool(target, patience)
        found = [(await pool.post(target.request(b"{}")))[0] for _ in range(count)]
        await pool.close()
    return found


async def test_every_latency_covers_the_server_s_own_time() -> None:
    """One outcome per planned request, each at least what the server itself took for one of them."""

    async def slow(number: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02 if number % 2 else 0.05)
        writer.write(COUNTED)

    async with serving(slow) as (target, took):
        outcome = await run(target, [b"{}"], rate=100, seconds=0.5, seed=4)

    assert len(outcome.samples) == len(took) == len(arrivals(100, 0.5, 4)) == outcome.statuses[200]
    assert all(latency >= own for latency, own in zip(sorted(outcome.latencies), sorted(took), strict=True))


async def test_answers_in_chunks_and_closed_connections_are_read() -> None:
    """Both are other servers' right; a closed connection is not used again."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    closing = COUNTED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

    async def mixed(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked if number % 2 else closing)
        if number % 2 == 0:
            writer.close()

    assert [200] * 6 == await statuses(mixed, count=6)


async def test_a_connection_that_breaks_is_a_dropped_request() -> None:
    """Status 0 for that one; the next one is asked on a new connection."""

    async def breaking(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 1:
            writer.close()
        else:
            writer.write(COUNTED)

    assert [200, 0, 200] == await statuses(breaking)


async def test_a_request_that_is_never_answered_is_given_up() -> None:
    """Status 0 once the patience is over; the run goes on."""

    async def silent(number: int, writer: asyncio.StreamWriter) -> None:
        if number != 1:
            writer.write(COUNTED)

    assert [200, 0, 200] == await statuses(silent, patience=1.0)


async def test_garbage_is_a_dropped_request() -> None:
    """What is not HTTP, and an answer of no known length."""

    async def garbage(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if number else b"SSH-2.0\r\n\r\n")

    assert [0, 0] == await statuses(garbage, count=2)


@pytest.mark.parametrize(("burstiness", "spread"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (math.inf, 0.0)])
def test_arrivals_are_as_bursty_as_asked(burstiness: float, spread: float) -> None:
    """Gamma gaps of mean 1/rate and coefficient of variation 1/sqrt(shape); the seed decides them all."""
    times = arrivals(50, 400, seed=7, burstiness=burstiness)
    gaps = [later - earlier for earlier, later in pairwise(times)]

    assert fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(spread, rel=0.05, abs=1e-6)
    assert times == arrivals(50, 400, seed=7, burstiness=burstiness)
    assert math.isinf(burstiness) or times != arrivals(50, 400, seed=8, burstiness=burstiness)


def test_a_url_may_be_the_root_or_the_route() -> None:
    """Root, route, host alone; a key becomes a bearer key."""
    assert Target.at("http://host:81") == Target("host", 81, DECISIONS)
    assert Target.at("http://host/v1/other").path == "/v1/other"
    assert (Target.at("https://host/").port, Target.at("https://host/").secure) == (443, True)
    assert Target.at("host:81").port == 81
    assert b"authorization: Bearer k\r\n" in Target.at("http://host", "k").request(b"{}")
