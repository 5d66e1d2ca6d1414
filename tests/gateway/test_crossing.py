"""What goes from replica to replica comes out as it went in."""

from __future__ import annotations

import pytest

from decisions import errors
from decisions.errors import DecisionError, Overloaded, TooManyTokens
from decisions.protocol import ChoiceAnswer, Decision, NoulAnswer, QuestionTrace, ScoreAnswer, Skipped, Usage
from gateway.error_answers import STATUSES, error_answer
from gateway.inflight import Answer
from gateway.inflight.crossing import pack, space_of, unpack

DECISION = Decision(
    {
        "noul": NoulAnswer(0.1 + 0.2),
        "choice": ChoiceAnswer("b", 1 / 3, {"b": 2 / 3, "a": 1 / 3}),
        "score": ScoreAnswer(1.5, 5e-324, ("low", {"é": [1, None]}), (0.25, 0.75)),
    },
    Usage(7, 3, 2),
    {"noul": QuestionTrace(0.5, 0.9, 1, 2, True, 2, 3, 1)},
    {"skipped": Skipped("noul", None, ("yes",))},
    reads=4,
    rounds=2,
)


def test_an_answer_crosses_unrounded_and_in_order() -> None:
    """Every double, every name, and the order of all of them."""
    answer = Answer(DECISION, {"engine": 0.25})
    crossed = unpack(pack(answer))

    assert answer == crossed
    assert isinstance(crossed, Answer)
    assert list(DECISION.answers) == list(crossed.decision.answers)
    assert ["b", "a"] == list(crossed.decision.answers["choice"].probabilities)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [kind for kind in STATUSES if kind not in {TooManyTokens, errors.SchemaViolation}])
def test_an_error_crosses_with_its_class_and_its_words(kind: type[DecisionError]) -> None:
    """So that the client gets the answer that it would have got there."""
    error = kind("What went wrong.")
    crossed = unpack(pack(error))

    assert type(crossed) is kind
    assert error_answer(error) == error_answer(crossed)


def test_what_an_error_knows_crosses_too() -> None:
    """When to come again, and how long a prompt was."""
    overloaded, long = unpack(pack(Overloaded("Full.", 2.5))), unpack(pack(TooManyTokens(9, 8, "The prompt")))

    assert isinstance(overloaded, Overloaded)
    assert isinstance(long, TooManyTokens)
    assert (2.5, 9, 8) == (overloaded.retry_after, long.counted, long.allowed)
    assert "The prompt takes 9 tokens, but at most 8 are allowed." == str(long)


def test_an_error_that_is_not_known_here_is_an_error_all_the_same() -> None:
    """As from a replica of another version."""
    crossed = unpack(b'{"error":"Unheard","message":"Of."}')

    assert type(crossed) is DecisionError


def test_a_fault_of_shape_that_crosses_is_a_fault_of_shape() -> None:
    """It cannot happen, as the origin has checked the request; it must not break anything if it does."""
    crossed = unpack(pack(errors.SchemaViolation([errors.Fault("missing", ("body",), "Field required")])))

    assert isinstance(crossed, errors.SchemaViolation)
    assert 422 == error_answer(crossed).status


def test_replicas_that_differ_have_different_spaces() -> None:
    """And the order in which the settings are named makes no difference."""
    assert space_of({"a": 1, "b": None}) == space_of({"b": None, "a": 1}) != space_of({"a": 2, "b": None})
