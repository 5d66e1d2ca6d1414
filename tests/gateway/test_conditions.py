"""Questions that wait for others: what is refused, what is read, and what a skipped question's answer looks like."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from decisions.errors import Fault, SchemaViolation
from decisions.protocol import (
    ChoiceAnswer,
    ChoiceQuestion,
    Decision,
    NoulAnswer,
    QuestionTrace,
    ReadSettings,
    Skipped,
    Usage,
)
from decisions.schema import load_schema
from gateway.wire import MAX_STEPS, ServedNames, ShapeLimits, Wire, WireRequest
from tests.conftest import AppClient
from tests.gateway.asking import CHOICE, NOUL, PATH, SCORE, asked

WIRE = Wire(ShapeLimits(), ReadSettings(), ServedNames("own-model"))
PREDICATE = {"type": "predicate", "instructions": "It is."}


def parse(**questions: Any) -> WireRequest:
    """A System One request with these questions."""
    return WIRE.parse_systemone(json.dumps({"model": "jev-latest", "state": "x", "questions": questions}).encode())


def parse_openai(*questions: object, **fields: Any) -> WireRequest:
    """An OpenAI request with these questions."""
    body = {"model": "jev-latest", "input": "x", "questions": questions, **fields}
    return WIRE.parse_decisions(json.dumps(body).encode())


def faults(**questions: Any) -> list[tuple[str, tuple[str | int, ...]]]:
    """Type and place, below `questions`, of every fault."""
    return [(fault.type, fault.loc[2:]) for fault in all_faults(**questions)]


def all_faults(**questions: Any) -> tuple[Fault, ...]:
    """Every fault of a System One request."""
    with pytest.raises(SchemaViolation) as refused:
        parse(**questions)
    return refused.value.faults


# --- What is read -----------------------------------------------------------------------------------------------------


def test_conditions_are_read_in_the_words_of_the_questions() -> None:
    """Booleans are yes and no, integers are levels; each is there once."""
    last = {**NOUL, "depends_on": ["n", "n"], "ask_if": {"n": [True, "yes"], "s": [0, "2", 2.0], "c": ["billing"]}}
    question = parse(last=last, n=NOUL, s=SCORE, c=CHOICE).questions[0]

    assert ("n",) == question.depends_on
    assert {"n": ("yes",), "s": ("0", "2"), "c": ("billing",)} == question.ask_if


@pytest.mark.parametrize("nothing", [{}, {"depends_on": [], "ask_if": {}}, {"depends_on": None, "ask_if": None}])
def test_a_question_without_conditions_waits_for_nothing(nothing: dict[str, Any]) -> None:
    """Empty and null are as good as left out."""
    question = parse(n=NOUL, q={**NOUL, **nothing}).questions[1]

    assert ((), {}) == (question.depends_on, question.ask_if)


def test_openai_questions_refer_to_each_other_by_name() -> None:
    """An option's value is meant with its type; booleans that are no option are yes and no."""
    choices = [{"value": value} for value in ("true", True, "yes")]
    question = parse_openai(
        {"type": "choice", "name": "c", "instructions": "x", "choices": choices},
        {**PREDICATE, "name": "p"},
        {**PREDICATE, "depends_on": ["p"], "ask_if": {"c": [True, "true", "yes"], "p": [False]}},
    )

    assert ("1",) == question.questions[2].depends_on
    assert {"0": ("true (boolean)", "true", "yes"), "1": ("no",)} == question.questions[2].ask_if


# --- What is refused --------------------------------------------------------------------------------------------------


def test_a_question_can_wait_only_for_others_that_are_there() -> None:
    """Unknown ids and its own, each named with its place."""
    q = {**NOUL, "depends_on": ["n", "gone", "q"], "ask_if": {"lost": ["yes"], "q": ["yes"]}}

    assert [
        ("value_error", ("q", "depends_on", 1)),
        ("value_error", ("q", "depends_on", 2)),
        ("value_error", ("q", "ask_if", "lost")),
        ("value_error", ("q", "ask_if", "q")),
    ] == faults(n=NOUL, q=q)


def test_every_step_of_a_circle_is_named_and_nothing_beside_it() -> None:
    """Also where two circles share a question; what merely leads to a circle is not at fault."""
    a = {**NOUL, "depends_on": ["b", "c"]}
    before = {**NOUL, "depends_on": ["a"]}

    assert [
        ("value_error", ("a", "depends_on", 0)),
        ("value_error", ("a", "depends_on", 1)),
        ("value_error", ("b", "ask_if", "a")),
        ("value_error", ("c", "depends_on", 0)),
    ] == faults(
        before=before,
        a=a,
        b={**NOUL, "ask_if": {"a": ["yes"]}},
        c={**NOUL, "depends_on": ["a", "last"]},
        last=NOUL,
    )


