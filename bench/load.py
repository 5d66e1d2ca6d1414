"""Loads a server with a workload: finds its knee, then measures each cell several times over.

Everything here talks to an `Exchange` and takes time from the event loop, so that a server and a clock of a test's own
can stand in for real ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.figures import Window, ask_again, figures, recovery, server_timing
from bench.intervals import over_repeats, percentile
from bench.openloop import DROPPED, LATE, Exchange, Sample, Target, arrivals, offer, take_turns
from bench.workloads import Load, Workload

SLACK = 5.0
"""Times the unloaded p50 that a latency may be: the goodput limit where no other is given, and the knee's."""
RECOVERED = 0.3
"""Share of the knee's rate at which recovery from overload is watched."""
KNEE_RATIO = 1.15
"""The knee lies between two rates that are closer than this."""
MOST_RATE = 20_000.0
FEWEST = 20
"""Requests of a probe or a serial run, at least."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """How to measure. Times are in seconds; `slo` None is `SLACK` times the unloaded p50.

    `serial` is the number of requests of a serial cell; `again` how many answers per cell are compared with the answer
    that the same request gets alone, to within `tolerance` in total variation.
    """

    seed: int = 1
    repeats: int = 3
    warm_up: float = 2.0
    slo: float | None = None
    serial: int = 200
    probe: float = 5.0
    again: int = 20
    tolerance: float = 5e-3


@dataclass(slots=True)
class Teller:
    """Hears how far a run is: `begin` with a text and the number of requests to come, `step` at each answer."""

    begin: Callable[[str, int], None] = lambda _text, _total: None
    step: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Unloaded:
    """What serial requests took: their median in seconds, and that of the engine's share where the server tells."""

    p50: float
    engine_p50: float


class Bench:
    """One server under one workload. Every request of a cold workload is new to the server."""

    def __init__(self, target: Target, exchange: Exchange, workload: Workload, rules: Rules, tell: Teller) -> None:
        self.target, self.exchange, self.workload, self.rules, self.tell = target, exchange, workload, rules, tell
        self._asked = 0

    def fresh(self, count: int) -> tuple[list[bytes], list[bytes]]:
        """So many bodies that were not sent before, and the requests that carry them."""
        bodies = self.workload.bodies(self.rules.seed, range(self._asked, self._asked + count))
        self._asked += count
        return bodies, [self.target.request(body) for body in bodies]

    async def unloaded(self, count: int = FEWEST) -> Unloaded:
        """Serial requests on a quiet server, after a few to warm it up. Raises `ServerFailed` if none is answered."""
        _, warming = self.fresh(3)
        await take_turns(self.exchange, warming, 1)
        _, requests = self.fresh(count)
        self.tell.begin("unloaded", count)
        samples = await take_turns(self.exchange, requests, 1, self.tell.step)
        latencies = [sample.latency for sample in samples]
        if not any(map(math.isfinite, latencies)):
            raise ServerFailed(samples[0])
        engine = [timing["engine"] for each in samples if "engine" in (timing := server_timing(each.reply))]
        return Unloaded(percentile(latencies, 0.5), percentile(engine, 0.5))

    async def holds(self, rate: float, limit: float) -> bool:
        """Whether a short open-loop run at this rate has its p95 within `limit` seconds, without an error.

        Raises `ClientTooSlow` where this client could not keep to the schedule.
        """
        seconds = max(self.rules.probe, FEWEST / rate)
        schedule = arrivals(rate, seconds, self.rules.seed) or [0.0]
        _, requests = self.fresh(len(schedule))
        self.tell.begin(f"probe {rate:.3g}/s", len(requests))
        samples = await offer(self.exchange, requests, schedule, self.tell.step)
        if sum(sample.sent - sample.planned > LATE for sample in samples) > len(samples) / 5:
            raise ClientTooSlow(rate)
        latencies = [sample.latency for sample in samples]
        return all(map(math.isfinite, latencies)) and percentile(latencies, 0.95) <= limit

    async def knee(self, unloaded: Unloaded) -> Row:
        """The highest rate whose p95 stays within `SLACK` times the unloaded p50 without an error."""
        limit = SLACK * unloaded.p50
        return await find_knee(lambda rate: self.holds(rate, limit), 0.5 / unloaded.p50) | {"limit_s": limit}

    async def cell(self, load: Load, rate: float, slo: float) -> Row:
        """A cell: its figures in every repeat, their means, and 95 % intervals of these."""
        runs = []
        for repeat in range(self.rules.repeats):
            run = self._closed(load, slo) if load.kind == "closed" else self._open(load, rate, slo, repeat)
            runs.append(await run)
        figures_of = [run["figures"] for run in runs]
        means, intervals = together(figures_of)
        named = "serial" if load.amount == 1 else f"{load.amount:.0f} clients"
        if load.kind == "open":
            named = f"{rate:.4g}/s" + ("" if load.burstiness == 1 else f" gamma {load.burstiness:g}")
        return {
            "workload": self.workload.name,
            "load": named,
            "rate_per_s": rate if load.kind == "open" else None,
            "clients": load.amount if load.kind == "closed" else None,
            "burstiness": load.burstiness,
            "mean": means,
            "interval": intervals,
            "repeats": runs,
        }

    async def _open(self, load: Load, rate: float, slo: float, repeat: int) -> Row:
        seed = self.rules.seed * 1000 + repeat
        end = self.rules.warm_up + load.seconds
        schedule = arrivals(rate, end, seed, load.burstiness)
        if load.after:
            slower = rate / load.amount * RECOVERED
            schedule += [end + planned for planned in arrivals(slower, load.after, seed + 500)]
        bodies, requests = self.fresh(len(schedule))
        self.tell.begin(f"{rate:.3g}/s, run {repeat + 1} of {self.rules.repeats}", len(requests))
        samples = await offer(self.exchange, requests, schedule, self.tell.step)
        seen = await self._seen(samples, bodies, requests, Window(self.rules.warm_up, end, slo))
        if load.after:
            seen["figures"]["recovery_s"] = recovery(samples, end, slo)
        return {"seed": seed} | seen

    async def _closed(self, load: Load, slo: float) -> Row:
        clients = int(load.amount)
        _, warming = self.fresh(clients * 2)
        await take_turns(self.exchange, warming, clients)
        bodies, requests = self.fresh(max(self.rules.serial, clients * 4))
        self.tell.begin("serial" if clients == 1 else f"{clients} clients", len(requests))
        samples = await take_turns(self.exchange, requests, clients, self.tell.step)
        last = max((sample.done for sample in samples if math.isfinite(sample.done)), default=1.0)
        return await self._seen(samples, bodies, requests, Window(0.0, last, slo))

    async def _seen(
        self, samples: Sequence[Sample], bodies: Sequence[bytes], requests: Sequence[bytes], window: Window
    ) -> Row:
        """The figures of a run, what asking again showed, and the raw samples."""
        found = await asyncio.to_thread(figures, samples, bodies, window)
        again = await ask_again(self.exchange, requests, samples, self.rules.again, self.rules.tolerance)
        return {"figures": found | again, "samples": raw(samples)}


