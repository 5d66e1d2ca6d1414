"""Rules of `decisions.combine` and `calibrate`: an answer is computed from the very numbers that it shows."""

from __future__ import annotations

import pytest

from decisions.combine import combine
from decisions.distribution import Distribution, choice_confidence, score_confidence
from decisions.protocol import (
    ChoiceAnswer,
    ChoiceQuestion,
    NoulAnswer,
    NoulQuestion,
    Option,
    ScoreAnswer,
    ScoreQuestion,
    Temperatures,
)

PLAIN = Temperatures()
NOUL = NoulQuestion(id="n", instructions="?")
CHOICE = ChoiceQuestion(id="c", options=(Option("b"), Option("a"), Option("é")))
SCORE = ScoreQuestion(id="s", levels=("low", {"high": True}))


def test_a_noul_is_the_probability_of_yes() -> None:
    """Yes is the first label."""
    assert combine(NOUL, Distribution((0.8, 0.2)), PLAIN) == NoulAnswer(0.8)


def test_a_choice_is_the_first_largest_by_name_in_request_order() -> None:
    """Keys are byte for byte the names sent."""
    read = Distribution((0.4, 0.4, 0.2))

    answer = combine(CHOICE, read, PLAIN)

    assert answer == ChoiceAnswer("b", choice_confidence(read), {"b": 0.4, "a": 0.4, "é": 0.2})


def test_a_score_is_the_expected_level_with_the_levels_as_sent() -> None:
    """Structured levels come back as they were."""
    read = Distribution((0.25, 0.75))

    answer = combine(SCORE, read, PLAIN)

    assert answer == ScoreAnswer(0.75, score_confidence(read), ("low", {"high": True}), (0.25, 0.75))


def test_each_type_has_its_own_temperature() -> None:
    """Everything in the answer follows from the tempered shares."""
    hot = Temperatures(noul=2.0, score=2.0)
    read = Distribution((0.9, 0.1))

    assert pytest.approx(0.75) == getattr(combine(NOUL, read, hot), "noul", None)
    assert pytest.approx(0.25) == getattr(combine(SCORE, read, hot), "score", None)


def test_a_temperature_of_another_type_changes_nothing() -> None:
    """A choice is tempered by the choice's."""
    read = Distribution((0.6, 0.3, 0.1))

    answer = combine(CHOICE, read, Temperatures(noul=3.0, score=3.0))

    assert answer == combine(CHOICE, read, PLAIN)
