"""Variables of a template: defaults, and every fault at once."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.errors import Fault
from decisions.schema import LARGE, BadSchema, ValueShape
from decisions.variables import Variables

DECLARED: dict[str, Any] = {
    "ticket": {"type": "string", "minLength": 1},
    "teams": {"type": "object", "minProperties": 2, "additionalProperties": {"type": "string"}},
    "tone": {"enum": ["short", "long"], "default": "short"},
    "note": {"type": ["string", "null"], "default": None},
}
VARIABLES = Variables("template 'triage'", DECLARED)
RIGHT = {"ticket": "x", "teams": {"a": "A", "b": "B"}}


def faults(given: object) -> list[tuple[str, tuple[Any, ...]]]:
    """Types and places of what is wrong."""
    return [(fault.type, fault.loc) for fault in VARIABLES.faults(given)]


def test_defaults_stand_in_for_what_is_left_out() -> None:
    """A given null is no absence."""
    assert [] == faults(RIGHT)
    assert {**RIGHT, "tone": "short", "note": None} == VARIABLES.filled(RIGHT)
    assert "long" == VARIABLES.filled({**RIGHT, "tone": "long"})["tone"]
    assert [("literal_error", ("body", "variables", "tone"))] == faults({**RIGHT, "tone": None})


def test_every_fault_comes_at_once_and_names_template_and_variable() -> None:
    """Missing, wrong, and unknown ones."""
    given = {"ticket": "", "tone": "loud", "note": 3, "tickets": 1, "zzz": 2}
    found = list(VARIABLES.faults(given))

    assert [
        ("string_too_short", "ticket"),
        ("missing", "teams"),
        ("literal_error", "tone"),
        ("string_type", "note"),
        ("extra_forbidden", "tickets"),
        ("extra_forbidden", "zzz"),
    ] == [(fault.type, fault.loc[-1]) for fault in found]
    assert all("template 'triage'" in fault.msg and str(fault.loc[2]) in fault.msg for fault in found)
    assert "did you mean 'ticket'?" in found[4].msg
    assert "it has ticket, teams, tone, note" in found[5].msg


def test_a_fault_inside_a_value_has_its_place() -> None:
    """To the member that is wrong."""
    assert [("string_type", ("body", "variables", "teams", "b"))] == faults({**RIGHT, "teams": {"a": "A", "b": 1}})
    assert [("too_short", ("body", "variables", "teams"))] == faults({**RIGHT, "teams": {"a": "A"}})
    assert "not 1" in next(VARIABLES.faults({**RIGHT, "teams": {"a": "A"}})).msg


@pytest.mark.parametrize("given", [None, [], "x", 3])
def test_variables_are_an_object(given: object) -> None:
    """And nothing else."""
    assert [("dict_type", ("body", "variables"))] == faults(given)


def test_strangers_are_looked_at_up_to_a_bound() -> None:
    """A body may bring thousands."""
    assert 40 > len(faults({**RIGHT, **{f"x{number}": 1 for number in range(5000)}}))


def test_no_variables_are_told_as_none() -> None:
    """A template may have none."""
    (fault,) = Variables("template 'fixed'", {}).faults({"x": 1})

    assert "it has none" in fault.msg


def test_they_are_described_as_one_schema() -> None:
    """For `GET /v1/templates/{name}`."""
    assert {
        "type": "object",
        "properties": DECLARED,
        "required": ["ticket", "teams"],
        "additionalProperties": False,
    } == VARIABLES.schema()


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"a b": {}}, "a name is"),
        ({"loop": {}}, "a name is"),
        ({"x": {"type": "strin"}}, "variable 'x'"),
        ({"x": {"$ref": "https://example.com/schema.json"}}, "is not followed"),
        ({"x": {"items": {"$ref": "#/definitions/y"}}}, "is not followed"),
        ({"x": {"type": "string", "pattern": "("}}, "variable 'x'"),
        ({"x": {"type": "string", "default": 3}}, "its default"),
    ],
)
def test_a_declaration_that_cannot_hold_is_refused(declared: dict[str, Any], why: str) -> None:
    """When the file is loaded, not when it is used."""
    with pytest.raises(BadSchema, match=why):
        Variables("template 'x'", declared)


def test_a_member_that_is_called_ref_is_no_reference() -> None:
    """Only a string in a schema's place is."""
    shape = ValueShape({"type": "object", "properties": {"$ref": {"type": "string"}}})

    assert [] == list(shape.faults({"$ref": "x"}, ("x",)))


def test_any_keyword_of_json_schema_is_told() -> None:
    """In pydantic's words where there are some, else in jsonschema's."""

    def told(schema: dict[str, Any], value: object) -> Fault:
        (fault,) = ValueShape(schema).faults(value, ("x",))
        return fault

    assert "string_too_long" == told({"maxLength": 1}, "ab").type
    assert "string_pattern_mismatch" == told({"pattern": "^a"}, "b").type
    assert "none_required" == told({"type": "null"}, 3).type
    assert "value_error" == told({"const": 1}, 2).type
    assert "1 was expected" in told({"const": 1}, 2).msg
    assert 500 > len(told({"not": {"type": "string"}}, "x" * 100_000).msg)


def test_of_a_large_value_the_first_fault_is_told() -> None:
    """All of them would take seconds."""
    shape = ValueShape({"type": "array", "items": {"type": "string"}})
    nested = ValueShape({"type": "object", "additionalProperties": {"items": {"type": "string"}}})

    assert 1 == len(list(shape.faults([*["x"] * LARGE, 1, 2, 3], ("x",))))
    assert 3 == len(list(shape.faults(["x", 1, 2, 3], ("x",))))
    assert 1 == len(list(nested.faults({"a": [1] * LARGE, "b": [2]}, ("x",))))
