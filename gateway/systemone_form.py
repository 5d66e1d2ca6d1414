"""The System One form: a checked body becomes a request, a decision becomes the answer's body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from decisions.hints import NOUL_CRITERIA, SYSTEM_ONE, SYSTEM_ONE_QUESTION, Hint
from decisions.protocol import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    Decision,
    NoulAnswer,
    NoulQuestion,
    Option,
    Question,
    ReadSettings,
    ScoreQuestion,
)

from .forms import Report, WireRequest, extras, read_settings, said

LEVELS = tuple(str(level) for level in range(32))
"""Level numbers as JSON keys."""


def request_of(body: Mapping[str, Any], defaults: ReadSettings) -> WireRequest:
    """The request that a checked body spells."""
    return WireRequest(
        model=body["model"],
        state=body["state"],
        questions=tuple([_BUILDERS[given["type"]](key, given) for key, given in body["questions"].items()]),
        instructions=said(body.get("instructions")),
        settings=read_settings(body, defaults),
        diagnostics=bool(body.get("diagnostics")),
        hints=tuple(_hints(body)),
    )


def _noul(key: str, given: Mapping[str, Any]) -> Question:
    criteria = given.get("criteria") or {}
    return NoulQuestion(
        id=key,
        instructions=said(given.get("instructions")),
        alone=given.get("alone"),
        true=said(criteria.get("true")),
        false=said(criteria.get("false")),
    )


def _choice(key: str, given: Mapping[str, Any]) -> Question:
    return ChoiceQuestion(
        id=key,
        instructions=said(given.get("instructions")),
        alone=given.get("alone"),
        options=tuple([Option(name, description) for name, description in given["criteria"].items()]),
    )


def _score(key: str, given: Mapping[str, Any]) -> Question:
    return ScoreQuestion(
        id=key,
        instructions=said(given.get("instructions")),
        alone=given.get("alone"),
        levels=tuple(given["criteria"]),
    )


_BUILDERS: Mapping[str, Callable[[str, Mapping[str, Any]], Question]] = {
    "noul": _noul,
    "choice": _choice,
    "score": _score,
}


def _hints(body: Mapping[str, Any]) -> Iterator[Hint]:
    """Likely mistakes of an accepted body, in its order."""
    yield from SYSTEM_ONE.hints(body, ("body",))
    known = SYSTEM_ONE_QUESTION.known
    for key, question in body["questions"].items():
        if not question.keys() <= known:
            yield from SYSTEM_ONE_QUESTION.hints(question, ("body", "questions", key))
        if question["type"] == "noul" and question.get("criteria"):
            yield from NOUL_CRITERIA.hints(question["criteria"], ("body", "questions", key, "criteria"))


def body_of(model: str, request: WireRequest, decision: Decision, report: Report | None) -> dict[str, Any]:
    """The answer's body; answers stand in request order, and probabilities are not rounded."""
    usage = decision.usage
    body = {
        "model": model,
        "answers": {key: _answer(answer) for key, answer in decision.answers.items()},
        "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
    }
    return body | extras(request, decision, report) if request.hints or request.diagnostics else body


def _answer(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, NoulAnswer):
        return {"type": "noul", "noul": answer.noul}
    if isinstance(answer, ChoiceAnswer):
        return {
            "type": "choice",
            "choice": answer.choice,
            "confidence": answer.confidence,
            "probabilities": dict(answer.probabilities),
        }
    return {
        "type": "score",
        "score": answer.score,
        "confidence": answer.confidence,
        "legend": dict(zip(LEVELS, answer.legend, strict=False)),
        "probabilities": dict(zip(LEVELS, answer.probabilities, strict=False)),
    }
