"""Rules of `decisions.flow`: samples and orders are asked for only where they can tell something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.distribution import Distribution, softmax
from decisions.flow import Distributions, Flow, Slots, is_close, known, together
from decisions.protocol import ChoiceAnswer, ChoiceQuestion, Debias, NoulQuestion, Option, SeedToken
from decisions.reads import EngineLimits, Slot
from tests.decisions.fakes import AUTOREGRESSIVE, CANVAS, asked, by_hash, follow, planner, prompt_text

SLOT = Slot(0, None, (Option("a"),), ("A",))
CHOICE = ChoiceQuestion(id="c", options=tuple(Option(f"option {number}") for number in range(5)))
BIAS = [0.0, 1.2, -0.7, 0.4, 0.9]


def asking(rounds: int, result: float) -> Flow:
    """A flow that asks for one slot a round."""
    for _ in range(rounds):
        yield (SLOT,)
    return Distribution((result,))


def run(steps: object) -> tuple[list[int], Distributions]:
    """Slots per round, and the results."""
    counts, seen = [], None
    try:
        while True:
            slots: Slots = steps.send(seen)  # type: ignore[attr-defined]
            counts.append(len(slots))
            seen = tuple(Distribution((1.0,)) for _ in slots)
    except StopIteration as stop:
        return counts, stop.value


def test_flows_of_different_lengths_step_together() -> None:
    """Results keep the flows' order; rounds are as many as the longest flow needs."""
    counts, results = run(together([asking(1, 0.1), known(Distribution((0.2,))), asking(3, 0.3)]))

    assert counts == [2, 1, 1]
    assert [result.probabilities[0] for result in results] == [0.1, 0.2, 0.3]


def test_no_flows_need_no_round() -> None:
    """An empty stage."""
    assert run(together([])) == ([], ())


def certain(text: str) -> float:
    """A utility that leaves no doubt."""
    return 30.0 if text in {"yes", "option 3"} else 0.0


@pytest.mark.parametrize(("utility", "rounds"), [(certain, [1]), (lambda text: 0.0, [1, 3])])
def test_auto_samples_draw_again_only_where_the_first_was_uncertain(
    utility: Callable[[str], float], rounds: list[int]
) -> None:
    """Four draws in all."""
    plan = planner().plan(asked(NoulQuestion(id="q", instructions="?"), samples="auto"))

    assert [len(reads) for reads in follow(plan, utility)] == rounds


def test_samples_of_a_canvas_without_noise_are_one() -> None:
    """They would all be the same read."""
    noul = NoulQuestion(id="q", instructions="?")
    fixed = planner().plan(asked(noul, samples=4, seed_token=SeedToken.FIXED))
    next_token = planner(AUTOREGRESSIVE).plan(asked(noul, samples=4))

    assert len(fixed.next_reads()) == len(next_token.next_reads()) == 1
    assert len(planner().plan(asked(noul, samples=4)).next_reads()) == 4


@pytest.mark.parametrize(("debias", "reads"), [(Debias.NONE, 1), (Debias.REVERSE, 2), (Debias.CYCLIC, 5)])
def test_orders_are_read_in_one_round(debias: Debias, reads: int) -> None:
    """Each on a canvas of its own."""
    assert len(planner().plan(asked(CHOICE, debias=debias)).next_reads()) == reads


def test_a_full_cycle_of_orders_removes_an_additive_bias() -> None:
    """G6b: to 1e-9, by option name."""
    for limits in (CANVAS, AUTOREGRESSIVE):
        biased = planner(limits).plan(asked(CHOICE, debias=Debias.CYCLIC))
        plain = planner(limits).plan(asked(CHOICE))
        follow(biased, by_hash, BIAS)
        follow(plain, by_hash)

        answers = [plan.decision().answers["c"].probabilities for plan in (biased, plain)]  # type: ignore[union-attr]
        assert pytest.approx(answers[1], abs=1e-9) == answers[0]


@pytest.mark.parametrize(("utility", "rounds"), [(certain, 1), (lambda text: 0.0, 2)])
def test_auto_debias_reads_a_second_order_only_when_it_is_close(utility: Callable[[str], float], rounds: int) -> None:
    """Within 0.1 of each other."""
    assert len(follow(planner().plan(asked(CHOICE, debias=Debias.AUTO)), utility)) == rounds


def test_close_is_about_the_two_most_probable() -> None:
    """Wherever they stand."""
    assert is_close(Distribution((0.1, 0.43, 0.47)))
    assert not is_close(Distribution((0.1, 0.2, 0.7)))


SURE = NoulQuestion(id="sure", instructions="Sure?")
OPEN = ChoiceQuestion(id="open", options=(Option("left"), Option("right")))


def one_sided(text: str) -> float:
    """Certain about the yes/no question, undecided about the choice."""
    return 30.0 if text == "yes" else 0.0


@pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE])
def test_only_the_uncertain_question_is_read_in_a_second_order(limits: EngineLimits) -> None:
    """The round is as small as the doubt."""
    plan = planner(limits).plan(asked(SURE, OPEN, debias=Debias.AUTO))
    second = follow(plan, one_sided)[1]

    assert [len(read.slots) for read in second] == [1]
    assert prompt_text(second[0]).count("A: right\nB: left\n") == 1
    assert (plan.decision().traces["sure"].orders, plan.decision().traces["open"].orders) == (1, 2)


def test_only_the_uncertain_question_is_drawn_again() -> None:
    """Not the whole canvas; three more draws, of other noise and the same words."""
    plan = planner().plan(asked(SURE, OPEN, samples="auto"))
    first, second = follow(plan, one_sided)

    assert ([len(read.slots) for read in first], [len(read.slots) for read in second]) == ([2], [1, 1, 1])
    assert len({read.prompt for read in second}) == 1
    assert len({read.canvas for read in second}) == 3
    assert (plan.decision().traces["sure"].samples, plan.decision().traces["open"].samples) == (1, 4)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8), st.integers(0))
def test_cyclic_orders_undo_any_bias_of_places(bias: list[float], seed: int) -> None:
    """G6b: the answer is the unbiased one to 1e-9, whatever the places add."""
    options = tuple(Option(f"option {seed + number}") for number in range(len(bias)))
    question = ChoiceQuestion(id="c", options=options)
    plan = planner(AUTOREGRESSIVE).plan(asked(question, debias=Debias.CYCLIC))
    follow(plan, by_hash, bias)
    answer = plan.decision().answers["c"]

    assert isinstance(answer, ChoiceAnswer)
    expected = softmax([by_hash(option.name) for option in options])
    assert pytest.approx(expected, abs=1e-9) == tuple(answer.probabilities.values())