@pytest.mark.parametrize(
    ("other", "value"),
    [(NOUL, "true"), (NOUL, "Yes"), (NOUL, 1), (CHOICE, "sales"), (CHOICE, True), (SCORE, 3), (SCORE, "Calm")],
)
def test_a_value_must_be_an_answer_of_that_question(other: object, value: object) -> None:
    """The fault lists its answers."""
    (fault,) = all_faults(other=other, q={**NOUL, "ask_if": {"other": [value]}})

    assert ("literal_error", ("body", "questions", "q", "ask_if", "other", 0)) == (fault.type, fault.loc)
    assert fault.msg.startswith("Input should be an answer of 'other': '")


@pytest.mark.parametrize(
    ("conditions", "kind", "place"),
    [
        ({"depends_on": "n"}, "list_type", ("depends_on",)),
        ({"depends_on": [1]}, "string_type", ("depends_on", 0)),
        ({"ask_if": ["n"]}, "dict_type", ("ask_if",)),
        ({"ask_if": {"n": []}}, "too_short", ("ask_if", "n")),
        ({"ask_if": {"n": "yes"}}, "list_type", ("ask_if", "n")),
        ({"ask_if": {"n": [None]}}, "string_type", ("ask_if", "n", 0)),
        ({"ask_if": {"n": [0.5]}}, "string_type", ("ask_if", "n", 0)),
    ],
)
def test_conditions_have_their_shape(conditions: dict[str, Any], kind: str, place: tuple[str | int, ...]) -> None:
    """Told once, by the schema."""
    assert [(kind, ("q", *place))] == faults(n=NOUL, q={**NOUL, **conditions})


def test_faults_of_shape_and_of_conditions_are_told_at_once() -> None:
    """A question that is malformed itself is still known by its id."""
    broken = {"type": "choice", "criteria": ["a"]}

    assert [("dict_type", ("c", "criteria")), ("value_error", ("q", "depends_on", 1))] == faults(
        c=broken, q={**NOUL, "depends_on": ["c", "gone"], "ask_if": {"c": ["a"]}}
    )


def test_a_long_chain_is_no_circle() -> None:
    """However deep; nothing is walked by recursion."""
    chain = {f"q{place}": {**NOUL, "depends_on": [f"q{place + 1}"] if place < 511 else []} for place in range(512)}

    assert 512 == len(parse(**chain).questions)


def test_openai_faults_have_positions_and_ambiguous_names_are_refused() -> None:
    """Along with the form's other faults."""
    twice = {**PREDICATE, "name": "n"}
    choice = {"type": "choice", "name": ["c"], "instructions": "x", "choices": [{"value": "a"}, 1]}
    with pytest.raises(SchemaViolation) as refused:
        parse_openai(twice, twice, {**PREDICATE, "ask_if": {"n": ["yes"]}}, choice)

    assert ("questions", 2, "ask_if", "n") in {fault.loc[1:] for fault in refused.value.faults}
    assert "2 questions are named 'n'" in refused.value.message


# --- What goes out ----------------------------------------------------------------------------------------------------


def test_a_skipped_question_has_a_reason_and_no_answer() -> None:
    """Keyed by its id; the reason is in the words of `ask_if`."""
    request = parse(n=NOUL, q={**NOUL, "ask_if": {"n": [True]}})
    decision = Decision({"n": NoulAnswer(0.1)}, Usage(), skipped={"q": Skipped("n", "no", ("yes",))})
    answer = json.loads(WIRE.systemone_body(request, decision))

    assert ["n"] == list(answer["answers"])
    assert {"q": {"because": "n", "was": "no", "wanted": ["yes"]}} == answer["x_skipped"]


