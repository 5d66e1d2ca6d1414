"""Checks a request's body against its JSON Schema: at once where it is right, in full where it is not.

One schema, two speeds. A validator compiled from the schema at start accepts; only what it rejects goes through
jsonschema, which finds every violation, and each becomes a `Fault` that names the question and the field. A question
is checked by its own `type`, so that nobody has to read the errors of a union.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import fastjsonschema
from jsonschema import Draft7Validator, SchemaError, ValidationError, validators
from jsonschema.protocols import Validator

from .errors import Fault, SchemaViolation
from .excerpt import excerpt, short, short_loc
from .hints import Fields

_ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = next(
    (folder for folder in (_ROOT / "schemas", _ROOT / "gateway" / "data" / "schemas") if folder.is_dir()),
    _ROOT / "schemas",
)
"""Where the schemas lie: beside this package in a checkout, in the gateway's data in a wheel."""
MAX_FAULTS = 50
"""Faults that one answer lists; where there are more, its last entry says so."""
LARGE = 10_000
"""Members and items of a variable beyond which only its first fault is looked for: all would take seconds."""
SHARED = "read-settings.json"
DIALECT = "http://json-schema.org/draft-07/schema#"
WORDS = frozenset({"$schema", "$id", "title", "description", "examples", "definitions", "discriminator", "x-faults"})
"""Keywords that say nothing about what is accepted."""

Schema = dict[str, Any]
Loc = tuple[str | int, ...]


class BadSchema(ValueError):
    """What should be a JSON Schema is none; the message says why."""


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    """How much one request may hold; put into the schema when it is compiled."""

    questions: int = 512
    options: int = 255
    levels: int = 10

    @property
    def answers(self) -> int:
        """Answers that a question of any type may have."""
        return max(2, self.options, self.levels)


def capped(faults: Iterable[Fault]) -> list[Fault]:
    """The first `MAX_FAULTS`, and where there are more a last one that says so."""
    first = list(islice(faults, MAX_FAULTS + 1))
    if len(first) > MAX_FAULTS:
        first[MAX_FAULTS:] = [
            Fault("too_many_faults", ("body",), f"Only {MAX_FAULTS} faults are listed; there are more.")
        ]
    return first


def load_schema(name: str, limits: ShapeLimits | None = None) -> Schema:
    """A schema of `schemas/` that stands alone: shared definitions are copied in, limits are this server's."""
    schema = _read(name)
    shared = _read(SHARED.removesuffix(".json"))["definitions"]
    definitions = schema.setdefault("definitions", {})
    for node in list(_nodes(schema)):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith(SHARED):
            node["$ref"] = reference.removeprefix(SHARED)
            definition = _name(reference)
            definitions[definition] = copy.deepcopy(shared[definition])
    for node in _nodes(schema):
        for keyword, limit in node.pop("x-limits", {}).items():
            node[keyword] = getattr(limits or ShapeLimits(), limit)
    return schema


def _read(name: str) -> Schema:
    schema: Schema = json.loads((SCHEMAS / f"{name}.json").read_text("utf-8"))
    return schema


def _nodes(value: object) -> Iterator[Schema]:
    """Every object inside a schema; examples are values, not schemas, so they are left out."""
    if isinstance(value, dict):
        yield value
        for key, member in list(value.items()):
            if key != "examples":
                yield from _nodes(member)
    elif isinstance(value, list):
        for member in value:
            yield from _nodes(member)


