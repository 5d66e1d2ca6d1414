"""Asks a running gateway from the command line, and shows its answers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .given import AskError

BAR = 20
"""Characters of a probability bar at 1.0."""


def noul(text: str) -> dict[str, Any]:
    """A yes/no question from its words."""
    return {"type": "noul", "instructions": text}


def choice(text: str) -> dict[str, Any]:
    """A choice from `question | option: description | option`."""
    question, options = _parts(text, "choice", "Which team? | billing: Invoices, refunds | technical | sales")
    pairs = (option.partition(":") for option in options)
    return {
        "type": "choice",
        "instructions": question,
        "criteria": {name.strip(): description.strip() or None for name, _, description in pairs},
    }


def score(text: str) -> dict[str, Any]:
    """A score from `question | lowest level | ... | highest level`."""
    question, levels = _parts(text, "score", "How angry is the customer? | Calm | Annoyed | Furious")
    return {"type": "score", "instructions": question, "criteria": levels}


def _parts(text: str, kind: str, example: str) -> tuple[str, list[str]]:
    question, *rest = [part.strip() for part in text.split("|")]
    if not rest:
        raise AskError(f"A {kind} needs answers behind its question, for example: --{kind} '{example}'")
    return question, rest


def headers(key: str | None) -> dict[str, str]:
    """What a caller with this key sends."""
    return {"authorization": f"Bearer {key}"} if key else {}


def ask(url: str, key: str | None, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Post one request; `timeout` in seconds. Raises `AskError` when there is no answer or it is an error."""
    target = f"{url.rstrip('/')}/v1/systemone"
    try:
        response = httpx.post(target, json=body, headers=headers(key), timeout=timeout)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise AskError(f"{target} did not answer ({error}). Is `canvasgate serve` running there?") from error
    if response.status_code != httpx.codes.OK:
        raise AskError(f"{target} answered {response.status_code}: {reason(response)}")
    return decided(response, target)


def decided(response: httpx.Response, target: str) -> dict[str, Any]:
    """The answer, where it is one: any server may stand behind a URL."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict) or not {"model", "answers", "usage"} <= body.keys():
        raise AskError(f"{target} answered, but not with decisions. Is it a gateway?")
    return body


def reason(response: httpx.Response) -> str:
    """The gateway's own words about an error."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return response.text[:300]
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(str(step) for step in fault['loc'][1:])}: {fault['msg']}" for fault in detail)
    return str(detail.get("message", detail)) if isinstance(detail, dict) else str(detail)


def show(decided: dict[str, Any], console: Console) -> None:
    """Print the answers, a row per question and a bar per possible answer."""
    table = Table(title=f"answered by {decided['model']}", show_lines=True)
    for column in ("question", "answer", "confidence", "probabilities"):
        table.add_column(column, overflow="fold")
    for name, answer in decided["answers"].items():
        table.add_row(Text(name), *_cells(answer))
    for name, why in decided.get("x_skipped", {}).items():
        was = f"was {why['was']}" if why["was"] is not None else "was not asked either"
        table.add_row(Text(name), Text("not asked"), Text(""), Text(f"{why['because']} {was}"))
    console.print(table)
    usage = decided["usage"]
    console.print(f"{usage['input_tokens']} tokens read, {len(decided['answers'])} questions answered")


def show_stats(told: dict[str, Any], seconds: float, console: Console) -> None:
    """Print what a decision took: `seconds` as seen here, and the gateway's diagnostics."""
    seen = told["x_diagnostics"]
    tokens, spent = seen["tokens"], seen["seconds"]
    name = f"template {seen['template']}, " if "template" in seen else ""
    queue, engine = spent["queue"] * 1000, spent["engine"] * 1000
    console.print(
        f"{name}{seconds * 1000:.0f} ms in all ({queue:.0f} in the queue, {engine:.0f} in the engine), "
        f"{seen['reads']} reads in {seen['rounds']} rounds, {tokens['computed']} tokens computed, "
        f"{tokens['cached']} cached",
        highlight=False,
    )


def _cells(answer: dict[str, Any]) -> tuple[Text, Text, Text]:
    if answer["type"] == "noul":
        shares = [("yes", answer["noul"]), ("no", 1 - answer["noul"])]
        return Text("yes" if answer["noul"] >= 0.5 else "no"), Text(""), _bars(shares)
    confidence = Text(f"{answer['confidence']:.2f}")
    shares = list(answer["probabilities"].items())
    if answer["type"] == "choice":
        return Text(answer["choice"]), confidence, _bars(shares)
    named = [(f"{level} {answer['legend'][level]}", share) for level, share in shares]
    return Text(f"{answer['score']:.2f}"), confidence, _bars(named)


def _bars(shares: Sequence[tuple[str, float]]) -> Text:
    width = max(len(name) for name, _ in shares)
    best = max(share for _, share in shares)
    bars = Text()
    for index, (name, share) in enumerate(shares):
        line = f"{name:<{width}} {share:6.1%} {'█' * round(share * BAR)}"
        bars.append(("\n" if index else "") + line, style="bold green" if share == best else "dim")
    return bars
