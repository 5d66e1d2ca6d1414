"""Which label form, wording and content-free prior answer best on a model: `python -m bench.label_forms`.

Every variant answers the same questions with next-token reads on the reference engine. The variant is chosen on one
half of the rows (by a hash of their ids) and reported on the other half, against the first variant, with exact
McNemar counts. A prior is the mean distribution over labels for content-free states, per question type and number of
options; an answer's log-probabilities are lowered by `alpha` times its logarithm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from bench.scores import mcnemar
from decisions import prompt
from decisions.distribution import from_logprobs, softmax
from decisions.labels import AnswerForm
from decisions.plan import Planner
from decisions.protocol import (
    ChoiceQuestion,
    DecisionRequest,
    NoulQuestion,
    Option,
    Question,
    ReadSettings,
    ScoreQuestion,
    Text,
    answer_names,
)
from decisions.reads import Ticket
from gateway.config import load
from gateway.engines.reference import ReferenceEngine, open_reference
from gateway.wire import ServedNames, ShapeLimits, Wire

CASES = Path("tests/cases")
OWN = Path("bench/cases/own-small.jsonl")
NOTHING = ("N/A", "", "[no text]")
"""Content-free states."""
MOST_OPTIONS = 26
ALPHAS = (0.0, 0.5, 1.0)
RESULTS = Path("bench/results/label_forms.json")


def plain_line(label: str, option: Option) -> str:
    """`A. name: description`."""
    text = ": ".join(prompt.as_text(part) for part in (option.name, option.description) if part)
    return f"{label}. {text}" if text and text != label else label


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to ask; what it names in `wording` replaces that of `decisions.prompt`."""

    name: str
    form: AnswerForm
    wording: dict[str, Any] = field(default_factory=dict)


