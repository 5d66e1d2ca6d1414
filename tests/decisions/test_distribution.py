"""Rules of `decisions.distribution`: probabilities stay probabilities, and confidence is TypeSafe's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.distribution import (
    CERTAIN,
    SMALLEST,
    Distribution,
    choice_confidence,
    from_logprobs,
    geometric_mean,
    mean,
    normalise,
    reorder,
    score_confidence,
    softmax,
    temper,
)

LOGITS = st.lists(st.floats(-900, 900), min_size=1, max_size=30)


@given(LOGITS)
def test_a_softmax_sums_to_one_and_is_never_zero(logits: list[float]) -> None:
    """However far apart the logits are."""
    probabilities = softmax(logits)

    assert math.isclose(1.0, math.fsum(probabilities), abs_tol=1e-9)
    assert min(probabilities) >= SMALLEST


@pytest.mark.parametrize("weights", [[0.0, 0.0], [math.inf, 1.0], [math.nan]])
def test_weights_without_a_positive_finite_sum_are_refused(weights: list[float]) -> None:
    """They are never turned into a guess."""
    with pytest.raises(ValueError, match="positive finite sum"):
        normalise(weights)


def test_label_mass_is_the_share_of_the_full_vocabulary() -> None:
    """The shares are renormalised, the mass is kept beside them."""
    read = from_logprobs([math.log(0.3), math.log(0.1)])

    assert pytest.approx((0.75, 0.25)) == read.probabilities
    assert pytest.approx(0.4) == read.label_mass


def test_top_is_the_first_of_equals() -> None:
    """Ties go to the option that the caller named first."""
    assert Distribution((0.2, 0.4, 0.4)).top == 1


def test_entropy_is_in_nats_and_expectation_counts_from_zero() -> None:
    """Of two even options: ln 2 and one half."""
    even = Distribution((0.5, 0.5))

    assert pytest.approx(math.log(2)) == even.entropy
    assert even.expectation == 0.5
    assert Distribution((1.0, 0.0)).entropy == 0.0


def test_means_of_one_reading_are_that_reading() -> None:
    """Nothing is computed, so nothing is rounded."""
    one = Distribution((0.3, 0.7), 0.5)

    assert mean([one]) is one
    assert geometric_mean([one]) is one


def test_the_arithmetic_mean_averages_shares_and_label_mass() -> None:
    """As for noise draws of one canvas."""
    drawn = mean([Distribution((0.2, 0.8), 0.5), Distribution((0.6, 0.4), 0.7)])

    assert pytest.approx((0.4, 0.6)) == drawn.probabilities
    assert pytest.approx(0.6) == drawn.label_mass


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.data())
def test_the_geometric_mean_over_all_rotations_removes_an_additive_bias(
    logits: list[float], data: st.DataObject
) -> None:
    """G6b: exactly, whatever each place adds."""
    count = len(logits)
    bias = data.draw(st.lists(st.floats(-3, 3), min_size=count, max_size=count))
    readings = []
    for start in range(count):
        order = [*range(start, count), *range(start)]
        shown = Distribution(softmax([logits[index] + bias[place] for place, index in enumerate(order)]))
        readings.append(reorder(shown, order))

    assert pytest.approx(softmax(logits), abs=1e-9) == geometric_mean(readings).probabilities


@given(LOGITS, st.floats(0.05, 20))
def test_a_temperature_keeps_the_ranking_and_one_changes_nothing(logits: list[float], temperature: float) -> None:
    """G15: T = 1 is the very same distribution; what was likelier stays at least as likely."""
    raw = Distribution(softmax(logits))
    tempered = temper(raw, temperature).probabilities

    assert temper(raw, 1.0) is raw
    assert tempered[raw.top] == max(tempered)


def test_temperature_is_a_power_renormalised() -> None:
    """G15: p^(1/T) over its sum."""
    assert pytest.approx((0.9, 0.1)) == temper(Distribution((0.75, 0.25)), 0.5).probabilities


def test_a_probability_of_exactly_zero_can_be_tempered() -> None:
    """None comes from a read, but none may end in a foreign error either."""
    assert temper(Distribution((1.0, 0.0)), 2.0).probabilities[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((1.0,), 1.0), ((0.88, 0.12, 0.0), 0.82), ((0.5, 0.5), 0.0), ((0.0, 1.0), 1.0)],
)
def test_confidence_of_a_choice(shares: tuple[float, ...], expected: float) -> None:
    """(p_max - 1/n) / (1 - 1/n), and 1 for a single option."""
    assert pytest.approx(expected) == choice_confidence(Distribution(shares))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((1.0,), 1.0), ((0.0, 0.57, 0.43), 0.355), ((0.0, 0.95, 0.05), 0.925), ((0.5, 0.0, 0.5), 0.0)],
)
def test_confidence_of_a_score(shares: tuple[float, ...], expected: float) -> None:
    """The documented example: {0: 0, 1: .57, 2: .43} gives 0.355."""
    assert pytest.approx(expected, abs=1e-9) == score_confidence(Distribution(shares))


def test_a_certain_answer_has_all_mass() -> None:
    """A question with one possible answer is not asked."""
    assert (CERTAIN.probabilities, CERTAIN.label_mass) == ((1.0,), 1.0)
