"""Likely mistakes of a policy's author: what is allowed, but makes answers worse or hard to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Any

from .hints import Hint
from .prompt import as_text
from .template import DecisionTemplate

SAME = 0.92
"""Similarity (0 to 1) of two descriptions from which they say the same."""
COMPARED = 60
"""Options of a choice whose descriptions are compared with one another; the work grows with the square."""
TELLING = frozenset({"yes", "no", "true", "false", "not", "never", "always"})
VERBS = frozenset({"is", "are", "has", "have", "does", "should", "must", "can", "was"})
SCALES = (
    ("none", "minimal", "low", "minor", "mild", "moderate", "medium", "high", "major", "severe", "critical"),
    ("never", "rarely", "sometimes", "often", "usually", "always"),
    ("worst", "terrible", "bad", "poor", "fair", "acceptable", "good", "excellent", "perfect"),
    ("calm", "annoyed", "angry", "furious"),
)
"""Words in their order, lowest first."""
_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?)")
_WORDS = re.compile(r"[^\W_]+")


def advice(template: DecisionTemplate) -> Iterator[Hint]:
    """Everything that looks like a mistake, in the template and in the questions of its first example."""
    document = template.document
    for name, schema in document["variables"].items():
        if name not in template.used:
            yield Hint(("variables", name), "no text uses this variable")
        if not schema.get("description"):
            yield Hint(("variables", name), "a description would tell callers what to pass")
    if len(template.examples) < 2:
        yield Hint(("examples",), "a second example would show another answer")
    rendered = template.render(template.examples[0]["variables"])
    for key, question in rendered["questions"].items():
        for hint in question_advice(key, question):
            yield Hint(("questions", key, *hint.loc), hint.msg)


def question_advice(key: str, question: Mapping[str, Any]) -> Iterator[Hint]:
    """What looks like a mistake in one question, with places within it."""
    criteria = question.get("criteria")
    options = criteria if question["type"] == "choice" and isinstance(criteria, dict) else {}
    words = _words(key)
    if TELLING & {*words} or VERBS & {*words[:1]} or any(_words(name) == words for name in options):
        yield Hint((), "the id carries a meaning, which misleads whoever reads it as an answer; call it q1, q2, ...")
    if not question.get("instructions"):
        yield Hint(("instructions",), "the question has no words of its own")
    if options:
        yield from _options(options)
    elif question["type"] == "score" and isinstance(criteria, list):
        yield from _levels([as_text(level) for level in criteria])
    elif question["type"] == "noul" and not criteria:
        yield Hint(("criteria",), "saying what counts as yes and as no makes answers steadier")


def _options(criteria: Mapping[str, Any]) -> Iterator[Hint]:
    if {name.casefold() for name in criteria} <= {"yes", "no", "true", "false"}:
        yield Hint(("criteria",), "a choice between yes and no is a noul")
    for name, description in criteria.items():
        if len(name) == 1:
            yield Hint(("criteria", name), "a name of one letter is taken for a label; give the option a word")
        if description is None or not as_text(description).strip():
            yield Hint(("criteria", name), "the option has no description, so its name alone decides")
        elif as_text(description).strip().casefold() == name.casefold():
            yield Hint(("criteria", name), "the description only repeats the name")
    described = [(name, as_text(text).casefold()) for name, text in criteria.items() if text]
    for (first, told), (second, other) in combinations(described[:COMPARED], 2):
        if _words(first) == _words(second) or SequenceMatcher(None, told, other).quick_ratio() >= SAME <= _alike(
            told, other
        ):
            yield Hint(("criteria", second), f"it says the same as '{first}'")


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _levels(levels: Sequence[str]) -> Iterator[Hint]:
    for places in (_numbers(levels), *(_ranks(levels, scale) for scale in SCALES)):
        if len(places) > 1 and places != sorted(places):
            yield Hint(("criteria",), "the levels are out of order; the lowest comes first")
            break
    for one, other in combinations(levels, 2):
        if one.strip().casefold() == other.strip().casefold():
            yield Hint(("criteria",), f"two levels say the same: {one!r}")


def _numbers(levels: Sequence[str]) -> list[float]:
    found = [_NUMBER.match(level) for level in levels]
    return [float(match.group(1)) for match in found if match] if all(found) else []


def _ranks(levels: Sequence[str], scale: Sequence[str]) -> list[float]:
    firsts = [next(iter(_words(level)), "") for level in levels]
    return [float(scale.index(word)) for word in firsts if word in scale]


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORDS.findall(text)]
