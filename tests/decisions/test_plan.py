"""Rules of `decisions.plan`: a request is read in few rounds, counted, traced and answered in order."""

from __future__ import annotations

import pytest

from decisions.errors import UnsupportedFeature
from decisions.protocol import ChoiceQuestion, Isolation, NoulQuestion, Option, ScoreQuestion, Skipped, Usage
from decisions.reads import Cost
from tests.decisions.fakes import AUTOREGRESSIVE, asked, by_hash, follow, planner

NOUL = NoulQuestion(id="n", instructions="Is it?")
CHOICE = ChoiceQuestion(id="c", options=(Option("a"), Option("b")))
SCORE = ScoreQuestion(id="s", levels=("low", "middle", "high"))


def test_answers_keep_the_request_s_order() -> None:
    """Whatever was read with what."""
    plan = planner().plan(asked(SCORE, NOUL, CHOICE))
    follow(plan, by_hash)

    assert list(plan.decision().answers) == ["s", "n", "c"]


def test_three_questions_are_one_canvas_or_three_reads() -> None:
    """One round either way."""
    assert planner().plan(asked(NOUL, CHOICE, SCORE)).cost.reads == 1
    assert planner(AUTOREGRESSIVE).plan(asked(NOUL, CHOICE, SCORE)).cost.reads == 3


def test_questions_with_one_answer_need_no_read() -> None:
    """Not even one: the model is not asked."""
    plan = planner().plan(
        asked(ChoiceQuestion(id="c", options=(Option("only"),)), ScoreQuestion(id="s", levels=("only",)))
    )

    assert plan.next_reads() == ()
    assert plan.cost == Cost(0, 0)
    assert plan.decision().answers["c"].probabilities == {"only": 1.0}  # type: ignore[union-attr]
    assert plan.decision().usage == Usage(0, 2, 0)


def test_usage_counts_every_token_put_before_the_model() -> None:
    """The state once per read that carried it; cached tokens beside it."""
    plan = planner(AUTOREGRESSIVE).plan(asked(NOUL, CHOICE))
    expected = sum(read.tokens for read in plan.next_reads())
    follow(plan, by_hash)

    assert plan.decision().usage == Usage(expected, 2, 2)
    assert plan.decision().reads == 2


def test_traces_say_how_each_question_was_read() -> None:
    """G7b: a joint read is told as such."""
    wide = ChoiceQuestion(id="w", options=tuple(Option(f"option {number}") for number in range(40)))
    plan = planner().plan(asked(NOUL, SCORE, wide, NoulQuestion(id="alone", instructions="?", alone=True), samples=2))
    follow(plan, by_hash)
    traces = plan.decision().traces

    assert (traces["n"].isolated, traces["alone"].isolated) == (False, True)
    assert (traces["n"].canvas, traces["s"].slot, traces["w"].rounds, traces["s"].rounds) == (0, 1, 2, 1)
    assert {trace.samples for trace in traces.values()} == {2}
    assert 0 < traces["n"].label_mass < 1


def test_steps_are_the_canvas_engine_s_alone() -> None:
    """A next-token read has none."""
    assert planner().plan(asked(NOUL, steps=2)).next_reads()[0].steps == 2
    with pytest.raises(UnsupportedFeature, match="no canvas"):
        planner(AUTOREGRESSIVE).plan(asked(NOUL, steps=2))


def test_a_dependent_question_is_read_in_a_later_round() -> None:
    """And a skipped one is not read at all."""
    after = NoulQuestion(id="after", instructions="And?", depends_on=("n",))
    never = NoulQuestion(id="never", instructions="Or?", ask_if={"c": ("a" if by_hash("a") < by_hash("b") else "b",)})
    plan = planner().plan(asked(after, NOUL, CHOICE, never))

    rounds = follow(plan, by_hash)
    decision = plan.decision()

    assert [sum(len(read.slots) for read in reads) for reads in rounds] == [2, 1]
    assert list(decision.answers) == ["after", "n", "c"]
    assert isinstance(decision.skipped["never"], Skipped)


def test_a_yes_no_question_alone_equals_the_same_one_in_company() -> None:
    """G7: isolated, the read is the very same."""
    alone = planner().plan(asked(NOUL)).next_reads()
    beside = planner().plan(asked(CHOICE, NOUL, SCORE, isolate=Isolation.ALL)).next_reads()

    assert alone[0] in beside
