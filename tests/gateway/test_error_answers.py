"""From an error to its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft7Validator

from decisions import errors
from decisions.errors import DecisionError, Fault, SchemaViolation, TooManyTokens
from decisions.schema import load_schema
from gateway.error_answers import DESCRIPTIONS, RETRIED, STATUSES, ErrorAnswer, error_answer, internal_error


def tree(kind: type[DecisionError] = DecisionError) -> Iterator[type[DecisionError]]:
    """A class of the tree, and all below it."""
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


TREE = tuple(tree())


def example(kind: type[DecisionError]) -> DecisionError:
    """An error of this class."""
    if kind is SchemaViolation:
        return SchemaViolation([Fault("missing", ("body", "state"), "Field required", {})])
    return TooManyTokens(5000, 4096, "The request") if kind is TooManyTokens else kind("It went wrong.")


def headers(answer: ErrorAnswer) -> dict[str, str]:
    """An answer's headers, as text."""
    return {name.decode(): value.decode() for name, value in answer.headers}


@pytest.mark.parametrize("kind", TREE)
def test_every_error_has_its_own_row_and_a_described_status(kind: type[DecisionError]) -> None:
    """No class of the tree is left to chance, and none lacks words in the API's description."""
    assert STATUSES[kind] in DESCRIPTIONS


@pytest.mark.parametrize("kind", TREE)
def test_every_error_body_matches_the_schema(kind: type[DecisionError]) -> None:
    """Whatever went wrong."""
    answer = error_answer(example(kind))

    Draft7Validator(load_schema("error")).validate(json.loads(answer.body))
    assert kind.code == answer.code
    assert str(len(answer.body)) == headers(answer)["content-length"]
    assert "application/json" == headers(answer)["content-type"]


def test_the_internal_error_matches_the_schema() -> None:
    """And says nothing of what happened."""
    answer = internal_error()

    Draft7Validator(load_schema("error")).validate(json.loads(answer.body))
    assert (500, "internal_error") == (answer.status, answer.code)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.UnknownModel("Unknown model: x"), 400, "api_usage_error"),
        (errors.UnsupportedFeature("No images."), 400, "api_usage_error"),
        (TooManyTokens(5000, 4096, "The request"), 400, "max_tokens_exceeded"),
        (errors.WrongKey("Wrong."), 401, "authentication_error"),
        (errors.MissingKey("No key."), 403, "authentication_error"),
        (errors.BodyTooLarge("Too large."), 413, "body_too_large"),
        (errors.UnsupportedEncoding("br"), 415, "unsupported_encoding"),
        (errors.Overloaded("Full."), 529, "overloaded_error"),
        (errors.QueueUnavailable("Away."), 503, "queue_unavailable"),
        (errors.EngineUnavailable("Dead."), 503, "engine_unavailable"),
        (errors.MalformedReadout("A slot is missing."), 503, "malformed_readout"),
        (errors.DeadlineExceeded("Too late."), 504, "deadline_exceeded"),
    ],
)
def test_an_error_is_an_object_with_type_and_message(error: DecisionError, status: int, code: str) -> None:
    """As the reference has it."""
    answer = error_answer(error)

    assert status == answer.status
    assert {"detail": {"error_type": code, "message": error.message}} == json.loads(answer.body)


def test_faults_are_a_list() -> None:
    """As FastAPI has it."""
    answer = error_answer(SchemaViolation([Fault("missing", ("body", "state"), "Field required", {"a": 1})]))

    assert 422 == answer.status
    assert {
        "detail": [{"type": "missing", "loc": ["body", "state"], "msg": "Field required", "input": {"a": 1}}]
    } == json.loads(answer.body)


@pytest.mark.parametrize("kind", [kind for kind in TREE if STATUSES[kind] in RETRIED])
def test_a_busy_answer_says_when_to_come_again(kind: Any) -> None:
    """In whole seconds, rounded up, and in milliseconds."""
    error = kind("Busy.")
    error.retry_after = 1.2345
    found = headers(error_answer(error))

    assert ("2", "1235") == (found["retry-after"], found["retry-after-ms"])


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"),
    [(0.0, "1", "1"), (-1, "1", "1"), (1e9, "3600", "3600000"), (float("inf"), "3600", "3600000")],
)
def test_the_time_to_wait_is_bounded(seconds: float, whole: str, milliseconds: str) -> None:
    """At least a moment, at most an hour."""
    found = headers(error_answer(errors.Overloaded("Full.", seconds)))

    assert (whole, milliseconds) == (found["retry-after"], found["retry-after-ms"])


def test_other_answers_do_not_ask_to_come_again() -> None:
    """Sending it again would not help."""
    assert "retry-after" not in headers(error_answer(errors.UnknownModel("Unknown model: x")))
    assert "retry-after" not in headers(error_answer(errors.DeadlineExceeded("Too late.")))


def test_a_wrong_key_is_told_the_scheme() -> None:
    """RFC 9110 wants it with every 401."""
    assert "Bearer" == headers(error_answer(errors.WrongKey("Wrong.")))["www-authenticate"]
