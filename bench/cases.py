"""Reads questions with known answers, in the form of `tests/cases` or of JevBench items."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Body = dict[str, Any]

CASES = Path(__file__).parent.parent / "tests" / "cases"


@dataclass(frozen=True, slots=True)
class Case:
    """One request without its `model`, and the right answer by question: an option, true or false, or a level.

    Cases of one `group` say the same in other words.
    """

    id: str
    suite: str
    tier: str
    group: str
    request: Body
    expected: Body


def read_cases(paths: Iterable[Path], limit: int | None = None) -> list[Case]:
    """All cases of the files, or up to `limit` of each, spread evenly. Raises `ValueError` naming file and line."""
    found: list[Case] = []
    for path in paths:
        cases = list(_read(path))
        step = max(1, len(cases) // limit) if limit else 1
        found += cases[::step][:limit]
    return found


def _read(path: Path) -> Iterator[Case]:
    # Not splitlines(): a text may hold other line separators.
    for number, line in enumerate(path.read_text("utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield _case(row) if "request" in row else _item(row)
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise ValueError(f"{path}:{number} is neither a case nor a JevBench item: {fault!r}") from fault


def _case(row: Body) -> Case:
    """A row of `tests/cases`; its first tag is its tier. Ids that differ in a last figure of their own are a group."""
    tier = (row.get("tags") or [""])[0]
    return Case(row["id"], row.get("suite", ""), tier, re.sub(r"-\d$", "", row["id"]), row["request"], row["expected"])


def _item(row: Body) -> Case:
    """A JevBench item: one question, its right answer a label or, for a score, a level."""
    question, expected = dict(row["question"]), row["expected"]
    if question["type"] == "noul" and isinstance(expected, str):
        if expected not in {"yes", "no"}:
            raise ValueError(f"expected is {expected!r}, not yes or no")
        expected = expected == "yes"
    elif question["type"] == "score":
        expected = int(expected)
    elif question["type"] == "choice" and expected not in question["criteria"]:
        raise ValueError(f"expected {expected!r} is no option")
    request = {"state": row["state"], "questions": {"decision": question}}
    group = row.get("group") or row["id"]
    return Case(row["id"], row.get("family", "jevbench"), row.get("tier", ""), group, request, {"decision": expected})
