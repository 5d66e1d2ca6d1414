"""How good answers are against known ones: accuracy, calibration, separation, and whether two runs differ."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from bench.intervals import percentile

BINS = 10
FLOOR_ROUNDS = 200
CERTAIN = 1e-300
"""Smallest probability whose logarithm is taken; exact zeros are counted apart."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """One answered question: shares of its answers in request order (yes before no), and the place of the right one.

    An answer that cannot be read has no shares; it counts as wrong. `seconds` is the request's latency.
    """

    case: str
    question: str
    suite: str
    tier: str
    group: str
    type: str
    shares: tuple[float, ...]
    gold: int
    seconds: float
    fault: str = ""

    @property
    def top(self) -> int:
        """The place of the most probable answer, of equals the first; -1 without an answer."""
        return self.shares.index(max(self.shares)) if self.shares else -1

    @property
    def right(self) -> bool:
        """Whether the most probable answer is the right one."""
        return self.top == self.gold

    def row(self) -> Row:
        """As it is kept in a result."""
        return asdict(self) | {"right": self.right}


def scores(found: Sequence[Scored]) -> Row:
    """The figures of some answered questions. Everything but accuracy and latency is of readable answers only."""
    read = [one for one in found if one.shares]
    accuracy = fmean(one.right for one in found)
    figures: Row = {
        "n": len(found),
        "unreadable": len(found) - len(read),
        "accuracy": accuracy,
        "accuracy_half_width": 1.96 * math.sqrt(accuracy * (1 - accuracy) / len(found)),
        "p50_s": percentile([one.seconds for one in found], 0.5),
        "p95_s": percentile([one.seconds for one in found], 0.95),
    }
    if not read:
        return figures
    sure = [max(one.shares) for one in read]
    figures |= {
        "brier": fmean(brier(one) for one in read),
        "nll": fmean(-math.log(max(one.shares[one.gold], CERTAIN)) for one in read),
        "zero_on_gold": sum(one.shares[one.gold] == 0 for one in read),
        "ece": ece(sure, [one.right for one in read]),
        "ece_floor": ece_floor(sure),
        "auroc_right": auroc(sure, [one.right for one in read]),
    }
    nouls = [one for one in read if one.type == "noul"]
    levels = [one for one in read if one.type == "score"]
    if nouls:
        figures["auroc_yes"] = auroc([one.shares[0] for one in nouls], [one.gold == 0 for one in nouls])
    if levels:
        figures["level_error"] = fmean(abs(level(one.shares) - one.gold) for one in levels)
    return figures


def brier(one: Scored) -> float:
    """Sum over the answers of the squared difference from what was right: 0 to 2."""
    return math.fsum((share - (place == one.gold)) ** 2 for place, share in enumerate(one.shares))


def level(shares: Sequence[float]) -> float:
    """The expected level."""
    return math.fsum(place * share for place, share in enumerate(shares))


def ece(sure: Sequence[float], right: Sequence[bool]) -> float:
    """Expected calibration error of the top answer over ten equal bins."""
    bins: defaultdict[int, list[tuple[float, bool]]] = defaultdict(list)
    for confidence, hit in zip(sure, right, strict=True):
        bins[min(BINS - 1, int(confidence * BINS))].append((confidence, hit))
    return math.fsum(abs(math.fsum(p - hit for p, hit in held)) for held in bins.values()) / len(sure)


def ece_floor(sure: Sequence[float]) -> float:
    """The error that perfectly calibrated answers of these confidences would show by chance, from a fixed seed."""
    generator = random.Random(0)
    return fmean(ece(sure, [generator.random() < p for p in sure]) for _ in range(FLOOR_ROUNDS))


def auroc(values: Sequence[float], truth: Sequence[bool]) -> float:
    """How often a true one has the higher value than a false one, ties counting half; NaN where all are alike."""
    positives = sum(truth)
    if positives in {0, len(truth)}:
        return math.nan
    places: defaultdict[float, list[bool]] = defaultdict(list)
    for value, true in zip(values, truth, strict=True):
        places[value].append(true)
    below, wins = 0, 0.0
    for value in sorted(places):
        high = sum(places[value])
        low = len(places[value]) - high
        wins += high * (below + low / 2)
        below += low
    return wins / (positives * (len(truth) - positives))


def mcnemar(ours: Sequence[bool], theirs: Sequence[bool]) -> tuple[int, int, float]:
    """Of paired right/wrong answers: where only ours is right, where only theirs, and the exact two-sided p-value."""
    better = sum(a and not b for a, b in zip(ours, theirs, strict=True))
    worse = sum(b and not a for a, b in zip(ours, theirs, strict=True))
    count = better + worse
    tail = sum(math.comb(count, k) for k in range(min(better, worse) + 1)) / 2**count
    return better, worse, min(1.0, 2.0 * float(tail))


def paraphrases(found: Sequence[Scored]) -> Row:
    """Of questions asked in several wordings: how many groups, the share with one answer, and with one right answer."""
    groups: defaultdict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in found:
        groups[one.group, one.question].append(one)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return {}
    same = [len({one.top for one in group}) == 1 for group in several]
    right = [all(one.right for one in group) for group in several]
    return {"groups": len(several), "same_answer": fmean(same), "same_and_right": fmean(right)}


def by(found: Sequence[Scored], name: Callable[[Scored], str]) -> dict[str, Row]:
    """The figures of each part, in the order in which the parts first come."""
    parts: defaultdict[str, list[Scored]] = defaultdict(list)
    for one in found:
        parts[name(one)].append(one)
    return {part: scores(ones) for part, ones in parts.items()}
