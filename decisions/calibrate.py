"""Turns raw distributions into calibrated ones: temperature scaling, one temperature per question type."""

from __future__ import annotations

from .distribution import Distribution, temper
from .protocol import ChoiceQuestion, NoulQuestion, Question, Temperatures


def calibrated(question: Question, raw: Distribution, temperatures: Temperatures) -> Distribution:
    """The distribution at the temperature of the question's type; T = 1 leaves it as it is."""
    if isinstance(question, NoulQuestion):
        return temper(raw, temperatures.noul)
    if isinstance(question, ChoiceQuestion):
        return temper(raw, temperatures.choice)
    return temper(raw, temperatures.score)
