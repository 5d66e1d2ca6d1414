"""Rules of `decisions.stages`: who waits for whom, who is skipped, and what the model is told."""

from __future__ import annotations

import pytest

from decisions.distribution import Distribution
from decisions.flow import Flow, known
from decisions.protocol import ChoiceQuestion, NoulQuestion, Option, Question, ScoreQuestion, Skipped
from decisions.stages import Staged, staged

YES, NO = Distribution((0.9, 0.1)), Distribution((0.1, 0.9))
SAFE = NoulQuestion(id="safe", instructions="Is it safe?")
TEAM = ChoiceQuestion(id="team", instructions="Which team?", options=(Option("a"), Option("b")))
ANGER = ScoreQuestion(id="anger", instructions="How angry?", levels=("calm", {"words": "very angry"}))


def outcome(questions: list[Question], answers: dict[str, Distribution], told: dict[str, tuple[str, ...]]) -> Staged:
    """Run the stages with these answers; `told` collects what each question was told."""

    def flow_of(index: int, given: tuple[str, ...]) -> Flow:
        told[questions[index].id] = given
        return known(answers[questions[index].id])

    steps = staged(questions, flow_of)
    with pytest.raises(StopIteration) as stop:
        next(steps)
    result: Staged = stop.value.value
    return result


def test_questions_that_wait_for_nothing_are_one_stage() -> None:
    """They are told nothing, and their outcomes stand in the caller's order."""
    told: dict[str, tuple[str, ...]] = {}

    staged_ = outcome([SAFE, TEAM], {"safe": YES, "team": NO}, told)

    assert staged_.outcomes == (YES, NO)
    assert told == {"safe": (), "team": ()}


def test_a_question_is_told_the_answers_that_it_depends_on() -> None:
    """In the words of the questions, whatever the order in which they were sent."""
    told: dict[str, tuple[str, ...]] = {}
    last = NoulQuestion(id="last", instructions="Call somebody?", depends_on=("safe", "team", "anger"))

    outcome([last, SAFE, TEAM, ANGER], {"last": YES, "safe": NO, "team": NO, "anger": NO}, told)

    assert told["last"] == ("Is it safe? no", "Which team? b", 'How angry? {"words": "very angry"}')


@pytest.mark.parametrize(
    ("asked", "answer", "wanted"),
    [(SAFE, YES, "yes"), (SAFE, NO, "no"), (TEAM, NO, "b"), (ANGER, NO, "1"), (ANGER, YES, "0")],
)
def test_ask_if_holds_for_the_named_answer(asked: Question, answer: Distribution, wanted: str) -> None:
    """Answers are named yes and no, by option, or by level number."""
    last = NoulQuestion(id="last", instructions="And then?", ask_if={asked.id: (wanted,)})

    assert outcome([asked, last], {asked.id: answer, "last": YES}, {}).outcomes[1] == YES


def test_a_question_whose_condition_fails_is_skipped_with_the_reason() -> None:
    """It is not read, and says because of which question."""
    told: dict[str, tuple[str, ...]] = {}
    last = NoulQuestion(id="last", instructions="Why not?", ask_if={"safe": ("no",)})

    staged_ = outcome([SAFE, last], {"safe": YES}, told)

    assert staged_.outcomes[1] == Skipped("safe", "yes", ("no",))
    assert "last" not in told


def test_what_waits_for_a_skipped_question_is_skipped_too() -> None:
    """Also where it merely depends on it."""
    second = NoulQuestion(id="second", instructions="Why not?", ask_if={"safe": ("no",)})
    third = NoulQuestion(id="third", instructions="Sure?", depends_on=("second",))

    assert outcome([SAFE, second, third], {"safe": YES}, {}).outcomes[2] == Skipped("second", None, ())


def test_a_circle_is_refused() -> None:
    """Validation refuses it before; here it must not hang."""
    one = NoulQuestion(id="one", instructions="?", depends_on=("two",))
    two = NoulQuestion(id="two", instructions="?", depends_on=("one",))

    with pytest.raises(ValueError, match="circle"):
        next(staged([one, two], lambda index, given: known(YES)))
