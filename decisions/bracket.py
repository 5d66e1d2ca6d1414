"""Answers an option set too large for one slot: brackets of it are read at once, the best of each go to a final.

The shares are then fused. With f the final's shares, s the shares inside bracket b, and T_b that bracket's finalists,

    w_b = sum(f over T_b) / sum(s over T_b)        p_k = w_b * s_k / sum(w)

If shares keep their ratios in any subset (Luce's choice axiom) this equals the read of the full set exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .distribution import Distribution, mean_mass, normalise
from .flow import Choosing, Distributions, Flow, Slots, Steps, choose, followed, together
from .prompt import as_text
from .protocol import CatchAll, Option

BRACKET_SIZE = 20
"""Options in a bracket at most."""
FINALISTS = 2
"""Options of a bracket that go to the final, where that many of each fit one slot; else one."""
MOST_CATCH_ALLS = 3
"""More options than this that look like "none of these" are taken for ordinary ones."""
CATCH_ALL_PHRASE = re.compile(
    r"none of (the listed|the above|these|the options)|none apply|out[ _-]of[ _-]scope|not listed|no matching|"
    r"not applicable",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Brackets:
    """One round of brackets: the original indices of each one's options, and its shares."""

    members: tuple[tuple[int, ...], ...]
    shares: tuple[Distribution, ...]

    def best(self, keep: int, always: frozenset[int] = frozenset()) -> list[int]:
        """The `keep` most probable options of each bracket (ties go to the first), and those that `always` stay."""
        chosen = set(always)
        for members, inside in zip(self.members, self.shares, strict=True):
            ranked = sorted(range(len(members)), key=inside.probabilities.__getitem__, reverse=True)
            chosen.update(members[place] for place in ranked[:keep])
        return sorted(chosen)

    def fused(self, final: dict[int, float]) -> dict[int, float]:
        """Weight per option, from the brackets' shares and the final's by option; not yet normalised.

        A finalist that stood in no bracket keeps its share of the final.
        """
        weights = dict(final)
        for members, inside in zip(self.members, self.shares, strict=True):
            won = math.fsum(final.get(index, 0.0) for index in members)
            pairs = list(zip(members, inside.probabilities, strict=True))
            held = math.fsum(share for index, share in pairs if index in final)
            weights.update({index: won / held * share for index, share in pairs})
        return weights


def split(indices: Sequence[int], size: int = BRACKET_SIZE) -> tuple[tuple[int, ...], ...]:
    """Contiguous brackets, as few as hold at most `size` options each, sizes differing by at most one."""
    count = len(indices)
    brackets = math.ceil(count / size)
    edges = [count * number // brackets for number in range(brackets + 1)]
    return tuple(tuple(indices[start:stop]) for start, stop in pairwise(edges))


def most_finalists(count: int, room: int) -> int:
    """Options of the largest final that so many options can lead to, where one slot has room for `room`."""
    return min(room, FINALISTS * math.ceil(count / BRACKET_SIZE) + MOST_CATCH_ALLS)


def catch_alls(options: Sequence[Option]) -> tuple[int, ...]:
    """Indices of the options that mean "none of these", by the phrases in their names and descriptions."""
    texts = [f"{option.name} {as_text(option.description or '')}" for option in options]
    found = tuple(index for index, text in enumerate(texts) if CATCH_ALL_PHRASE.search(text))
    return found if len(found) <= MOST_CATCH_ALLS else ()


def route(choosing: Choosing, options: Sequence[Option]) -> Flow:
    """Read an option set of any size: at once where it fits one slot, else in brackets and a final."""
    return choose(choosing, options) if len(options) <= len(choosing.alphabet) else _bracketed(choosing, options)


def _bracketed(choosing: Choosing, options: Sequence[Option]) -> Steps:
    mode = choosing.settings.catch_all
    special = catch_alls(options) if mode is not CatchAll.OFF else ()
    inside = range(len(options)) if mode is CatchAll.BOTH else [i for i in range(len(options)) if i not in special]
    brackets = yield from read_brackets(choosing, options, split(list(inside)))
    in_final = () if mode is CatchAll.VERIFY else special
    room = len(choosing.alphabet) - len(in_final)
    keep = FINALISTS if FINALISTS * len(brackets.members) <= room else 1
    finalists = brackets.best(keep, frozenset(in_final))
    final = yield from route_final(choosing, options, finalists)
    weights = brackets.fused(dict(zip(finalists, final.probabilities, strict=True)))
    mass = mean_mass([*brackets.shares, final])
    if mode is CatchAll.VERIFY and special:
        weights = yield from verified(choosing, options, weights, special)
    return Distribution(normalise([weights[index] for index in range(len(options))]), mass)


def read_brackets(
    choosing: Choosing, options: Sequence[Option], members: tuple[tuple[int, ...], ...]
) -> Generator[Slots, Distributions, Brackets]:
    """Read all brackets in one round."""
    shares = yield from together([choose(choosing, [options[index] for index in bracket]) for bracket in members])
    return Brackets(members, shares)


def route_final(choosing: Choosing, options: Sequence[Option], finalists: Sequence[int]) -> Steps:
    """The final; finalists that still do not fit one slot are bracketed again, catch-alls among them as any other."""
    return (yield from followed(route(choosing.plainly(), [options[index] for index in finalists])))


def verified(
    choosing: Choosing, options: Sequence[Option], weights: dict[int, float], special: Sequence[int]
) -> Generator[Slots, Distributions, dict[int, float]]:
    """Read the winner against the catch-alls; what it wins is shared out as before, the rest is the catch-alls'."""
    total = math.fsum(weights.values())
    winner = max(weights, key=weights.__getitem__)
    shown = sorted((winner, *special))
    checked = yield from followed(choose(choosing, [options[index] for index in shown]))
    against = dict(zip(shown, checked.probabilities, strict=True))
    real = {index: weight / total * against[winner] for index, weight in weights.items()}
    return real | {index: against[index] for index in special}