def test_a_skipped_openai_question_is_a_refusal_in_its_place() -> None:
    """With the names and values of the caller; a question that depends on a skipped one has no answer to name."""
    choice = {"type": "choice", "name": "c", "instructions": "x", "choices": [{"value": True}, {"value": "b"}]}
    middle = {**PREDICATE, "name": "m", "ask_if": {"c": ["b"]}}
    request = parse_openai(choice, middle, {**PREDICATE, "depends_on": ["m"]}, PREDICATE, diagnostics=True)
    assert isinstance(request.questions[0], ChoiceQuestion)
    names = [option.name for option in request.questions[0].options]
    decision = Decision(
        {"0": ChoiceAnswer(names[0], 0.5, dict(zip(names, (0.75, 0.25), strict=True))), "3": NoulAnswer(0.5)},
        Usage(),
        traces={key: QuestionTrace(0.5, 1.0, 0, 0, True, 1, 1, 1) for key in "03"},
        skipped={"1": Skipped("0", names[0], ("b",)), "2": Skipped("1", None, ())},
    )
    sent = WIRE.decisions_body(request, decision)
    answer = json.loads(sent)

    assert 4 == len(pytest.importorskip("openai.types.decision").Decision.model_validate_json(sent).answers)
    assert ["choice", "refusal", "refusal", "predicate"] == [each["type"] for each in answer["answers"]]
    assert [
        {"question": 1, "name": "m", "because": "c", "was": True, "wanted": ["b"]},
        {"question": 2, "name": None, "because": "m", "was": None, "wanted": []},
    ] == answer["x_skipped"]
    assert [False, True, True, False] == [trace is None for trace in answer["x_diagnostics"]["questions"]]


async def test_a_triage_asks_only_what_its_gate_lets_through(client: AppClient) -> None:
    """Whichever way the gate goes: one branch is asked, the other is skipped, and so is what waits for that."""
    questions = {
        "after": {**NOUL, "depends_on": ["no"]},
        "gate": NOUL,
        "yes": {**CHOICE, "ask_if": {"gate": [True]}},
        "no": {**SCORE, "ask_if": {"gate": [False]}},
    }
    seen = set()
    for number in range(8):
        answer = (await client.post(PATH, json=asked(f"ticket {number}", questions=questions))).json()
        gate = answer["answers"]["gate"]["noul"] >= 0.5
        seen.add(gate)
        wanted = ["gate", "yes"] if gate else ["after", "gate", "no"]
        assert wanted == list(answer["answers"])
        assert {*questions} - {*wanted} == answer["x_skipped"].keys()
    assert {True, False} == seen


async def test_a_request_whose_questions_all_are_asked_tells_of_no_skipped_ones(client: AppClient) -> None:
    """The field is left out."""
    questions = {"gate": NOUL, "always": {**NOUL, "ask_if": {"gate": ["yes", "no"]}}}

    assert "x_skipped" not in (await client.post(PATH, json=asked(questions=questions))).json()


async def test_labels_and_steps_reach_the_engine(client: AppClient) -> None:
    """52 labels hold 40 options in one read; brackets need two rounds. Steps are refused without a canvas."""
    questions = {"c": {"type": "choice", "criteria": {f"option {number}": None for number in range(40)}}}
    rounds = []
    for labels in ("az", "az_aa", "az_lower"):
        sent = asked(questions=questions, labels=labels, steps=2, diagnostics=True)
        rounds.append((await client.post(PATH, json=sent)).json()["x_diagnostics"]["rounds"])
    refused = await client.post(PATH, json=asked(labels="AZ", steps=9))

    assert [2, 1, 1] == rounds
    assert [["body", "labels"], ["body", "steps"]] == [fault["loc"] for fault in refused.json()["detail"]]


async def test_steps_need_a_canvas(client: AppClient) -> None:
    """The planner refuses them by name; one step is no step too many."""
    planner = client.gateway.serving.service.planner
    planner.limits = replace(planner.limits, canvas=0)
    one, two = [await client.post(PATH, json=asked(steps=steps)) for steps in (1, 2)]

    assert (200, 400) == (one.status_code, two.status_code)
    assert "no canvas" in two.json()["detail"]["message"]


@pytest.mark.parametrize(("setting", "rounds"), [("off", 2), ("final", 2), ("both", 2), ("verify", 3)])
async def test_catch_all_is_the_servers_setting(setting: str, rounds: int) -> None:
    """With `verify` the winner is read once more, against them."""
    options = dict.fromkeys([*(f"option {number}" for number in range(30)), "none of the above"])
    sent = asked(questions={"c": {"type": "choice", "criteria": options}}, diagnostics=True)
    async with AppClient(CATCH_ALL=setting) as client:
        answer = (await client.post(PATH, json=sent)).json()

    assert rounds == answer["x_diagnostics"]["rounds"]
    assert pytest.approx(1) == sum(answer["answers"]["c"]["probabilities"].values())


def test_most_steps_are_the_schemas() -> None:
    """What `/v1/limits` says is what is accepted."""
    assert load_schema("systemone.request")["definitions"]["steps"]["maximum"] == MAX_STEPS
