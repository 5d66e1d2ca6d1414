"""Answers an option set too large for one slot: brackets of it are read at once, the best of each go to a final.

The shares are then fused. With f the final's shares, s the shares inside bracket b, and T_b that bracket's finalists,

    w_b = sum(f over T_b) / sum(s over T_b)        p_k = w_b * s_k / sum(w)

If shares keep their ratios in any subset (Luce's choice axiom) this equals the read of the full set exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .distribution import Distribution, mean_mass, normalise
from .flow import Choosing, Flow, choose, together
from .protocol import Option

BRACKET_SIZE = 20
"""Options in a bracket at most."""
FINALISTS = 2
"""Options of a bracket that go to the final, where that many of each fit one slot; else one."""


def split(count: int, size: int = BRACKET_SIZE) -> list[range]:
    """Contiguous ranges over `count` options, as few as hold at most `size` each, sizes differing by at most one."""
    brackets = math.ceil(count / size)
    edges = [count * index // brackets for index in range(brackets + 1)]
    return [range(start, stop) for start, stop in zip(edges, edges[1:], strict=False)]


def finalists_of(brackets: Sequence[range], shares: Sequence[Distribution], keep: int) -> list[list[int]]:
    """Per bracket, the indices of its `keep` most probable options, in the original order; ties go to the first."""
    chosen = []
    for bracket, inside in zip(brackets, shares, strict=True):
        ranked = sorted(range(len(bracket)), key=lambda place, p=inside.probabilities: (-p[place], place))
        chosen.append(sorted(bracket[place] for place in ranked[:keep]))
    return chosen


def fuse(brackets: Sequence[range], shares: Sequence[Distribution], final: dict[int, float]) -> tuple[float, ...]:
    """Probabilities over all options from the brackets' shares and the final's shares by option index."""
    weights = []
    for bracket, inside in zip(brackets, shares, strict=True):
        ours = [index for index in bracket if index in final]
        won = math.fsum(final[index] for index in ours)
        held = math.fsum(inside.probabilities[index - bracket.start] for index in ours)
        weights.append(won / held)
    return normalise(
        [weight * share for weight, inside in zip(weights, shares, strict=True) for share in inside.probabilities]
    )


def route(choosing: Choosing, options: Sequence[Option]) -> Flow:
    """Read an option set of any size: at once where it fits one slot, else in brackets and a final.

    Finalists that still do not fit one slot are bracketed again.
    """
    room = len(choosing.alphabet)
    if len(options) <= room:
        return (yield from choose(choosing, options))
    brackets = split(len(options))
    shares = yield from together([choose(choosing, options[b.start : b.stop]) for b in brackets])
    keep = FINALISTS if FINALISTS * len(brackets) <= room else 1
    finalists = [index for bracket in finalists_of(brackets, shares, keep) for index in bracket]
    final = yield from route(choosing, [options[index] for index in finalists])
    fused = fuse(brackets, shares, dict(zip(finalists, final.probabilities, strict=True)))
    return Distribution(fused, mean_mass([*shares, final]))