class RequestShape:
    """The shape of one form of request, compiled once. `fields` name its fields, and its questions' fields."""

    def __init__(self, name: str, limits: ShapeLimits, fields: Fields, question_fields: Fields) -> None:
        self.schema = load_schema(name, limits)
        self._limits = limits
        self._fields = fields
        self._question_fields = question_fields
        definitions = self.schema["definitions"]
        outer = copy.deepcopy(self.schema)
        questions = outer["properties"]["questions"]
        questions.pop("additionalProperties", None)
        questions.pop("items", None)
        self._container = dict if questions["type"] == "object" else list
        validator = _full_validator({name: _compiled(definitions[name], definitions) for name in definitions})
        self._outer = _Shape(outer, definitions, validator)
        mapping = definitions["question"]["discriminator"]["mapping"]
        self._kinds = {tag: _Shape(definitions[_name(path)], definitions, validator) for tag, path in mapping.items()}

    def check(self, body: Mapping[str, Any], beyond: Iterable[Fault] = ()) -> None:
        """Raise `SchemaViolation` with every fault unless the body is right.

        `beyond` are faults by rules that a schema cannot say; they are looked at only where the schema refuses.
        """
        if not self.accepts(body):
            raise SchemaViolation(self.faults(body, beyond))

    def accepts(self, body: Mapping[str, Any]) -> bool:
        """Whether the compiled validators take the body."""
        if not self.accepts_around(body):
            return False
        questions = body.get("questions")
        if questions is None:  # a template brings them
            return True
        kinds = self._kinds
        for question in questions.values() if self._container is dict else questions:
            tag = question.get("type") if isinstance(question, dict) else None
            kind = kinds.get(tag) if isinstance(tag, str) else None
            if kind is None or not kind.accepts(question):
                return False
        return True

    def accepts_around(self, body: Mapping[str, Any]) -> bool:
        """Whether all of the body but its questions is right."""
        return self._outer.accepts(body)

    def faults(self, body: Mapping[str, Any], beyond: Iterable[Fault] = ()) -> list[Fault]:
        """Every fault of a rejected body, up to `MAX_FAULTS`."""
        faults = capped(chain(self._all_faults(body), beyond))
        return faults or [Fault("value_error", ("body",), "The body does not match the request's schema.")]

    def _all_faults(self, body: Mapping[str, Any]) -> Iterator[Fault]:
        yield from _faults(self._outer.errors(body), ("body",), "", self._fields)
        questions = body.get("questions")
        if not isinstance(questions, self._container):
            return
        pairs = questions.items() if isinstance(questions, dict) else enumerate(questions)
        for key, question in islice(pairs, self._limits.questions):
            yield from self._question_faults(key, question)

    def _question_faults(self, key: str | int, question: object) -> Iterator[Fault]:
        loc: Loc = ("body", "questions", key)
        if not isinstance(question, dict):
            msg = "Input should be a valid dictionary or object to extract fields from"
            yield Fault("model_attributes_type", short_loc(loc), msg, excerpt(question))
            return
        tag = question.get("type")
        kind = self._kinds.get(tag) if isinstance(tag, str) else None
        if kind is None:
            yield self._tag_fault(question, (*loc, "type"))
        elif not kind.accepts(question):
            faults = list(islice(_faults(kind.errors(question), loc, str(key), self._question_fields), MAX_FAULTS + 1))
            yield from [fault for fault in faults if fault.type != "value_error"] or faults

    def _tag_fault(self, question: dict[str, Any], loc: Loc) -> Fault:
        tags = ", ".join(f"'{tag}'" for tag in self._kinds)
        if "type" not in question:
            msg = f"Unable to extract tag using discriminator 'type'; expected one of {tags}"
            return Fault("union_tag_not_found", short_loc(loc), msg, excerpt(question))
        tag = question["type"]
        shown = short(tag) if isinstance(tag, str) else json.dumps(excerpt(tag), ensure_ascii=False)
        msg = f"Input tag '{shown}' found using 'type' does not match any of the expected tags: {tags}"
        return Fault("union_tag_invalid", short_loc(loc), msg, excerpt(question))


class _Shape:
    """One schema at both speeds."""

    def __init__(self, schema: Schema, definitions: Schema, validator: type[Validator]) -> None:
        self._accept = _compiled(schema, definitions)
        self._full = validator({**schema, "$schema": DIALECT, "definitions": definitions})

    def accepts(self, value: object) -> bool:
        """Whether the compiled validator takes the value."""
        return _passes(self._accept, value)

    def errors(self, value: Any) -> Iterable[ValidationError]:  # noqa: ANN401 - any JSON
        """Every violation, one after another."""
        return self._full.iter_errors(value)


