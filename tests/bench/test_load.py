"""The harness reports what a server of known behaviour does: its distribution, its stalls, its limit, its faults."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import pytest

from bench.figures import Window, figures, recovery
from bench.load import Bench, ServerFailed, find_knee
from bench.openloop import NO_REPLY, Reply, Sample, arrivals, offer, take_turns
from bench.workloads import Load, named
from tests.bench.doubles import (
    RULES,
    Body,
    MemoryServer,
    VirtualLoop,
    bench_of,
    dropping,
    reply,
    right_answers,
    virtually,
)

OPEN = Load("open", 1.0, seconds=10.0)


def opened(server: MemoryServer, rate: float = 100.0, load: Load = OPEN, workload: str = "W1", **rules: Any) -> Body:
    """The figures of one open-loop cell in virtual time."""
    cell = virtually(bench_of(server, workload, replace(RULES, **rules)).cell(load, rate, 0.1))
    found: Body = cell["repeats"][0]["figures"]
    return found


# --- Latency ----------------------------------------------------------------------------------------------------------


def test_a_known_distribution_is_reported_to_five_per_cent() -> None:
    """Lognormal delays of a server that works on all requests at once: its own quantiles, and exactly its record."""
    draw = random.Random(3)
    server = MemoryServer(delay=lambda: draw.lognormvariate(math.log(0.2), 0.5))
    seen = opened(server, rate=400, load=replace(OPEN, seconds=20), again=0, warm_up=0)

    for share, name in ((0.50, "p50_s"), (0.95, "p95_s"), (0.99, "p99_s")):
        truth = 0.2 * math.exp(0.5 * NormalDist().inv_cdf(share))
        assert truth == pytest.approx(seen[name], rel=0.05)
    assert max(server.delays) == pytest.approx(seen["max_s"])
    assert seen["misses"] == seen["client_late"] == 0


def test_the_offered_rate_is_the_schedule_s() -> None:
    """What is offered does not depend on how slow the answers are."""
    slow = opened(MemoryServer(delay=lambda: 30.0), again=0)
    fast = opened(MemoryServer(delay=lambda: 0.001), again=0)

    assert slow["n"] == fast["n"]
    assert slow["offered_per_s"] == pytest.approx(100, rel=0.1)
    assert slow["achieved_per_s"] < fast["achieved_per_s"] / 2
    assert slow["goodput_per_s"] == 0


def test_a_stall_is_seen_by_every_request_that_was_due() -> None:
    """No coordinated omission: two seconds of silence in ten show in about a fifth of the latencies, not in one."""
    stalled = MemoryServer(delay=lambda: 0.001, capacity=1, stall={400: 2.0})
    seen = opened(stalled, warm_up=0, again=0)
    closed = virtually(take_turns(MemoryServer(delay=lambda: 0.001, stall={400: 2.0}), [request(0)] * 1000, clients=1))

    assert 0.7 < seen["good_share"] < 0.9
    assert seen["p95_s"] > 0.5
    assert sum(sample.latency > 0.1 for sample in closed) == 1, "what a closed loop would have shown"


def test_a_client_that_falls_behind_says_so() -> None:
    """Time in which the client itself could not send counts in the latency, and the requests as late."""

    async def run() -> list[Sample]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_later(1.0, loop.lose, 2.0)
        return await offer(MemoryServer(delay=lambda: 0.01), [request(0)], arrivals(100, 5, seed=1))

    samples = virtually(run())
    late = [sample for sample in samples if sample.sent - sample.planned > 0.01]

    assert 150 < len(late) < 250
    assert max(sample.latency for sample in samples) > 1.9


def test_warm_up_is_counted_and_left_out() -> None:
    """Slow first requests do not reach the figures."""
    server = MemoryServer(stall=dict.fromkeys(range(50), 5.0))
    seen = opened(server, warm_up=2.0, again=0)

    assert seen["max_s"] < 0.1
    assert seen["excluded_as_warm_up"] + seen["n"] == len(server.requests)
    assert seen["excluded_as_warm_up"] > 150


def test_time_within_the_server_is_told_apart() -> None:
    """Shares of engine and queue from `Server-Timing`; the rest is the gateway's and the network's."""
    timing = {"server-timing": "queue;dur=10.00, engine;dur=60.00"}
    server = MemoryServer(delay=lambda: 0.1, spoil=lambda _n, _r, one: one._replace(headers=timing))
    seen = opened(server)

    assert seen["engine_share"] == pytest.approx(0.6)
    assert seen["queue_share"] == pytest.approx(0.1)
    assert seen["gateway_share"] == pytest.approx(0.3)


# --- Faults -----------------------------------------------------------------------------------------------------------


def request(number: int, workload: str = "W1") -> bytes:
    """A request as it is sent."""
    return b"POST / HTTP/1.1\r\n\r\n" + named(workload).bodies(1, [number])[0]


def test_an_honest_server_has_no_faults() -> None:
    """Nothing is found where there is nothing, under load too."""
    seen = opened(MemoryServer(), workload="W3")

    assert (0, 0, 0, 0) == (seen["misses"], seen["wrong"], seen["swapped"], seen["changed"])
    assert seen["asked_again"] == 10
    assert seen["decisions_per_s"] == pytest.approx(5 * seen["achieved_per_s"])


def test_a_dropped_request_is_a_miss_and_ranks_last() -> None:
    """One in twenty lost: counted, and p99 is never."""
    seen = opened(MemoryServer(spoil=dropping(20)))

    assert seen["n"] / 25 < seen["dropped"] < seen["n"] / 15
    assert seen["misses"] == seen["dropped"] == seen["statuses"]["0"]
    assert math.isinf(seen["p99_s"])
    assert seen["p50_s"] == pytest.approx(0.01)
    assert seen["good_share"] == pytest.approx(1 - seen["dropped"] / seen["n"])


def test_a_fast_refusal_is_no_fast_answer() -> None:
    """Refusals at once do not make the percentiles better; a Retry-After is seen."""
    refusal = Reply(529, b"{}", {"retry-after": "1"})
    seen = opened(MemoryServer(spoil=lambda number, _r, right: refusal if number % 2 else right))

    assert seen["p50_s"] >= 0.01
    assert math.isinf(seen["p95_s"])
    assert seen["refusals_with_retry_after"] == seen["statuses"]["529"] == seen["misses"]


def wrong_sum(answers: Body) -> None:
    answers["q1"]["probabilities"] = dict.fromkeys(answers["q1"]["probabilities"], 0.9)


def wrong_choice(answers: Body) -> None:
    probabilities = answers["q1"]["probabilities"]
    answers["q1"]["choice"] = min(probabilities, key=probabilities.__getitem__)


def wrong_score(answers: Body) -> None:
    answers["q2"]["score"] += 0.5


def not_a_number(answers: Body) -> None:
    answers["q0"]["noul"] = math.nan


def missing(answers: Body) -> None:
    del answers["q4"]


def other_type(answers: Body) -> None:
    answers["q0"] = answers["q1"]


@pytest.mark.parametrize("spoil", [wrong_sum, wrong_choice, wrong_score, not_a_number, missing, other_type])
def test_a_wrong_answer_is_found(spoil: Any) -> None:
    """One in ten answers wrong in itself: every one is found, whatever its status says."""

    def spoiled(number: int, body: Body, right: Reply) -> Reply:
        answers = right_answers(body)
        spoil(answers)
        return reply(answers) if number % 10 == 0 else right

    seen = opened(MemoryServer(spoil=spoiled), workload="W3", warm_up=0)

    assert seen["wrong"] == seen["misses"] == math.ceil(seen["n"] / 10)
    assert seen["wrong_examples"]


def test_no_json_is_a_wrong_answer() -> None:
    """200 with something else in it."""
    seen = opened(MemoryServer(spoil=lambda _n, _r, _a: Reply(200, b"<html>", {})), again=0)

    assert seen["wrong"] == seen["n"]


@pytest.mark.parametrize("workload", ["W1", "W3"])
def test_swapped_answers_are_found(workload: str) -> None:
    """Every other request under load gets its neighbour's answer: those asked again show it."""
    held: list[Body] = []

    def swapped(number: int, body: Body, right: Reply) -> Reply:
        held.append(body)
        return reply(right_answers(held[number ^ 1])) if number % 2 and number < 100 else right

    # All are asked again, so that both of a pair are known.
    seen = opened(MemoryServer(spoil=swapped), workload=workload, warm_up=0, load=replace(OPEN, seconds=2), again=1000)

    assert seen["n"] > 100, "those asked again come later, and get their own answers"
    assert seen["wrong"] == 0
    assert seen["swapped"] == 50 == seen["changed"]


