"""Limits of keys: counted here or over Redis, refused with the exact time to come again, never in the way of others."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from limits.aio.storage import memory
from redis.asyncio import Redis

from decisions.errors import QueueUnavailable, RateLimited, TooManyTokens
from gateway import rates as counting
from gateway.config import InvalidSettings
from gateway.keys import Key, digest_of, write_keys
from gateway.rates import Rates
from tests.conftest import AppClient, free_port
from tests.gateway.asking import PATH, Held, asked, until

SECRET = "cg_secret"
HEADERS = {"authorization": f"Bearer {SECRET}"}
ASKS = Key("asks", digest_of(SECRET), requests_per_second=3)
SPENDS = Key("spends", digest_of(SECRET), tokens_per_minute=1000)
TWO = Key("two", digest_of(SECRET), concurrent=2)


class Clock:
    """The time that the library's memory sees."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands still until it is moved."""
    standing = Clock()
    monkeypatch.setattr(memory, "time", standing)
    return standing


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits longer for Redis than a gateway does, so that a busy machine is not taken for a Redis that is away."""
    monkeypatch.setattr(counting, "REDIS_PATIENCE", 2.0)


@dataclass(frozen=True)
class RunningRedis:
    """A redis-server of our own."""

    url: str
    process: subprocess.Popen[bytes]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RunningRedis]:
    """Started for the test, on a port of its own."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("no redis-server on the PATH")
    port = free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    while b"Ready to accept" not in process.stdout.readline():
        pass
    yield RunningRedis(f"redis://127.0.0.1:{port}/0", process)
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()
    process.stdout.close()


async def refusal(rates: Rates, key: Key, tokens: int = 0) -> float:
    """Seconds after which the key may come again."""
    with pytest.raises(RateLimited) as caught:
        await (rates.spend(key, tokens) if tokens else rates.ask(key))
    return caught.value.retry_after


# --- Counting ---------------------------------------------------------------------------------------------------------


async def test_requests_over_the_limit_are_told_when_to_come(clock: Clock) -> None:
    """At that moment there is room for one; just before there is none."""
    rates = Rates()
    for _ in range(3):
        await rates.ask(ASKS)
    wait = await refusal(rates, ASKS)
    clock.now += wait - 0.005
    shorter = await refusal(rates, ASKS)
    clock.now += shorter
    await rates.ask(ASKS)

    assert 0 < shorter < wait <= 1.01
    assert 0 < await refusal(rates, ASKS)


