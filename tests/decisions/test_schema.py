"""The shape of a request: what is accepted, what every fault is called, and that both validators agree."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from decisions.errors import Fault, SchemaViolation
from decisions.hints import DECISIONS, DECISIONS_QUESTION, SYSTEM_ONE, SYSTEM_ONE_QUESTION
from decisions.schema import MAX_FAULTS, SCHEMAS, RequestShape, ShapeLimits, load_schema

LIMITS = ShapeLimits(questions=3, options=4, levels=3)
SHAPES = {
    "systemone.request": RequestShape("systemone.request", LIMITS, SYSTEM_ONE, SYSTEM_ONE_QUESTION),
    "decisions.request": RequestShape("decisions.request", LIMITS, DECISIONS, DECISIONS_QUESTION),
}
SYSTEMONE = SHAPES["systemone.request"]
DOCUMENTS = sorted(path.stem for path in SCHEMAS.glob("*.json") if path.stem != "read-settings")


def asked(question: object, **fields: Any) -> dict[str, Any]:
    """A request with one question."""
    return {"state": "x", "model": "m", "questions": {"q": question}, **fields}


def faults(body: dict[str, Any], shape: RequestShape = SYSTEMONE) -> list[Fault]:
    """The faults that `check` raises; none when it accepts."""
    try:
        shape.check(body)
    except SchemaViolation as violation:
        return list(violation.faults)
    return []


def only_fault(question: object, **fields: Any) -> Fault:
    """The one fault of a request with one question."""
    (fault,) = faults(asked(question, **fields))
    return fault


# --- The files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_valid_and_takes_its_own_examples(name: str) -> None:
    """The examples in the reference are real ones."""
    schema = load_schema(name)

    Draft7Validator.check_schema(schema)
    assert schema["examples"]
    for example in schema["examples"]:
        assert [] == [error.message for error in Draft7Validator(schema).iter_errors(example)]


@pytest.mark.parametrize("name", [*DOCUMENTS, "read-settings"])
def test_every_field_has_a_title_and_a_description(name: str) -> None:
    """A schema is documentation: each property says what it is, or refers to what does."""
    bare = [
        path for path, node in properties(json.loads((SCHEMAS / f"{name}.json").read_text()), name) if not told(node)
    ]

    assert [] == bare


def told(node: dict[str, Any]) -> bool:
    """Whether a property documents itself; what narrows another part of the schema, or refers, need not."""
    return bool({"description", "$ref"} & node.keys()) or not {"title", "type"} <= node.keys()


def properties(node: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Every property below `node`, with its path."""
    if isinstance(node, list):
        return [found for index, member in enumerate(node) for found in properties(member, f"{path}/{index}")]
    if not isinstance(node, dict):
        return []
    own = [(f"{path}/{name}", member) for name, member in node.get("properties", {}).items()]
    return own + [
        found for key, member in node.items() if key != "examples" for found in properties(member, f"{path}/{key}")
    ]


def test_limits_are_put_into_the_schema() -> None:
    """What a setting changes is what the schema says."""
    schema = load_schema("systemone.request", LIMITS)

    assert 3 == schema["properties"]["questions"]["maxProperties"]
    assert 4 == schema["definitions"]["choice"]["properties"]["criteria"]["maxProperties"]
    assert 3 == schema["definitions"]["score"]["properties"]["criteria"]["maxItems"]


def test_shared_definitions_are_copied_in() -> None:
    """A loaded schema stands alone."""
    schema = load_schema("decisions.request")

    assert "read-settings.json" not in json.dumps(schema)
    assert "#/definitions/temperature" == schema["properties"]["temperature"]["$ref"]
    assert "noul" in schema["definitions"]["temperature"]["properties"]


# --- Both validators agree --------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 40)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", " ", "auto", "7"])
    | st.text(max_size=3),
    lambda member: (
        st.lists(member, max_size=3) | st.dictionaries(st.sampled_from(["", "true", "yes", "a"]), member, max_size=3)
    ),
    max_leaves=4,
)
FIELDS = [
    *("criteria", "instructions", "type", "alone", "true", "no", "noul", "extra"),
    *("state", "model", "questions", "samples", "seed", "temperature", "isolate"),
    *("choices", "levels", "name", "input", "content", "value", "label", "text", "data"),
]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, member in members for found in paths(member, (*path, key)))]


def changed(body: dict[str, Any], chance: random.Random, value: Any) -> None:
    """Change the body in one place: replace, remove or add a member."""
    path = chance.choice(paths(body)[1:])
    parent: Any = body
    for step in path[:-1]:
        parent = parent[step]
    if chance.random() < 0.2:
        del parent[path[-1]]
    elif chance.random() < 0.3 and isinstance(parent, dict):
        parent[chance.choice(FIELDS)] = value
    elif chance.random() < 0.3 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[0]))
    else:
        parent[path[-1]] = value


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_both_validators_and_the_published_schema_agree(name: str, data: st.DataObject) -> None:
    """For any body near a valid one, compiled acceptance, the list of faults and plain jsonschema say the same."""
    shape = SHAPES[name]
    body = copy.deepcopy(data.draw(st.sampled_from(shape.schema["examples"])))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    for value in data.draw(st.lists(json_values, min_size=1, max_size=3)):
        if len(paths(body)) > 1:
            changed(body, chance, value)
    valid = Draft7Validator(shape.schema).is_valid(body)

    assert valid == shape.accepts(body)
    assert valid == (next(shape._all_faults(body), None) is None)


