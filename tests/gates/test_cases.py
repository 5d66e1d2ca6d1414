"""Every real request of the case files gets a valid, coherent answer (G1-G5)."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from decisions.reads import EngineLimits
from decisions.schema import load_schema
from tests.gates.asking import AUTOREGRESSIVE, CANVAS, CASES, cases, stub
from tests.gates.checks import check_response

FILES = sorted(path.stem for path in CASES.glob("*.jsonl"))
RESPONSE = jsonschema.Draft7Validator(load_schema("systemone.response"))


def test_all_cases_are_here() -> None:
    """266 requests with 666 questions, as their README says."""
    rows = cases()

    assert (len(rows), sum(len(row["request"]["questions"]) for row in rows)) == (266, 666)


@pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE], ids=["canvas", "next-token"])
@pytest.mark.parametrize("file", FILES)
def test_every_row_is_answered(file: str, limits: EngineLimits) -> None:
    """G1, G2, G4 and the response schema (G5), also for 77 and 151 options."""
    desk = stub(limits)
    for row in cases(file):
        response = desk.ask(row["request"])
        check_response(row["request"], response)
        RESPONSE.validate(response)


@pytest.mark.parametrize("limits", [CANVAS, AUTOREGRESSIVE], ids=["canvas", "next-token"])
def test_the_same_request_has_the_same_body(limits: EngineLimits) -> None:
    """G10: byte by byte, from an engine that was made anew."""
    for row in cases()[::20]:
        assert stub(limits).ask(row["request"]) == stub(limits).ask(row["request"])


def test_the_case_files_are_what_was_given() -> None:
    """One JSON object a line, U+2028 and the like inside strings only."""
    for file in sorted(Path(CASES).glob("*.jsonl")):
        lines = file.read_text("utf-8").split("\n")
        assert all(isinstance(json.loads(line), dict) for line in lines if line)
