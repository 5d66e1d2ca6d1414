"""Replicas as real processes on a real Redis: killed, stopped and left by their clients under load."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.conftest import RunningServer, Start, wait_until_ready
from tests.gateway.asking import PATH, asked, asked_bytes
from tests.gateway.replicas import answers_alone
from tests.gateway.test_serve import gauge, head
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.slow]
Started = Callable[..., list[RunningServer]]
MANY = {
    "STUB_DELAY_MS": "100",
    "MAX_INFLIGHT": "2",
    "MAX_QUEUE": "1000",
    "QUEUE_TIMEOUT": "25",
    "DRAIN_DELAY": "0.5",
}
"""Settings with which many can wait, for as long as a busy machine takes."""


@pytest.fixture(scope="module")
def start(start_server: Start, redis_server: RedisServer) -> Iterator[Started]:
    """Gives replicas that share a prefix. Those that a test has left alive serve the next one with these settings."""
    alive: dict[str, list[RunningServer]] = {}

    def start_all(count: int = 3, **settings: str) -> list[RunningServer]:
        chosen = {**MANY, **settings}
        servers = alive.setdefault(str(chosen), [])
        servers[:] = [server for server in servers if server.process.poll() is None]
        common = {"ENGINE": "stub", "REDIS_URL": redis_server.url, "REDIS_LEASE": "1"}
        prefix = f"delay{chosen['STUB_DELAY_MS']}:"
        new = [start_server(ready=False, **common, REDIS_PREFIX=prefix, **chosen) for _ in range(count - len(servers))]
        servers += new
        for server in new:
            wait_until_ready(server, 30)
        while any(replicas_of(server) != count for server in servers):
            time.sleep(0.05)
        return list(servers)

    yield start_all
    for server in [server for servers in alive.values() for server in servers]:
        server.process.kill()
        server.process.wait()


def replicas_of(server: RunningServer) -> int:
    """How many replicas it knows of."""
    return httpx.get(f"{server.url}/metrics").text.count("canvasgate_replica_inflight_decisions{")


def total(server: RunningServer, name: str, label: str = "") -> float:
    """A counter."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and label in line)


async def until_zero(servers: list[RunningServer]) -> None:
    """Return once nobody is worked on and nobody waits at any of them; the test's own timeout ends it otherwise."""
    for server in servers:
        for name in ("canvasgate_inflight_reads", "canvasgate_queued_decisions"):
            while await asyncio.to_thread(gauge, server, name):  # noqa: ASYNC110 - it is another process' figure
                await asyncio.sleep(0.02)


async def until_working(server: RunningServer) -> None:
    """Return once it works on something."""
    while not await asyncio.to_thread(gauge, server, "canvasgate_inflight_reads"):  # noqa: ASYNC110 - likewise
        await asyncio.sleep(0.01)


class Clients:
    """Clients that ask one replica and, as the SDK does, another one when the connection fails or it is turned away."""

    def __init__(self, servers: list[RunningServer]) -> None:
        self.urls = [server.url for server in servers]
        self.failures: list[object] = []

    async def ask(self, client: httpx.AsyncClient, state: str, at: int = 0) -> httpx.Response:
        for attempt in range(10):
            url = self.urls[(at + attempt) % len(self.urls)]
            try:
                response = await client.post(url + PATH, json=asked(state))
            except httpx.TransportError as error:
                self.failures.append(error)
                continue
            if response.status_code == 200:
                return response
            self.failures.append(response.status_code)
        raise AssertionError(self.failures)

    async def ask_all(self, states: list[str], at: Callable[[int], int] = lambda _: 0) -> dict[str, httpx.Response]:
        """All at once; `at` says which replica the client of a number asks first."""
        limits = httpx.Limits(max_connections=300, max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, timeout=30) as client:
            responses = await asyncio.gather(*(self.ask(client, state, at(n)) for n, state in enumerate(states)))
        return dict(zip(states, responses, strict=True))


async def check(responses: dict[str, httpx.Response]) -> None:
    """Everybody has the answer to what was asked."""
    alone = await answers_alone(list(responses))
    assert {state: response.json() for state, response in responses.items()} == alone


