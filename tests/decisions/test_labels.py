"""Rules of `decisions.labels`: an option keeps its meaning, whatever it is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.labels import ALPHABETS, DIGITS, LETTERS, AnswerForm, choice_labels
from decisions.protocol import LabelSet


def test_options_are_labelled_in_request_order() -> None:
    """A, B, C."""
    assert choice_labels(("red", "green", "blue"), LETTERS) == ("A", "B", "C")


def test_names_that_are_all_labels_stand_for_themselves() -> None:
    """fr-015: an option called A is never read as another option's label."""
    assert choice_labels(("B", "A", "D", "C"), LETTERS) == ("B", "A", "D", "C")


def test_labels_that_some_names_equal_are_avoided() -> None:
    """Digits where they suffice, then letters that no option is named after."""
    assert choice_labels(("A", "other"), LETTERS) == ("0", "1")
    assert choice_labels(("A", "0", "x"), LETTERS) == ("1", "2", "3")
    names = ("A", *(f"n{number}" for number in range(12)))
    assert choice_labels(names, LETTERS) == LETTERS[1:14]


def test_names_far_down_the_alphabet_take_nothing_away() -> None:
    """Only labels that would be used count as taken."""
    assert choice_labels(("Z", "other"), LETTERS) == ("A", "B")


def test_a_full_alphabet_with_one_name_in_it_lets_it_stand_for_itself() -> None:
    """There is no other label left, and another option's label it must not be."""
    names = (*(f"n{number}" for number in range(25)), "A")
    assert choice_labels(names, LETTERS) == (*LETTERS[1:], "A")


@given(st.lists(st.sampled_from([*LETTERS, *DIGITS, "yes", *"abcdefghijklmnop"]), min_size=1, max_size=26, unique=True))
def test_no_option_is_named_like_another_option_s_label(names: list[str]) -> None:
    """Labels are distinct, too, whatever the names."""
    labels = choice_labels(tuple(names), LETTERS)

    assert len(set(labels)) == len(names)
    for name, label in zip(names, labels, strict=True):
        assert label == name or label not in names


def test_too_many_options_are_refused() -> None:
    """Brackets come before labels."""
    with pytest.raises(ValueError, match="27 options"):
        choice_labels(tuple(f"n{number}" for number in range(27)), LETTERS)


def test_every_alphabet_has_distinct_labels() -> None:
    """26, or twice as many."""
    assert {name: len(set(labels)) for name, labels in ALPHABETS.items()} == {
        LabelSet.AZ: 26, LabelSet.AZ_AA: 52, LabelSet.AZ_LOWER: 52
    }  # fmt: skip


def test_yes_comes_first() -> None:
    """Whatever a model's words for yes and no are."""
    assert AnswerForm(yes="Yes", no="No").nouls == ("Yes", "No")
