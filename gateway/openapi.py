"""Composes `/openapi.json` from the files in `schemas/` and the table of error statuses: neither can drift from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decisions.schema import ShapeLimits, load_schema

from .error_answers import DESCRIPTIONS, RETRIED, STATUSES
from .names import FAMILY, ServedNames

COMPONENTS = {
    "systemone.request": "SystemOneRequest",
    "systemone.response": "SystemOneResponse",
    "decisions.request": "DecisionsRequest",
    "decisions.response": "DecisionsResponse",
    "template.decide.request": "TemplateDecideRequest",
    "templates.response": "Templates",
    "template.response": "Template",
    "error": "Error",
    "models.response": "Models",
    "limits.response": "Limits",
    "health.response": "Health",
    "ready.response": "Ready",
}
"""File in `schemas/` -> name of its component."""
DROPPED = frozenset({"$schema", "$id", "definitions", "x-faults"})
"""What belongs to a schema's file, or to its reading by us."""
KEYS: list[dict[str, list[str]]] = [{}, {"bearer": []}, {"serverKey": []}]
"""Ways to be let in: a server without keys takes any request."""
REQUEST_IDS = {
    "x-typesafe-request-id": {"description": "`req_` and 32 hex digits.", "schema": {"type": "string"}},
    "x-request-id": {"description": "The caller's own id, or the same as above.", "schema": {"type": "string"}},
}
RETRY = {
    "Retry-After": {"description": "Whole seconds to wait.", "schema": {"type": "integer", "minimum": 1}},
    "retry-after-ms": {"description": "The same in milliseconds.", "schema": {"type": "integer", "minimum": 1}},
}
NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "A template's name, or `name@version`.",
    "schema": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}(?:@[1-9][0-9]{0,6})?$"},
}
PREFER = {
    "name": "Prefer",
    "in": "header",
    "description": "`wait=N`: the caller waits N seconds at most.",
    "schema": {"type": "string", "pattern": "^wait=[0-9]{1,6}$"},
}

Json = dict[str, Any]


def openapi(version: str, limits: ShapeLimits, names: ServedNames) -> Json:
    """The whole description, as one server with these limits and names serves it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Canvasgate",
            "version": version,
            "description": "A gateway for the System One decision protocol: questions about a state, answered with "
            "probabilities.",
        },
        "paths": _paths(),
        "components": {
            "schemas": _components(limits, names),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "serverKey": {"type": "apiKey", "in": "header", "name": "X-DGem-Key"},
            },
        },
    }


def _paths() -> Json:
    systemone = _decision("SystemOneRequest", "SystemOneResponse", "Answer all questions of a request about its state")
    decisions = _decision(
        "DecisionsRequest", "DecisionsResponse", "The same in the OpenAI form, or System One's", "SystemOne"
    )
    return {
        "/v1/systemone": {"post": systemone | {"operationId": "systemone"}},
        "/systemone": {"post": systemone | {"operationId": "systemone_short"}},
        "/v1/decisions": {"post": decisions | {"operationId": "decisions"}},
        "/v1/templates/{name}/decide": {
            "post": _decision("TemplateDecideRequest", "SystemOneResponse", "Answer a template's questions", named=True)
            | {"operationId": "decide_template"}
        },
        "/v1/templates": {"get": _look("Templates", "Decision templates", (401, 403)) | {"security": KEYS}},
        "/v1/templates/{name}": {
            "get": _look("Template", "One decision template", (401, 403, 404))
            | {"security": KEYS, "parameters": [NAME]}
        },
        "/v1/models": {"get": _look("Models", "Names that `model` may have", (401, 403, 503)) | {"security": KEYS}},
        "/v1/limits": {"get": _look("Limits", "What a request may hold", (401, 403, 503)) | {"security": KEYS}},
        "/health": {"get": _look("Health", "Whether the process lives", ())},
        "/ready": {"get": _ready()},
        "/metrics": {"get": _metrics()},
        "/openapi.json": {"get": _look("", "This description", (503,))},
    }


def _decision(request: str, response: str, summary: str, other: str = "", *, named: bool = False) -> Json:
    """A decision route; `other` is the second form that it takes, if any; `named` has a template's name in its path."""
    asked, answered = _reference(request), _reference(response)
    if other:
        asked = {"anyOf": [asked, _reference(f"{other}Request")]}
        answered = {"anyOf": [answered, _reference(f"{other}Response")]}
    statuses = {*STATUSES.values()} - (set() if named else {404})
    form = {"type": "object", "required": ["request"], "properties": {"request": asked}}
    return {
        "summary": summary,
        "security": KEYS,
        "parameters": [NAME, PREFER] if named else [PREFER],
        "requestBody": {
            "required": True,
            "description": "May be compressed: `Content-Encoding` gzip, zstd or deflate.",
            "content": {"application/json": {"schema": asked}, "multipart/form-data": {"schema": form}},
        },
        "responses": {
            "200": _answer("The answers.", answered),
            **_errors(statuses),
        },
    }


def _look(component: str, summary: str, errors: Iterable[int]) -> Json:
    schema = _reference(component) if component else {"type": "object"}
    return {"summary": summary, "responses": {"200": _answer(f"{summary}.", schema), **_errors(errors)}}


def _ready() -> Json:
    look = _look("Ready", "Whether a decision would be answered now", ())
    look["responses"]["503"] = _answer("Not now; the reason is told.", _reference("Ready"))
    return look


def _metrics() -> Json:
    text = {"text/plain": {"schema": {"type": "string"}}}
    answer = {"description": "Prometheus text.", "headers": REQUEST_IDS, "content": text}
    return {"summary": "Everything counted", "responses": {"200": answer}}


def _errors(statuses: Iterable[int]) -> Json:
    return {
        str(status): _answer(DESCRIPTIONS[status], _reference("Error"), RETRY if status in RETRIED else {})
        for status in sorted(set(statuses))
    }


def _answer(description: str, schema: Json, headers: Json | None = None) -> Json:
    return {
        "description": description,
        "headers": {**REQUEST_IDS, **(headers or {})},
        "content": {"application/json": {"schema": schema}},
    }


def _reference(component: str) -> Json:
    return {"$ref": f"#/components/schemas/{component}"}


def _components(limits: ShapeLimits, names: ServedNames) -> Json:
    """Every schema, and every definition of it as a component of its own, `SystemOneRequest.noul` for one."""
    components: Json = {}
    for name, component in COMPONENTS.items():
        schema = load_schema(name, limits)
        if name.endswith(".request"):
            known = [*names.aliases, names.served]
            schema["properties"]["model"]["anyOf"] = [{"enum": known}, {"pattern": f"^{FAMILY.replace('.', '[.]')}"}]
        components[component] = _component(schema, component)
        for definition, part in schema["definitions"].items():
            components[f"{component}.{definition}"] = _component(part, component)
    return components


def _component(schema: Json, component: str) -> Json:
    """The schema as a component, with its references to other components."""
    return {
        key: value if key == "examples" else _member(value, component)
        for key, value in schema.items()
        if key not in DROPPED
    }


def _member(value: object, component: str) -> object:
    if isinstance(value, dict):
        return _component(value, component)
    if isinstance(value, list):
        return [_member(member, component) for member in value]
    if isinstance(value, str) and value.startswith("#/definitions/"):
        return f"#/components/schemas/{component}.{value.removeprefix('#/definitions/')}"
    return value
