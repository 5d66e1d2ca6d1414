"""The figures of quality against hand-made answers, and the gates against servers that break one law each."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from bench.answers import apart, faults, top
from bench.asker import Asker, answered
from bench.cases import CASES, Case, read_cases
from bench.gates import Verdict, run_gates
from bench.intervals import bootstrap, over_repeats, percentile
from bench.openloop import Reply, Target
from bench.scores import Scored, auroc, brier, ece, ece_floor, level, mcnemar, paraphrases, scores
from tests.bench.doubles import Body, MemoryServer, reply, right_answers, virtually

LIMITS = {"same": 0.0, "company": 1e-3, "order": 1e-4}


def scored(shares: tuple[float, ...], gold: int, kind: str = "choice", **more: Any) -> Scored:
    """One answered question."""
    about: dict[str, Any] = {
        "case": "c",
        "question": "q",
        "suite": "s",
        "tier": "t",
        "group": "g",
        "seconds": 0.1,
    } | more
    return Scored(type=kind, shares=shares, gold=gold, **about)


def test_accuracy_brier_and_level_error() -> None:
    """By hand; an unreadable answer is wrong and in no mean of probabilities."""
    found = [scored((0.7, 0.2, 0.1), 0), scored((0.5, 0.5), 1), scored((), 0), scored((0.0, 0.5, 0.5), 2, "score")]
    figures = scores(found)

    assert (4, 1, 0.25) == (figures["n"], figures["unreadable"], figures["accuracy"])
    assert brier(found[0]) == pytest.approx(0.09 + 0.04 + 0.01)
    assert level((0.0, 0.5, 0.5)) == 1.5
    assert figures["level_error"] == pytest.approx(0.5)


def test_calibration_error_and_its_floor() -> None:
    """Answers right as often as they say stay near the floor; overconfident ones do not."""
    draw = random.Random(2)
    sure = [draw.uniform(0.5, 1.0) for _ in range(2000)]
    honest = ece(sure, [draw.random() < p for p in sure])

    assert ece([0.95] * 10, [True] * 5 + [False] * 5) == pytest.approx(0.45)
    assert honest < 2 * ece_floor(sure)
    assert ece(sure, [draw.random() < 0.5 for _ in sure]) > 5 * ece_floor(sure)
    assert ece_floor(sure[:20]) > ece_floor(sure)


def test_separation() -> None:
    """1 where every true one is higher, 0.5 by chance or all ties, NaN where there is nothing to separate."""
    assert auroc([0.9, 0.8, 0.2], [True, True, False]) == 1
    assert auroc([0.5, 0.5, 0.5], [True, False, False]) == 0.5
    assert auroc([0.1, 0.9], [True, False]) == 0
    assert math.isnan(auroc([0.1, 0.9], [True, True]))


def test_exact_mcnemar() -> None:
    """Only discordant pairs count; 0 of 8 is p = 2/256."""
    ours, theirs = [True] * 8 + [True, False], [False] * 8 + [True, False]

    assert mcnemar(ours, theirs) == (8, 0, 2 / 256)
    assert mcnemar(ours, ours) == (0, 0, 1.0)


def test_paraphrases() -> None:
    """One answer to both wordings, and both right; a question asked once is no group."""
    found = [scored((0.9, 0.1), 0, group="a"), scored((0.8, 0.2), 0, group="a")]
    found += [scored((0.9, 0.1), 1, group="b"), scored((0.1, 0.9), 1, group="b"), scored((1.0,), 0, group="c")]

    assert paraphrases(found) == {"groups": 2, "same_answer": 0.5, "same_and_right": 0.5}


def test_intervals() -> None:
    """Percentiles are values that occurred; Student's t by hand; a bootstrap interval holds the median."""
    assert [percentile(range(1, 101), share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([1.0, math.inf], 0.5) == 1.0
    assert over_repeats([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert over_repeats([1.0]) is over_repeats([1.0, math.inf]) is bootstrap([1.0]) is None
    low, high = bootstrap([float(value) for value in range(101)]) or (0, 0)
    assert 35 < low < 50 < high < 65


# --- Files ------------------------------------------------------------------------------------------------------------


def test_both_forms_of_a_file_are_read(tmp_path: Path) -> None:
    """A row of tests/cases, and JevBench's own items of each type."""
    item = {"id": "a", "tier": "hard", "family": "trap", "group": "g", "state": "s"}
    rows = [
        {**item, "question": {"type": "noul", "instructions": "?"}, "labels": ["no", "yes"], "expected": "yes"},
        {**item, "question": {"type": "score", "criteria": ["x", "y"]}, "expected": 1},
        {**item, "question": {"type": "choice", "criteria": {"x": None}}, "labels": ["x"], "expected": "x"},
    ]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    items = read_cases([tmp_path / "items.jsonl"])

    assert [{"decision": True}, {"decision": 1}, {"decision": "x"}] == [case.expected for case in items]
    assert ("trap", "hard", "g") == (items[0].suite, items[0].tier, items[0].group)
    assert len(read_cases([CASES / "a-jevbench.jsonl"])) == 60
    assert len({case.group for case in read_cases([CASES / "a-jevbench.jsonl"])}) == 48, "12 pairs"


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "a"}', '{"id": "a", "state": "", "question": {}, "expected": 1}'])
def test_another_file_is_refused_by_line(tmp_path: Path, text: str) -> None:
    """Which line it is."""
    (tmp_path / "x.jsonl").write_text(f"\n{text}", "utf-8")
    with pytest.raises(ValueError, match=r"x\.jsonl:2 is neither"):
        read_cases([tmp_path / "x.jsonl"])


# --- Asking -----------------------------------------------------------------------------------------------------------


def few() -> list[Case]:
    """Some cases of every kind."""
    return read_cases(sorted(CASES.glob("*.jsonl")), 1)


def gates_of(spoil: Any, **fields: Any) -> dict[str, Verdict]:
    """The verdicts on a server that answers rightly but for `spoil`."""

    async def run() -> list[Verdict]:
        asker = Asker(Target.at("double"), MemoryServer(spoil=spoil), fields=fields)
        return await run_gates(asker, few(), LIMITS, lambda _gate: None)

    return {verdict.gate.split()[0]: verdict for verdict in virtually(run())}


def failed(verdicts: dict[str, Verdict]) -> set[str]:
    """The gates that say FAIL."""
    return {gate for gate, verdict in verdicts.items() if verdict.verdict == "FAIL"}


def by_name(_number: int, body: Body, _right: Reply) -> Reply:
    """A server that keeps every law: probabilities depend on state, question and option alone."""
    answers = right_answers(body)
    for name, question in body["questions"].items():
        if question["type"] == "choice":
            weights = {option: random.Random(str(body["state"]) + option).random() for option in question["criteria"]}
            shares = {option: weight / sum(weights.values()) for option, weight in weights.items()}
            answers[name] |= {"probabilities": shares, "choice": max(shares, key=shares.__getitem__)}
    return reply(answers)


def test_a_lawful_server_passes_every_gate() -> None:
    """Nothing fails, and order has a verdict where it is debiased."""
    verdicts = gates_of(by_name, debias="cyclic")

    assert failed(verdicts) == set()
    assert [verdicts[gate].verdict for gate in ("G1", "G6", "G7", "G10", "G11")] == ["pass"] * 5
    assert verdicts["G8"].verdict == "reported"


def test_an_answer_by_place_fails_permutation_only_under_debias() -> None:
    """Without it the flips are reported: no law is broken."""
    by_place = lambda _number, _body, right: right  # noqa: E731 - the double's own answers go by place

    assert failed(gates_of(by_place, debias="cyclic")) == {"G6"}
    assert failed(gates_of(by_place)) == set()
    assert gates_of(by_place)["G6"].flips > 0


def test_answers_that_depend_on_company_fail_isolation() -> None:
    """A noul moves with the number of questions."""

    def coupled(_number: int, body: Body, _right: Reply) -> Reply:
        answers = right_answers(body)
        for answer in answers.values():
            if answer["type"] == "noul":
                answer["noul"] /= len(answers)
        return reply(answers)

    assert failed(gates_of(coupled)) == {"G7"}


def test_answers_that_move_fail_determinism() -> None:
    """Every answer a little different from the last one."""
    noise = random.Random(1)

    def noisy(_number: int, body: Body, right: Reply) -> Reply:
        answers = right_answers(body)
        for answer in answers.values():
            if answer["type"] == "noul":
                answer["noul"] = min(1.0, answer["noul"] + 1e-5 * noise.random())
        return reply(answers)

    assert failed(gates_of(noisy)) == {"G10"}


def test_what_a_server_refuses_is_not_run_with_the_reason() -> None:
    """No `labels`: the gate of brackets is not run; the others are."""
    refusal = Reply(422, b"labels: unknown field", {})
    verdicts = gates_of(lambda _n, body, right: refusal if "labels" in body else right)

    assert verdicts["G8"].verdict == "not run"
    assert "labels: unknown field" in verdicts["G8"].why
    assert failed(verdicts) == set()


def test_every_known_answer_is_scored_once() -> None:
    """Refusals too, as wrong."""
    cases = few()

    async def run() -> list[Scored]:
        refuse = lambda number, _body, right: Reply(529, b"", {}) if number == 0 else right  # noqa: E731
        return await answered(Asker(Target.at("double"), MemoryServer(spoil=refuse)), cases)

    found = virtually(run())

    assert len(found) == sum(len(case.expected) for case in cases)
    assert [one.fault for one in found if one.fault] == ["status 529"] * len(cases[0].expected)
    assert all(0 <= one.gold < len(one.shares) for one in found if one.shares)


def test_answers_are_compared_by_name() -> None:
    """The order of options in an answer is the server's own affair."""
    one = {"q": {"type": "choice", "probabilities": {"a": 0.7, "b": 0.3}}}
    other = {"q": {"type": "choice", "probabilities": {"b": 0.3, "a": 0.7}}}

    assert (0, "a", "a") == (apart(one, other), top(one["q"]), top(other["q"]))
    assert apart(one, {"q": {"type": "noul", "noul": 0.7}}) == apart(one, {}) == 1.0
    assert faults({"questions": {}}, None) == ["no answers"]
