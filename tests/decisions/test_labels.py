"""Rules of `decisions.labels`: an option keeps its meaning, whatever it is called."""

from __future__ import annotations

import pytest

from decisions.labels import ALPHABETS, LETTERS, AnswerForm, choice_labels
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


def test_a_full_alphabet_with_one_name_in_it_is_used_as_it_is() -> None:
    """There is no other label left."""
    names = ("A", *(f"n{number}" for number in range(25)))
    assert choice_labels(names, LETTERS) == LETTERS


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
