"""Reading bytes as JSON: what is refused, what is mended, and that nothing but our own errors comes out."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decisions.errors import BodyTooLarge, Fault, SchemaViolation
from gateway.body import MAX_CONTAINERS, MAX_DEPTH, MAX_VALUES, check_nesting, parse_body


def faults(body: bytes) -> list[Fault]:
    """The faults of a refused body."""
    with pytest.raises(SchemaViolation) as refused:
        parse_body(body)
    return list(refused.value.faults)


def only_fault(body: bytes) -> Fault:
    """The one fault of a refused body."""
    (fault,) = faults(body)
    return fault


# --- Not JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "loc"),
    [
        (b"", "missing", ("body",)),
        (b"{", "json_invalid", ("body", 1)),
        (b'{"a": 1} x', "json_invalid", ("body", 9)),
        (b"{'a': 1}", "json_invalid", ("body", 1)),
        (b'{"a": 01}', "json_invalid", ("body", 7)),
        (b'{"a": "\n"}', "json_invalid", ("body", 7)),
        (b'{"a": "\xff"}', "json_invalid", ("body", 7)),
        (b'{"a": "\xed\xa0\x80"}', "json_invalid", ("body", 7)),
        ('{"a": 1}'.encode("utf-16"), "json_invalid", ("body", 0)),
        ('{"a": 1}'.encode("utf-16-le"), "json_invalid", ("body", 1)),
        (b"\x28\xb5\x2f\xfd", "json_invalid", ("body", 1)),
        (b"[1]", "model_attributes_type", ("body",)),
        (b'"x"', "model_attributes_type", ("body",)),
        (b"null", "model_attributes_type", ("body",)),
        (b"NaN", "model_attributes_type", ("body",)),
        (b"1" * 5000, "model_attributes_type", ("body",)),
    ],
)
def test_what_is_not_a_json_object_is_refused(body: bytes, kind: str, loc: tuple[str | int, ...]) -> None:
    """In the words and places of the reference."""
    fault = only_fault(body)

    assert (kind, loc) == (fault.type, fault.loc)


def test_a_byte_order_mark_is_accepted() -> None:
    """Windows tools write it."""
    assert {"a": "é"} == parse_body('\ufeff{"a": "é"}'.encode())


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_text_comes_through_unchanged(members: dict[str, str]) -> None:
    """Any Unicode, escaped or not, in the order sent; no normalisation, no trimming."""
    for ascii_only in (True, False):
        read = parse_body(json.dumps(members, ensure_ascii=ascii_only).encode())

        assert list(members.items()) == list(read.items())


JSON_LIKE = st.text('{}[]",:\\ u\n', max_size=60) | st.lists(
    st.sampled_from(
        ['{"state":', "{", "}", "[", "]", '"', "\\ud800", "NaN", "1e999", "9" * 40, ",", ":", '"a"', "null"]
    )
).map("".join)


@settings(max_examples=200)
@given(st.binary(max_size=80) | JSON_LIKE.map(str.encode))
@example(b'{"\\ud800": NaN}')
def test_no_bytes_cause_any_other_error(body: bytes) -> None:
    """Whatever the bytes: an object, or one of our errors."""
    with suppress(SchemaViolation):
        assert isinstance(parse_body(body), dict)


# --- Nesting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_nesting_ends_at_one_documented_depth(opening: bytes, closing: bytes) -> None:
    """Up to the limit it is parsed, above it is refused, whatever the parser's own limit."""
    step = opening.count(b"[") + opening.count(b"{")
    deepest = (MAX_DEPTH - 1) // step

    parse_body(b'{"state":' + opening * deepest + b"1" + closing * deepest + b"}")
    fault = only_fault(b'{"state":' + opening * (deepest + 1) + b"1" + closing * (deepest + 1) + b"}")

    assert "too_deep" == fault.type


