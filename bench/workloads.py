"""The workloads W1 to W13: which requests, at which load, and within which time.

Bodies are made from a seed: the same seed, workload and number give the same bytes on every machine. State lengths are
in words that are one token each in most tokenizers; a result shows how many tokens the server itself counted. Except
where a workload is warm, no two requests share a state; all share their questions, as the requests of one application
do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Body = dict[str, Any]
Kind = Literal["noul", "choice", "score"]

TEXT = (
    "the order was late and we want our money back today because this is not what we paid for in the first place "
    "please look at my account again and tell me when a new card will come or who can help with that problem now "
    "our team has been waiting for an answer since last week while the price went up after each call to your office "
    "there is no light in the room where two people work on some old machine that should never be left on at night"
)
WORDS = TEXT.split()
SUBJECTS = ("card", "order", "account", "price", "office", "team", "machine", "answer")
LEVELS = ("None at all", "Slight", "Some", "Strong", "Extreme")
FIRST_HALVES = "late lost new old paid open early large small cold light first last wrong quick main"
SECOND_HALVES = "card order price room call team week night office place light work money day name door"


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive in one cell.

    `open`: at `amount` times the knee's rate for `seconds`, in gaps of this `burstiness`. `closed`: from `amount`
    clients that each wait for their answer; one client is serial. After an open cell, `after` more seconds come without
    a pause, at 0.3 times the knee's rate, to see how soon the server is well again.
    """

    kind: Literal["open", "closed"]
    amount: float
    seconds: float = 10.0
    burstiness: float = 1.0
    after: float = 0.0


SERIAL = Load("closed", 1)


def opened(*shares: float, seconds: float = 10.0, burstiness: float = 1.0) -> tuple[Load, ...]:
    """Open-loop cells at these shares of the knee's rate."""
    return tuple(Load("open", share, seconds, burstiness) for share in shares)


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table of workloads. `slo` is the longest good latency on a GPU, in seconds.

    `options` are the numbers of options of the choices, which take turns; `kinds` are those of the questions. `fields`
    are request fields beside the standard ones. A `warm` workload has one state, asked about in ever other words.
    """

    name: str
    purpose: str
    state: int
    questions: int
    options: tuple[int, ...]
    kinds: tuple[Kind, ...]
    loads: tuple[Load, ...]
    slo: float
    warm: bool = False
    fields: Body = field(default_factory=dict)

    def body(self, seed: int, number: int) -> Body:
        """Request number `number` of this seed."""
        generator = random.Random(f"{seed}/{self.name}/{0 if self.warm else number}")
        state = " ".join(generator.choice(WORDS) for _ in range(self.state))
        about = f" Case {number}." if self.warm else ""
        questions = {f"q{place}": self.question(place, about) for place in range(self.questions)}
        return {"model": "jev-latest", "state": state, "questions": questions, **self.fields}

    def question(self, place: int, about: str) -> Body:
        """The question at this place."""
        kind = self.kinds[place % len(self.kinds)]
        subject = SUBJECTS[place % len(SUBJECTS)]
        if kind == "noul":
            return {"type": kind, "instructions": f"Is point {place} about the {subject} settled?{about}"}
        if kind == "score":
            words = f"How much anger about the {subject} does point {place} show?{about}"
            return {"type": kind, "instructions": words, "criteria": list(LEVELS)}
        count = self.options[place % len(self.options)]
        words = f"Which subject fits point {place} about the {subject} best?{about}"
        return {"type": kind, "instructions": words, "criteria": options(count)}

    def bodies(self, seed: int, numbers: Iterable[int]) -> list[bytes]:
        """These requests as bytes."""
        return [json.dumps(self.body(seed, number)).encode() for number in numbers]


def options(count: int) -> dict[str, str | None]:
    """So many options with names of two words; up to 8 of them are described."""
    names = [f"{first} {second}" for second in SECOND_HALVES.split() for first in FIRST_HALVES.split()][:count]
    return {name: f"Whatever has to do with a {name}" if count <= 8 else None for name in names}


MIXED: tuple[Kind, ...] = ("noul", "choice", "score")
TRIAGE: tuple[Kind, ...] = ("noul", "choice", "score", "noul", "choice")
MOSTLY_NOUL: tuple[Kind, ...] = ("noul", "noul", "choice", "noul")

W1 = Workload("W1", "one yes/no question", 64, 1, (), ("noul",), (SERIAL, *opened(0.5, 0.8)), 0.040)
W2 = Workload("W2", "route among 5", 256, 1, (5,), ("choice",), (SERIAL, *opened(0.2, 0.5, 0.8, 1.0, 1.2)), 0.050)
W3 = Workload(
    *("W3", "triage with 5 questions", 512, 5, (4, 6), TRIAGE),
    loads=(SERIAL, *opened(0.5, 0.8), *(Load("closed", clients) for clients in (4, 16, 32))),
    slo=0.080,
)
W4 = Workload("W4", "many questions", 512, 10, (2, 4), MOSTLY_NOUL, (SERIAL, Load("closed", 4)), 0.150)
W5 = Workload("W5", "one wide choice", 64, 1, (77,), ("choice",), (SERIAL, *opened(0.5)), 0.200)
W6 = Workload(
    "W6", "all orders of the options", 256, 1, (4,), ("choice",), (SERIAL,), 0.200, fields={"debias": "cyclic"}
)
W7 = Workload("W7", "long state", 2048, 3, (4,), MIXED, (SERIAL, *opened(0.5)), 0.400)
W8 = Workload("W8", "one state, new questions", 512, 3, (4,), MIXED, (SERIAL, *opened(0.8)), 0.080, warm=True)
W9 = Workload("W9", "gateway only (stub engine)", 256, 3, (4,), MIXED, opened(0.5, 0.8, 1.0, 1.2), 0.008)
W10 = replace(W3, name="W10", purpose="bursts", loads=opened(0.6, seconds=60, burstiness=0.25))
W11 = replace(W2, name="W11", purpose="overload, then recovery", loads=(Load("open", 2.0, seconds=30, after=15),))
W12 = replace(W3, name="W12", purpose="ten minutes", loads=opened(0.6, seconds=600))
W13 = replace(W1, name="W13", purpose="cold start", loads=())

ALL = {each.name: each for each in (W1, W2, W3, W4, W5, W6, W7, W8, W9, W10, W11, W12, W13)}
VARIANTS = {"W4": (10, 32, 64), "W5": (26, 27, 77, 151, 255), "W6": (2, 4, 8), "W7": (2048, 8192, 32768)}
"""What a number after the name means: questions, options, options, words of state."""


def named(name: str) -> Workload:
    """The workload of this name: `W3`, or with its number `W5:255`, `W4:32`, `W7:8192`. `W7:2048:warm` shares a state.

    Raises `ValueError` for any other name.
    """
    base, *rest = name.upper().split(":")
    if base not in ALL:
        raise ValueError(f"There is no workload {name!r}; there are {', '.join(ALL)}.")
    chosen = replace(ALL[base], name=name.upper())
    if "WARM" in rest:
        rest.remove("WARM")
        chosen = replace(chosen, warm=True)
    if not rest:
        return chosen
    allowed = VARIANTS.get(base, ())
    if len(rest) > 1 or rest[0] not in {str(number) for number in allowed}:
        raise ValueError(
            f"{base} comes as {', '.join(f'{base}:{number}' for number in allowed) or base}, not {name!r}."
        )
    number = int(rest[0])
    if base == "W4":
        return replace(chosen, questions=number)
    if base == "W7":
        return replace(chosen, state=number)
    return replace(chosen, options=(number,))
