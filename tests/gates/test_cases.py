"""Every real request of the case files gets a valid, coherent answer on the stub (G1, G2, G4, G5)."""

from __future__ import annotations

import pytest

from decisions.reads import EngineLimits
from tests.gates.asking import AUTOREGRESSIVE, CANVAS, CASES, Body, cases, stub
from tests.gates.checks import check_response

FILES = sorted(path.stem for path in CASES.glob("*.jsonl"))
NARROW = EngineLimits(CANVAS.context, canvas=32, slots=3, reads=64)
ENGINES = pytest.mark.parametrize("limits", [CANVAS, NARROW, AUTOREGRESSIVE], ids=["canvas", "narrow", "next-token"])


def test_all_cases_are_here() -> None:
    """266 requests with 666 questions, as their README says; 77 and 151 options among them."""
    rows = cases()
    wide = {len(q["criteria"]) for row in rows for q in row["request"]["questions"].values() if q["type"] == "choice"}

    assert (len(rows), sum(len(row["request"]["questions"]) for row in rows)) == (266, 666)
    assert {26, 27, 77, 151} <= wide


@ENGINES
@pytest.mark.parametrize("file", FILES)
def test_every_row_is_answered(file: str, limits: EngineLimits) -> None:
    """G1, G2, G4, G5, also for 77 and 151 options."""
    desk = stub(limits)
    for row in cases(file):
        check_response(row["request"], desk.ask(row["request"]))


@pytest.mark.parametrize("settings", [{"isolate": "all", "layout": "schema_first"}, {"samples": 3, "debias": "auto"}])
def test_rows_are_answered_in_other_ways_of_reading(settings: Body) -> None:
    """G1, G2, G4, G5 hold whatever a request asks of the planner."""
    desk = stub(slot_bias=1.0, coupling=1.0, noise=1.0)
    for row in cases()[::9]:
        asked = {**row["request"], **settings, "diagnostics": True}
        check_response(asked, desk.ask(asked))