def test_an_answer_that_load_changes_is_found() -> None:
    """Another answer under load than alone, of no other request: changed, not swapped."""
    moved = {"type": "noul", "noul": 0.123}
    server = MemoryServer(spoil=lambda number, _b, right: reply({"q0": moved}) if number < 100 else right)
    seen = opened(server, warm_up=0, load=replace(OPEN, seconds=2), again=30)

    assert seen["changed"] > 0
    assert seen["swapped"] == 0
    assert seen["largest_difference"] > 0.01


def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    """No figures of nothing."""
    with pytest.raises(ServerFailed, match="no answer"):
        virtually(bench_of(MemoryServer(spoil=lambda _n, _b, _r: NO_REPLY)).unloaded())
    with pytest.raises(ServerFailed, match="status 401: no key"):
        virtually(bench_of(MemoryServer(spoil=lambda _n, _b, _r: Reply(401, b"no key", {}))).unloaded())


# --- The knee, cells, recovery ----------------------------------------------------------------------------------------


def test_the_knee_of_a_server_with_a_known_limit() -> None:
    """Ten milliseconds each, one at a time: p95 passes 5 x 10 ms somewhat below 100 requests per second."""

    async def knee() -> tuple[float, Bench]:
        bench = bench_of(MemoryServer(capacity=1), rules=replace(RULES, probe=20.0))
        unloaded = await bench.unloaded()
        found = await bench.knee(unloaded)
        rate: float = found["rate_per_s"]
        return rate, bench

    rate, _ = virtually(knee())

    # M/D/1: the wait of the 95th in a hundred is about 4 services at a load of 0.75 to 0.8.
    assert 60 < rate < 95


