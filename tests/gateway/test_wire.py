"""Bytes to request, decision to bytes, in both forms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decisions.errors import DecisionError, SchemaViolation, UnknownModel, UnsupportedFeature
from decisions.protocol import (
    ChoiceAnswer,
    ChoiceQuestion,
    Debias,
    Decision,
    Isolation,
    LabelSet,
    Layout,
    NoulAnswer,
    NoulQuestion,
    Option,
    QuestionTrace,
    ReadSettings,
    ScoreAnswer,
    ScoreQuestion,
    SeedToken,
    Skipped,
    Temperatures,
    Usage,
)
from decisions.schema import load_schema
from gateway.unsupported import REQUEST
from gateway.wire import LONGEST_ASKED, Report, ServedNames, ShapeLimits, Wire, WireRequest, asked_in

DEFAULTS = ReadSettings(seed=7, temperatures=Temperatures(noul=1.5, choice=2.0, score=3.0))
WIRE = Wire(ShapeLimits(), DEFAULTS, ServedNames("own-model"))
NOUL = {"type": "noul", "instructions": "Is it?"}


def parse(question: object = None, **fields: Any) -> WireRequest:
    """A System One request with one question, parsed."""
    body = {"model": "jev-latest", "state": "x", "questions": {"q": question or NOUL}, **fields}
    return WIRE.parse_systemone(json.dumps(body).encode(), "application/json")


def parse_openai(*questions: object, **fields: Any) -> WireRequest:
    """An OpenAI request, parsed."""
    body = {"model": "jev-latest", "input": "x", "questions": questions, **fields}
    return WIRE.parse_decisions(json.dumps(body).encode(), "application/json")


# --- System One, in ---------------------------------------------------------------------------------------------------


def test_each_type_of_question_becomes_its_own() -> None:
    """In the caller's order, every text as it was sent."""
    body = load_schema("systemone.request")["examples"][0]
    request = WIRE.parse_systemone(json.dumps(body).encode())

    assert (body["model"], body["state"]) == (request.model, request.state)
    assert (
        NoulQuestion(id="refund", instructions="Does the customer ask for money back?"),
        ChoiceQuestion(
            id="team",
            instructions="Which team should handle this?",
            options=(
                Option("billing", "Invoices, charges, refunds"),
                Option("technical", "Bugs and errors"),
                Option("sales"),
            ),
        ),
        ScoreQuestion(id="anger", instructions="How angry is the customer?", levels=("Calm", "Annoyed", "Furious")),
    ) == request.questions


@pytest.mark.parametrize("state", ["", "text", [], {}, {"a": [1, None, {"b": 1.5}]}, ["x", 2]])
def test_a_state_is_any_text(state: object) -> None:
    """Empty ones as well."""
    assert state == parse(state=state).state


@pytest.mark.parametrize("name", ["a b.c", "한국어", "👩‍💻", "e\u0301", "\u200f", "null", "10", " ", "__proto__"])
def test_ids_and_option_names_are_kept_byte_for_byte(name: str) -> None:
    """No normalisation, no trimming, no numbers made of digits."""
    body = {"model": "jev-latest", "state": "x", "questions": {name: {"type": "choice", "criteria": {name: None}}}}
    (question,) = WIRE.parse_systemone(json.dumps(body, ensure_ascii=False).encode()).questions

    assert isinstance(question, ChoiceQuestion)
    assert (name, name) == (question.id, question.options[0].name)


@pytest.mark.parametrize(
    ("given", "true", "false"),
    [
        (None, None, None),
        ({}, None, None),
        ({"true": "a"}, "a", None),
        ({"false": ["b"]}, None, ["b"]),
        ({"true": "", "false": "b"}, None, "b"),
        ({"true": " \t", "false": {}}, None, None),
        ({"true": None, "false": None}, None, None),
    ],
)
def test_noul_criteria_may_be_one_sided(given: object, true: object, false: object) -> None:
    """Blank ones count as absent."""
    (question,) = parse({**NOUL, "criteria": given}).questions

    assert NoulQuestion(id="q", instructions="Is it?", true=true, false=false) == question  # type: ignore[arg-type]


