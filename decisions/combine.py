"""Folds each question's distribution through calibration into its typed answer."""

from __future__ import annotations

from .calibrate import calibrated
from .distribution import Distribution, choice_confidence, score_confidence
from .protocol import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    NoulAnswer,
    NoulQuestion,
    Question,
    ScoreAnswer,
    Temperatures,
)


def combine(question: Question, raw: Distribution, temperatures: Temperatures) -> Answer:
    """The answer to a question: everything in it is computed from the very probabilities that it shows."""
    distribution = calibrated(question, raw, temperatures)
    if isinstance(question, NoulQuestion):
        return NoulAnswer(distribution.probabilities[0])
    if isinstance(question, ChoiceQuestion):
        names = [option.name for option in question.options]
        return ChoiceAnswer(
            choice=names[distribution.top],
            confidence=choice_confidence(distribution),
            probabilities=dict(zip(names, distribution.probabilities, strict=True)),
        )
    return ScoreAnswer(
        score=distribution.expectation,
        confidence=score_confidence(distribution),
        legend=question.levels,
        probabilities=distribution.probabilities,
    )
