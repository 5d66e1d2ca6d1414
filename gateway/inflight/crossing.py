"""What goes from replica to replica through Redis: an answer or an error, as JSON, and what names a request.

Whatever stands in Redis is read as data and never run, so the worst that a stranger in there could do is to lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from decisions.errors import DecisionError
from decisions.protocol import (
    Answer as TypedAnswer,
)
from decisions.protocol import (
    ChoiceAnswer,
    Decision,
    NoulAnswer,
    QuestionTrace,
    ScoreAnswer,
    Skipped,
    Usage,
)

from .contract import Answer, Sent

TRANSIENT = ("message", "retry_after", "counted", "allowed")
"""What an error knows beside its class."""


def space_of(fingerprint: Mapping[str, Any]) -> str:
    """A short name for everything that replicas must have in common to answer for one another."""
    return hashlib.blake2b(orjson.dumps(fingerprint, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def digest_of(sent: Sent) -> str:
    """A name that a request shares with identical ones only."""
    head = orjson.dumps([sent.form, sent.content_type, sent.wait])
    digest = hashlib.blake2b(head, digest_size=16)
    digest.update(sent.body)
    return digest.hexdigest()


def pack(outcome: Answer | DecisionError) -> bytes:
    """An answer or an error, ready to cross."""
    if isinstance(outcome, Answer):
        return orjson.dumps({"decision": _decision(outcome.decision), "seconds": outcome.seconds})
    told = {name: value for name in TRANSIENT if (value := getattr(outcome, name, None)) is not None}
    return orjson.dumps({"error": type(outcome).__name__, **told})


def unpack(packed: bytes) -> Answer | DecisionError:
    """What `pack` packed. An error of a class that is not known here comes back as one without a class of its own."""
    told = orjson.loads(packed)
    if "error" in told:
        return _error(told)
    return Answer(_decision_of(told["decision"]), told["seconds"])


def _error(told: dict[str, Any]) -> DecisionError:
    kinds = {kind.__name__: kind for kind in _kinds(DecisionError)}
    kind = kinds.get(told["error"], DecisionError)
    error = kind.__new__(kind)
    Exception.__init__(error, told["message"])
    for name in TRANSIENT:
        if name in told:
            setattr(error, name, told[name])
    if error.code == "validation_error":
        vars(error)["faults"] = ()
    return error


def _kinds(kind: type[DecisionError]) -> list[type[DecisionError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _kinds(child))]


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "answers": [[name, _typed(answer)] for name, answer in decision.answers.items()],
        "usage": asdict(decision.usage),
        "traces": [[name, asdict(trace)] for name, trace in decision.traces.items()],
        "skipped": [[name, [why.because, why.was, why.wanted]] for name, why in decision.skipped.items()],
        "reads": decision.reads,
        "rounds": decision.rounds,
        "thought_tokens": decision.thought_tokens,
    }


def _typed(answer: TypedAnswer) -> dict[str, Any]:
    if isinstance(answer, NoulAnswer):
        return {"noul": answer.noul}
    if isinstance(answer, ChoiceAnswer):
        shares = list(answer.probabilities.items())
        return {"choice": answer.choice, "confidence": answer.confidence, "probabilities": shares}
    return {
        "score": answer.score,
        "confidence": answer.confidence,
        "legend": answer.legend,
        "probabilities": answer.probabilities,
    }


def _decision_of(told: dict[str, Any]) -> Decision:
    return Decision(
        {name: _typed_of(answer) for name, answer in told["answers"]},
        Usage(**told["usage"]),
        {name: QuestionTrace(**trace) for name, trace in told["traces"]},
        {name: Skipped(because, was, tuple(wanted)) for name, (because, was, wanted) in told["skipped"]},
        told["reads"],
        told["rounds"],
        told["thought_tokens"],
    )


def _typed_of(told: dict[str, Any]) -> TypedAnswer:
    if "noul" in told:
        return NoulAnswer(told["noul"])
    if "choice" in told:
        return ChoiceAnswer(told["choice"], told["confidence"], dict(told["probabilities"]))
    return ScoreAnswer(told["score"], told["confidence"], tuple(told["legend"]), tuple(told["probabilities"]))