class ServerFailed(Exception):
    """No request of a first few was answered; `sample` is one of them."""

    def __init__(self, sample: Sample) -> None:
        status, said = sample.reply.status, sample.reply.body[:300].decode("utf-8", "replace")
        what = f"status {status}: {said}" if status != DROPPED else "no answer (not there, or nothing came in time)"
        super().__init__(f"The server answers none of the first requests: {what}")


class ClientTooSlow(Exception):
    """This client could not send `rate` requests per second on time."""

    def __init__(self, rate: float) -> None:
        super().__init__(f"this client cannot send {rate:.0f} requests/s")
        self.rate = rate


async def find_knee(holds: Callable[[float], Awaitable[bool]], start: float) -> Row:
    """The highest rate that holds: doubled or halved from `start` until there is one on both sides, then narrowed.

    `client_bound` tells that a rate failed because this client could not send so fast: the knee may be higher.
    """
    probes: list[tuple[float, bool]] = []
    client_bound = False

    async def probe(rate: float) -> bool:
        nonlocal client_bound
        try:
            probes.append((rate, await holds(rate)))
        except ClientTooSlow:
            client_bound = True
            probes.append((rate, False))
        return probes[-1][1]

    low = high = start
    if await probe(start):
        while high <= MOST_RATE and await probe(high := high * 2):
            low = high
    else:
        while low > start / 64 and not await probe(low := low / 2):
            high = low
        if not probes[-1][1]:
            return {"rate_per_s": 0.0, "client_bound": client_bound, "probes": probes}
    while high / low > KNEE_RATIO:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if await probe(middle) else (low, middle)
    return {"rate_per_s": low, "client_bound": client_bound, "probes": probes}


def together(repeats: Sequence[Row]) -> tuple[Row, Row]:
    """The mean of every number over the repeats, and its 95 % interval where there are several."""
    means: Row = {}
    intervals: Row = {}
    for name, first in repeats[0].items():
        if not isinstance(first, int | float):
            continue
        values = [float(repeat[name]) for repeat in repeats if name in repeat]
        means[name] = fmean(values)
        intervals[name] = over_repeats(values)
    return means, intervals


def raw(samples: Sequence[Sample]) -> Row:
    """The samples by columns; times in seconds from the start of the run."""
    return {
        "planned": [round(sample.planned, 6) for sample in samples],
        "sent": [round(sample.sent, 6) for sample in samples],
        "done": [round(sample.done, 6) if math.isfinite(sample.done) else None for sample in samples],
        "status": [sample.reply.status for sample in samples],
        "engine": [server_timing(sample.reply).get("engine") for sample in samples],
    }
