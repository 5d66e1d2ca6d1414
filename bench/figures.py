"""What the samples of one run come to: rates, latencies, misses, and what the server says of its own time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.answers import answers_of, apart, faults, top
from bench.intervals import percentile
from bench.openloop import DROPPED, LATE, Exchange, Reply, Sample

SHARES = (0.50, 0.95, 0.99)
REFUSALS = frozenset({429, 503, 529})
SLICES = 10


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts, in seconds from its start, and the longest good latency in seconds."""

    begin: float
    end: float
    slo: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


def server_timing(reply: Reply) -> dict[str, float]:
    """Seconds by stage from a `Server-Timing` header; empty without one."""
    found = {}
    for part in reply.headers.get("server-timing", "").split(","):
        name, _, rest = part.strip().partition(";")
        for field in rest.split(";"):
            if field.strip().startswith("dur="):
                found[name] = float(field.strip()[4:]) / 1e3
    return found


def judge(samples: Sequence[Sample], bodies: Sequence[bytes]) -> list[list[str]]:
    """Per sample what is wrong with its answer; empty lists for right answers and for those that are errors anyway."""
    return [
        faults(json.loads(bodies[sample.body]), answers_of(sample.reply.body)) if sample.reply.status == 200 else []
        for sample in samples
    ]


def figures(samples: Sequence[Sample], bodies: Sequence[bytes], window: Window) -> dict[str, Any]:
    """The figures of the samples planned within a window.

    Percentiles are over all requests that were planned: one that was refused, dropped or answered wrongly ranks as
    later than all others, so a percentile is infinite where misses reach it. Latencies are in seconds.
    """
    counted = [sample for sample in samples if window.begin <= sample.planned < window.end]
    wrong = judge(counted, bodies)
    latencies = [math.inf if bad else sample.latency for sample, bad in zip(counted, wrong, strict=True)]
    right = [latency for latency in latencies if math.isfinite(latency)]
    last = max([window.end, *(sample.done for sample in counted if math.isfinite(sample.done))])
    questions = [len(json.loads(bodies[sample.body])["questions"]) for sample in counted]
    answered = sum(count for count, latency in zip(questions, latencies, strict=True) if math.isfinite(latency))
    return {
        "n": len(counted),
        "excluded_as_warm_up": sum(sample.planned < window.begin for sample in samples),
        "offered_per_s": len(counted) / window.seconds,
        "achieved_per_s": len(right) / (last - window.begin),
        "decisions_per_s": answered / (last - window.begin),
        **{f"p{share * 100:.0f}_s": percentile(latencies, share) for share in SHARES},
        "max_s": max(latencies, default=math.nan),
        "answered_p50_s": percentile(right, 0.5),
        "answered_max_s": max(right, default=math.nan),
        "slo_s": window.slo,
        "goodput_per_s": sum(latency <= window.slo for latency in latencies) / window.seconds,
        "good_share": sum(latency <= window.slo for latency in latencies) / max(1, len(latencies)),
        **misses(counted, wrong),
        "client_late": sum(sample.sent - sample.planned > LATE for sample in counted),
        "p50_by_tenth_s": by_slices(counted, latencies, window),
        "input_tokens": percentile([tokens for sample in counted if (tokens := input_tokens(sample.reply))], 0.5),
        **own_time(counted),
    }


def misses(samples: Sequence[Sample], wrong: Sequence[list[str]]) -> dict[str, Any]:
    """What went wrong: errors by status, requests that were dropped, answers that cannot be right."""
    statuses = Counter(sample.reply.status for sample in samples)
    refused = [sample for sample in samples if sample.reply.status in REFUSALS]
    return {
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "dropped": statuses[DROPPED],
        "wrong": sum(map(bool, wrong)),
        "wrong_examples": [bad[0] for bad in wrong if bad][:5],
        "misses": len(samples) - statuses[200] + sum(map(bool, wrong)),
        "refusals_with_retry_after": sum("retry-after" in sample.reply.headers for sample in refused),
    }