@pytest.mark.parametrize("depth", [201, 1_500, 20_000, 100_000])
def test_deep_nesting_is_refused_quickly(depth: int) -> None:
    """Closed or not, in well under 100 ms for a body of 100 kB."""
    for body in (b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * depth):
        started = time.process_time()

        assert "too_deep" == only_fault(body).type
        assert 0.1 > time.process_time() - started


brackets = st.text('[]{}"\\a', max_size=30)


@settings(max_examples=200)
@given(
    st.recursive(
        brackets, lambda member: st.lists(member, max_size=4) | st.dictionaries(brackets, member), max_leaves=9
    )
)
def test_brackets_inside_strings_do_not_count(value: Any) -> None:
    """The scan that ignores strings finds the depth that the parser finds."""
    many = b'{"filler":[' + b"[]," * (MAX_DEPTH + 1) + b'0],"x":'  # enough brackets for the scan to take place
    deep = MAX_DEPTH - 1 - depth_of(value)

    check_nesting(many + b"[" * deep + json.dumps(value).encode() + b"]" * deep + b"}")
    with pytest.raises(SchemaViolation):
        check_nesting(many + b"[" * (deep + 1) + json.dumps(value).encode() + b"]" * (deep + 1) + b"}")


def depth_of(value: Any) -> int:
    """Objects and arrays open at once in a value."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + max(map(depth_of, members), default=0)


def test_a_body_of_too_many_objects_is_too_large() -> None:
    """Each would cost a parser a hundred times its bytes."""
    with pytest.raises(BodyTooLarge, match="objects and lists"):
        parse_body(b'{"a":[' + b"[]," * MAX_CONTAINERS + b"0]}")
    with pytest.raises(BodyTooLarge, match="values"):
        parse_body(b'{"a":[' + b'"",0,' * MAX_VALUES + b"0]}")


def test_commas_inside_strings_are_no_values() -> None:
    """A long text may have any number of them."""
    parse_body(b'{"a":"' + b',\\",' * MAX_VALUES + b'"}')


def test_more_closed_than_opened_is_no_json() -> None:
    """The scan looks no further than the parser will."""
    assert "json_invalid" == only_fault(b"{}" * 300 + b"]" * 100_000).type


# --- Repeated keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"state":1,"state":2}', ("state",)),
        (b'{"state":{"a":[{"b":1,"b":2}]}}', ("state", "a", 0, "b")),
        (b'{"questions":{"q":{"type":1,"type":2}}}', ("questions", "q", "type")),
        ('{"questions":{"caf\\u00e9":1,"café":2}}'.encode(), ("questions", "café")),
        (b'{"a":NaN,"a":1}', ("a",)),
    ],
)
def test_a_repeated_key_is_refused_with_its_path(body: bytes, path: tuple[str | int, ...]) -> None:
    """Everywhere, in the state as well; escapes do not hide it."""
    fault = only_fault(body)

    assert ("repeated_key", ("body", *path)) == (fault.type, fault.loc)
    assert f"'{path[-1]}'" in fault.msg


def test_all_repeated_keys_come_at_once() -> None:
    """Up to a bound."""
    assert [("body", "a"), ("body", "b", "c")] == [fault.loc for fault in faults(b'{"a":1,"a":2,"b":{"c":1,"c":2}}')]
    assert 51 == len(faults(b'{"a":1' + b',"a":1' * 500 + b"}"))
    assert 51 == len(faults(b'{"x":[' + b"NaN," * 500 + b"NaN]}"))


def test_json_that_breaks_behind_a_repeated_key_is_not_json() -> None:
    """The first thing wrong with it is its syntax."""
    assert "json_invalid" == only_fault(b'{"a":{"b":1,"b":2},').type


# --- Numbers ----------------------------------------------------------------------------------------------------------


def test_nan_and_infinity_are_text_inside_the_state() -> None:
    """Python's clients write them."""
    assert {"state": ["NaN", "-Infinity", {"a": "Infinity"}]} == parse_body(b'{"state":[NaN,-Infinity,{"a":Infinity}]}')


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"temperature":NaN}', ("temperature",)),
        (b'{"x":[1,{"y":-Infinity}]}', ("x", 1, "y")),
        (b'{"questions":{"q":{"instructions":[NaN]}}}', ("questions", "q", "instructions", 0)),
    ],
)
def test_nan_and_infinity_are_refused_elsewhere(body: bytes, path: tuple[str | int, ...]) -> None:
    """With their path."""
    fault = only_fault(body)

    assert ("finite_number", ("body", *path)) == (fault.type, fault.loc)


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "-" + "1" * 25, "9223372036854775808", "1e400", "-1E+999"])
def test_numbers_beyond_json_types_stay_exact_as_text(number: str) -> None:
    """Neither infinite nor rounded, inside the state and inside structured text."""
    body = parse_body(
        f'{{"state":{{"n":[{number}]}},"instructions":[{number}],"questions":{{"q":{{"instructions":[{number}],'
        f'"criteria":{{"o":{{"n":{number}}}}}}}}}}}'.encode()
    )

    assert {"n": [number]} == body["state"]
    assert [number] == body["instructions"] == body["questions"]["q"]["instructions"]
    assert {"n": number} == body["questions"]["q"]["criteria"]["o"]