def states(count: int) -> list[str]:
    """What so many clients ask about."""
    return [f"Customer {number} was charged twice." for number in range(count)]


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(start: Started, redis_server: RedisServer) -> None:
    """Two hundred at three replicas, while others stay and get their own answers."""
    servers = start()
    draw = random.Random(11)

    async def leave_early(number: int) -> None:
        host, port = draw.choice(servers).url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = asked_bytes(f"leaves {number % 120}")
        request = head(len(body)) + body
        writer.write(request[: draw.choice([len(request) // 2, len(request), len(request), len(request)])])
        await writer.drain()
        await asyncio.sleep(draw.uniform(0, 0.6))
        writer.transport.abort()

    clients = Clients(servers)
    staying = asyncio.create_task(clients.ask_all(states(60), lambda number: number))
    await asyncio.gather(*(leave_early(number) for number in range(200)))
    await check(await staying)
    await until_zero(servers)
    left = {key.split(":")[2] for key in redis_server.all_keys() if key.startswith("delay100:")}

    assert [] == clients.failures
    assert not left & {"entry", "waiters", "digest", "line", "waiting", "deadlines", "taken"}


async def test_a_worker_that_is_killed_loses_nothing_of_others(start: Started) -> None:
    """What it had taken is decided by another, after its lease has run out; its places are free again."""
    origin, worker, other = start()
    clients = Clients([origin])
    expired = sum(total(server, "canvasgate_leases_expired_total") for server in (origin, other))
    asking = asyncio.create_task(clients.ask_all(states(24)))
    await until_working(worker)
    worker.process.kill()
    await check(await asking)
    await until_zero([origin, other])

    assert [] == clients.failures
    assert sum(total(server, "canvasgate_leases_expired_total") for server in (origin, other)) > expired


async def test_clients_of_an_origin_that_is_killed_ask_another_and_are_answered(start: Started) -> None:
    """What they had asked is joined where it still waits or is worked on; nothing is left behind."""
    origin, second, third = start()
    clients = Clients([origin, second, third])
    joined = sum(total(server, "canvasgate_joined_total") for server in (second, third))
    asking = asyncio.create_task(clients.ask_all(states(18)))
    await until_working(second)
    await until_working(third)
    origin.process.kill()
    await check(await asking)
    await until_zero([second, third])

    assert clients.failures
    assert all(isinstance(failure, httpx.TransportError) for failure in clients.failures)
    assert sum(total(server, "canvasgate_joined_total") for server in (second, third)) > joined


async def test_replicas_are_stopped_under_load_without_a_failed_request(start: Started) -> None:
    """One after the other: what it has is finished or given back, it ends with 0, and nobody is refused."""
    servers = start()
    clients = Clients(servers)
    stopped: list[RunningServer] = []

    def at(number: int) -> int:
        alive = [index for index, server in enumerate(servers) if server not in stopped]
        return alive[number % len(alive)]

    rounds: list[dict[str, httpx.Response]] = []
    for leaving in (None, servers[0], servers[1]):
        asking = asyncio.create_task(clients.ask_all([f"{len(rounds)} {state}" for state in states(30)], at))
        await until_working(servers[2])
        if leaving is not None:
            leaving.process.send_signal(signal.SIGTERM)
            stopped.append(leaving)
        rounds.append(await asking)
        if leaving is not None:
            assert 0 == await asyncio.to_thread(leaving.process.wait, 15)
    for responses in rounds:
        await check(responses)
    await until_zero([servers[2]])

    assert [] == clients.failures


async def test_what_a_stopped_replica_still_works_on_is_given_back(start: Started) -> None:
    """It does not wait for a lease: the one that takes it over is told at once."""
    origin, worker = start(2, STUB_DELAY_MS="3000", MAX_INFLIGHT="1", DRAIN_DELAY="0", DRAIN_TIMEOUT="0")
    asking = asyncio.create_task(Clients([origin]).ask_all(states(2)))
    await until_working(worker)
    worker.process.send_signal(signal.SIGTERM)

    assert 0 == await asyncio.to_thread(worker.process.wait, 10)
    await check(await asking)
    await until_zero([origin])
    assert 0 == total(origin, "canvasgate_leases_expired_total")
