"""Rules of `decisions.errors`: one tree, stable codes, messages that name the field."""

from __future__ import annotations

from decisions.errors import EngineUnavailable, Fault, InvalidRequest, Overloaded, SchemaViolation, TooManyTokens


def test_a_violation_names_every_fault_with_its_path() -> None:
    """`loc` without its first step, as clients print it."""
    error = SchemaViolation([Fault("missing", ("body", "state"), "Field required"), Fault("x", ("body",), "No object")])

    assert error.message == "state: Field required; body: No object"
    assert isinstance(error, InvalidRequest)


def test_too_many_tokens_tells_counted_and_allowed() -> None:
    """So that a caller can cut to size."""
    error = TooManyTokens(5000, 4096, "The state with one question")

    assert (error.counted, error.allowed) == (5000, 4096)
    assert "5000" in error.message
    assert "4096" in error.message


def test_busy_errors_say_when_to_come_again() -> None:
    """In seconds."""
    assert Overloaded("full", retry_after=2.5).retry_after == 2.5
    assert EngineUnavailable("loading").retry_after == 1.0