def test_settings_are_the_servers_where_the_request_says_nothing() -> None:
    """Left out, or null."""
    nothing = dict.fromkeys(
        [
            "isolate",
            "layout",
            "debias",
            "samples",
            "seed",
            "seed_token",
            "labels",
            "steps",
            "temperature",
            "instructions",
        ]
    )

    assert DEFAULTS == parse().settings
    assert DEFAULTS == parse(**nothing, diagnostics=None).settings


def test_settings_are_the_requests_where_it_says_them() -> None:
    """Each of them."""
    request = parse(
        {**NOUL, "alone": True},
        instructions=["All of it"],
        isolate="all",
        layout="schema_first",
        debias="cyclic",
        samples="16",
        seed=3.0,
        seed_token="fixed",
        labels="az_lower",
        steps=8.0,
        temperature=2,
        diagnostics=True,
    )

    assert (["All of it"], True, True) == (request.instructions, request.diagnostics, request.questions[0].alone)
    assert (
        ReadSettings(
            isolate=Isolation.ALL,
            layout=Layout.SCHEMA_FIRST,
            debias=Debias.CYCLIC,
            samples=16,
            seed=3,
            seed_token=SeedToken.FIXED,
            labels=LabelSet.AZ_LOWER,
            steps=8,
            temperatures=Temperatures(noul=2.0, choice=2.0, score=2.0),
        )
        == request.settings
    )


def test_a_temperature_per_type_leaves_the_others() -> None:
    """The server's defaults hold for those."""
    assert Temperatures(noul=1.5, choice=0.5, score=3.0) == parse(temperature={"choice": 0.5}).settings.temperatures


def test_a_temperature_of_next_to_nothing_is_the_coldest_there_is() -> None:
    """Dividing by the smallest double would overflow."""
    assert Temperatures(noul=1e-6, choice=1e-6, score=1e-6) == parse(temperature=5e-324).settings.temperatures


@pytest.mark.parametrize(("samples", "read"), [("auto", "auto"), (1, 1), ("32", 32), (4.0, 4)])
def test_samples_are_a_number_or_auto(samples: object, read: object) -> None:
    """Digits in a string as well."""
    assert read == parse(samples=samples).settings.samples


@pytest.mark.parametrize("model", ["jev-latest", "jev-preview", "jev-1.13.0", "jev-1.14", "own-model"])
def test_every_name_of_the_served_model_is_accepted(model: str) -> None:
    """And the answer has the served model's own."""
    request = parse(model=model)

    assert "own-model" == json.loads(WIRE.systemone_body(request, Decision({"q": NoulAnswer(0.5)}, Usage())))["model"]


@pytest.mark.parametrize("model", ["gpt-6-luna", "jev-2.0", "jev", "JEV-LATEST", " jev-latest", "x" * 100_000])
def test_any_other_model_is_unknown(model: str) -> None:
    """It is named, cut short where it is long."""
    with pytest.raises(UnknownModel, match=f"Unknown model: {model[:10]}") as refused:
        parse(model=model)

    assert 200 > len(refused.value.message)


# --- Not supported ----------------------------------------------------------------------------------------------------

ASKING = {
    "assets": {"a": {"type": "image"}},
    "images": ["data:image/png;base64,AA"],
}


def test_every_field_that_is_not_built_yet_has_a_case() -> None:
    """The one list, and no other."""
    assert REQUEST.keys() == ASKING.keys()


@pytest.mark.parametrize("field", REQUEST)
def test_a_field_that_is_not_built_yet_is_refused_by_name(field: str) -> None:
    """Rather than silently ignored, in either form; and before what it makes superfluous is missed."""
    for request in ({field: ASKING[field]}, {"state": "x", "questions": {"q": NOUL}, field: ASKING[field]}):
        with pytest.raises(UnsupportedFeature, match=rf"\({field}\)"):
            WIRE.parse_systemone(json.dumps(request).encode())
    with pytest.raises(UnsupportedFeature, match=rf"\({field}\)"):
        parse_openai({"type": "predicate", "instructions": "x"}, **{field: ASKING[field]})


def test_values_that_ask_for_nothing_are_fine() -> None:
    """What clients send for "as usual"."""
    parse(
        {**NOUL, "depends_on": [], "ask_if": None},
        assets={}, images=[], labels="az", steps=1, template=None, think=0, variables=None,
    )  # fmt: skip


def test_box_questions_are_not_supported() -> None:
    """In a plain sentence."""
    with pytest.raises(UnsupportedFeature, match="Bounding-box questions are not supported"):
        parse({"type": "box", "instructions": "Where?"})