# --- Faults -----------------------------------------------------------------------------------------------------------


def test_an_accepted_body_has_no_faults() -> None:
    """The examples pass."""
    for shape in SHAPES.values():
        for example in shape.schema["examples"]:
            assert [] == faults(example, shape)


def test_missing_fields_are_told_in_the_reference_order() -> None:
    """State, model, questions."""
    found = faults({})

    assert ["state", "model", "questions"] == [fault.loc[-1] for fault in found]
    assert {"missing"} == {fault.type for fault in found}
    assert {"Field required"} == {fault.msg for fault in found}


def test_all_faults_of_a_request_come_at_once() -> None:
    """Nobody has to send a request once per mistake."""
    body = {
        "state": None,
        "questions": {
            "a": {"type": "choice"},
            "b": {"type": "score", "criteria": ["x", None, 3]},
            "c": {"type": "boo"},
        },
        "samples": 99,
    }

    assert [
        ("missing", ("body", "model")),
        ("string_type", ("body", "state")),
        ("value_error", ("body", "samples")),
        ("missing", ("body", "questions", "a", "criteria")),
        ("string_type", ("body", "questions", "b", "criteria", 1)),
        ("string_type", ("body", "questions", "b", "criteria", 2)),
        ("union_tag_invalid", ("body", "questions", "c", "type")),
    ] == [(fault.type, fault.loc) for fault in faults(body)]


@pytest.mark.parametrize(
    ("question", "kind", "place"),
    [
        ({"type": "choice", "criteria": ["a", "b"]}, "dict_type", ("criteria",)),
        ({"type": "choice", "criteria": None}, "dict_type", ("criteria",)),
        ({"type": "choice", "criteria": {}}, "too_short", ("criteria",)),
        ({"type": "choice", "criteria": {"": None}}, "string_too_short", ("criteria", "")),
        ({"type": "choice", "criteria": {"a": 1}}, "string_type", ("criteria", "a")),
        ({"type": "score", "criteria": {"0": "a"}}, "list_type", ("criteria",)),
        ({"type": "score", "criteria": []}, "too_short", ("criteria",)),
        ({"type": "noul", "instructions": "x", "criteria": ["a"]}, "model_attributes_type", ("criteria",)),
        ({"type": "noul", "instructions": "x", "criteria": {"maybe": "y"}}, "value_error", ("criteria",)),
        ({"type": "noul"}, "value_error", ("instructions",)),
        ({"type": "noul", "instructions": " \n\u200b"}, "value_error", ("instructions",)),
        ({"type": "noul", "criteria": {"true": "", "false": None}}, "value_error", ("instructions",)),
        ({"type": "noul", "instructions": 3}, "string_type", ("instructions",)),
        ({"type": "noul", "instructions": "x", "alone": "yes"}, "bool_type", ("alone",)),
        ({"instructions": "x"}, "union_tag_not_found", ("type",)),
        ({"type": "NOUL", "instructions": "x"}, "union_tag_invalid", ("type",)),
        ({"type": ["noul"]}, "union_tag_invalid", ("type",)),
        ("noul", "model_attributes_type", ()),
        (None, "model_attributes_type", ()),
    ],
)
def test_a_malformed_question_is_named_with_its_field(question: object, kind: str, place: tuple[str, ...]) -> None:
    """One fault, in the words of the reference, at the question and field to blame."""
    fault = only_fault(question)

    assert (kind, ("body", "questions", "q", *place)) == (fault.type, fault.loc)


@pytest.mark.parametrize(
    "question",
    [
        {"type": "noul", "instructions": None, "criteria": {"true": "x"}},
        {"type": "noul", "instructions": "x", "criteria": None},
        {"type": "noul", "instructions": "x", "criteria": {"true": None, "note": 1}},
        {"type": "noul", "instructions": {"a": [1]}, "extra": 1},
        {"type": "choice", "criteria": {"one": None}},
        {"type": "choice", "criteria": {" ": {"a": 1}, "null": ["b"]}},
        {"type": "score", "criteria": ["only"]},
        {"type": "score", "criteria": ["", {}, []]},
    ],
)
def test_what_the_protocol_allows_is_accepted(question: object) -> None:
    """One-sided criteria, explicit nulls, structured text, one option, one level, unknown fields."""
    assert [] == faults(asked(question))


