"""Flows: how the distribution of one question comes about, as generators that know nothing of engines.

A flow yields the slots that it needs this round, is sent their distributions, and returns the question's
distribution. Another sample, a second order or a bracket's final is one more yield. A question that is read once and
no more, as most are, needs no generator: its slot is its flow.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from .distribution import Distribution, geometric_mean, mean, reorder
from .labels import choice_labels
from .protocol import CatchAll, Debias, Option, ReadSettings
from .reads import Slot

Slots = tuple[Slot, ...]
Distributions = tuple[Distribution, ...]
Steps = Generator[Slots, Distributions, Distribution]
Flow = Slot | Steps

AUTO_SAMPLES = 4
"""Noise draws in all of a slot that `samples: auto` finds uncertain."""
AUTO_ENTROPY = 0.1
"""Entropy in nats above which a slot counts as uncertain."""
AUTO_MARGIN = 0.1
"""`debias: auto` reads a second order when the two most probable options are this close."""


def together(flows: Sequence[Flow]) -> Generator[Slots, Distributions, Distributions]:
    """Step flows in lockstep: each round's slots are yielded at once, and each flow is sent its own share."""
    results: dict[int, Distribution] = {}
    asked: dict[int, Slots] = {}
    steps: dict[int, Steps] = {}
    for index, flow in enumerate(flows):
        if isinstance(flow, Slot):
            asked[index] = (flow,)
            continue
        steps[index] = flow
        try:
            asked[index] = next(flow)
        except StopIteration as stop:
            results[index] = stop.value
    while asked:
        seen = yield tuple(chain.from_iterable(asked.values()))
        at = 0
        for index, slots in tuple(asked.items()):
            share, at = seen[at : at + len(slots)], at + len(slots)
            if index not in steps:
                results[index] = share[0]
                del asked[index]
                continue
            try:
                asked[index] = steps[index].send(share)
            except StopIteration as stop:
                del asked[index]
                results[index] = stop.value
    return tuple([results[index] for index in range(len(flows))])


def followed(flow: Flow) -> Steps:
    """The steps of a flow of either kind."""
    if isinstance(flow, Slot):
        return (yield (flow,))[0]
    return (yield from flow)


def known(distribution: Distribution) -> Flow:
    """A question whose answer needs no reading."""
    yield from ()
    return distribution


def sampled(slot: Slot, settings: ReadSettings) -> Flow:
    """Average a slot over noise draws; `auto` draws more only where the first one is uncertain."""
    return slot if settings.samples == 1 else _samples(slot, settings)


def _samples(slot: Slot, settings: ReadSettings) -> Steps:
    count = 1 if settings.samples == "auto" else settings.samples
    drawn = yield tuple(replace(slot, sample=sample) for sample in range(count))
    if settings.samples == "auto" and drawn[0].entropy > AUTO_ENTROPY:
        drawn += yield tuple(replace(slot, sample=sample) for sample in range(1, AUTO_SAMPLES))
    return mean(drawn)


@dataclass(frozen=True, slots=True)
class Choosing:
    """How the option sets of one choice are read: its first slot's frame, the labels, and the settings."""

    question: Slot
    alphabet: tuple[str, ...]
    settings: ReadSettings

    def plainly(self) -> Choosing:
        """The same, with catch-all options read like any other."""
        return replace(self, settings=replace(self.settings, catch_all=CatchAll.OFF))

    def slot(self, options: Sequence[Option], order: int) -> Slot:
        """A slot for these options, labelled in the order in which they are shown."""
        asked = self.question
        labels = choice_labels(tuple([option.name for option in options]), self.alphabet)
        return Slot(asked.question, asked.instructions, tuple(options), labels, asked.alone, order, given=asked.given)


def in_order(choosing: Choosing, options: Sequence[Option], order: Sequence[int], number: int) -> Steps:
    """Read options shown in another order, and give their distribution in the original one."""
    shown = [options[index] for index in order]
    distribution = yield from followed(sampled(choosing.slot(shown, number), choosing.settings))
    return reorder(distribution, order)


def choose(choosing: Choosing, options: Sequence[Option]) -> Flow:
    """Read a set of options that fits one slot, in as many orders as `debias` asks for.

    Orders are combined by the geometric mean per option, which removes an additive bias of the slots exactly.
    """
    if choosing.settings.debias is Debias.NONE:
        return sampled(choosing.slot(options, 0), choosing.settings)
    return _orders(choosing, options)


def _orders(choosing: Choosing, options: Sequence[Option]) -> Steps:
    debias = choosing.settings.debias
    count = len(options)
    forward = list(range(count))
    backward = forward[::-1]
    if debias is Debias.CYCLIC:
        orders = [forward[start:] + forward[:start] for start in range(count)]
    elif debias is Debias.REVERSE:
        orders = [forward, backward]
    else:
        orders = [forward]
    readings = yield from together([in_order(choosing, options, order, number) for number, order in enumerate(orders)])
    if debias is Debias.AUTO and is_close(readings[0]):
        readings = (readings[0], (yield from in_order(choosing, options, backward, 1)))
    return geometric_mean(readings)


def is_close(distribution: Distribution) -> bool:
    """Whether the two most probable options are within `AUTO_MARGIN` of each other."""
    first, second = sorted(distribution.probabilities, reverse=True)[:2]
    return first - second <= AUTO_MARGIN
