"""Rules of `decisions.plan`: a request is read in few rounds, counted, traced and answered in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.distribution import softmax
from decisions.errors import UnsupportedFeature
from decisions.protocol import (
    ChoiceAnswer,
    ChoiceQuestion,
    Debias,
    Isolation,
    NoulQuestion,
    Option,
    ScoreQuestion,
    Skipped,
    Usage,
)
from decisions.reads import Cost, EngineLimits
from tests.decisions.fakes import AUTOREGRESSIVE, CANVAS, asked, by_hash, follow, planner

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


LABEL_LIKE = ["A", "B", "C", "Z", "0", "1", "9", "10", "yes", "no", "a", "AB", "other", "-1"]


@given(st.lists(st.sampled_from(LABEL_LIKE), min_size=2, unique=True), st.sampled_from([CANVAS, AUTOREGRESSIVE]))
def test_options_named_like_labels_keep_their_own_share(names: list[str], limits: EngineLimits) -> None:
    """fr-015: keys as sent, in the order sent, each with the share of its own text."""
    options = tuple(Option(name, f"it is {number}") for number, name in enumerate(names))
    plan = planner(limits).plan(asked(ChoiceQuestion(id="c", options=options), NOUL))
    follow(plan, lambda text: float(text.rstrip(")").rpartition(" ")[2]) / 4 if "it is" in text else 0.0)
    answer = plan.decision().answers["c"]

    assert isinstance(answer, ChoiceAnswer)
    assert list(answer.probabilities) == names
    assert pytest.approx(softmax([number / 4 for number in range(len(names))])) == list(answer.probabilities.values())


def test_a_certain_question_costs_nothing_beside_others() -> None:
    """It takes no slot, and its trace says that nothing was read."""
    only = ChoiceQuestion(id="only", options=(Option("one"),))
    plan = planner().plan(asked(only, NOUL, isolate=Isolation.NONE))
    rounds = follow(plan, by_hash)
    trace = plan.decision().traces["only"]

    assert [[len(read.slots) for read in reads] for reads in rounds] == [[1]]
    assert (trace.orders, trace.samples, trace.rounds, trace.label_mass) == (0, 0, 0, 1.0)
    assert plan.decision().usage.output_tokens == 2


def test_usage_adds_up_over_rounds_and_samples() -> None:
    """Every read of every round, canvas included."""
    wide = ChoiceQuestion(id="w", options=tuple(Option(f"option {number}") for number in range(40)))
    plan = planner().plan(asked(wide, NOUL, samples=2, debias=Debias.REVERSE))
    reads = [read for reads in follow(plan, by_hash) for read in reads]
    decision = plan.decision()

    assert decision.usage == Usage(sum(len(read.prompt) + len(read.canvas) for read in reads), 2, len(reads))
    assert (decision.reads, decision.rounds) == (len(reads), 2)
    assert (decision.traces["w"].orders, decision.traces["w"].samples) == (2, 2)


def test_traces_are_kept_only_for_a_request_that_asks_for_diagnostics() -> None:
    """The answers are the same."""
    traced, plain = planner().plan(asked(NOUL)), planner().plan(replace(asked(NOUL), diagnostics=False))
    follow(traced, by_hash)
    follow(plain, by_hash)

    assert (set(traced.decision().traces), plain.decision().traces) == ({"n"}, {})
    assert traced.decision().answers == plain.decision().answers
