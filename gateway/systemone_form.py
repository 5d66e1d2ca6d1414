"""The System One form: a checked body becomes a request, a decision becomes the answer's body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from decisions.errors import Fault, SchemaViolation
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
    Text,
)
from decisions.schema import capped

from .conditions import Answers, Asked, Conditions, conditional
from .forms import LEVELS, Report, WireRequest, extras, read_settings, said

DATA = "state"
"""The field of a body that the questions are about."""


def request_of(body: Mapping[str, Any], defaults: ReadSettings) -> WireRequest:
    """The request that a checked body spells. Raises `SchemaViolation` for questions that wait for the wrong ones."""
    questions = [_BUILDERS[given["type"]](key, given) for key, given in body["questions"].items()]
    conditions = _conditions(body)
    if faults := capped(conditions.faults()):
        raise SchemaViolation(faults)
    return WireRequest(
        model=body["model"],
        state=state_of(body),
        questions=conditions.on(questions),
        instructions=said(body.get("instructions")),
        settings=read_settings(body, defaults),
        diagnostics=bool(body.get("diagnostics")),
        hints=tuple(_hints(body)),
    )


def state_of(body: Mapping[str, Any]) -> Text:
    """The state of a checked body."""
    state: Text = body[DATA]
    return state


def condition_faults(body: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with what questions wait for, in any body."""
    yield from _conditions(body).faults()


def _conditions(body: Mapping[str, Any]) -> Conditions:
    questions = body.get("questions")
    if not isinstance(questions, dict) or not conditional(questions.values()):
        return Conditions()
    pairs = [(key, given if isinstance(given, dict) else {}) for key, given in questions.items()]
    return Conditions([Asked(key, key, given, _answers(given)) for key, given in pairs])


def _answers(given: Mapping[str, Any]) -> Answers | None:
    kind, criteria = given.get("type"), given.get("criteria")
    if kind == "noul":
        return {"yes": "yes", "no": "no"}
    if kind == "choice" and isinstance(criteria, dict):
        return {name: name for name in criteria}
    if kind == "score" and isinstance(criteria, list):
        return {level: level for level in LEVELS[: len(criteria)]}
    return None


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
    if decision.skipped:
        skipped = decision.skipped.items()
        body["x_skipped"] = {
            key: {"because": why.because, "was": why.was, "wanted": why.wanted} for key, why in skipped
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