@pytest.mark.parametrize("limit", [0.3, 3.0, 50.0, 900.0])
def test_the_knee_is_found_from_any_start(limit: float) -> None:
    """Within its ratio, below the limit, whether the first guess holds or not."""

    async def holds(rate: float) -> bool:
        return rate <= limit

    found = asyncio.run(find_knee(holds, 5.0))["rate_per_s"]

    assert limit / 1.16 < found <= limit


def test_repeats_have_their_own_seeds_and_an_interval() -> None:
    """The mean lies within its interval; every run has its own arrivals, and every request is new."""
    draw = random.Random(1)
    server = MemoryServer(delay=lambda: draw.expovariate(100))
    cell = virtually(bench_of(server, rules=replace(RULES, repeats=3, again=0)).cell(OPEN, 50.0, 0.1))
    low, high = cell["interval"]["p50_s"]

    assert low < cell["mean"]["p50_s"] < high
    assert len({run["seed"] for run in cell["repeats"]}) == 3
    assert len({tuple(run["samples"]["planned"]) for run in cell["repeats"]}) == 3
    assert len({body["state"] for body in server.requests}) == len(server.requests)


def test_a_closed_loop_has_no_more_than_its_clients() -> None:
    """Four clients of a server that takes 10 ms: 400 answers per second."""
    cell = virtually(bench_of(MemoryServer()).cell(Load("closed", 4), 0.0, 0.1))

    assert cell["mean"]["achieved_per_s"] == pytest.approx(400, rel=0.1)
    assert cell["mean"]["n"] == 50


def test_recovery_after_overload() -> None:
    """Twice what it can take for five seconds, then 0.3 of it: bad until the backlog is gone, which takes 7 s."""
    seen = opened(MemoryServer(capacity=1), rate=200, load=Load("open", 2.0, seconds=4, after=20), warm_up=1, again=0)

    assert 4 < seen["recovery_s"] < 11
    assert recovery([Sample(0, 1.0)], 0.0, 0.1) == math.inf
    assert recovery([], 0.0, 0.1) == 0


def test_the_counts_add_up() -> None:
    """Every planned request of the window is answered, wrong or a miss."""
    bodies = named("W1").bodies(1, range(3))
    right = reply(right_answers(named("W1").body(1, 0)))
    samples = [Sample(0, 0.0, 0.0, 0.5, right), Sample(1, 0.5), Sample(2, 0.9, 0.9, 1.0, Reply(200, b"{}", {}))]
    seen = figures(samples, bodies, Window(0.0, 1.0, 0.6))

    assert (seen["n"], seen["misses"], seen["dropped"], seen["wrong"], seen["goodput_per_s"]) == (3, 2, 1, 1, 1)