def _compiled(schema: Schema, definitions: Schema) -> Callable[[object], object]:
    plain = {"$schema": DIALECT, **_inlined(schema, definitions)}
    accept: Callable[[object], object] = fastjsonschema.compile(plain, use_default=False, use_formats=False)
    return accept


def _inlined(schema: Schema, definitions: Schema) -> Schema:
    """The schema without references and words: compiled so, it is three times as fast as with calls between parts."""
    if "$ref" in schema:
        return _inlined(definitions[_name(schema["$ref"])], definitions)
    inlined: Schema = {}
    for keyword, value in schema.items():
        if keyword == "properties":
            inlined[keyword] = {name: _inlined(member, definitions) for name, member in value.items()}
        elif isinstance(value, list):
            inlined[keyword] = [
                _inlined(member, definitions) if isinstance(member, dict) else member for member in value
            ]
        elif keyword not in WORDS:
            inlined[keyword] = _inlined(value, definitions) if isinstance(value, dict) else value
    return inlined


def _passes(accept: Callable[[object], object], value: object) -> bool:
    try:
        accept(value)
    except fastjsonschema.JsonSchemaValueException:
        return False
    return True


def _full_validator(quick: Mapping[str, Callable[[object], object]]) -> type[Validator]:
    """The validator of jsonschema, which skips what the compiled ones take, and tells each missing field apart.

    Without the skip a large request with one fault would take seconds: jsonschema needs 20 us for every option.
    """
    follow = Draft7Validator.VALIDATORS["$ref"]

    def reference(validator: Validator, ref: str, value: object, schema: Schema) -> Iterator[ValidationError]:
        if not _passes(quick[_name(ref)], value):
            yield from follow(validator, ref, value, schema)

    def items(validator: Any, member: Schema, value: object, _: Schema) -> Iterator[ValidationError]:  # noqa: ANN401 - the protocol lacks descend
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if "$ref" not in member or not _passes(quick[_name(member["$ref"])], item):
                yield from validator.descend(item, member, path=index)

    return _extended({"$ref": reference, "items": items, "required": _required})


