"""Likely mistakes in fields that nothing reads."""

from __future__ import annotations

import pytest

from decisions.hints import DECISIONS, NOUL_CRITERIA, SYSTEM_ONE, SYSTEM_ONE_QUESTION, Fields


@pytest.mark.parametrize(
    ("fields", "name", "target"),
    [
        (SYSTEM_ONE, "quesitons", "questions"),
        (SYSTEM_ONE, "State", "state"),
        (SYSTEM_ONE_QUESTION, "options", "criteria"),
        (SYSTEM_ONE_QUESTION, "choices", "criteria"),
        (SYSTEM_ONE_QUESTION, "levels", "criteria"),
        (SYSTEM_ONE_QUESTION, "criterion", "criteria"),
        (SYSTEM_ONE_QUESTION, "true", "criteria"),
        (SYSTEM_ONE_QUESTION, "instruction", "instructions"),
        (NOUL_CRITERIA, "yes", "true"),
        (NOUL_CRITERIA, "no", "false"),
        (DECISIONS, "state", "input"),
    ],
)
def test_a_hint_names_the_field_and_the_remedy(fields: Fields, name: str, target: str) -> None:
    """The path ends in the field that nothing reads; the message names it and where its content belongs."""
    (hint,) = fields.hints({name: 1}, ("body", "q"))

    assert ("body", "q", name) == hint.loc
    assert f"'{name}' is not read" in hint.msg
    assert target in hint.msg


@pytest.mark.parametrize("name", ["stream", "user", "x_questions", "q" * 4000, "metadata", "é"])
def test_unknown_fields_of_others_are_ignored(name: str) -> None:
    """Only what looks like one of ours is worth a word."""
    assert [] == list(SYSTEM_ONE.hints({name: 1}, ("body",)))


def test_known_fields_give_no_hint() -> None:
    """Whatever the protocol names."""
    assert [] == list(SYSTEM_ONE.hints(dict.fromkeys(SYSTEM_ONE.known), ("body",)))


def test_only_the_first_unknown_fields_are_looked_at() -> None:
    """A body may hold thousands of them."""
    body = {f"f{number}": 1 for number in range(5000)} | {"quesitons": 1}

    assert [] == list(SYSTEM_ONE.hints(body, ("body",)))


def test_settings_of_other_servers_are_told_as_unknown_here() -> None:
    """A setting that would be without effect is not swallowed."""
    (hint,) = SYSTEM_ONE.hints({"auto_max": 4}, ("body",))

    assert "'auto_max' is not read; this gateway has no such setting" == hint.msg


def test_a_missing_field_gets_no_advice_where_nothing_is_like_it() -> None:
    """No guessing."""
    assert "" == SYSTEM_ONE_QUESTION.why_missing("criteria", {"type": "choice", "stream": 1})
