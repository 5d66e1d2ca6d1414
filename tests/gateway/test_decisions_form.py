"""The OpenAI form of `/v1/decisions`, in and out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decisions.errors import SchemaViolation, UnsupportedFeature
from decisions.protocol import (
    ChoiceAnswer,
    ChoiceQuestion,
    Decision,
    NoulAnswer,
    NoulQuestion,
    Option,
    ReadSettings,
    ScoreAnswer,
    ScoreQuestion,
    Usage,
)
from gateway.wire import ServedNames, ShapeLimits, Wire, WireRequest

WIRE = Wire(ShapeLimits(), ReadSettings(), ServedNames("own-model"))
DECISION = Decision(
    answers={
        "0": NoulAnswer(0.25),
        "1": ChoiceAnswer("b", 0.25, {"z": 0.375, "b": 0.625, "10": 0.0, "9": 0.0}),
        "2": ScoreAnswer(0.75, 0.5, ("low", "high"), (0.25, 0.75)),
    },
    usage=Usage(100, 3, 60),
)


def parse_openai(*questions: object, **fields: Any) -> WireRequest:
    """An OpenAI request, parsed."""
    body = {"model": "jev-latest", "input": "x", "questions": questions, **fields}
    return WIRE.parse_decisions(json.dumps(body).encode(), "application/json")


def test_openai_questions_become_ours() -> None:
    """Ids are positions; a level's description stands beside its label."""
    request = parse_openai(
        {"type": "predicate", "name": "p", "instructions": "It is."},
        {
            "type": "choice",
            "instructions": "Which?",
            "choices": [{"value": "a", "description": "first"}, {"value": False}],
        },
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high", "description": "x"}]},
    )

    assert (
        NoulQuestion(id="0", instructions="It is."),
        ChoiceQuestion(id="1", instructions="Which?", options=(Option("a", "first"), Option("false"))),
        ScoreQuestion(id="2", instructions="How?", levels=("low", "high: x")),
    ) == request.questions


def test_openai_answers_go_out_in_their_form() -> None:
    """A list in question order, names or null, values as they were sent, usage in detail."""
    request = parse_openai(
        {"type": "predicate", "name": "p", "instructions": "x"},
        {"type": "choice", "instructions": "x", "choices": [{"value": "true"}, {"value": True}]},
        {"type": "score", "name": "s", "instructions": "x", "levels": [{"label": "low"}, {"label": "high"}]},
    )
    choice = request.questions[1]
    assert isinstance(choice, ChoiceQuestion)
    names = [option.name for option in choice.options]
    decision = Decision(
        {
            "0": NoulAnswer(0.25),
            "1": ChoiceAnswer(names[1], 0.5, dict(zip(names, (0.25, 0.75), strict=True))),
            "2": ScoreAnswer(0.75, 0.5, ("low", "high"), (0.25, 0.75)),
        },
        Usage(100, 3, 60),
    )

    assert {
        "answers": [
            {"type": "predicate", "name": "p", "probability": 0.25},
            {
                "type": "choice",
                "name": None,
                "choice": True,
                "confidence": 0.5,
                "probabilities": [{"value": "true", "probability": 0.25}, {"value": True, "probability": 0.75}],
            },
            {
                "type": "score",
                "name": "s",
                "score": 0.75,
                "confidence": 0.5,
                "probabilities": [
                    {"value": 0, "label": "low", "probability": 0.25},
                    {"value": 1, "label": "high", "probability": 0.75},
                ],
            },
        ],
        "model": "own-model",
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 103,
        },
    } == json.loads(WIRE.decisions_body(request, decision))


def test_openai_answers_fit_the_official_types() -> None:
    """The OpenAI client's own model of an answer takes ours."""
    decision = pytest.importorskip("openai.types.decision").Decision
    request = parse_openai(
        {"type": "predicate", "instructions": "x"},
        {"type": "choice", "instructions": "x", "choices": [{"value": value} for value in ("z", "b", True, False)]},
        {"type": "score", "instructions": "x", "levels": [{"label": "low"}, {"label": "high"}]},
    )

    assert 3 == len(decision.model_validate_json(WIRE.decisions_body(request, DECISION)).answers)


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ("text", "text"),
        ([], []),
        ([{"role": "user", "content": "text"}], "text"),
        ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}], "a"),
        ([{"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]}], {"a": 1}),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_json", "data": [{}]}]}],
            ["a", [{}]],
        ),
        ([{"role": "system", "content": "s"}], [{"role": "system", "content": "s"}]),
        (
            [
                {"role": "user", "content": "u", "id": "1"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": "commentary"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "output_text", "text": "done"}]},
            ],
            [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "no"},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "done"},
            ],
        ),
    ],
)
def test_openai_input_becomes_the_state(given: object, state: object) -> None:
    """Who said what; ids, states of calls and cache marks are left out."""
    assert state == parse_openai({"type": "predicate", "instructions": "x"}, input=given).state


def test_openai_images_are_not_supported() -> None:
    """In the input as in a question."""
    image = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    for question, seen in (
        ({"instructions": image}, "x"),
        ({"instructions": "x"}, [{"role": "user", "content": image}]),
    ):
        with pytest.raises(UnsupportedFeature, match="images are not supported"):
            parse_openai({"type": "predicate", **question}, input=seen)


def test_openai_choices_must_be_unique_by_value_and_type() -> None:
    """Every repetition is named."""
    choices = [{"value": value} for value in ("a", True, "a", True, "true", False)]
    with pytest.raises(SchemaViolation) as refused:
        parse_openai({"type": "choice", "instructions": "x", "choices": choices})

    assert [("body", "questions", 0, "choices", index, "value") for index in (2, 3)] == [
        fault.loc for fault in refused.value.faults
    ]


def test_openai_options_differ_for_the_model_however_their_values_read() -> None:
    """A boolean gives way to the strings."""
    values = ["true (boolean)", "true", True, False]
    request = parse_openai({"type": "choice", "instructions": "x", "choices": [{"value": value} for value in values]})

    assert isinstance(request.questions[0], ChoiceQuestion)
    assert ["true (boolean)", "true", "true (boolean) (boolean)", "false"] == [
        option.name for option in request.questions[0].options
    ]


def test_openai_questions_must_say_something() -> None:
    """Blank parts do not count."""
    with pytest.raises(SchemaViolation) as refused:
        parse_openai({"type": "predicate", "instructions": [{"type": "input_text", "text": " "}]})

    assert ("body", "questions", 0, "instructions") == refused.value.faults[0].loc


def test_the_system_one_form_is_taken_on_the_openai_path() -> None:
    """Where questions are an object; the answer goes out in that form."""
    body = json.dumps(
        {"model": "jev-latest", "state": "x", "questions": {"q": {"type": "noul", "instructions": "x"}}}
    ).encode()
    request = WIRE.parse_decisions(body)
    decision = Decision({"q": NoulAnswer(0.5)}, Usage())

    assert WIRE.systemone_body(request, decision) == WIRE.decisions_body(request, decision)


def test_openai_fields_that_nothing_reads_are_told() -> None:
    """As in the other form."""
    request = parse_openai({"type": "predicate", "instructions": "x", "id": "a"}, state="y")
    answer = json.loads(WIRE.decisions_body(request, Decision({"0": NoulAnswer(0.5)}, Usage())))

    assert [["body", "state"], ["body", "questions", 0, "id"]] == [warning["loc"] for warning in answer["x_warnings"]]
