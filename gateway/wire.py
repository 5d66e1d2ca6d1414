"""The protocol's JSON at the edge: bytes become a request, a decision becomes bytes, an error becomes its answer.

`body` reads the bytes, `media` finds them in a form, `decisions.schema` checks them, `systemone_form` and
`decisions_form` know the two forms, `error_answers` has the table of statuses, `openapi` describes it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import orjson

from decisions.errors import Fault, SchemaViolation
from decisions.hints import DECISIONS, DECISIONS_QUESTION, SYSTEM_ONE, SYSTEM_ONE_QUESTION
from decisions.protocol import Decision, ReadSettings, Text
from decisions.recurring import Recurring
from decisions.schema import RequestShape, ShapeLimits

from . import decisions_form, systemone_form
from .body import parse_body
from .error_answers import ErrorAnswer, error_answer, internal_error
from .forms import MAX_STEPS, MAX_THOUGHT, Report, WireRequest
from .media import json_part
from .names import ALIASES, ServedNames
from .openapi import openapi
from .template_form import OURS, NoTemplates, Templates, expand, naming
from .unsupported import refuse_unsupported

__all__ = [
    "MAX_STEPS",
    "MAX_THOUGHT",
    "ErrorAnswer",
    "Report",
    "ServedNames",
    "ShapeLimits",
    "Wire",
    "WireRequest",
    "error_answer",
    "internal_error",
]

LONGEST_ASKED = 32 * 1024
"""Bytes of what is asked up to which it is remembered."""


def asked_in(body: Mapping[str, Any], data: str) -> bytes | None:
    """Everything but the state, which is under `data`, as JSON; None where that is long or not plain JSON."""
    rest = {name: member for name, member in body.items() if name != data}
    try:
        asked = orjson.dumps(rest)
    except TypeError:
        return None
    return data.encode() + asked if len(asked) <= LONGEST_ASKED else None


class Form(Protocol):
    """One of the two forms, in: its request, and its faults that no schema can tell. `DATA` is the state's field."""

    DATA: str

    def request_of(self, body: Mapping[str, Any], defaults: ReadSettings) -> WireRequest:
        """The request that a checked body spells."""

    def state_of(self, body: Mapping[str, Any]) -> Text:
        """The state of a checked body."""

    def condition_faults(self, body: Mapping[str, Any]) -> Iterable[Fault]:
        """What is wrong with what questions wait for, in any body."""


@lru_cache(maxsize=8)
def _shapes(limits: ShapeLimits) -> tuple[RequestShape, RequestShape]:
    """Both forms' shapes. Compiling them takes a quarter of a second, and equal limits have equal shapes."""
    return (
        RequestShape("systemone.request", limits, SYSTEM_ONE, SYSTEM_ONE_QUESTION),
        RequestShape("decisions.request", limits, DECISIONS, DECISIONS_QUESTION),
    )


class Wire:
    """Both forms of request and answer for one served model; everything is compiled here, once.

    `defaults` hold where neither a request nor its template says anything. What `parse_*` returns has been checked in
    full, and what they raise is a `DecisionError`, whatever the bytes were.
    """

    def __init__(
        self, limits: ShapeLimits, defaults: ReadSettings, names: ServedNames, templates: Templates | None = None
    ) -> None:
        self.limits = limits
        self.templates = templates or NoTemplates()
        self.defaults = defaults
        self.names = names
        self._systemone, self._decisions = _shapes(limits)
        self._known: Recurring[bytes, WireRequest] = Recurring()
        """Requests that were right, without their states: what was checked and built once holds for the next state."""

    def parse_systemone(self, body: bytes, content_type: str | None = None) -> WireRequest:
        """The request of `POST /v1/systemone`."""
        return self._request(parse_body(json_part(body, content_type)), self._systemone, systemone_form)

    def parse_decisions(self, body: bytes, content_type: str | None = None) -> WireRequest:
        """The request of `POST /v1/decisions`: in the OpenAI form, or in System One's.

        It is in System One's where `questions` is a map, or where it names a template, which brings such a map.
        """
        given = parse_body(json_part(body, content_type))
        if isinstance(given.get("questions"), dict) or given.get("template") is not None:
            return self._request(given, self._systemone, systemone_form)
        return self._request(given, self._decisions, decisions_form)

    def parse_template(self, name: str, body: bytes, content_type: str | None = None) -> WireRequest:
        """The request of `POST /v1/templates/{name}/decide`. Raises `UnknownTemplate` for the name."""
        label = self.templates.find(name).label
        given = parse_body(json_part(body, content_type))
        if given.get("template") not in (None, name, label):
            raise SchemaViolation([Fault("value_error", ("body", "template"), f"The path names template '{label}'")])
        return self._request({"model": ALIASES[0], **given, "template": label}, self._systemone, systemone_form)

    def _request(self, given: dict[str, Any], shape: RequestShape, form: Form) -> WireRequest:
        if not OURS.isdisjoint(given):
            return self._from_template(given, shape, form)
        asked = asked_in(given, form.DATA)
        known = self._known.get(asked)
        if known is not None and shape.accepts_around(given):
            return replace(known, state=form.state_of(given))
        refuse_unsupported(given)
        shape.check(given, form.condition_faults(given))
        self.names.check(given["model"])
        request = replace(form.request_of(given, self.defaults), asked=asked)
        self._known.put(asked, replace(request, state=""))
        return request

    def _from_template(self, given: dict[str, Any], shape: RequestShape, form: Form) -> WireRequest:
        """The request that a template spells, checked as any other."""
        expanded = expand(given, self.templates, shape)
        try:
            request = self._request(expanded.body, shape, form)
        except SchemaViolation as violation:
            raise naming(violation, expanded, given) from None
        if expanded.template is None:
            return request
        return replace(request, template=expanded.template, expanded=orjson.dumps(expanded.body, default=str))

    def systemone_body(self, request: WireRequest, decision: Decision, report: Report | None = None) -> bytes:
        """The answer of `POST /v1/systemone`; `report` is shown where the request asks for diagnostics."""
        return orjson.dumps(systemone_form.body_of(self.names.served, request, decision, report))

    def decisions_body(self, request: WireRequest, decision: Decision, report: Report | None = None) -> bytes:
        """The answer of `POST /v1/decisions`, in the form in which the request came."""
        form = systemone_form if request.spellings is None else decisions_form
        return orjson.dumps(form.body_of(self.names.served, request, decision, report))

    def models_body(self) -> dict[str, Any]:
        """The body of `GET /v1/models`."""
        return self.names.body()

    def openapi(self, version: str) -> dict[str, Any]:
        """The body of `GET /openapi.json`."""
        return openapi(version, self.limits, self.names)