def by_slices(samples: Sequence[Sample], latencies: Sequence[float], window: Window) -> list[float]:
    """The median latency of each tenth of the window, by planned time."""
    slices: list[list[float]] = [[] for _ in range(SLICES)]
    for sample, latency in zip(samples, latencies, strict=True):
        place = int((sample.planned - window.begin) / window.seconds * SLICES)
        slices[min(place, SLICES - 1)].append(latency)
    return [percentile(each, 0.5) for each in slices]


def input_tokens(reply: Reply) -> float:
    """The prompt tokens that the server counted; 0 where it does not say."""
    try:
        return float(json.loads(reply.body)["usage"]["input_tokens"])
    except (ValueError, LookupError, TypeError):
        return 0.0


def own_time(samples: Sequence[Sample]) -> dict[str, Any]:
    """How the time from sending to answer divides, where the server tells in `Server-Timing`."""
    told = [
        (sample.done - sample.sent, server_timing(sample.reply)) for sample in samples if sample.reply.status == 200
    ]
    told = [(seconds, stages) for seconds, stages in told if "engine" in stages]
    total = math.fsum(seconds for seconds, _ in told)
    if not total:
        return {}
    shares = {name: math.fsum(stages.get(name, 0.0) for _, stages in told) / total for name in ("engine", "queue")}
    return {
        "engine_share": shares["engine"],
        "queue_share": shares["queue"],
        "gateway_share": 1 - shares["engine"] - shares["queue"],
    }


def recovery(samples: Sequence[Sample], since: float, slo: float) -> float:
    """Seconds after `since` from which on every request was good; infinite where the last one was not."""
    later = [sample for sample in samples if sample.planned >= since]
    bad = [place for place, sample in enumerate(later) if sample.latency > slo]
    if not bad:
        return 0.0
    return later[bad[-1] + 1].planned - since if bad[-1] + 1 < len(later) else math.inf


async def ask_again(
    exchange: Exchange, requests: Sequence[bytes], samples: Sequence[Sample], count: int, tolerance: float
) -> dict[str, Any]:
    """Ask some of the answered requests again, one at a time, and compare with what they got under load.

    `changed` are those further apart than `tolerance` in total variation; `swapped` those of them that have answers to
    other questions, or another request's answers to within a fiftieth of it.
    """
    answered = [(sample, found) for sample in samples if (found := right_or_none(sample)) is not None]
    chosen = answered[:: max(1, len(answered) // count)][:count] if count else []
    alone = [answers_of((await exchange(requests[sample.body])).body) for sample, _ in chosen]
    pairs = [(found, again) for (_, found), again in zip(chosen, alone, strict=True) if again is not None]
    distances = [apart(found, again) for found, again in pairs]
    moved = [place for place, far in enumerate(distances) if far > tolerance]
    references = [again for _, again in pairs]
    return {
        "asked_again": len(pairs),
        "not_answered_again": len(chosen) - len(pairs),
        "largest_difference": max(distances, default=0.0),
        "changed": len(moved),
        "swapped": sum(is_another(place, pairs[place][0], references, tolerance / 50) for place in moved),
        "changed_choices": sum(changed_choices(found, again) for found, again in pairs),
    }


def right_or_none(sample: Sample) -> dict[str, Any] | None:
    """The answers of a sample, where it was answered."""
    return answers_of(sample.reply.body) if sample.reply.status == 200 else None


def is_another(place: int, found: dict[str, Any], references: Sequence[dict[str, Any]], close: float) -> bool:
    """Whether these answers belong to another request than the one at `place`."""
    if found.keys() != references[place].keys():
        return True
    return any(apart(found, other) <= close for at, other in enumerate(references) if at != place)


def changed_choices(one: dict[str, Any], other: dict[str, Any]) -> int:
    """How many questions have another top answer."""
    return sum(top(one[name]) != top(other[name]) for name in one.keys() & other.keys())
