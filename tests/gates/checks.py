"""The gates of one response, on its body: coherence (G1), derived fields (G2), no zero mass (G4), shape (G5).

Nothing of the gateway is called here but its published schema, so that the checks are a second opinion.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema

from bench.answers import distance, numbers

EXACT = 1e-9
SUM = 1e-6
SCHEMA = Path(__file__).parents[2] / "schemas" / "systemone.response.json"
SHAPE = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text("utf-8")))

Body = dict[str, Any]

__all__ = ["between", "check_response", "distance", "numbers", "place_effect"]


def between(one: Body, other: Body) -> float:
    """The largest total variation between two sets of answers to the same questions."""
    pairs = [(numbers(one[name]), numbers(other[name])) for name in one]
    return max(distance(left, right) for left, right in pairs)


def place_effect(places: Sequence[int], count: int) -> list[float]:
    """G6c: share of choices that fell on each of `count` places, less 1/count; all zero where place has no effect."""
    return [places.count(place) / len(places) - 1 / count for place in range(count)]


def check_response(request: Body, response: Body) -> None:
    """Fail unless every question has a coherent answer of its type, in the published shape (G5)."""
    SHAPE.validate(response)
    assert list(response["answers"]) == list(request["questions"])
    assert response["usage"]["input_tokens"] >= 0
    for name, question in request["questions"].items():
        answer = response["answers"][name]
        assert answer["type"] == question["type"]
        check_coherent(question, answer)
        {"noul": check_noul, "choice": check_choice, "score": check_score}[question["type"]](question, answer)


def check_coherent(question: Body, answer: Body) -> None:
    """G1 and G4: finite, between 0 and 1, summing to 1, and never exactly zero."""
    probabilities = numbers(answer)
    assert all(math.isfinite(p) and 0 <= p <= 1 for p in probabilities)
    assert abs(math.fsum(probabilities) - 1) <= SUM
    if question["type"] != "noul":
        assert min(probabilities) > 0


def check_noul(question: Body, answer: Body) -> None:
    """A noul has no confidence."""
    assert set(answer) == {"type", "noul"}


def check_choice(question: Body, answer: Body) -> None:
    """G2: keys in request order, the first largest wins, TypeSafe's confidence."""
    assert set(answer) == {"type", "choice", "confidence", "probabilities"}
    probabilities = answer["probabilities"]
    count = len(probabilities)
    assert list(probabilities) == list(question["criteria"])
    assert answer["choice"] == max(probabilities, key=probabilities.__getitem__)
    expected = 1.0 if count == 1 else (max(probabilities.values()) - 1 / count) / (1 - 1 / count)
    assert abs(answer["confidence"] - expected) <= EXACT


def check_score(question: Body, answer: Body) -> None:
    """G2: the expectation over levels from 0, the levels as sent, TypeSafe's confidence."""
    levels, count = question["criteria"], len(question["criteria"])
    probabilities = list(answer["probabilities"].values())
    assert list(answer["probabilities"]) == [str(level) for level in range(count)]
    assert list(answer["legend"].values()) == levels
    assert abs(answer["score"] - math.fsum(i * p for i, p in enumerate(probabilities))) <= EXACT
    top = probabilities.index(max(probabilities))
    spread = math.fsum(p * abs(i - top) for i, p in enumerate(probabilities))
    reference = math.fsum(abs(i - (count - 1) / 2) for i in range(count)) / count
    expected = 1.0 if count == 1 else max(0.0, 1 - spread / reference)
    assert abs(answer["confidence"] - expected) <= EXACT
