"""Percentiles, and how sure a figure is: intervals over repeats, and over pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 95 %, two-sided, for 1, 2, ... degrees of freedom; beyond, that of 15 is a little too wide."""
ENOUGH = {0.50: 20, 0.95: 200, 0.99: 1000}
"""Requests that a percentile needs before it says anything."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; NaN of nothing.

    Infinite values take part: what was never answered is later than everything.
    """
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def over_repeats(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; None for fewer than two values or where one is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    half = STUDENT[min(len(values) - 1, len(STUDENT)) - 1] * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def bootstrap(
    values: Sequence[float], of: Callable[[Sequence[float]], float] = median, rounds: int = 1000
) -> tuple[float, float] | None:
    """The 95 % interval of a figure by drawing values again, from a fixed seed; None of fewer than two values."""
    if len(values) < 2:
        return None
    generator = random.Random(0)
    drawn = sorted(of(generator.choices(values, k=len(values))) for _ in range(rounds))
    return drawn[int(0.025 * rounds)], drawn[int(0.975 * rounds) - 1]