@pytest.mark.parametrize("start", [0.0, 17.3, 59.9])
@pytest.mark.parametrize("spent", [[1000], [300, 700], [999, 1], [400, 400]])
@pytest.mark.parametrize("asked_for", [1, 500, 1000])
async def test_the_time_to_come_again_is_exact(clock: Clock, start: float, spent: list[int], asked_for: int) -> None:
    """Wherever in the window, over one window's end or two: refused until then, admitted then."""
    rates = Rates()
    clock.now += start
    for tokens in spent:
        await rates.spend(SPENDS, tokens)
    if sum(spent) + asked_for <= 1000:
        await rates.spend(SPENDS, asked_for)
        return
    for _ in range(3):
        wait = await refusal(rates, SPENDS, asked_for)
        clock.now += wait - 0.01
        clock.now += await refusal(rates, SPENDS, asked_for)
        await rates.spend(SPENDS, asked_for)
        for _ in range(1000 // asked_for - 1):
            try:
                await rates.spend(SPENDS, asked_for)
            except RateLimited:
                break


async def test_keys_do_not_count_for_each_other() -> None:
    """Nor do a key's tokens for its requests."""
    rates = Rates()
    both = Key("both", b"", requests_per_second=1, tokens_per_minute=10)
    await rates.ask(both)
    await rates.spend(both, 10)
    await rates.ask(ASKS)

    assert 0 < await refusal(rates, both)
    assert 0 < await refusal(rates, both, 1)


async def test_what_no_minute_has_room_for_is_never_worth_another_try() -> None:
    """400 with both figures, instead of a 429 that would never end."""
    with pytest.raises(TooManyTokens, match="1001 tokens, but at most 1000"):
        await Rates().spend(SPENDS, 1001)


async def test_a_key_without_limits_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs nothing."""
    monkeypatch.setattr(counting, "hit", None)
    free = Key("free", b"")
    await Rates().ask(free)
    await Rates().spend(free, 10**9)

    assert not free.limited


async def fail_within(rates: Rates, key: Key) -> None:
    """A decision that goes wrong."""
    async with rates.running(key):
        raise ZeroDivisionError


async def test_decisions_at_once_are_given_back() -> None:
    """However they end."""
    rates = Rates()
    async with rates.running(TWO):
        with pytest.raises(ZeroDivisionError):
            await fail_within(rates, TWO)
        async with rates.running(TWO):
            with pytest.raises(RateLimited):
                await fail_within(rates, TWO)

    assert not rates._running


# --- Over Redis -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def pair(redis: RunningRedis) -> AsyncIterator[tuple[Rates, Rates]]:
    """Two replicas with one Redis."""
    replicas = Rates(redis.url), Rates(redis.url)
    yield replicas
    for replica in replicas:
        await replica.close()


@pytest.mark.redis
async def test_replicas_count_together(pair: tuple[Rates, Rates]) -> None:
    """What one has admitted, the other refuses, until the time that it tells."""
    key = Key("asks", b"", requests_per_second=4)
    await asyncio.gather(*(rates.ask(key) for rates in pair * 2))
    waits = [await refusal(rates, key) for rates in pair]
    await asyncio.sleep(max(waits))
    await pair[0].ask(key)

    assert all(0 < wait <= 1.5 for wait in waits)


async def has_room(rates: Rates, key: Key) -> bool:
    """Whether one more decision of the key could run there now."""
    try:
        async with rates.running(key):
            return True
    except RateLimited:
        return False


@pytest.mark.redis
async def test_decisions_at_once_are_counted_together(pair: tuple[Rates, Rates]) -> None:
    """One on each replica fills a key that may have two, until one of them ends."""
    async with pair[0].running(TWO):
        async with pair[1].running(TWO):
            assert not await has_room(pair[0], TWO)
            assert not await has_room(pair[1], TWO)
        await asyncio.sleep(0.1)  # given back on the side

        assert await has_room(pair[1], TWO)


@pytest.mark.redis
async def test_a_decision_counts_for_as_long_as_it_runs_and_a_dead_replicas_for_one_lease(redis: RunningRedis) -> None:
    """A replica that renews nothing any more is as good as dead."""
    lives, dies = Rates(redis.url, lease=0.3), Rates(redis.url, lease=0.3)
    one = Key("one", b"", concurrent=1)
    async with lives.running(one):
        await asyncio.sleep(0.7)
        assert not await has_room(dies, one)

    await asyncio.sleep(0.1)
    async with dies.running(one):
        assert dies._leases is not None
        await dies._leases.close()
        assert not await has_room(lives, one)
        await asyncio.sleep(0.4)

        assert await has_room(lives, one)
    for rates in (lives, dies):
        await rates.close()


@pytest.mark.redis
async def test_decisions_at_once_go_on_without_redis(redis: RunningRedis) -> None:
    """Those of this replica still count; those that ran when Redis went away end as ever."""
    rates, required = Rates(redis.url), Rates(redis.url, required=True)
    async with rates.running(TWO):
        redis.process.kill()
        redis.process.wait()
        async with rates.running(TWO):
            assert not await has_room(rates, TWO)
        with pytest.raises(QueueUnavailable):
            await has_room(required, TWO)

    assert not rates._running
    assert not required._running
    for each in (rates, required):
        await each.close()


@pytest.mark.redis
async def test_callers_who_leave_while_redis_counts_hold_nothing(redis: RunningRedis) -> None:
    """Cancelled at every moment of it: what Redis had given is given back, long before it would run out."""
    rates, one = Rates(redis.url, lease=60.0), Key("one", b"", concurrent=50)

    async def decide() -> None:
        async with rates.running(one):
            await asyncio.sleep(0.01)

    for moment in range(100):
        deciding = asyncio.create_task(decide())
        await asyncio.sleep(moment / 20_000)
        deciding.cancel()
        await asyncio.wait([deciding])

    assert not rates._running
    await rates.close()
    async with Redis.from_url(redis.url) as client:
        assert not await client.exists("canvasgate:running:one")


@pytest.mark.redis
async def test_everything_in_redis_has_our_prefix_and_expires(pair: tuple[Rates, Rates], redis: RunningRedis) -> None:
    """Nothing of the key but its name is there."""
    key = Key("acme", digest_of(SECRET), requests_per_second=3, tokens_per_minute=1000, concurrent=2)
    await pair[0].ask(key)
    await pair[1].spend(key, 10)
    async with pair[0].running(key), Redis.from_url(redis.url, decode_responses=True) as client:
        keys = [name async for name in client.scan_iter()]
        left = [await client.pttl(name) for name in keys]

    assert 3 == len(keys)
    assert all(name.startswith("canvasgate:r") and "acme" in name for name in keys)
    assert all(0 < each <= 120_000 for each in left)


@pytest.mark.redis
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_without_redis_a_replica_counts_for_itself(redis: RunningRedis, how: signal.Signals) -> None:
    """Dead or hanging; limits hold all the same."""
    rates = Rates(redis.url)
    await rates.ask(ASKS)
    redis.process.send_signal(how)
    for _ in range(3):
        await rates.ask(ASKS)

    assert not rates.shared
    assert 0 < await refusal(rates, ASKS)
    await rates.close()


@pytest.mark.redis
async def test_where_redis_is_required_its_absence_refuses(redis: RunningRedis) -> None:
    """503; keys without limits go on."""
    rates = Rates(redis.url, required=True)
    redis.process.kill()
    with pytest.raises(QueueUnavailable):
        await rates.ask(ASKS)
    await rates.ask(Key("free", b""))
    await rates.close()


@pytest.mark.redis
async def test_redis_is_asked_again_once_it_is_back(redis: RunningRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it counted before still counts."""
    monkeypatch.setattr(counting, "REDIS_PAUSE", 0.05)
    rates, key = Rates(redis.url), Key("k", b"", tokens_per_minute=100)
    await rates.spend(key, 100)
    redis.process.send_signal(signal.SIGSTOP)
    await rates.spend(key, 100)
    redis.process.send_signal(signal.SIGCONT)
    await asyncio.sleep(0.1)

    assert 0 < await refusal(rates, key, 1)
    assert rates.shared
    await rates.close()


@pytest.mark.redis
async def test_a_caller_who_leaves_while_redis_counts_spoils_no_connection(redis: RunningRedis) -> None:
    """Each later answer is the answer to what was asked."""
    rates = Rates(redis.url)
    key, full = Key("k", b"", tokens_per_minute=10**6), Key("full", b"", tokens_per_minute=1)
    await rates.spend(full, 1)
    for delay in range(100):
        task = asyncio.create_task(rates.spend(key, 1))
        await asyncio.sleep(delay * 2e-5)
        task.cancel()
        await asyncio.wait([task])
        await rates.spend(key, 1)
        assert 0 < await refusal(rates, full, 1)

    assert rates.shared
    await rates.close()


@pytest.mark.parametrize("url", ["http://x", "redis", "redis+nonsense://x:1"])
def test_an_address_that_is_no_redis_is_refused_at_the_start(url: str) -> None:
    """The message names the setting and not what it holds."""
    with pytest.raises(InvalidSettings, match="REDIS_URL is not") as caught:
        Rates(url)

    assert url not in str(caught.value)


# --- Served -----------------------------------------------------------------------------------------------------------


def served(path: Path, **limits: int) -> AppClient:
    """An app with one key."""
    write_keys(path, [Key("acme", digest_of(SECRET), **limits)])
    return AppClient(API_KEYS_FILE=str(path))


async def test_a_key_over_its_requests_is_answered_429(tmp_path: Path) -> None:
    """With whole seconds, rounded up, and milliseconds; counted by the key's name; what is open stays open."""
    async with served(tmp_path / "keys", requests_per_second=1) as client:
        started = time.time()
        answers = [await client.post(PATH, json=asked(), headers=HEADERS) for _ in range(20)]
        if time.time() - started > 0.9:
            pytest.skip("this machine is too slow for two requests a second")
        refused = next(answer for answer in answers if answer.status_code != 200)
        metrics = await client.get("/metrics", headers=HEADERS)

    seconds, milliseconds = refused.headers["retry-after"], int(refused.headers["retry-after-ms"])
    assert (429, "rate_limit_error") == (refused.status_code, refused.json()["detail"]["error_type"])
    assert int(seconds) == -(-milliseconds // 1000)
    assert 'canvasgate_rate_limited_total{key="acme"}' in metrics.text
    assert "canvasgate_rates_shared" not in metrics.text


@pytest.mark.redis
async def test_whether_limits_are_shared_can_be_watched(redis: RunningRedis) -> None:
    """1 while Redis counts."""
    async with AppClient(REDIS_URL=redis.url) as client:
        assert "canvasgate_rates_shared 1.0" in (await client.get("/metrics")).text


async def test_a_key_over_its_tokens_is_answered_429_before_any_engine_work(tmp_path: Path) -> None:
    """Counted as planned; too many for any minute is 400."""
    async with AppClient() as client:
        tokens = (await client.post(PATH, json=asked())).json()["usage"]["input_tokens"]
    async with served(tmp_path / "keys", tokens_per_minute=tokens * 2) as client:
        statuses = [(await client.post(PATH, json=asked(), headers=HEADERS)).status_code for _ in range(3)]
        large = await client.post(PATH, json=asked("word " * 500), headers=HEADERS)
        queue = client.gateway.serving.queue.snapshot()

    assert [200, 200, 429] == statuses
    assert (400, "max_tokens_exceeded") == (large.status_code, large.json()["detail"]["error_type"])
    assert (0, 0) == (queue.decisions, queue.reads)


async def test_a_key_over_its_decisions_at_once_is_answered_429(tmp_path: Path) -> None:
    """What runs goes on, and when it has ended another may come."""
    async with served(tmp_path / "keys", concurrent=1) as client:
        held = Held(client)
        first = asyncio.create_task(client.post(PATH, json=asked(), headers=HEADERS))
        await until(held.begun.is_set)
        second = await client.post(PATH, json=asked(), headers=HEADERS)
        models = await client.get("/v1/models", headers=HEADERS)
        held.go.set()
        third = (await first).status_code, (await client.post(PATH, json=asked(), headers=HEADERS)).status_code

    assert (429, "1", 200) == (second.status_code, second.headers["retry-after"], models.status_code)
    assert (200, 200) == third