# --- Warnings ---------------------------------------------------------------------------------------------------------


def warnings(request: WireRequest) -> list[dict[str, Any]]:
    """The answer's warnings."""
    answer = json.loads(WIRE.systemone_body(request, Decision({"q": NoulAnswer(0.5)}, Usage())))
    found: list[dict[str, Any]] = answer.get("x_warnings", [])
    return found


def test_a_usual_request_has_no_warnings() -> None:
    """And unknown fields of others give none."""
    answer = json.loads(WIRE.systemone_body(parse(stream=True, user="u"), Decision({"q": NoulAnswer(0.5)}, Usage())))

    assert ["model", "answers", "usage"] == list(answer)


def test_likely_mistakes_come_back_as_warnings() -> None:
    """Each with the field's path and the remedy, in the order of the body."""
    request = parse({**NOUL, "true": "a", "criteria": {"yes": "b", "true": "c"}}, quesitons={})

    assert [
        {"loc": ["body", "quesitons"], "msg": "'quesitons' is not read; did you mean 'questions'?"},
        {"loc": ["body", "questions", "q", "true"], "msg": "'true' is not read; put it inside 'criteria'"},
        {
            "loc": ["body", "questions", "q", "criteria", "yes"],
            "msg": "'yes' is not read; what counts as yes goes under 'true'",
        },
    ] == warnings(request)


# --- System One, out --------------------------------------------------------------------------------------------------

DECISION = Decision(
    answers={
        "n": NoulAnswer(0.1 + 0.2),
        "c": ChoiceAnswer("b", 0.25, {"z": 0.375, "b": 0.625, "10": 0.0, "9": 0.0}),
        "s": ScoreAnswer(0.75, 0.5, ("low", {"high": [1]}), (0.25, 0.75)),
    },
    usage=Usage(100, 3, 60),
    traces={name: QuestionTrace(0.5, 0.9, 0, index, False, 2, 1, 1) for index, name in enumerate("ncs")},
    reads=2,
    rounds=1,
)


def test_an_answer_has_exactly_the_fields_of_the_protocol() -> None:
    """Keys in request order, doubles unrounded, no confidence on a noul, levels as they were sent."""
    body = WIRE.systemone_body(parse(), DECISION)

    assert (
        b'{"model":"own-model","answers":{"n":{"type":"noul","noul":0.30000000000000004},'
        b'"c":{"type":"choice","choice":"b","confidence":0.25,"probabilities":{"z":0.375,"b":0.625,"10":0.0,"9":0.0}},'
        b'"s":{"type":"score","score":0.75,"confidence":0.5,"legend":{"0":"low","1":{"high":[1]}},'
        b'"probabilities":{"0":0.25,"1":0.75}}},"usage":{"input_tokens":100,"output_tokens":3}}'
    ) == body


def test_diagnostics_are_told_only_on_request() -> None:
    """Per question and per request, with the fingerprint."""
    report = Report({"model": "own-model", "prompt": "1"}, queue_seconds=0.25, engine_seconds=0.5)
    told = json.loads(WIRE.systemone_body(parse(diagnostics=True), DECISION, report))["x_diagnostics"]

    assert "x_diagnostics" not in json.loads(WIRE.systemone_body(parse(), DECISION, report))
    assert ["n", "c", "s"] == list(told.pop("questions"))
    assert {
        "reads": 2,
        "rounds": 1,
        "tokens": {"computed": 40, "cached": 60},
        "seconds": {"queue": 0.25, "engine": 0.5},
        "fingerprint": {"model": "own-model", "prompt": "1"},
    } == told


def test_diagnostics_of_a_question_tell_how_it_was_read() -> None:
    """Entropy, label mass, place, isolation, orders, samples, rounds."""
    told = json.loads(WIRE.systemone_body(parse(diagnostics=True), DECISION))["x_diagnostics"]["questions"]["c"]

    assert {
        "entropy": 0.5, "label_mass": 0.9, "canvas": 0, "slot": 1,
        "isolated": False, "orders": 2, "samples": 1, "rounds": 1,
    } == told  # fmt: skip


