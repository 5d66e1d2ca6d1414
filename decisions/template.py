"""A decision template: a policy as one JSON file, and the request that it spells with a caller's variables.

Rendering walks the parsed JSON and renders its string leaves only: keys, question ids and types stay as they are
written, so no value can change the structure. A leaf that is exactly one `{{ expression }}` takes the expression's own
JSON value, which is how a list of options comes from a variable.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from .errors import BodyTooLarge, Fault, SchemaViolation
from .excerpt import short, short_loc
from .schema import BadSchema, capped, document_faults
from .template_language import (
    LARGEST,
    BrokenText,
    Budget,
    TemplateText,
    TooMuch,
    Unrenderable,
    is_template,
)
from .variables import Variables

SCHEMA = "decision-template"
MAX_DEPTH = 200
"""Objects and lists of a rendered request that may be open at once, as in a body."""
RENDERED = ("state", "instructions", "questions")
"""Parts of a file that are rendered."""
CONSTANT = frozenset({"type", "depends_on"})
"""Fields of a question that are not: its type, and ids."""

SHOWN = 8
"""Ids of questions that a fault lists."""

Loc = tuple[str | int, ...]


class BrokenTemplate(Exception):
    """A file is no template; `faults` say why, each with its place in the file behind "template"."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(told(fault) for fault in faults))
        self.faults = tuple(faults)


def told(fault: Fault) -> str:
    """A fault in a line: its path without the first step, and the message."""
    return f"{'.'.join(map(str, fault.loc[1:])) or 'file'}: {fault.msg}"


