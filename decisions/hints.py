"""Names likely mistakes in a request: fields that nothing reads, and where their content belongs instead.

Unknown fields are ignored, as the protocol wants; but a caller whose criteria were thrown away should hear of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from .excerpt import short

CLOSE = 0.78
"""Similarity (0 to 1) from which an unknown field counts as a misspelling of a known one."""
LOOKED_AT = 32
"""Unknown fields of one object that are looked at; a body may hold thousands."""
LONGEST_NAME = 40
"""Characters of an unknown field's name beyond which it is no misspelling of ours."""

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """A likely mistake that validation tolerated: the field's path from "body", and the remedy in words."""

    loc: Loc
    msg: str


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that one kind of object has, and other names under which callers have sent them."""

    known: frozenset[str]
    aliases: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Other name -> (the known field that it stands for or "", what to do)."""

    def unknown(self, given: Mapping[str, Any]) -> list[str]:
        """Fields of `given` that are not ours, in order; empty for almost every request."""
        return [] if given.keys() <= self.known else [name for name in given if name not in self.known][:LOOKED_AT]

    def remedy(self, name: str) -> tuple[str, str] | None:
        """For an unknown field: the known field that was meant, and what to do; None where nothing is like it."""
        if name in self.aliases:
            target, advice = self.aliases[name]
            return target, f"'{name}' is not read; {advice}"
        if len(name) > LONGEST_NAME or name.startswith("x_"):
            return None
        close = get_close_matches(name, self.known, 1, CLOSE)
        return (close[0], f"'{short(name)}' is not read; did you mean '{close[0]}'?") if close else None

    def hints(self, given: Mapping[str, Any], loc: Loc) -> Iterator[Hint]:
        """One hint per unknown field of `given` that looks like a mistake."""
        for name in self.unknown(given):
            found = self.remedy(name)
            if found:
                yield Hint((*loc, name), found[1])

    def why_missing(self, missing: str, given: Mapping[str, Any]) -> str:
        """What to add to "Field required" where `given` holds the missing field under another name."""
        found = [self.remedy(name) for name in self.unknown(given)]
        advice = [remedy[1] for remedy in found if remedy and remedy[0] == missing]
        return f"; {advice[0]}" if advice else ""


_SETTINGS = frozenset(
    {"instructions", "isolate", "layout", "debias", "samples", "seed", "seed_token", "labels", "steps"}
    | {"temperature", "diagnostics", "template", "variables"}
)
_LATER = frozenset({"assets", "images", "think"})
_FOREIGN = dict.fromkeys(
    ("ask", "auto_max", "auto_threshold", "chunk_prompt", "chunk_rows", "sequential"),
    ("", "this gateway has no such setting"),
)
_OPTIONS = ("criteria", "name the options under 'criteria', each with its description or null")
_SIDE = ("criteria", "put it inside 'criteria'")

SYSTEM_ONE = Fields(_SETTINGS | _LATER | {"state", "model", "questions"}, _FOREIGN)
SYSTEM_ONE_QUESTION = Fields(
    frozenset({"type", "instructions", "criteria", "alone", "depends_on", "ask_if"}),
    {
        "options": _OPTIONS,
        "choices": _OPTIONS,
        "labels": _OPTIONS,
        "levels": ("criteria", "list the levels under 'criteria', lowest first"),
        "criterion": ("criteria", "the field is named 'criteria'"),
        "true": _SIDE,
        "false": _SIDE,
        "question": ("instructions", "the question goes under 'instructions'"),
        "prompt": ("instructions", "the question goes under 'instructions'"),
    },
)
NOUL_CRITERIA = Fields(
    frozenset({"true", "false"}),
    {
        "yes": ("true", "what counts as yes goes under 'true'"),
        "no": ("false", "what counts as no goes under 'false'"),
        "True": ("true", "the key is 'true'"),
        "False": ("false", "the key is 'false'"),
    },
)
DECISIONS = Fields(
    _SETTINGS
    | _LATER
    | {"input", "model", "questions"}
    | {"prompt_cache_key", "prompt_cache_options", "safety_identifier"},
    {**_FOREIGN, "state": ("input", "what the questions are about goes under 'input'")},
)
DECISIONS_QUESTION = Fields(
    frozenset({"type", "name", "instructions", "choices", "levels", "alone", "depends_on", "ask_if"}),
    {
        "id": ("name", "the field is named 'name'"),
        "options": ("choices", "list the options under 'choices', each with its 'value'"),
        "criteria": ("", "use 'choices' or 'levels', or say it in 'instructions'"),
    },
)
