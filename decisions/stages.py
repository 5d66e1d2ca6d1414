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


def waiting(questions: Sequence[Question]) -> bool:
    """Whether any question waits for another."""
    return any(question.depends_on or question.ask_if for question in questions)


def staged(questions: Sequence[Question], flow_of: FlowOf) -> Generator[Slots, Distributions, Staged]:
    """Step the questions stage by stage; those that wait for nothing are the first stage.

    Raises `ValueError` when questions wait for each other in a circle or for one that is not there; validation refuses
    such requests before.
    """
    if not waiting(questions):
        return Staged((yield from together([flow_of(index, ()) for index in range(len(questions))])))
    ledger = Ledger(questions)
    while stage := ledger.next_stage():
        read = yield from together([flow_of(index, ledger.told(index)) for index in stage])
        for index, distribution in zip(stage, read, strict=True):
            ledger.settle(index, distribution)
    return Staged(tuple(outcome for outcome in ledger.outcomes if outcome is not None))


class Ledger:
    """Which questions wait for which, and what has come of those that were asked."""

    def __init__(self, questions: Sequence[Question]) -> None:
        places = {question.id: index for index, question in enumerate(questions)}
        self.questions = questions
        self.outcomes: list[Distribution | Skipped | None] = [None] * len(questions)
        self._needs = [[places[other] for other in needs(question) if other in places] for question in questions]
        self._missing = [len(needs(question)) for question in questions]
        """How many of those that a question waits for are not answered or skipped yet."""
        self._waiting_for: list[list[int]] = [[] for _ in questions]
        for index, others in enumerate(self._needs):
            for other in others:
                self._waiting_for[other].append(index)
        self._ready = [index for index, missing in enumerate(self._missing) if not missing]
        self._unsettled = len(questions)

    def next_stage(self) -> list[int]:
        """The questions to ask now; those that are skipped are noted on the way. Empty when all are done."""
        stage: list[int] = []
        while self._ready and not stage:
            ready, self._ready = sorted(self._ready), []
            for index in ready:
                skipped = self._skipped(index)
                if skipped is None:
                    stage.append(index)
                else:
                    self.settle(index, skipped)
        if not stage and self._unsettled:
            raise ValueError("questions wait for each other in a circle")
        return stage

    def settle(self, index: int, outcome: Distribution | Skipped) -> None:
        """Note what has come of a question."""
        self.outcomes[index] = outcome
        self._unsettled -= 1
        for other in self._waiting_for[index]:
            self._missing[other] -= 1
            if not self._missing[other]:
                self._ready.append(other)

    def told(self, index: int) -> tuple[str, ...]:
        """The lines that tell a question the answers of those that it waits for, in the request's order."""
        answered = [
            (self.questions[other], outcome.top)
            for other in sorted(self._needs[index])
            if isinstance(outcome := self.outcomes[other], Distribution)
        ]
        return tuple(
            f"{as_text(question.instructions or '')} {said(question, answer)}".strip() for question, answer in answered
        )

    def _skipped(self, index: int) -> Skipped | None:
        """Why a question is not asked, or None where it is."""
        for other in self._needs[index]:
            outcome, question = self.outcomes[other], self.questions[other]
            wanted = self.questions[index].ask_if.get(question.id, ())
            if isinstance(outcome, Skipped):
                return Skipped(question.id, None, wanted)
            was = answer_names(question)[outcome.top] if wanted and outcome else None
            if was is not None and was not in wanted:
                return Skipped(question.id, was, wanted)
        return None


def said(question: Question, answer: int) -> str:
    """An answer in the words in which the model may be told it."""
    levels = getattr(question, "levels", None)
    return as_text(levels[answer]) if levels else answer_names(question)[answer]