def test_limits_are_told_in_the_sentences_of_the_reference() -> None:
    """Too many options, levels, questions."""
    options = {str(number): None for number in range(5)}
    nouls = {str(number): {"type": "noul", "instructions": "x"} for number in range(4)}

    assert "Too many choices. Must have at most 4 choices." == only_fault({"type": "choice", "criteria": options}).msg
    assert (
        "Too many score levels. Must have at most 3 levels." == only_fault({"type": "score", "criteria": ["x"] * 4}).msg
    )
    assert "Too many questions. Must have at most 3 questions." == faults({**asked(None), "questions": nouls})[0].msg


@pytest.mark.parametrize(
    ("questions", "kind"),
    [({}, "too_short"), ([], "dict_type"), (None, "dict_type"), ("x", "dict_type"), (3, "dict_type")],
)
def test_questions_must_be_a_map_with_a_member(questions: object, kind: str) -> None:
    """Empty, null, list and text are refused in the words of the reference."""
    (fault,) = faults({**asked(None), "questions": questions})

    assert (kind, ("body", "questions")) == (fault.type, fault.loc)


def test_an_empty_id_is_refused() -> None:
    """The reference's own sentence."""
    (fault,) = faults({**asked(None), "questions": {"": {"type": "noul", "instructions": "x"}}})

    assert "Question key cannot be empty." == fault.msg


@pytest.mark.parametrize(
    ("field", "value", "kind", "place"),
    [
        ("isolate", "some", "literal_error", ()),
        ("layout", 3, "literal_error", ()),
        ("debias", "both", "literal_error", ()),
        ("seed_token", "x", "literal_error", ()),
        ("seed", True, "int_type", ()),
        ("seed", 1.5, "int_type", ()),
        ("samples", 0, "value_error", ()),
        ("samples", "33", "value_error", ()),
        ("samples", "7\n", "value_error", ()),
        ("temperature", 0, "greater_than", ()),
        ("temperature", 21, "less_than_equal", ()),
        ("temperature", "1", "float_type", ()),
        ("temperature", {"noul": -1}, "greater_than", ("noul",)),
        ("temperature", {"nuol": 1}, "extra_forbidden", ()),
        ("diagnostics", 1, "bool_type", ()),
        ("instructions", 1, "string_type", ()),
        ("model", "", "string_too_short", ()),
        ("state", 1, "string_type", ()),
    ],
)
def test_request_settings_are_validated(field: str, value: object, kind: str, place: tuple[str, ...]) -> None:
    """An extension that is present must be right."""
    fault = only_fault({"type": "noul", "instructions": "x"}, **{field: value})

    assert (kind, ("body", field, *place)) == (fault.type, fault.loc)


def test_a_missing_field_is_told_where_its_content_is() -> None:
    """The misplaced field and the accepted one are both named."""
    fault = only_fault({"type": "choice", "options": {"a": None}})

    assert "missing" == fault.type
    assert (
        "Field required; 'options' is not read; name the options under 'criteria', each with its description or null"
        == fault.msg
    )


def test_a_misspelt_field_is_told_where_it_is_missing() -> None:
    """The same at the top level, by likeness."""
    (fault,) = faults({"state": "x", "model": "m", "quesitons": {"q": {}}})

    assert "Field required; 'quesitons' is not read; did you mean 'questions'?" == fault.msg


def test_the_openai_form_names_questions_by_position() -> None:
    """Questions are a list there."""
    body = {"model": "m", "input": "x", "questions": [{"type": "predicate"}, {"type": "choice", "instructions": "y"}]}

    assert [("body", "questions", 0, "instructions"), ("body", "questions", 1, "choices")] == [
        fault.loc for fault in faults(body, SHAPES["decisions.request"])
    ]


def test_a_wrong_item_of_the_input_is_found_among_many() -> None:
    """Only the wrong ones are named."""
    items: list[Any] = [{"role": "user", "content": "x"}] * 500
    body = {"model": "m", "input": [*items, 1], "questions": [{"type": "predicate", "instructions": "x"}]}

    assert [("body", "input", 500)] == [fault.loc for fault in faults(body, SHAPES["decisions.request"])]


# --- Bounds -----------------------------------------------------------------------------------------------------------


def test_the_list_of_faults_is_bounded_and_says_so() -> None:
    """A request of many faults gets the first ones, and is told that there are more."""
    shape = RequestShape("systemone.request", ShapeLimits(), SYSTEM_ONE, SYSTEM_ONE_QUESTION)
    found = faults(asked({"type": "choice", "criteria": {str(number): 0 for number in range(200)}}), shape)

    assert MAX_FAULTS + 1 == len(found)
    assert "too_many_faults" == found[-1].type


def test_a_large_input_is_cut_short_in_the_fault() -> None:
    """The answer to a request of megabytes has kilobytes."""
    long = "q" * 1_000_000
    found = faults({"state": long, "questions": {long: {"type": long, "x": [long] * 9}}})

    assert 5_000 > len(json.dumps([(fault.loc, fault.msg, fault.input) for fault in found]))


def test_a_disagreement_of_the_validators_still_refuses() -> None:
    """Should the full list find nothing in what was rejected, the body is refused all the same."""
    found = SYSTEMONE.faults(asked({"type": "noul", "instructions": "x"}))

    assert ["value_error"] == [fault.type for fault in found]