def _required(_: Validator, names: list[str], value: object, _schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        yield from (ValidationError(name) for name in names if name not in value)


def _extended(keywords: Mapping[str, Any]) -> type[Validator]:
    extended: type[Validator] = validators.extend(Draft7Validator, keywords)  # type: ignore[no-untyped-call]  # it has no types
    return extended


class ValueShape:
    """Any draft-07 schema that refers to nothing outside it, at both speeds.

    Raises `BadSchema` where it refers to something, or is no schema.
    """

    def __init__(self, schema: Schema) -> None:
        if any(isinstance(node.get("$ref"), str) for node in _nodes(schema)):
            raise BadSchema("$ref is not followed here: write the schema out")
        try:
            Draft7Validator.check_schema(schema)  # its patterns too
        except SchemaError as error:
            raise BadSchema(short(error.message)) from None
        plain = {**schema, "$schema": DIALECT}
        try:
            self._accept = fastjsonschema.compile(plain, use_default=False, use_formats=False)
        except SyntaxError:  # of the Python code that it becomes
            raise BadSchema("it is nested too deeply") from None
        self._full = _extended({"required": _required})(plain)

    def faults(self, value: Any, loc: Loc) -> Iterator[Fault]:  # noqa: ANN401 - any JSON
        """What is wrong with a value at `loc`: everything, or of a large value the first fault alone."""
        try:
            self._accept(value)
        except fastjsonschema.JsonSchemaValueException as first:
            if _larger(value, LARGE):
                found = []
            else:
                found = list(_faults(self._full.iter_errors(value), loc, "", Fields(frozenset())))
            yield from found or [Fault("value_error", short_loc(loc), short(first.message), excerpt(value))]


def _larger(value: object, limit: int) -> bool:
    """Whether a value has more members and items than `limit`, its nested ones included."""
    left, waiting = limit, [value]
    while waiting and left >= 0:
        part = waiting.pop()
        if isinstance(part, dict | list):
            left -= len(part)
            waiting += part.values() if isinstance(part, dict) else part
    return left < 0


def document_faults(name: str, document: Any) -> list[Fault]:  # noqa: ANN401 - any JSON
    """Everything that a schema of `schemas/` finds wrong with a file; paths begin with "template"."""
    validator = _extended({"required": _required})(load_schema(name))
    return capped(_faults(validator.iter_errors(document), ("template",), "", Fields(frozenset())))


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _faults(errors: Iterable[ValidationError], loc: Loc, key: str, fields: Fields) -> Iterator[Fault]:
    """Faults from violations; the first "too many" ends them, because looking through all of them is the attack."""
    for error in errors:
        path: Loc = (*loc, *error.absolute_path)
        given: Any = error.instance
        if error.validator == "required":
            missing = error.message
            msg = f"Field required{fields.why_missing(missing, given) if path == loc else ''}"
            yield Fault("missing", short_loc((*path, missing)), msg, excerpt(given))
            continue
        if "propertyNames" in error.absolute_schema_path:
            path = (*path, str(given))
        told = _told(error)
        if "branch" in told:
            meant = [inner for inner in error.context or () if inner.schema_path[0] == told["branch"]]
            yield from _faults(meant, loc, key, fields)
            continue
        if "field" in told:
            path = (*path, told["field"])
        count = len(given) if isinstance(given, list | dict) else 0
        schema: Any = error.schema
        known = schema.get("properties", {})
        extra = next((short(name) for name in given if name not in known), "") if isinstance(given, dict) else ""
        words = {"{limit}": str(error.validator_value), "{count}": str(count), "{id}": short(key), "{extra}": extra}
        msg = told["msg"]
        for word, value in words.items():
            msg = msg.replace(word, value)
        yield Fault(told["type"], short_loc(path), msg, excerpt(given))
        if told["type"] == "too_long":
            return


_TYPES = {
    "string": ("string_type", "Input should be a valid string"),
    "object": ("dict_type", "Input should be a valid dictionary"),
    "array": ("list_type", "Input should be a valid list"),
    "boolean": ("bool_type", "Input should be a valid boolean"),
    "integer": ("int_type", "Input should be a valid integer"),
    "number": ("float_type", "Input should be a valid number"),
}
_NULL = ("none_required", "Input should be null")
_RULES = {
    "minimum": ("greater_than_equal", "Input should be greater than or equal to {limit}"),
    "exclusiveMinimum": ("greater_than", "Input should be greater than {limit}"),
    "maximum": ("less_than_equal", "Input should be less than or equal to {limit}"),
    "minLength": ("string_too_short", "String should have at least {limit} character"),
    "minItems": ("too_short", "List should have at least {limit} item after validation, not {count}"),
    "minProperties": ("too_short", "Dictionary should have at least {limit} item after validation, not {count}"),
    "maxLength": ("string_too_long", "String should have at most {limit} characters"),
    "pattern": ("string_pattern_mismatch", "String should match the pattern {limit}"),
    "maxItems": ("too_long", "List should have at most {limit} items"),
    "maxProperties": ("too_long", "Dictionary should have at most {limit} items"),
}


def _told(error: ValidationError) -> Mapping[str, Any]:
    """How a violation is told: as its schema says, else in the words of pydantic."""
    keyword = str(error.validator)
    schema: Any = error.schema
    value: Any = error.validator_value
    if keyword in schema.get("x-faults", {}):
        told: Mapping[str, Any] = schema["x-faults"][keyword]
        return told
    if keyword == "type":
        kind, msg = _TYPES.get(value if isinstance(value, str) else value[0], _NULL)
    elif keyword == "enum":
        kind, msg = (
            "literal_error",
            f"Input should be {', '.join(repr(member) for member in value if member is not None)}",
        )
    elif keyword in _RULES:
        kind, msg = _RULES[keyword]
    else:
        kind, msg = "value_error", short(error.message)
    return {"type": kind, "msg": msg}
