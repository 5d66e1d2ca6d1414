"""A thought before the first round: what is asked of it, what it costs, and where it stands afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decisions.errors import MalformedReadout, TooManyTokens, UnsupportedFeature
from decisions.labels import AnswerForm
from decisions.plan import Plan, Planner
from decisions.reads import EngineLimits, Readout
from gateway.engines.stub import MODEL, THOUGHT_CLOSE, THOUGHT_OPEN, TURN_CLOSE, StubTokenizer
from tests.gates.asking import WIRE

LIMITS = EngineLimits(2048, 128, slots=128, reads=64, thinks=True)
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Is money asked for?"},
    "team": {"type": "choice", "criteria": {"billing": None, "sales": None}},
}
TOKENIZER = StubTokenizer()


def planned(limits: EngineLimits = LIMITS, **fields: Any) -> Plan:
    """A plan for the stub's tokenizer."""
    body = {"model": "jev-latest", "state": "I was charged twice.", "questions": QUESTIONS, **fields}
    request = WIRE.parse_systemone(json.dumps(body).encode())
    return Planner(TOKENIZER, limits, AnswerForm(space=" ")).plan(request)


def even(plan: Plan) -> list[Readout]:
    """Readouts that prefer nothing."""
    return [Readout(tuple(tuple(-1.0 for _ in slot.label_ids) for slot in read.slots)) for read in plan.next_reads()]


def test_without_think_no_thought_is_asked_for() -> None:
    assert planned().thought is None
    assert planned(think=0).next_reads() == planned().next_reads()


def test_a_thought_is_asked_for_behind_the_state_and_all_questions() -> None:
    thought = planned(think=30, isolate="all").thought
    assert thought is not None
    text = TOKENIZER.decode(thought.prompt)
    assert thought.budget == 30
    assert thought.prompt[-3:] == (TURN_CLOSE, MODEL, THOUGHT_OPEN)
    assert all(said in text for said in ("charged twice", "Question 1: Is money asked for?", "Question 2", "billing"))


def test_the_thought_is_about_all_questions_also_those_that_wait_but_not_those_with_one_answer() -> None:
    questions = {
        **QUESTIONS,
        "late": {"type": "score", "instructions": "How late?", "criteria": ["Early", "Late"], "depends_on": ["refund"]},
        "only": {"type": "choice", "instructions": "One way?", "criteria": {"north": None}},
        "flat": {"type": "score", "instructions": "How flat?", "criteria": ["Flat"]},
        "many": {"type": "choice", "instructions": "Which?", "criteria": {f"way {at}": None for at in range(1, 41)}},
    }
    thought = planned(think=30, questions=questions).thought
    assert thought is not None
    text = TOKENIZER.decode(thought.prompt)
    assert all(said in text for said in ("How late?", "1: Late", "40: way 40"))
    assert not any(said in text for said in ("One way?", "How flat?"))
    assert text.count("Question ") == 4


@pytest.mark.parametrize("layout", ["document_first", "schema_first"])
@pytest.mark.parametrize("isolate", ["none", "all"])
def test_every_read_has_the_thought_in_its_prompt_and_nothing_else_changes(layout: str, isolate: str) -> None:
    plain, plan = planned(layout=layout, isolate=isolate), planned(layout=layout, isolate=isolate, think=30)
    ids = TOKENIZER.encode("they want money")
    plan.receive_thought(ids)
    assert plan.thought is None
    block = (THOUGHT_OPEN, *ids, THOUGHT_CLOSE)
    assert [read.prompt for read in plan.next_reads()] == [read.prompt + block for read in plain.next_reads()]
    assert [read.slots for read in plan.next_reads()] == [read.slots for read in plain.next_reads()]


def test_an_empty_thought_is_one() -> None:
    plan = planned(think=30)
    plan.receive_thought(())
    assert all(read.prompt[-2:] == (THOUGHT_OPEN, THOUGHT_CLOSE) for read in plan.next_reads())


def test_usage_and_cost_count_the_thought() -> None:
    plain, plan = planned(), planned(think=30)
    assert plan.thought is not None
    prompt = len(plan.thought.prompt)
    ids = TOKENIZER.encode("money")
    longest = sum(read.tokens + 32 for read in plain.next_reads())
    assert plan.cost.tokens == longest + prompt + 30
    plan.receive_thought(ids)
    plan.receive(even(plan))
    plain.receive(even(plain))
    decision, usual = plan.decision(), plain.decision()
    assert decision.thought_tokens == len(ids)
    assert decision.usage.output_tokens == usual.usage.output_tokens + len(ids)
    assert decision.usage.input_tokens == usual.usage.input_tokens + prompt + len(ids) + 2


def test_later_rounds_have_the_thought_too() -> None:
    options = {f"option {number}": None for number in range(40)}
    plan = planned(think=9, questions={"which": {"type": "choice", "criteria": options}})
    plan.receive_thought(TOKENIZER.encode("thought"))
    plan.receive(even(plan))
    assert plan.next_reads()
    assert all(read.prompt[-1] == THOUGHT_CLOSE for read in plan.next_reads())


def test_a_question_that_needs_no_read_needs_no_thought() -> None:
    plan = planned(think=30, questions={"only": {"type": "choice", "criteria": {"one": None}}})
    assert plan.thought is None
    assert plan.next_reads() == ()


def test_a_budget_that_does_not_fit_is_refused_before_any_work() -> None:
    with pytest.raises(TooManyTokens):
        planned(think=2000)
    many = {f"q{number}": {"type": "noul", "instructions": "Is it so? " * 8} for number in range(20)}
    with pytest.raises(TooManyTokens, match="all questions and a thought"):
        planned(think=300, questions=many, isolate="all")


def test_a_thought_beyond_its_budget_or_unasked_for_is_an_error() -> None:
    with pytest.raises(MalformedReadout):
        planned(think=3).receive_thought((1, 2, 3, 4))
    with pytest.raises(MalformedReadout):
        planned().receive_thought(())


def test_a_model_that_does_not_think_refuses_by_name() -> None:
    with pytest.raises(UnsupportedFeature, match=r"\(think\)"):
        planned(EngineLimits(2048, 128, slots=128), think=10)
