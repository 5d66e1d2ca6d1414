"""What both forms of a request have in common: the parsed request with its hints, and how its settings are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from decisions.hints import Hint
from decisions.protocol import (
    Debias,
    Decision,
    DecisionRequest,
    Isolation,
    LabelSet,
    Layout,
    QuestionTrace,
    ReadSettings,
    SeedToken,
    Temperatures,
    Text,
)

COLDEST = 1e-6
"""Lower temperatures are raised to this one: the answer is the same, and dividing by them would overflow."""
LEVELS = tuple(str(level) for level in range(32))
"""Level numbers as texts: JSON keys, and answers of a score."""
MAX_STEPS = 8
"""Denoising steps that a request may ask for."""
MAX_THOUGHT = 4096
"""Tokens of a thought that a request may ask for."""
_SAID = re.compile("[^\\s\u200b-\u200f\u2060\ufeff]")
_SETTINGS = frozenset(
    {"isolate", "layout", "debias", "samples", "seed", "seed_token", "labels", "steps", "think", "temperature"}
)


@dataclass(frozen=True, slots=True)
class Spelling:
    """How one question of the OpenAI form spells its name and its option values or level labels in the answer."""

    name: str | None
    values: tuple[str | bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest(DecisionRequest):
    """A request as it came over the wire: what decides nothing, but belongs to its answer, stands beside it."""

    hints: tuple[Hint, ...] = ()
    spellings: tuple[Spelling, ...] | None = None
    """One per question where the request came in the OpenAI form, so that its answer goes out in it."""
    template: str | None = None
    """Name and version of the template that it came from, if any."""
    expanded: bytes | None = None
    """The body that the template and its variables stand for; None where the request named no template."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer's diagnostics tell beside the decision: what answered, and how many seconds it took."""

    fingerprint: Mapping[str, Any]
    """Everything that two equal requests must share to have equal answers: model, revision, prompt, canvas."""
    queue_seconds: float = 0.0
    engine_seconds: float = 0.0
    joined: bool = False
    """Whether the decision was made for an identical request before this one."""


def said(text: Text | None) -> Text | None:
    """The text, or None where it says nothing: blank, or an empty object or array."""
    if isinstance(text, str):
        return text if _SAID.search(text) else None
    return text or None


def read_settings(body: Mapping[str, Any], defaults: ReadSettings) -> ReadSettings:
    """The settings of a checked body; what it leaves out or gives as null is the server's default."""
    if _SETTINGS.isdisjoint(body):
        return defaults
    given = {name: body[name] for name in _SETTINGS if body.get(name) is not None}
    readers: dict[str, Callable[[Any], object]] = {
        "isolate": Isolation,
        "layout": Layout,
        "debias": Debias,
        "samples": lambda value: value if value == "auto" else int(value),
        "seed": int,
        "seed_token": SeedToken,
        "labels": LabelSet,
        "steps": int,
        "think": int,
    }
    read: dict[str, Any] = {name: reader(given[name]) for name, reader in readers.items() if name in given}
    if "temperature" in given:
        read["temperatures"] = _temperatures(given["temperature"], defaults.temperatures)
    return replace(defaults, **read)


def _temperatures(given: float | dict[str, float], defaults: Temperatures) -> Temperatures:
    by_type = given if isinstance(given, dict) else dict.fromkeys(("noul", "choice", "score"), given)
    return replace(defaults, **{kind: max(float(value), COLDEST) for kind, value in by_type.items()})


def extras(request: WireRequest, decision: Decision, report: Report | None) -> dict[str, Any]:
    """The extra fields of an answer: `x_warnings` where there are any, `x_diagnostics` where they were asked for."""
    told: dict[str, Any] = {}
    if request.hints:
        told["x_warnings"] = [{"loc": hint.loc, "msg": hint.msg} for hint in request.hints]
    if request.diagnostics:
        told["x_diagnostics"] = _diagnostics(request, decision, report)
    return told


def _diagnostics(request: WireRequest, decision: Decision, report: Report | None) -> dict[str, Any]:
    usage = decision.usage
    told: dict[str, Any] = {
        "reads": decision.reads,
        "rounds": decision.rounds,
        "tokens": {"computed": usage.input_tokens - usage.cached_tokens, "cached": usage.cached_tokens},
    }
    if request.settings.think:
        told["thought_tokens"] = decision.thought_tokens
    if report is not None:
        told["seconds"] = {"queue": report.queue_seconds, "engine": report.engine_seconds}
        told["fingerprint"] = dict(report.fingerprint)
        if report.joined:
            told["x_joined"] = True
    if request.template is not None:
        told["template"] = request.template
    traces = {name: _trace(trace) for name, trace in decision.traces.items()}
    in_order = [traces.get(question.id) for question in request.questions]
    told["questions"] = traces if request.spellings is None else in_order
    return told


def _trace(trace: QuestionTrace) -> dict[str, Any]:
    return {
        "entropy": trace.entropy,
        "label_mass": trace.label_mass,
        "canvas": trace.canvas,
        "slot": trace.slot,
        "isolated": trace.isolated,
        "orders": trace.orders,
        "samples": trace.samples,
        "rounds": trace.rounds,
    }
