"""Rules of `decisions.bracket`: any number of options, the same distribution as one read of them all."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from decisions.bracket import BRACKET_SIZE, Brackets, catch_alls, split
from decisions.distribution import Distribution, softmax
from decisions.errors import TooManyTokens, UnsupportedFeature
from decisions.protocol import CatchAll, ChoiceAnswer, ChoiceQuestion, Isolation, LabelSet, NoulQuestion, Option
from decisions.reads import EngineLimits
from tests.decisions.fakes import AUTOREGRESSIVE, CANVAS, asked, by_hash, follow, planner

COUNTS = (27, 41, 53, 61, 77, 101, 151, 255, 520, 521, 2000)


def choice(names: list[str]) -> ChoiceQuestion:
    """A choice among these names."""
    return ChoiceQuestion(id="c", options=tuple(Option(name) for name in names))


def answered(names: list[str], limits: EngineLimits = CANVAS, **settings: Any) -> tuple[ChoiceAnswer, list[int]]:
    """The answer, and how many slots each round had."""
    plan = planner(limits).plan(asked(choice(names), **settings))
    rounds = follow(plan, by_hash)
    answer = plan.decision().answers["c"]
    assert isinstance(answer, ChoiceAnswer)
    return answer, [sum(len(read.slots) for read in reads) for reads in rounds]


def distance(answer: ChoiceAnswer, names: list[str]) -> float:
    """Total variation from the full read."""
    full = dict(zip(names, softmax([by_hash(name) for name in names]), strict=True))
    return math.fsum(abs(answer.probabilities[name] - share) for name, share in full.items()) / 2


@pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE])
@pytest.mark.parametrize("count", COUNTS)
def test_fusion_equals_the_full_read(count: int, limits: EngineLimits) -> None:
    """G8: total variation at most 1e-9 and the same winner, in any order of the options."""
    names = [f"option {number}" for number in range(count)]
    random.Random(count).shuffle(names)

    answer, _ = answered(names, limits)

    assert distance(answer, names) <= 1e-9
    assert answer.choice == max(names, key=by_hash)
    assert list(answer.probabilities) == names


@pytest.mark.parametrize(("count", "rounds"), [(26, 1), (27, 2), (255, 2), (520, 2), (521, 3), (2000, 3)])
def test_rounds_are_few(count: int, rounds: int) -> None:
    """Two up to 520 options, three beyond."""
    assert len(answered([f"option {number}" for number in range(count)])[1]) == rounds


@pytest.mark.parametrize("count", [27, 41, 61, 101, 255, 2000])
def test_brackets_are_balanced(count: int) -> None:
    """Never one of a single option, as counts of 1 above a multiple of 20 gave others."""
    sizes = [len(bracket) for bracket in split(range(count))]

    assert sum(sizes) == count
    assert max(sizes) <= BRACKET_SIZE
    assert max(sizes) - min(sizes) <= 1


def test_brackets_stand_beside_the_other_questions() -> None:
    """A request takes as many rounds as its deepest question."""
    wide = choice([f"option {number}" for number in range(77)])
    plan = planner().plan(asked(wide, NoulQuestion(id="n", instructions="?"), isolate=Isolation.NONE))

    rounds = follow(plan, by_hash)

    assert [sum(len(read.slots) for read in reads) for reads in rounds] == [5, 1]


def test_ties_go_to_the_first() -> None:
    """In the original order, also between brackets."""
    brackets = Brackets(((0, 1, 2), (3, 4)), (Distribution((0.4, 0.4, 0.2)), Distribution((0.5, 0.5))))

    assert brackets.best(1) == [0, 3]


CAUGHT = [f"option {number}" for number in range(59)] + ["out_of_scope"]


@pytest.mark.parametrize(
    ("mode", "slots"), [("off", [3, 1]), ("final", [3, 1]), ("both", [3, 1]), ("verify", [3, 1, 1])]
)
def test_a_catch_all_option_keeps_its_share(mode: str, slots: list[int]) -> None:
    """In the brackets, in the final, in both: the fused shares are those of the full read."""
    answer, rounds = answered(CAUGHT, catch_all=CatchAll(mode))

    assert rounds == slots
    if mode != "verify":
        assert distance(answer, CAUGHT) <= 1e-9


def test_verify_reads_the_winner_against_the_catch_alls() -> None:
    """What the winner wins there is shared out among the real options as before."""
    answer, _ = answered(CAUGHT, catch_all=CatchAll.VERIFY)
    winner = max(CAUGHT[:-1], key=by_hash)
    wins, loses = softmax([by_hash(winner), by_hash("out_of_scope")])
    real = dict(zip(CAUGHT[:-1], softmax([by_hash(name) for name in CAUGHT[:-1]]), strict=True))

    assert pytest.approx(loses, abs=1e-9) == answer.probabilities["out_of_scope"]
    assert pytest.approx(wins * real[winner], abs=1e-9) == answer.probabilities[winner]


def test_catch_alls_are_known_by_phrase_and_only_when_few() -> None:
    """More than three are options like any other."""
    options = [
        Option("a"),
        Option("oos", "None of the above"),
        Option("out-of-scope"),
        Option("b", {"x": "not listed"}),
    ]

    assert catch_alls(options) == (1, 2, 3)
    assert catch_alls([*options, Option("not applicable")]) == ()


def test_a_wider_alphabet_needs_no_bracket() -> None:
    """52 labels: one read."""
    assert answered([f"option {number}" for number in range(52)], labels=LabelSet.AZ_AA)[1] == [1]


def test_a_label_set_that_the_tokenizer_splits_is_refused() -> None:
    """Before any engine work."""
    crippled = planner()
    del crippled.packer.alphabets[LabelSet.AZ_AA]

    with pytest.raises(UnsupportedFeature, match="az_aa"):
        crippled.plan(asked(choice(["a", "b"]), labels=LabelSet.AZ_AA))


def test_a_final_that_would_be_too_long_is_refused_at_once() -> None:
    """Not after its brackets were read."""
    names = [f"option {number} {'x' * (200 if number % 20 < 2 else 1)}" for number in range(255)]
    limits = EngineLimits(context=3000, canvas=128, slots=1)

    with pytest.raises(TooManyTokens):
        planner(limits).plan(asked(choice(names)))


def test_a_wide_choice_is_not_refused_for_a_final_that_it_cannot_reach() -> None:
    """30 options send 4 of them to the final, so the 26 longest need not fit one prompt."""
    names = [f"option {number} {'x' * 60}" for number in range(30)]

    assert answered(names, EngineLimits(context=1500, canvas=128, slots=1))[1] == [2, 1]
