"""A request that names a template becomes the request that the template spells with its variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

from decisions.errors import Fault, SchemaViolation, UnknownTemplate
from decisions.excerpt import excerpt
from decisions.schema import RequestShape, capped
from decisions.template import RENDERED, DecisionTemplate
from decisions.template_language import Budget

OURS = frozenset({"template", "variables"})
"""Fields of a request that speak of a template."""
STRICT = frozenset({"state", "model", "questions"})
"""Fields in which null is no way to leave them out."""


class Templates(Protocol):
    """Where templates are found by name."""

    def find(self, name: str) -> DecisionTemplate:
        """The template of a `name` or `name@version`. Raises `UnknownTemplate`."""


class NoTemplates:
    """Where there are none."""

    def find(self, name: str) -> DecisionTemplate:
        """Nothing."""
        raise UnknownTemplate(f"Unknown template: '{excerpt(name)}'. No templates are served here.")


@dataclass(frozen=True, slots=True)
class Expanded:
    """A request's body with all that its template says; the template's label, None where there was no template."""

    body: dict[str, Any]
    template: str | None = None


def expand(given: dict[str, Any], templates: Templates, shape: RequestShape) -> Expanded:
    """The body that `given` stands for. Raises `SchemaViolation` with every fault, or `BodyTooLarge`."""
    own = {name: value for name, value in given.items() if name not in OURS}
    name, variables = given.get("template"), given.get("variables")
    if name is None:
        if variables not in (None, {}):
            raise SchemaViolation(
                [Fault("missing", ("body", "template"), "Field required: variables are a template's")]
            )
        return Expanded(own)
    template = _named(name, templates)
    variables = {} if variables is None else variables
    faults = capped(template.variables.faults(variables))
    if faults:
        raise SchemaViolation(capped(chain(faults, _own_faults(own, shape))))
    rendered = template.render(variables, Budget())
    body = {**rendered, **{field: value for field, value in own.items() if value is not None or field in STRICT}}
    if isinstance(own.get("questions"), dict):
        body["questions"] = rendered["questions"] | own["questions"]
    return Expanded(body, template.label)


def _named(name: object, templates: Templates) -> DecisionTemplate:
    if not isinstance(name, str):
        raise SchemaViolation(
            [Fault("string_type", ("body", "template"), "Input should be a template's name", excerpt(name))]
        )
    try:
        return templates.find(name)
    except UnknownTemplate as error:
        raise SchemaViolation([Fault("unknown_template", ("body", "template"), error.message, excerpt(name))]) from None


def _own_faults(own: Mapping[str, Any], shape: RequestShape) -> Iterator[Fault]:
    """What is wrong with the request's own fields; those that the template brings may be missing."""
    brought = {("body", part) for part in RENDERED}
    faults = () if shape.accepts(own) else shape.faults(own)
    yield from (fault for fault in faults if not (fault.type == "missing" and fault.loc in brought))


def naming(violation: SchemaViolation, expanded: Expanded, given: Mapping[str, Any]) -> SchemaViolation:
    """The violation, each fault in what a template brought saying whose it is."""
    faults = [
        replace(fault, msg=f"{fault.msg} (from template '{expanded.template}')")
        if fault.loc[1:2] and fault.loc[1] in expanded.body and fault.loc[1] not in given
        else fault
        for fault in violation.faults
    ]
    return SchemaViolation(faults)