@pytest.mark.parametrize("path", ["state", "seed", "instructions", "temperature"])
def test_a_huge_number_does_not_pass_for_text(path: str) -> None:
    """Where a whole field is a number, it is no string, so the schema refuses it."""
    assert not isinstance(parse_body(f'{{"{path}":{"9" * 40}}}'.encode())[path], str | int | float)


@pytest.mark.parametrize(
    "number", ["9223372036854775807", "-9223372036854775808", "1e308", "0.1", "-0", "1E5", "1e-400"]
)
def test_ordinary_numbers_are_numbers(number: str) -> None:
    """As Python reads them."""
    assert json.loads(number) == parse_body(f'{{"state":[{number}]}}'.encode())["state"][0]


# --- Surrogates -------------------------------------------------------------------------------------------------------


def test_a_lone_surrogate_becomes_a_replacement_character_in_text() -> None:
    """In values and keys of the state, and in instructions and descriptions."""
    body = parse_body(
        b'{"state":{"\\ud800":"\\udfff x"},"questions":{"q":{"instructions":"a\\uD801","criteria":{"o":"\\udc00"}}}}'
    )

    assert {"\ufffd": "\ufffd x"} == body["state"]
    assert {"instructions": "a\ufffd", "criteria": {"o": "\ufffd"}} == body["questions"]["q"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"questions":{"\\ud800":{}}}', ("questions", "?")),
        (b'{"questions":{"q":{"criteria":{"a\\udc00":null}}}}', ("questions", "q", "criteria", "a?")),
        (b'{"questions":[{"name":"\\ud800"}]}', ("questions", 0, "name")),
        (b'{"questions":[{"choices":[{"value":"\\ud800"}]}]}', ("questions", 0, "choices", 0, "value")),
    ],
)
def test_a_lone_surrogate_is_refused_in_ids_and_names(body: bytes, path: tuple[str | int, ...]) -> None:
    """They come back in the answer byte for byte, or not at all."""
    fault = only_fault(body)

    assert ("string_unicode", ("body", *path)) == (fault.type, fault.loc)


def test_keys_that_differ_only_in_lone_surrogates_are_refused() -> None:
    """Replacing them would lose a member."""
    assert "repeated_key" == only_fault(b'{"state":{"\\ud800":1,"\\ud801":2}}').type
    assert "repeated_key" == only_fault(b'{"\\ud800":1,"\\ud801":2}').type


def test_pairs_of_surrogates_are_characters() -> None:
    """ASCII-only clients write emoji so."""
    assert {"state": "😀", "😀": 1} == parse_body(b'{"state":"\\ud83d\\ude00","\\ud83d\\ude00":1}')
