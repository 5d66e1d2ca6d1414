"""`python -m bench quality` and `python -m bench jev`: whether answers are lawful, and whether they are right."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench import record
from bench.asker import Asker, answered
from bench.cases import CASES, Case, read_cases
from bench.commands.asking import CONSOLE, FIELDS, KEY, MODEL, OUT, TIMEOUT, URL, described, posting, telling
from bench.gates import Verdict, run_gates
from bench.report import milliseconds
from bench.scores import Row, Scored, by, mcnemar, paraphrases, scores

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
AGAINST = click.option("--against", type=FILE, help="A result of the same questions, for a paired comparison.")
SHOWN = ("accuracy", "brier", "nll", "ece", "ece_floor", "auroc_yes", "auroc_right", "level_error")


@click.command()
@URL
@KEY
@click.option("--cases", "paths", type=FILE, multiple=True, help="Case files.  [default: all of tests/cases]")
@click.option("--limit", type=int, help="At most so many cases per file, spread evenly.")
@click.option("--gate-cases", default=3, show_default=True, help="Cases per file for the gates; 0 leaves gates out.")
@click.option("--same", default=0.0, show_default=True, help="G10: how far two answers to one request may be apart.")
@click.option("--company", default=1e-3, show_default=True, help="G7, G11: the same beside other questions, requests.")
@click.option("--order", default=1e-4, show_default=True, help="G6 under debias: the same for orders of options.")
@AGAINST
@FIELDS
@MODEL
@TIMEOUT
@OUT
def quality(url: str, key: str | None, **given: Any) -> None:
    """Check the laws that hold without knowing the right answers, then score answers against known ones.

    Distances are total variations. Ends with 1 where a gate fails; accuracy is reported, never a verdict.

    \b
    Examples:
      python -m bench quality --url http://127.0.0.1:8080 --out today.json
      python -m bench quality --url http://127.0.0.1:8080 --fields '{"debias": "cyclic"}' --against today.json
    """
    paths = given["paths"] or tuple(sorted(CASES.glob("*.jsonl")))
    limits = {name: given[name] for name in ("same", "company", "order")}
    cases = cases_or_exit(paths, given["limit"])
    few = cases_or_exit(paths, given["gate_cases"]) if given["gate_cases"] else []
    verdicts, found = asyncio.run(measured(url, key, given, cases, few, limits))
    if verdicts:
        CONSOLE.print(gate_table(verdicts))
    finish(url, found, given, {"gates": [asdict(one) for one in verdicts]}, {"suite": lambda one: one.suite})
    if any(one.verdict == "FAIL" for one in verdicts):
        raise SystemExit(1)


@click.command()
@click.argument("file", type=FILE)
@URL
@KEY
@click.option("--limit", type=int, help="At most so many items, spread evenly.")
@AGAINST
@FIELDS
@MODEL
@TIMEOUT
@OUT
def jev(file: Path, url: str, key: str | None, **given: Any) -> None:
    """Run a file of JevBench items (or of tests/cases) one request at a time, with figures per tier and type.

    These are figures of the items in the file; they are no JevBench Score, which needs its hidden items.

    \b
    Example:
      python -m bench jev tests/cases/a-jevbench.jsonl --url http://127.0.0.1:8080 --out jev.json
    """
    cases = cases_or_exit([file], given["limit"])
    _, found = asyncio.run(measured(url, key, given, cases, [], {}))
    finish(url, found, given, {"file": str(file)}, {"tier": lambda one: one.tier, "type": lambda one: one.type})


def cases_or_exit(paths: Sequence[Path], limit: int | None) -> list[Case]:
    """The cases of these files."""
    try:
        cases = read_cases(paths, limit)
    except ValueError as fault:
        raise click.ClickException(str(fault)) from fault
    if not cases:
        raise click.ClickException("no cases in these files")
    return cases


async def measured(  # noqa: PLR0913, PLR0917 - the two commands' common work
    url: str, key: str | None, given: Row, cases: Sequence[Case], few: Sequence[Case], limits: dict[str, float]
) -> tuple[list[Verdict], list[Scored]]:
    """Gates on a few cases, and every question answered."""
    target, pool = posting(url, key, given["timeout"])
    asker = Asker(target, pool.exchange, given["model"], given["fields"])
    with telling() as tell:
        verdicts = await run_gates(asker, few, limits, lambda gate: tell.begin(gate, 1)) if few else []
        tell.begin("questions", len(cases))
        found = await answered(asker, cases, tell.step)
    await pool.close()
    return verdicts, found


def finish(url: str, found: Sequence[Scored], given: Row, more: Row, parts: dict[str, Any]) -> None:
    """Show the figures by part, compare with an earlier run, and write the result."""
    if not any(one.shares for one in found):
        raise click.ClickException(f"no answer could be read; the first: {found[0].fault}")
    tables = {name: by(found, part) for name, part in parts.items()} | {"all": {"": scores(found)}}
    CONSOLE.print(score_table(tables))
    if same := paraphrases(found):
        CONSOLE.print(
            f"paraphrases: {same['groups']} groups, the same answer in {same['same_answer']:.1%}, "
            f"the same and right in {same['same_and_right']:.1%}"
        )
    result = described(url) | more | {"scores": tables, "paraphrases": same, "rows": [one.row() for one in found]}
    result["fields"] = given["fields"]
    if given["against"]:
        result["against"] = compared(found, given["against"])
        CONSOLE.print(result["against"]["said"])
    if given["out"]:
        record.write(given["out"], result)


def compared(found: Sequence[Scored], path: Path) -> Row:
    """Exact McNemar over the questions that both runs hold."""
    earlier = {(row["case"], row["question"]): row for row in json.loads(path.read_text("utf-8"))["rows"]}
    both = [one for one in found if (one.case, one.question) in earlier]
    if not both:
        raise click.ClickException(f"{path} holds none of these questions")
    theirs = [bool(earlier[one.case, one.question]["right"]) for one in both]
    better, worse, p = mcnemar([one.right for one in both], theirs)
    said = (
        f"against {path.name}: of {len(both)} questions {better} are right only now and {worse} only there, "
        f"p = {p:.3g} (exact McNemar)"
    )
    return {"file": str(path), "n": len(both), "only_now": better, "only_there": worse, "p": p, "said": said}


def gate_table(verdicts: Sequence[Verdict]) -> Table:
    """A row per gate."""
    table = Table("gate", "", "n", "worst", "mean", "flips", "limit", "law", box=None, header_style="bold")
    for one in verdicts:
        numbers = (f"{one.worst:.2g}", f"{one.mean:.2g}", str(one.flips)) if one.n else ("-", "-", "-")
        limit = "-" if one.limit is None else f"{one.limit:g}"
        table.add_row(one.gate, one.verdict, str(one.n), *numbers, limit, "; ".join(filter(None, (one.law, one.why))))
    return table


def score_table(tables: dict[str, dict[str, Row]]) -> Table:
    """A row per part."""
    heads = [name.replace("_", " ") for name in SHOWN]
    table = Table("", "n", "unread", *heads, "p50 ms", "p95 ms", box=None, header_style="bold")
    for name, parts in tables.items():
        for part, row in parts.items():
            figures = [shown(row.get(each)) for each in SHOWN]
            times = [milliseconds(row[each]) for each in ("p50_s", "p95_s")]
            table.add_row(f"{name} {part}".strip(), str(row["n"]), str(row["unreadable"]), *figures, *times)
    return table


def shown(value: float | None) -> str:
    """A figure, or a dash where it has no meaning."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"
