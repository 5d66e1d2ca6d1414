"""Replicas that share a Redis: hand-off, joining, leaving, bounds, and a Redis that is away, slow, full or emptied."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import httpx
import pytest

from gateway.engines.stub import StubFaults
from tests.gateway.asking import PATH, asked
from tests.gateway.replicas import Replica, acquainted, answers_alone, idle, replicas, until
from tests.redis_server import RedisServer, proxied

pytestmark = pytest.mark.redis
STATES = [f"Customer {number}" for number in range(12)]


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that a test may do anything to."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


async def ask_all(replica: Replica, states: list[str] = STATES) -> dict[str, httpx.Response]:
    """All at once."""
    responses = await asyncio.gather(*(replica.ask(state) for state in states))
    return dict(zip(states, responses, strict=True))


async def check(responses: dict[str, httpx.Response]) -> None:
    """Everybody has the answer to what was asked."""
    alone = await answers_alone(list(responses))
    assert {200} == {response.status_code for response in responses.values()}
    assert {state: response.json() for state, response in responses.items()} == alone


# --- Hand-off ---------------------------------------------------------------------------------------------------------


async def test_what_has_no_room_is_decided_where_there_is(redis_server: RedisServer) -> None:
    """With the answers that each gets alone; the figures tell of it."""
    async with replicas(redis_server.url, 3) as (origin, second, third):
        await check(await ask_all(origin))
        taken = second.queue.worker.taken, third.queue.worker.taken
        text = (await origin.get("/metrics")).text

    assert min(taken) > 0
    assert f'canvasgate_handoffs_total{{direction="sent"}} {sum(taken)}.0' in text
    assert "canvasgate_redis_up 1.0" in text


async def test_the_form_and_the_stages_cross_as_well(redis_server: RedisServer) -> None:
    """An answer in the OpenAI form with diagnostics, and what took how long."""
    body = {
        "model": "jev-latest",
        "input": "x",
        "questions": [{"type": "predicate", "name": "q", "instructions": "?"}],
        "diagnostics": True,
    }
    async with replicas(redis_server.url, STUB_DELAY_MS="300") as (origin, other):
        first = asyncio.create_task(origin.ask())
        await until(lambda: origin.working)
        handed = await origin.post("/v1/decisions", json=body)
        own = await other.post("/v1/decisions", json=body)
        await first

    assert 1 == other.queue.worker.taken
    assert own.json()["answers"] == handed.json()["answers"]
    seconds = handed.json()["x_diagnostics"]["seconds"]
    assert seconds["engine"] > 0
    assert "engine;dur=" in handed.headers["server-timing"]


async def test_errors_cross_as_errors(redis_server: RedisServer) -> None:
    """With their status, their message and when to come again."""
    async with replicas(redis_server.url, STUB_DELAY_MS="300") as (origin, other):
        first = asyncio.create_task(origin.ask())
        await until(lambda: origin.working)
        other.gateway.serving.engine.faults = StubFaults(missing_slot=1.0, lasting=True)
        failed = await origin.ask("Another.")
        await first

    assert (503, "malformed_readout") == (failed.status_code, failed.json()["detail"]["error_type"])
    assert "retry-after" in failed.headers


async def test_replicas_that_differ_share_nothing(redis_server: RedisServer) -> None:
    """Another default would give other answers."""
    async with (
        replicas(redis_server.url, 1, REDIS_PREFIX="differ:") as (origin,),
        replicas(redis_server.url, 1, REDIS_PREFIX="differ:", DEFAULT_LAYOUT="schema_first") as (other,),
    ):
        await check(await ask_all(origin, STATES[:4]))

        assert 0 == other.queue.worker.taken


async def test_the_bound_is_the_clusters(redis_server: RedisServer) -> None:
    """Two waiting entries, wherever they came, and the next one is refused anywhere."""
    async with replicas(redis_server.url, MAX_QUEUE="2", STUB_DELAY_MS="400") as (one, two):
        running = [asyncio.create_task(each.ask(f"inside {index}")) for index, each in enumerate((one, two))]
        await until(lambda: one.working and two.working)
        waiting = [asyncio.create_task(each.ask(f"waits {index}")) for index, each in enumerate((one, two))]
        await until(lambda: one.queue.cluster.small == 2 or two.queue.cluster.small == 2)
        refused = [await one.ask("late"), await two.ask("later")]
        answered = await asyncio.gather(*running, *waiting)

    assert [529, 529] == [response.status_code for response in refused]
    assert [200] * 4 == [response.status_code for response in answered]


async def test_a_dead_engine_takes_nothing_off_others(redis_server: RedisServer) -> None:
    """Once it is known to be dead."""
    async with replicas(redis_server.url) as (origin, other):
        other.gateway.serving.engine.faults = StubFaults(dead=True)
        await until(lambda: other.gateway.failed)
        await check(await ask_all(origin, STATES[:5]))
        taken = other.gateway._serving.queue.worker.taken
        other.gateway.failed = False  # so that it can be looked at

    assert 0 == taken


# --- Joining ----------------------------------------------------------------------------------------------------------


async def test_identical_requests_are_decided_once_anywhere(redis_server: RedisServer) -> None:
    """Six at three replicas; whoever joined is told so."""
    async with replicas(redis_server.url, 3, STUB_DELAY_MS="1000") as three:
        responses = await asyncio.gather(*(each.ask(diagnostics=True) for each in three for _ in range(2)))
        read = sum(sum(each.ended.values()) for each in three)
    joined = [response.json()["x_diagnostics"].get("x_joined", False) for response in responses]

    assert {200} == {response.status_code for response in responses}
    assert 1 == read
    assert [False] + [True] * 5 == sorted(joined)
    assert 1 == len({str(response.json()["answers"]) for response in responses})


@pytest.mark.parametrize("leaver", [0, 1])
async def test_one_of_those_who_joined_may_leave(redis_server: RedisServer, leaver: int) -> None:
    """The others get the answer, and nothing is read again, whoever came first."""
    async with replicas(redis_server.url, STUB_DELAY_MS="400") as two:
        first = asyncio.create_task(two[0].ask())
        await until(lambda: two[0].queue.worker.running and next(iter(two[0].queue.worker.running.values())).registered)
        second = asyncio.create_task(two[1].ask())
        await until(lambda: any(each.joined for each in two[1].queue._awaited.values()))
        (first, second)[leaver].cancel()
        response = await (second, first)[leaver]
        ended = [dict(each.ended) for each in two]

    assert 200 == response.status_code
    assert {1} == set(ended[0].values())
    assert {} == ended[1]


async def test_when_all_have_left_the_work_ends_wherever_it_is(redis_server: RedisServer) -> None:
    """Running here, running elsewhere and waiting."""
    async with replicas(redis_server.url, STUB_DELAY_MS="600000") as (origin, other):
        asking = [asyncio.create_task(origin.ask(state)) for state in STATES[:5]]
        await until(lambda: origin.working and other.working and origin.queue.cluster.small == 3)
        for each in asking:
            each.cancel()
        await until(lambda: idle(origin) and idle(other))
        assert 0 == other.queue.cluster.small


async def test_whoever_joins_what_waits_gets_its_answer(redis_server: RedisServer) -> None:
    """Both ask for the same while neither has room."""
    async with replicas(redis_server.url, STUB_DELAY_MS="200") as two:
        running = [asyncio.create_task(each.ask(f"inside {index}")) for index, each in enumerate(two)]
        await until(lambda: two[0].working and two[1].working)
        same = await asyncio.gather(*(each.ask() for each in two))
        await asyncio.gather(*running)
        read = sum(sum(each.ended.values()) for each in two)

    assert {200} == {response.status_code for response in same}
    assert 3 == read


# --- What stands in Redis ---------------------------------------------------------------------------------------------


async def test_every_key_expires_and_nothing_of_an_entry_stays(redis_server: RedisServer) -> None:
    """While entries wait, run and are joined; and when all is over."""
    prefix = "expiring:"
    async with replicas(redis_server.url, REDIS_PREFIX=prefix, STUB_DELAY_MS="200") as (origin, other):
        asking = [asyncio.create_task(origin.ask(state)) for state in STATES[:5]]
        await until(lambda: origin.working and other.working and origin.queue.cluster.small)
        during = [key for key in redis_server.all_keys() if key.startswith(prefix)]
        lasting = [key for key in during if int(redis_server.ask("PTTL", key).lstrip(b":")) == -1]
        await asyncio.gather(*asking)
        await until(lambda: idle(origin) and idle(other))
        after = [key.split(":", 2)[2] for key in redis_server.all_keys() if key.startswith(prefix)]

    assert any("entry:" in key for key in during)
    assert [] == lasting
    assert {"replica", "replicas", "lane", "figures"} >= {key.split(":")[0] for key in after} - {"inbox"}


async def test_without_payloads_nothing_of_a_request_is_in_redis(redis_server: RedisServer) -> None:
    """Nothing is handed off or joined across replicas, and the bound holds all the same."""
    async with replicas(
        redis_server.url, REDIS_PREFIX="figures:", REDIS_PAYLOADS="0", MAX_QUEUE="1", STUB_DELAY_MS="400"
    ) as (one, two):
        asking = [asyncio.create_task(one.ask(state)) for state in STATES[:2]]
        await until(lambda: two.queue.room.elsewhere)
        other = asyncio.create_task(two.ask("inside"))
        await until(lambda: two.working)
        refused = await two.ask("late")
        keys = {key.split(":")[2] for key in redis_server.all_keys() if key.startswith("figures:")}
        await asyncio.gather(*asking, other)

    assert 529 == refused.status_code
    assert {"replica", "replicas"} == keys


async def test_a_large_request_waits_where_it_came(redis_server: RedisServer) -> None:
    """What does not go through Redis finds room all the same."""
    async with replicas(redis_server.url, MAX_MODEL_LEN="1048576") as (origin, other):
        first = asyncio.create_task(origin.ask())
        await until(lambda: origin.working)
        large = asked("x", instructions="y" * 900, padding="z" * 1_100_000)
        response = await origin.post(PATH, json=large)
        await first

    assert (200, 0) == (response.status_code, other.queue.worker.taken)


# --- Cancelling -------------------------------------------------------------------------------------------------------


async def test_commands_that_are_given_up_poison_no_connection(redis_server: RedisServer) -> None:
    """Two hundred clients leave at random moments; everybody else gets their own answer."""
    draw = random.Random(3)
    async with replicas(redis_server.url, STUB_DELAY_MS="5", MAX_QUEUE="1000", QUEUE_TIMEOUT="30") as two:
        staying = {
            f"stays {number}": asyncio.create_task(draw.choice(two).ask(f"stays {number}")) for number in range(40)
        }
        leaving = [asyncio.create_task(draw.choice(two).ask(f"leaves {number % 150}")) for number in range(200)]
        while leaving:
            await asyncio.sleep(draw.uniform(0, 0.005))
            leaving.pop(draw.randrange(len(leaving))).cancel()
        await check({state: await task for state, task in staying.items()})


# --- A Redis that fails -----------------------------------------------------------------------------------------------


async def test_a_replica_goes_on_alone_when_redis_was_never_there(own_server: RedisServer) -> None:
    """It is ready, says what is missing, and shares once Redis is there."""
    own_server.kill()
    async with replicas(own_server.url, there=False) as two:
        await check(await ask_all(two[0], STATES[:4]))
        ready = await two[0].get("/ready")
        text = (await two[0].get("/metrics")).text
        own_server.start()
        await until(lambda: acquainted(two, 2))
        await check(await ask_all(two[0], STATES[4:]))

        assert two[1].queue.worker.taken
    assert (200, True) == (ready.status_code, ready.json()["degraded"].startswith("Redis is away"))
    assert "canvasgate_redis_up 0.0" in text


async def test_where_redis_is_required_nothing_is_decided_without_it(own_server: RedisServer) -> None:
    """503 until it is there."""
    own_server.kill()
    async with replicas(own_server.url, 1, there=False, REDIS_REQUIRED="1") as (replica,):
        refused, unready = await replica.ask(), await replica.get("/ready")
        own_server.start()
        await until(lambda: replica.queue.link.up)
        answered, ready = await replica.ask(), await replica.get("/ready")

    assert (503, "queue_unavailable") == (refused.status_code, refused.json()["detail"]["error_type"])
    assert "retry-after" in refused.headers
    assert (503, 200, 200) == (unready.status_code, answered.status_code, ready.status_code)
    assert unready.json()["reason"].startswith("Redis is away")


async def test_a_redis_that_is_killed_and_comes_back_empty_loses_nobody(own_server: RedisServer) -> None:
    """Whoever waited or was decided elsewhere gets the answer."""
    async with replicas(own_server.url, 3) as three:
        asking = asyncio.create_task(ask_all(three[0]))
        await until(lambda: three[1].working and three[2].working)
        own_server.kill()
        await until(lambda: not three[0].queue.link.up)
        await check(await asking)
        own_server.start()
        await until(lambda: acquainted(three, 3))
        await check(await ask_all(three[0]))


async def test_a_redis_that_is_emptied_loses_nobody(own_server: RedisServer) -> None:
    """FLUSHALL, and SCRIPT FLUSH with it."""
    async with replicas(own_server.url, 3, STUB_DELAY_MS="150") as three:
        asking = asyncio.create_task(ask_all(three[0]))
        await until(lambda: three[1].working and three[2].working)
        assert own_server.ask("FLUSHALL") == own_server.ask("SCRIPT", "FLUSH") == b"+OK"
        await check(await asking)


async def test_a_redis_that_is_full_loses_nobody(own_server: RedisServer) -> None:
    """What may not wait there waits where it came; afterwards work is shared again."""
    async with replicas(own_server.url, 2) as two:
        asking = asyncio.create_task(ask_all(two[0], STATES[:6]))
        await until(lambda: two[1].working)
        own_server.ask("CONFIG", "SET", "maxmemory", "1")
        while_full = await ask_all(two[0], STATES[6:])
        await check(await asking | while_full)
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
        before = two[1].queue.worker.taken
        await check(await ask_all(two[0]))

        assert two[1].queue.worker.taken > before


async def test_a_slow_redis_slows_only_what_goes_through_it(own_server: RedisServer) -> None:
    """Answers are right; when it is slower than its timeout it counts as away."""
    async with proxied(own_server) as proxy, replicas(proxy.url, 2, REDIS_TIMEOUT="0.5", REDIS_LEASE="3") as two:
        proxy.delay = 0.05
        await check(await ask_all(two[0]))
        proxy.delay = 2.0
        asking = asyncio.create_task(ask_all(two[0], STATES[:4]))
        await until(lambda: not two[0].queue.link.up)
        await check(await asking)
        proxy.delay = 0.0
        await until(lambda: two[0].queue.link.up and two[1].queue.link.up)


@pytest.mark.parametrize("how", ["cut", "half_close"])
async def test_connections_that_are_cut_lose_nobody(own_server: RedisServer, how: str) -> None:
    """Again and again, in the middle of whatever they carry."""
    async with proxied(own_server) as proxy, replicas(proxy.url, 3, STUB_DELAY_MS="30") as three:
        asking = asyncio.create_task(ask_all(three[0], [*STATES, *(f"more {number}" for number in range(12))]))
        for _ in range(6):
            await asyncio.sleep(0.04)
            getattr(proxy, how)()
        await check(await asking)
        await until(lambda: all(each.queue.link.up for each in three))
