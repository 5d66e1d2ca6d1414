"""Gates that need no right answers: what must not change an answer does not, on any server.

Each gate asks the server and returns a `Verdict`. Where a law holds only for what the server was told to do (order of
options: only with `debias`), the figure is reported without a verdict; where it refuses what a gate needs, the gate is
not run, with the reason. Numbers G1 to G11 are those of the gates of a System One gateway in `tests/gates`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from bench.answers import Body, apart
from bench.asker import Asker, Refused
from bench.cases import Case
from bench.figures import changed_choices
from bench.workloads import options

BRACKETED = (27, 41, 52)
"""More options than one alphabet of 26 labels has, and no more than 52 labels can stand for."""
ORDERED = 8
"""Options of a choice up to which all its rotations are asked."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate came to. `worst` and `mean` are total variations over `n` comparisons, `flips` changed answers."""

    gate: str
    law: str
    verdict: Literal["pass", "FAIL", "reported", "not run"]
    n: int = 0
    worst: float = 0.0
    mean: float = 0.0
    flips: int = 0
    limit: float | None = None
    why: str = ""


Pairs = Sequence[tuple[Body, Body]]


def verdict(gate: str, law: str, pairs: Pairs, limit: float | None) -> Verdict:
    """Compare pairs of answers that ought to be alike; no verdict without a limit."""
    if not pairs:
        return Verdict(gate, law, "not run", why="no such question in the cases")
    distances = [apart(one, other) for one, other in pairs]
    worst, flips = max(distances), sum(changed_choices(one, other) for one, other in pairs)
    held = worst <= (limit if limit is not None else 1)
    said: Literal["pass", "FAIL", "reported"] = "reported" if limit is None else "pass" if held else "FAIL"
    return Verdict(gate, law, said, len(pairs), worst, fmean(distances), flips, limit)


async def coherence(asker: Asker, cases: Sequence[Case]) -> Verdict:
    """Every answer is one: probabilities that sum to 1, the choice the most probable, the score the mean level."""
    law = "every answer is coherent by itself"
    broken: list[str] = []
    for case in cases:
        try:
            await asker.ask(case.request)
        except Refused as fault:
            broken.append(f"{case.id}: {fault}")
    return Verdict(
        "G1 coherence", law, "FAIL" if broken else "pass", len(cases), flips=len(broken), why="; ".join(broken[:3])
    )


async def determinism(asker: Asker, cases: Sequence[Case], limit: float) -> Verdict:
    """The same request three times: the same answers, to the last digit where `limit` is 0."""
    pairs = []
    for case in cases:
        first, *again = [await asker.ask(case.request) for _ in range(3)]
        pairs += [(first, other) for other in again]
    return verdict("G10 determinism", "the same request gets the same answers", pairs, limit)


async def permutation(asker: Asker, cases: Sequence[Case], limit: float) -> Verdict:
    """All rotations of a choice's options."""
    pairs: list[tuple[Body, Body]] = []
    for case in cases:
        for name, question in case.request["questions"].items():
            if question["type"] != "choice" or not 2 <= len(question["criteria"]) <= ORDERED:
                continue
            turned = [{"state": case.request["state"], "questions": {name: each}} for each in rotations(question)]
            first, *others = [await asker.ask(request) for request in turned]
            pairs += [(first, other) for other in others]
    debiased = asker.fields.get("debias") == "cyclic"
    law = "the order of options does not change an answer" + ("" if debiased else " (holds only with debias: cyclic)")
    return verdict("G6 permutation", law, pairs, limit if debiased else None)


def rotations(question: Body) -> list[Body]:
    """The choice with its options in every rotation."""
    pairs = list(question["criteria"].items())
    return [{**question, "criteria": dict(pairs[start:] + pairs[:start])} for start in range(len(pairs))]


async def isolation(asker: Asker, cases: Sequence[Case], limit: float) -> Verdict:
    """Each question alone, and among the others of its request."""
    pairs = []
    for case in cases:
        questions = case.request["questions"]
        if len(questions) < 2:
            continue
        joint = await asker.ask(case.request)
        for name, question in questions.items():
            alone = await asker.ask({**case.request, "questions": {name: question}})
            pairs.append((alone, {name: joint[name]}))
    return verdict("G7 isolation", "other questions do not change an answer", pairs, limit)


async def batching(asker: Asker, cases: Sequence[Case], limit: float, at_once: int = 16) -> Verdict:
    """Each request alone, and with fifteen others at the same time."""
    requests = [case.request for case in cases]
    alone = [await asker.ask(request) for request in requests]
    crowded = await asker.together(requests, at_once)
    law = f"{at_once - 1} requests at the same time do not change an answer"
    return verdict("G11 batch invariance", law, list(zip(alone, crowded, strict=True)), limit)


async def brackets(asker: Asker, cases: Sequence[Case]) -> Verdict:
    """A choice of more than 26 options in brackets, and in one read with labels for 52."""
    pairs = []
    for case in cases[:4]:
        for count in BRACKETED:
            question: Body = {"type": "choice", "instructions": "Which subject fits best?", "criteria": options(count)}
            request = {"state": case.request["state"], "questions": {"q": question}}
            bracketed = await asker.ask({**request, "labels": "az"})
            pairs.append((bracketed, await asker.ask({**request, "labels": "az_lower"})))
    law = "more than 26 options answer as one read of all would (the labels differ too)"
    return verdict("G8 brackets", law, pairs, None)


async def run_gates(
    asker: Asker, cases: Sequence[Case], limits: dict[str, float], tell: Callable[[str], None]
) -> list[Verdict]:
    """All gates on these cases. `limits` are total variations for `same`, `company` and `order`."""
    runs: dict[str, Callable[[], Awaitable[Verdict]]] = {
        "G1 coherence": lambda: coherence(asker, cases),
        "G6 permutation": lambda: permutation(asker, cases, limits["order"]),
        "G7 isolation": lambda: isolation(asker, cases, limits["company"]),
        "G8 brackets": lambda: brackets(asker, cases),
        "G10 determinism": lambda: determinism(asker, cases, limits["same"]),
        "G11 batch invariance": lambda: batching(asker, cases, limits["company"]),
    }
    found = []
    for name, run in runs.items():
        tell(name)
        try:
            found.append(await run())
        except Refused as fault:
            found.append(Verdict(name, "", "not run", why=f"the server answered {fault}"))
    return found
