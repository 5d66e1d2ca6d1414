"""Says which questions are read alone, from the request's isolation mode and each question's own `alone`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .protocol import Isolation, NoulQuestion, Question


@dataclass(frozen=True, slots=True)
class IsolationBounds:
    """How many questions a request may have for a mode to isolate at all.

    `auto_max`: `auto` acts as `noul` up to this many questions. `max_questions`: `noul` and `all` up to this many.
    """

    auto_max: int = 3
    max_questions: int = 8


def read_alone(questions: Sequence[Question], mode: Isolation, bounds: IsolationBounds) -> tuple[bool, ...]:
    """Whether each question is read alone, in the questions' order.

    A question's own `alone` decides where it is given. Otherwise `auto` acts as `noul` when there are 2 to
    `auto_max` questions and two or more are yes/no, else as `none`; `noul` and `all` isolate yes/no questions, or
    all of them, when there are 2 to `max_questions`.
    """
    count = len(questions)
    nouls = [isinstance(question, NoulQuestion) for question in questions]
    if mode is Isolation.AUTO:
        mode = Isolation.NOUL if 2 <= count <= bounds.auto_max and sum(nouls) >= 2 else Isolation.NONE
    isolating = 2 <= count <= bounds.max_questions
    by_mode = [isolating and (mode is Isolation.ALL or (mode is Isolation.NOUL and noul)) for noul in nouls]
    return tuple(q.alone if q.alone is not None else alone for q, alone in zip(questions, by_mode, strict=True))