@pytest.mark.parametrize("diagnostics", [True, False])
def test_answers_match_their_schema(diagnostics: bool) -> None:
    """In both forms, with and without extras."""
    from jsonschema import Draft7Validator

    spelled = parse_openai(
        {"type": "predicate", "name": "n", "instructions": "x"},
        {"type": "choice", "instructions": "x", "choices": [{"value": value} for value in ("z", "b", True, False)]},
        {"type": "score", "instructions": "x", "levels": [{"label": "low"}, {"label": "high"}], "id": "s"},
        {"type": "predicate", "instructions": "x", "ask_if": {"n": ["yes"]}},
        diagnostics=diagnostics,
    )
    numbers = dict(zip("ncs", "012", strict=True))
    in_openai = replace(
        DECISION,
        answers={numbers[name]: answer for name, answer in DECISION.answers.items()},
        traces={numbers[name]: trace for name, trace in DECISION.traces.items()},
        skipped={"3": Skipped("0", "no", ("yes",))},
    )
    skipping = replace(DECISION, skipped={"x": Skipped("n", "no", ("yes",))})
    asked = parse({**NOUL, "criterion": 1}, diagnostics=diagnostics)

    Draft7Validator(load_schema("systemone.response")).validate(json.loads(WIRE.systemone_body(asked, skipping)))
    Draft7Validator(load_schema("decisions.response")).validate(json.loads(WIRE.decisions_body(spelled, in_openai)))


# --- Any bytes --------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_damage_to_a_body_causes_any_other_error(data: st.DataObject) -> None:
    """A valid body with some bytes replaced parses, or is one of our errors."""
    name = data.draw(st.sampled_from(["systemone.request", "decisions.request"]))
    body = bytearray(json.dumps(data.draw(st.sampled_from(load_schema(name)["examples"]))).encode())
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[place : place + data.draw(st.integers(0, 6))] = data.draw(
            st.binary(max_size=3)
            | st.sampled_from([b"null", b"{}", b"[", b'""', b"NaN", b'"\\ud800"', b"1e999", b"9" * 30])
        )

    for parsed in (WIRE.parse_systemone, WIRE.parse_decisions):
        try:
            request = parsed(bytes(body))
        except DecisionError:
            continue
        assert request.questions


def test_the_models_list_has_both_forms() -> None:
    """TypeSafe's under `models`, OpenAI's under `data`, the own name among them."""
    from jsonschema import Draft7Validator

    body = WIRE.models_body()

    Draft7Validator(load_schema("models.response")).validate(body)
    assert ["jev-latest", "jev-preview", "own-model"] == [model["name"] for model in body["models"]]
    assert [model["name"] for model in body["models"]] == [model["id"] for model in body["data"]]


# --- What comes again -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["systemone", "decisions"])
def test_the_same_questions_about_another_state_are_read_as_they_were(kind: str) -> None:
    """What is remembered of a request is everything but its state, hints included."""
    body = load_schema(f"{kind}.request")["examples"][0] | {"sequential": True}
    data = "state" if kind == "systemone" else "input"

    def read(wire: Wire, state: object) -> WireRequest:
        parse_form = wire.parse_systemone if kind == "systemone" else wire.parse_decisions
        return parse_form(json.dumps(body | {data: state}).encode())

    remembering, fresh = (Wire(ShapeLimits(), DEFAULTS, ServedNames("own-model")) for _ in range(2))
    first = read(remembering, "one")

    assert read(remembering, "two") == read(fresh, "two") == replace(first, state="two")
    assert first.hints


@pytest.mark.parametrize("state", [7, True, None, ...])
def test_a_wrong_state_is_refused_however_well_the_questions_are_known(state: object) -> None:
    """A state is checked each time."""
    right = {"model": "jev-latest", "state": "x", "questions": {"q": NOUL}}
    WIRE.parse_systemone(json.dumps(right).encode())
    wrong = {name: value for name, value in (right | {"state": state}).items() if value is not ...}

    with pytest.raises(SchemaViolation) as refused:
        WIRE.parse_systemone(json.dumps(wrong).encode())
    assert {fault.loc for fault in refused.value.faults} == {("body", "state")}


def test_long_or_odd_questions_are_not_remembered() -> None:
    """What is remembered stays small, and is plain JSON."""
    assert parse({"type": "noul", "instructions": "x" * LONGEST_ASKED}).asked is None
    assert asked_in({"state": "x", "seed": 10**30}, "state") is None
