"""Cutting values short."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decisions.excerpt import excerpt, short, short_loc

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=200),
    lambda member: st.lists(member, max_size=9) | st.dictionaries(st.text(max_size=200), member, max_size=9),
    max_leaves=30,
)


@settings(max_examples=50)
@given(values)
def test_an_excerpt_is_small_plain_json(value: object) -> None:
    """Whatever the value, its excerpt can be sent and fits a few kilobytes."""
    assert 30_000 > len(json.dumps(excerpt(value)).encode())


@pytest.mark.parametrize("value", [None, True, 3, 1.5, "text", [], {}, [1, {"a": 2}], {"a": [1, 2]}])
def test_a_small_value_is_shown_whole(value: object) -> None:
    """Nothing is cut without need."""
    assert value == excerpt(value)


def test_what_is_cut_is_marked() -> None:
    """Ellipses say how much was left out."""
    assert [0, 1, 2, 3, "… 6 more"] == excerpt(list(range(10)))
    assert {"0": 0, "1": 1, "2": 2, "3": 3, "…": "6 more"} == excerpt({str(number): number for number in range(10)})
    assert {"a": {"b": {"…": "1 fields"}, "c": ["… 2 items"], "d": [], "e": {}}} == excerpt(
        {"a": {"b": {"x": 1}, "c": [1, 2], "d": [], "e": {}}}
    )
    assert "x" * 120 + "…" == short("x" * 121)


def test_lone_surrogates_are_replaced() -> None:
    """An error must be sendable in UTF-8."""
    assert "a?é" == short("a\ud800é")


def test_a_foreign_object_is_shown_as_text() -> None:
    """Numbers that JSON cannot hold have a class of their own."""
    assert "3j" == excerpt(3j)


def test_long_keys_of_a_path_are_cut() -> None:
    """Positions stay."""
    assert ("body", 3, "k" * 120 + "…") == short_loc(("body", 3, "k" * 500))
