"""Orders questions that depend on each other into stages, and says which of them are asked at all.

A question waits for those that it depends on or that its `ask_if` names. The model is then told their answers (the
most probable ones); a question whose `ask_if` does not hold is skipped, and so are those that wait for a skipped one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from .distribution import Distribution
from .flow import Distributions, Flow, Slots, together
from .prompt import as_text
from .protocol import Question, Skipped, answer_names

FlowOf = Callable[[int, tuple[str, ...]], Flow]
"""The flow of the question at an index, given lines that tell earlier answers."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a request's questions came to, in their order: a distribution each, or why it was skipped."""

    outcomes: tuple[Distribution | Skipped, ...]


def needs(question: Question) -> tuple[str, ...]:
    """Ids of the questions that one waits for, each once."""
    return tuple(dict.fromkeys((*question.depends_on, *question.ask_if)))


def staged(questions: Sequence[Question], flow_of: FlowOf) -> Generator[Slots, Distributions, Staged]:
    """Step the questions stage by stage; those that wait for nothing are the first stage.

    Raises `ValueError` when questions wait for each other in a circle or for one that is not there; validation refuses
    such requests before.
    """
    if not any(question.depends_on or question.ask_if for question in questions):
        return Staged((yield from together([flow_of(index, ()) for index in range(len(questions))])))
    outcomes: dict[str, Distribution | Skipped] = {}
    waiting = list(range(len(questions)))
    while waiting:
        stage = [index for index in waiting if outcomes.keys() >= set(needs(questions[index]))]
        if not stage:
            raise ValueError("questions wait for each other in a circle")
        waiting = [index for index in waiting if index not in stage]
        asked = []
        for index in stage:
            skipped = skip(questions, index, outcomes)
            if skipped is None:
                asked.append(index)
            else:
                outcomes[questions[index].id] = skipped
        read = yield from together([flow_of(index, told(questions, index, outcomes)) for index in asked])
        outcomes.update(zip([questions[index].id for index in asked], read, strict=True))
    return Staged(tuple(outcomes[question.id] for question in questions))


def skip(questions: Sequence[Question], index: int, outcomes: dict[str, Distribution | Skipped]) -> Skipped | None:
    """Why a question is not asked, or None where it is."""
    question = questions[index]
    by_id = {other.id: other for other in questions} if needs(question) else {}
    for other in needs(question):
        outcome = outcomes[other]
        wanted = question.ask_if.get(other, ())
        if isinstance(outcome, Skipped):
            return Skipped(other, None, wanted)
        was = answer_names(by_id[other])[outcome.top]
        if wanted and was not in wanted:
            return Skipped(other, was, wanted)
    return None


def told(questions: Sequence[Question], index: int, outcomes: dict[str, Distribution | Skipped]) -> tuple[str, ...]:
    """The lines that tell a question the answers of those that it waits for."""
    lines = []
    for other in questions if needs(questions[index]) else ():
        outcome = outcomes.get(other.id)
        if other.id in needs(questions[index]) and isinstance(outcome, Distribution):
            lines.append(f"{as_text(other.instructions or '')} {said(other, outcome.top)}".strip())
    return tuple(lines)


def said(question: Question, answer: int) -> str:
    """An answer in the words in which the model may be told it."""
    levels = getattr(question, "levels", None)
    return as_text(levels[answer]) if levels else answer_names(question)[answer]
