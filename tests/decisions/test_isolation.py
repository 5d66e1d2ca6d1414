"""Rules of `decisions.isolation`, as the reference system has them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from decisions.isolation import IsolationBounds, read_alone
from decisions.protocol import ChoiceQuestion, Isolation, NoulQuestion, Option, Question

BOUNDS = IsolationBounds(auto_max=3, max_questions=8)


def questions(kinds: str) -> list[Question]:
    """N for a yes/no question, c for a choice."""
    made: list[Question] = []
    for index, kind in enumerate(kinds):
        if kind == "n":
            made.append(NoulQuestion(id=str(index), instructions="?"))
        else:
            made.append(ChoiceQuestion(id=str(index), options=(Option("a"), Option("b"))))
    return made


@pytest.mark.parametrize(
    ("kinds", "mode", "expected"),
    [
        ("n", "all", "-"),
        ("nn", "auto", "aa"),
        ("nc", "auto", "--"),
        ("nnc", "auto", "aa-"),
        ("nnnn", "auto", "----"),
        ("nncc", "noul", "aa--"),
        ("nncc", "all", "aaaa"),
        ("nncc", "none", "----"),
        ("nnnnnnnn", "noul", "aaaaaaaa"),
        ("nnnnnnnnn", "noul", "---------"),
        ("ccccccccc", "all", "---------"),
    ],
)
def test_the_mode_decides_by_number_and_type(kinds: str, mode: str, expected: str) -> None:
    """A is read alone; `auto` isolates two or three questions of which two are yes/no."""
    alone = read_alone(questions(kinds), Isolation(mode), BOUNDS)

    assert expected == "".join("a" if each else "-" for each in alone)


@pytest.mark.parametrize("mode", list(Isolation))
@pytest.mark.parametrize("alone", [True, False])
def test_a_question_s_own_word_overrides_every_mode(mode: Isolation, alone: bool) -> None:
    """In both directions."""
    asked = [NoulQuestion(id="0", instructions="?", alone=alone), *questions("n")]

    assert read_alone(asked, mode, BOUNDS)[0] is alone


def expected(kinds: str, mode: str) -> list[bool]:
    """The table of the reference system (A6), row by row."""
    nouls = [kind == "n" for kind in kinds]
    rows = {
        "auto": nouls if len(kinds) in {2, 3} and sum(nouls) >= 2 else [False] * len(kinds),
        "none": [False] * len(kinds),
        "noul": nouls if 2 <= len(kinds) <= 8 else [False] * len(kinds),
        "all": [2 <= len(kinds) <= 8] * len(kinds),
    }
    return rows[mode]


@pytest.mark.parametrize("mode", [mode.value for mode in Isolation])
def test_the_whole_table_holds(mode: str) -> None:
    """Every number of questions up to ten, every mix of types, every word of a first question's own."""
    for count in range(1, 11):
        for kinds in map("".join, product("nc", repeat=count)):
            asked = questions(kinds)
            by_mode = expected(kinds, mode)

            assert by_mode == list(read_alone(asked, Isolation(mode), BOUNDS))
            for word in (True, False):
                asked[0] = replace(asked[0], alone=word)
                assert [word, *by_mode[1:]] == list(read_alone(asked, Isolation(mode), BOUNDS))
