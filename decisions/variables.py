"""The variables of a template: their schemas, their defaults, and what is wrong with those that a caller gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from .errors import Fault
from .excerpt import excerpt, short
from .hints import LOOKED_AT
from .schema import BadSchema, Schema, ValueShape
from .template_language import RESERVED

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Variables:
    """Declared variables, compiled. `owner` names the template in faults.

    Raises `BadSchema`, with the variable's name, for a schema that is none, or one that its own default violates.
    """

    def __init__(self, owner: str, declared: Mapping[str, Schema]) -> None:
        self.owner = owner
        self.declared = declared
        self.defaults = {name: schema["default"] for name, schema in declared.items() if "default" in schema}
        self._shapes = {name: _shape(name, schema) for name, schema in declared.items()}
        for name, value in self.defaults.items():
            for fault in self._shapes[name].faults(value, ("default",)):
                raise BadSchema(f"variable '{name}': its default does not fit its own schema: {fault.msg}")

    def schema(self) -> Schema:
        """All variables as one JSON Schema of an object."""
        return {
            "type": "object",
            "properties": dict(self.declared),
            "required": [name for name in self.declared if name not in self.defaults],
            "additionalProperties": False,
        }

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The variables with defaults for those that were left out."""
        return {**self.defaults, **given}

    def faults(self, given: object, loc: tuple[str | int, ...] = ("body", "variables")) -> Iterator[Fault]:
        """Everything that is wrong with given variables: missing ones, unknown ones, and wrong values."""
        if not isinstance(given, dict):
            yield Fault(
                "dict_type", loc, f"Input should be an object with the variables of {self.owner}", excerpt(given)
            )
            return
        for name, shape in self._shapes.items():
            if name in given:
                for fault in shape.faults(given[name], (*loc, name)):
                    yield Fault(fault.type, fault.loc, f"{fault.msg} (variable '{name}' of {self.owner})", fault.input)
            elif name not in self.defaults:
                msg = f"Field required: variable '{name}' of {self.owner} has no default"
                yield Fault("missing", (*loc, name), msg, excerpt(given))
        unknown = (name for name in given if name not in self._shapes)
        for name in islice(unknown, LOOKED_AT + 1):
            yield Fault("extra_forbidden", (*loc, short(name)), self._unknown(name), excerpt(given[name]))

    def _unknown(self, name: str) -> str:
        near = get_close_matches(name[:64], self._shapes, 1)
        instead = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(self._shapes) or 'none'}"
        return f"{self.owner} has no variable '{short(name)}'; {instead}"


def _shape(name: str, schema: Schema) -> ValueShape:
    if not NAME.fullmatch(name) or name in RESERVED:
        raise BadSchema(f"variable '{short(name)}': a name is letters, digits and _, and none of {sorted(RESERVED)}")
    try:
        return ValueShape(schema)
    except BadSchema as error:
        raise BadSchema(f"variable '{name}': {error}") from None