BARE = AnswerForm(yes="Yes", no="No")
LED = AnswerForm(lead="Answer:", space=" ", yes="Yes", no="No")
VARIANTS = (
    Variant("bare, Yes/No", BARE),
    Variant("bare, yes/no", AnswerForm()),
    Variant("led, yes/no", AnswerForm(lead="Answer:", space=" ")),
    Variant("led, Yes/No", LED),
    Variant("bare, no reply line", BARE, {"REPLY": ""}),
    Variant("bare, A. name: description", BARE, {"option_line": plain_line}),
    Variant("bare, quoted state", BARE, {"STATE_OPEN": 'Text:\n"""\n', "STATE_CLOSE": '\n"""\n\n'}),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One question of a case, with the index of its right answer."""

    suite: str
    key: str
    request: DecisionRequest
    gold: int

    @property
    def chosen_on(self) -> bool:
        """Whether the row belongs to the half on which a variant is chosen."""
        return blake2b(self.key.encode(), digest_size=1).digest()[0] % 2 == 0


def rows(paths: Iterable[Path], limit: int) -> list[Row]:
    """Up to `limit` questions per file, those of at most 26 options."""
    wire = Wire(ShapeLimits(), ReadSettings(), ServedNames("model"))
    found = []
    for path in paths:
        lines = [line for line in path.read_text("utf-8").split("\n") if line.strip()]
        mine = [row for line in lines for row in questions_of(wire, json.loads(line), path.stem)]
        found += mine[:: max(1, len(mine) // limit)][:limit]
    return found


def questions_of(wire: Wire, case: dict[str, Any], suite: str) -> list[Row]:
    """The questions of one case, each as a request of its own."""
    request = wire.parse_systemone(json.dumps({"model": "jev-latest", **case["request"]}).encode())
    found = []
    for question in request.questions:
        expected = case["expected"].get(question.id)
        if expected is None or len(answer_names(question)) > MOST_OPTIONS:
            continue
        gold = (0 if expected else 1) if isinstance(question, NoulQuestion) else index_of(question, expected)
        alone = DecisionRequest(model="m", state=request.state, questions=(question,))
        found.append(Row(suite, f"{case['id']}/{question.id}", alone, gold))
    return found


def index_of(question: Question, expected: object) -> int:
    """The place of the right answer among the question's answers."""
    return answer_names(question).index(str(expected))


class Reader:
    """Reads questions in one variant."""

    def __init__(self, engine: ReferenceEngine, variant: Variant) -> None:
        self.engine = engine
        self.planner = Planner(engine.tokenizer, engine.limits, variant.form)
        self.priors: dict[tuple[str, int], tuple[float, ...]] = {}

    async def logprobs(self, request: DecisionRequest) -> tuple[float, ...]:
        """The labels' log-probabilities of a one-question request."""
        plan = self.planner.plan(request)
        readouts = await self.engine.read(plan.next_reads(), Ticket("bench", plan.cost, math.inf))
        return readouts[0].logprobs[0]

    async def prior(self, question: Question) -> tuple[float, ...]:
        """Log of the mean distribution over the labels, for content-free states and placeholder options."""
        key = (type(question).__name__, len(answer_names(question)))
        if key not in self.priors:
            empty = content_free(question)
            read = [
                await self.logprobs(DecisionRequest(model="m", state=state, questions=(empty,))) for state in NOTHING
            ]
            columns = zip(*(softmax(logprobs) for logprobs in read), strict=True)
            self.priors[key] = tuple(math.log(sum(column) / len(NOTHING)) for column in columns)
        return self.priors[key]


def content_free(question: Question) -> Question:
    """A question of the same type and size that asks nothing."""
    if isinstance(question, NoulQuestion):
        return NoulQuestion(id="q", instructions="Yes or no?")
    if isinstance(question, ChoiceQuestion):
        options = tuple(Option(f"option {number}") for number in range(1, len(question.options) + 1))
        return ChoiceQuestion(id="q", instructions="Which option?", options=options)
    levels: tuple[Text, ...] = tuple(f"level {number}" for number in range(1, len(question.levels) + 1))
    return ScoreQuestion(id="q", instructions="Which level?", levels=levels)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a variant answered to one row, with and without the prior."""

    row: Row
    mass: float
    first: bool
    right: dict[float, bool]
    loss: dict[float, float]


async def run(engine: ReferenceEngine, variant: Variant, asked: Sequence[Row]) -> list[Seen]:
    """Answer all rows in one variant."""
    reader, seen = Reader(engine, variant), []
    for row in asked:
        question = row.request.questions[0]
        logprobs, prior = await reader.logprobs(row.request), await reader.prior(question)
        right, loss = {}, {}
        for alpha in ALPHAS:
            shares = softmax([value - alpha * lower for value, lower in zip(logprobs, prior, strict=True)])
            right[alpha] = shares.index(max(shares)) == row.gold
            loss[alpha] = -math.log(shares[row.gold])
        raw = from_logprobs(logprobs)
        seen.append(Seen(row, raw.label_mass, raw.top == 0, right, loss))
    return seen


def summary(name: str, alpha: float, seen: Sequence[Seen], base: Sequence[Seen]) -> dict[str, Any]:
    """A row of the table: the choosing half's loss, and the other half's figures."""
    chosen = [one for one in seen if one.row.chosen_on]
    pairs = [(one, other) for one, other in zip(seen, base, strict=True) if not one.row.chosen_on]
    held = [one for one, _ in pairs]
    suites: dict[str, list[bool]] = defaultdict(list)
    for one in seen:
        suites[one.row.suite].append(one.right[alpha])
    return {
        "variant": name,
        "alpha": alpha,
        "loss_chosen_on": mean(one.loss[alpha] for one in chosen),
        "n": len(held),
        "accuracy": mean(one.right[alpha] for one in held),
        "loss": mean(one.loss[alpha] for one in held),
        "label_mass": mean(one.mass for one in held),
        "first_chosen": mean(one.first for one in held),
        "p": mcnemar([one.right[alpha] for one in held], [other.right[0.0] for _, other in pairs])[2],
        "suites": {suite: f"{sum(right)}/{len(right)}" for suite, right in suites.items()},
    }


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean."""
    listed = list(values)
    return round(math.fsum(listed) / len(listed), 4)


async def compare(asked: Sequence[Row], variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """The variants, printed as they come."""
    engine = await open_reference(load(), print)
    table: list[dict[str, Any]] = []
    base: list[Seen] = []
    for variant in variants:
        with pytest.MonkeyPatch.context() as patch:
            for name, words in variant.wording.items():
                patch.setattr(prompt, name, words)
            seen = await run(engine, variant, asked)
        base = base or seen
        for alpha in ALPHAS:
            table.append(summary(variant.name, alpha, seen, base))
            print(json.dumps(table[-1]), flush=True)
    await engine.close()
    return table


def main() -> None:
    """Compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=40, help="questions per file")
    parser.add_argument("--variants", type=int, default=len(VARIANTS), help="how many of them, from the first")
    given = parser.parse_args()
    asked = rows([*sorted(CASES.glob("*.jsonl")), OWN], given.limit)
    guessing = mean(1 / len(answer_names(row.request.questions[0])) for row in asked)
    print(f"{len(asked)} questions, {sum(row.chosen_on for row in asked)} to choose on; guessing gets {guessing}")
    table = asyncio.run(compare(asked, VARIANTS[: given.variants]))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"questions": len(asked), "guessing": guessing, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