class DecisionTemplate:
    """One template, checked and compiled. Raises `BrokenTemplate` with every fault of the file."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        if faults := document_faults(SCHEMA, document):
            raise BrokenTemplate(faults)
        self.document = document
        self.name: str = document["name"]
        self.version: int = document["version"]
        self.title: str = document.get("title") or self.name
        self.description: str = document["description"]
        self.settings: Mapping[str, Any] = document.get("settings", {})
        self.examples: Sequence[Mapping[str, Any]] = document["examples"]
        try:
            self.variables = Variables(f"template '{self.name}'", document["variables"])
        except BadSchema as error:
            raise BrokenTemplate([Fault("value_error", ("template", "variables"), str(error))]) from None
        compiler = _Compiler(document["variables"].keys())
        self._parts = {part: compiler.part(document[part], ("template", part)) for part in RENDERED if part in document}
        if faults := [*compiler.faults, *_waiting_faults(document["questions"])]:
            raise BrokenTemplate(capped(faults))
        self.used = frozenset(compiler.used)
        """Variables that some text uses."""

    @property
    def label(self) -> str:
        """Name and version, as a request pins them."""
        return f"{self.name}@{self.version}"

    def render(self, variables: Mapping[str, Any], budget: Budget | None = None) -> dict[str, Any]:
        """The fields of a request: state, questions, instructions, settings.

        Variables must have passed `variables.faults`. `budget` tells afterwards how much was written. Raises
        `SchemaViolation` where they cannot be rendered, and `BodyTooLarge` where the result would be out of all bounds.
        """
        filled, budget = self.variables.filled(variables), budget or Budget()
        rendered: dict[str, Any] = {}
        for part, value in self._parts.items():
            try:
                rendered[part] = self._rendered(value, filled, budget, (part,))
            except TooMuch as error:
                msg = f"Template '{self.name}' is too large with these variables ({part}): {error}."
                raise BodyTooLarge(msg) from None
        return {**rendered, **self.settings}

    def _rendered(self, value: object, filled: Mapping[str, Any], budget: Budget, loc: Loc) -> object:
        if isinstance(value, str):
            budget.write(len(value))
        elif isinstance(value, TemplateText):
            try:
                text = value.render(filled, budget)
                if value.native:
                    admit(text, budget, len(loc))
            except TooMuch:
                raise
            except Unrenderable as error:
                where = ".".join(map(str, short_loc(loc)))
                msg = f"Template '{self.name}' cannot be rendered with these variables: {where}: {error}"
                raise SchemaViolation([Fault("template_error", ("body", "variables"), msg)]) from None
            return text
        elif isinstance(value, dict):
            return {key: self._rendered(member, filled, budget, (*loc, key)) for key, member in value.items()}
        elif isinstance(value, list):
            return [self._rendered(member, filled, budget, (*loc, index)) for index, member in enumerate(value)]
        return value


def admit(value: object, budget: Budget, depth: int) -> None:
    """Raise `Unrenderable` unless a value is JSON within bounds: an expression may make something else."""
    if depth > MAX_DEPTH:
        raise Unrenderable(f"nested too deeply: at most {MAX_DEPTH} objects and lists may be open")
    budget.write(len(value) + 2 if isinstance(value, str | list | dict) else 8)
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise Unrenderable("the keys of an object are strings")
            budget.write(len(key))
            admit(member, budget, depth + 1)
    elif isinstance(value, list):
        for member in value:
            admit(member, budget, depth + 1)
    elif not _is_scalar(value):
        raise Unrenderable(f"a {type(value).__name__} is no JSON value")


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -LARGEST <= value < LARGEST
    return value is None or isinstance(value, str | bool)


class _Compiler:
    """Compiles the texts of a file, and collects what is wrong with them."""

    def __init__(self, names: Collection[str]) -> None:
        self.faults: list[Fault] = []
        self.used: set[str] = set()
        self._names = names

    def part(self, value: object, loc: Loc) -> object:
        """The part with its texts compiled; one without marks stays text."""
        if isinstance(value, str):
            return self._text(value, loc) if is_template(value) else value
        if isinstance(value, list):
            return [self.part(member, (*loc, index)) for index, member in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._member(key, member, loc) for key, member in value.items()}
        return value

    def _member(self, key: str, value: object, loc: Loc) -> object:
        of_question = len(loc) == 3 and loc[1] == "questions"
        return value if of_question and key in CONSTANT else self.part(value, (*loc, key))

    def _text(self, source: str, loc: Loc) -> object:
        try:
            text = TemplateText(source, self._names)
        except BrokenText as error:
            self.faults.append(Fault("template_error", short_loc(loc), str(error), short(source)))
            return source
        self.used |= text.used
        return text


def _waiting_faults(questions: Mapping[str, Any]) -> Iterator[Fault]:
    """Where a question waits for one that the file does not have: no variables could mend that."""
    for key, part in product(questions, ("depends_on", "ask_if")):
        for other in questions[key].get(part) or ():
            if other not in questions:
                loc = short_loc(("template", "questions", key, part, other))
                yield Fault("value_error", loc, f"There is no question '{short(other)}'; there are {_some(questions)}")


def _some(questions: Collection[str]) -> str:
    more = f" and {len(questions) - SHOWN} more" if len(questions) > SHOWN else ""
    return ", ".join(short(key) for key in islice(questions, SHOWN)) + more


def expected_faults(template: DecisionTemplate) -> Iterator[Fault]:
    """Where a template's examples do not render as they say."""
    for index, example in enumerate(template.examples):
        loc: Loc = ("template", "examples", index)
        faults = list(template.variables.faults(example["variables"], (*loc, "variables")))
        yield from faults
        if faults:
            continue
        try:
            rendered = template.render(example["variables"])
        except (SchemaViolation, BodyTooLarge) as error:
            yield Fault("template_error", loc, error.message)
            continue
        expected = example["expect"]
        for part in ("state", "instructions"):
            if part in expected and expected[part] != rendered.get(part):
                yield _differs((*loc, "expect", part), expected[part], rendered.get(part))
        for key, question in expected.get("questions", {}).items():
            if question != rendered["questions"].get(key):
                yield _differs((*loc, "expect", "questions", key), question, rendered["questions"].get(key))


def _differs(loc: Loc, expected: object, rendered: object) -> Fault:
    return Fault(
        "example_differs", loc, f"expected {short(repr(expected), 400)}, rendered {short(repr(rendered), 400)}"
    )
