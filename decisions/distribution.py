"""A probability distribution over a question's options, and its arithmetic."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SMALLEST = sys.float_info.min
"""Floor of a probability: an allowed answer never gets exactly zero, however improbable it is."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities over options, in the order in which the options were given; they sum to 1.

    `label_mass` is the share of all tokens that were read, the full vocabulary but in a constrained read, that fell on
    the labels (mean over the reads); 1.0 where no model was asked.
    """

    probabilities: tuple[float, ...]
    label_mass: float = 1.0

    @property
    def top(self) -> int:
        """Index of the most probable option; the first of equals."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def entropy(self) -> float:
        """Shannon entropy in nats."""
        return -math.fsum(p * math.log(p) for p in self.probabilities if p > 0.0)

    @property
    def expectation(self) -> float:
        """Expected index, sum of i * p_i, with indices from 0."""
        return math.fsum(index * p for index, p in enumerate(self.probabilities))


CERTAIN = Distribution((1.0,))
"""The distribution of a question that has only one possible answer."""


def normalise(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights divided by their sum, floored at `SMALLEST`.

    Raises `ValueError` when the weights have no positive finite sum.
    """
    total = math.fsum(weights)
    if not (math.isfinite(total) and total > 0.0):
        raise ValueError("weights have no positive finite sum")
    return tuple([max(weight / total, SMALLEST) for weight in weights])


def softmax(logits: Sequence[float]) -> tuple[float, ...]:
    """Probabilities proportional to exp(logit); logits in nats."""
    largest = max(logits)
    return normalise([math.exp(logit - largest) for logit in logits])


def from_logprobs(logprobs: Sequence[float]) -> Distribution:
    """The distribution over labels, given each label's log-probability among all tokens that were read (nats)."""
    return Distribution(softmax(logprobs), math.fsum(map(math.exp, logprobs)))


def mean(distributions: Sequence[Distribution]) -> Distribution:
    """Arithmetic mean of distributions over the same options, as for several noise draws of one canvas."""
    if len(distributions) == 1:
        return distributions[0]
    columns = zip(*(d.probabilities for d in distributions), strict=True)
    return Distribution(normalise([math.fsum(column) for column in columns]), mean_mass(distributions))


def geometric_mean(distributions: Sequence[Distribution]) -> Distribution:
    """Geometric mean, renormalised: removes a bias that is additive in logits and differs by reading, exactly."""
    if len(distributions) == 1:
        return distributions[0]
    columns = zip(*(d.probabilities for d in distributions), strict=True)
    count = len(distributions)
    logits = [math.fsum(math.log(max(p, SMALLEST)) for p in column) / count for column in columns]
    return Distribution(softmax(logits), mean_mass(distributions))


def mean_mass(distributions: Sequence[Distribution]) -> float:
    """Mean label mass of several readings."""
    return math.fsum(d.label_mass for d in distributions) / len(distributions)


def reorder(distribution: Distribution, order: Iterable[int]) -> Distribution:
    """Undo a change of order: `order[k]` is the original index of the option that was shown at place k."""
    restored = [0.0] * len(distribution.probabilities)
    for shown, original in enumerate(order):
        restored[original] = distribution.probabilities[shown]
    return Distribution(tuple(restored), distribution.label_mass)


def temper(distribution: Distribution, temperature: float) -> Distribution:
    """Temperature scaling, p^(1/T) renormalised; T = 1 returns the same object."""
    if temperature == 1.0:
        return distribution
    logits = [math.log(max(p, SMALLEST)) / temperature for p in distribution.probabilities]
    return Distribution(softmax(logits), distribution.label_mass)


def choice_confidence(distribution: Distribution) -> float:
    """TypeSafe's confidence of a choice among n options: (p_max - 1/n) / (1 - 1/n); 1 when n = 1."""
    n = len(distribution.probabilities)
    if n == 1:
        return 1.0
    return min(1.0, max(0.0, (max(distribution.probabilities) - 1 / n) / (1 - 1 / n)))


def score_confidence(distribution: Distribution) -> float:
    """TypeSafe's confidence of a score over n levels: max(0, 1 - sum p_i |i - k| / D); 1 when n = 1.

    k is the first most probable level and D = (1/n) * sum |i - (n-1)/2|, the mean distance to the middle level.
    """
    n = len(distribution.probabilities)
    if n == 1:
        return 1.0
    k = distribution.top
    spread = math.fsum(p * abs(i - k) for i, p in enumerate(distribution.probabilities))
    reference = math.fsum(abs(i - (n - 1) / 2) for i in range(n)) / n
    return max(0.0, 1.0 - spread / reference)
