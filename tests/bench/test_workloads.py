"""Workloads are what their table says, alike on every machine."""

from __future__ import annotations

import json

import pytest

from bench.workloads import ALL, VARIANTS, named
from decisions.protocol import ReadSettings
from gateway.wire import ServedNames, ShapeLimits, Wire

EVERY = [*ALL, *(f"{name}:{number}" for name, numbers in VARIANTS.items() for number in numbers)]


@pytest.mark.parametrize("name", EVERY)
def test_bodies_are_made_from_the_seed_and_accepted(name: str) -> None:
    """The same bytes for the same seed, other states for another; the gateway takes every one."""
    workload = named(name)
    bodies = workload.bodies(1, range(3))

    assert bodies == named(name).bodies(1, range(3))
    assert len(set(bodies)) == 3
    assert not set(bodies) & set(workload.bodies(2, range(3)))
    for body in bodies:
        request = Wire(ShapeLimits(), ReadSettings(), ServedNames("model")).parse_systemone(body)
        assert len(request.questions) == workload.questions


def test_cold_states_differ_and_warm_ones_do_not() -> None:
    """A cold workload repeats its questions, a warm one its state."""
    cold = [json.loads(body) for body in named("W3").bodies(1, range(5))]
    warm = [json.loads(body) for body in named("W8").bodies(1, range(5))]

    assert (5, 1) == (len({one["state"] for one in cold}), len({json.dumps(one["questions"]) for one in cold}))
    assert (1, 5) == (len({one["state"] for one in warm}), len({json.dumps(one["questions"]) for one in warm}))


@pytest.mark.parametrize(
    ("name", "words", "questions", "options"),
    [("W1", 64, 1, 0), ("W2", 256, 1, 5), ("W4:64", 512, 64, 2), ("W5", 64, 1, 77), ("W5:255", 64, 1, 255)],
)
def test_sizes(name: str, words: int, questions: int, options: int) -> None:
    """Words of the state, questions, options of the first choice."""
    body = named(name).body(1, 0)
    counts = [len(one["criteria"]) for one in body["questions"].values() if one["type"] == "choice"] or [0]

    assert (words, questions, options) == (len(body["state"].split()), len(body["questions"]), counts[0])


@pytest.mark.parametrize("name", ["W14", "W3:5", "W5:3", "W5:77:255", "", "W5:x"])
def test_other_names_are_refused(name: str) -> None:
    """With what there is."""
    with pytest.raises(ValueError, match=r"There is no workload|comes as"):
        named(name)
