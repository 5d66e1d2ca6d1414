"""Looks at answers: what is wrong with one by itself, and how far two to the same request are apart.

Nothing here knows a server: an answer is judged by the request alone, to the precision to which a server may round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

Body = dict[str, Any]

ROUNDED = 5e-3
"""How far probabilities of a server that rounds may be from a sum of 1."""


def numbers(answer: Body) -> list[float]:
    """The probabilities of an answer, in its own order."""
    if answer["type"] == "noul":
        return [answer["noul"], 1 - answer["noul"]]
    return list(answer["probabilities"].values())


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Total variation: half the sum of absolute differences."""
    return math.fsum(abs(a - b) for a, b in zip(one, other, strict=True)) / 2


def apart(one: Body, other: Body) -> float:
    """The largest total variation between two sets of answers, matched by name; 1 where they answer other questions."""
    if one.keys() != other.keys():
        return 1.0
    return max(_apart(one[name], other[name]) for name in one)


def _apart(one: Body, other: Body) -> float:
    if one["type"] != other["type"]:
        return 1.0
    if one["type"] == "noul":
        return float(abs(one["noul"] - other["noul"]))
    left, right = one["probabilities"], other["probabilities"]
    return distance(list(left.values()), [right[name] for name in left]) if left.keys() == right.keys() else 1.0


def top(answer: Body) -> str:
    """The most probable answer by name; of equals the first."""
    if answer["type"] == "noul":
        return "yes" if answer["noul"] >= 0.5 else "no"
    probabilities: dict[str, float] = answer["probabilities"]
    return max(probabilities, key=probabilities.__getitem__)


def answers_of(body: bytes) -> Body | None:
    """The answers of a response; None where it has none that can be read."""
    try:
        answers = json.loads(body)["answers"]
    except (ValueError, LookupError, TypeError):
        return None
    return answers if isinstance(answers, dict) else None


def faults(request: Body, answers: Body | None) -> list[str]:
    """What is wrong with the answers to a request, in words; empty where nothing is.

    Every question has an answer of its type (G5); probabilities are finite, between 0 and 1 and sum to 1 (G1); the
    choice is the most probable option and the score the mean level (G2).
    """
    if answers is None:
        return ["no answers"]
    if answers.keys() != request["questions"].keys():
        return ["answers to other questions"]
    try:
        return [
            f"{name}: {fault}"
            for name, question in request["questions"].items()
            for fault in _faults(question, answers[name])
        ]
    except (LookupError, TypeError, AttributeError) as fault:
        return [f"not an answer: {fault!r}"]


def _faults(question: Body, answer: Body) -> Iterator[str]:
    if answer["type"] != question["type"]:
        yield f"of type {answer['type']}"
        return
    probabilities = numbers(answer)
    if not all(math.isfinite(share) and 0 <= share <= 1 for share in probabilities):
        yield "a probability that is none"
        return
    if abs(math.fsum(probabilities) - 1) > ROUNDED:
        yield f"probabilities sum to {math.fsum(probabilities):.4f}"
    if question["type"] == "choice":
        if answer["probabilities"].keys() != question["criteria"].keys():
            yield "other options"
        elif answer["probabilities"][answer["choice"]] < max(probabilities):
            yield "the choice is not the most probable option"
    if question["type"] == "score":
        if len(probabilities) != len(question["criteria"]):
            yield "other levels"
        elif abs(answer["score"] - mean_level(probabilities)) > ROUNDED * len(probabilities):
            yield "the score is not the mean level"


def mean_level(probabilities: Sequence[float]) -> float:
    """The expected level, from 0."""
    return math.fsum(level * share for level, share in enumerate(probabilities))
