"""What questions wait for: `depends_on` and `ask_if` as they came, checked against the other questions, and read.

A schema cannot say that a name is another question's. These rules are told of any body, also of one that its schema
refuses, so that one answer lists every fault; what the schema already says is skipped here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from decisions.errors import Fault
from decisions.excerpt import excerpt, short, short_loc
from decisions.protocol import Question

FIELDS = frozenset({"depends_on", "ask_if"})
SHOWN = 8
"""Answers of a question that a fault lists."""

Loc = tuple[str | int, ...]
Answers = Mapping[object, str]
"""An answer as callers write it -> its name inside. A boolean that is an option of its own is `Flag(value)`."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean as a key: Python takes true and 1 for the same one."""

    value: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as it came: its key in the body, and the name by which other questions refer to it."""

    key: str | int
    name: str | None
    given: Mapping[str, Any]
    answers: Answers | None
    """None where the question is malformed, so that nobody knows its answers."""


def conditional(questions: Iterable[object]) -> bool:
    """Whether any of these questions waits for another."""
    return any(isinstance(question, dict) and not FIELDS.isdisjoint(question) for question in questions)


def answer_called(value: object, answers: Answers) -> str | None:
    """The answer that a caller means: booleans also mean yes and no, integers the levels of a score."""
    if isinstance(value, bool):
        return answers.get(Flag(value)) or answers.get("yes" if value else "no")
    return answers.get(str(int(value)) if isinstance(value, int | float) else value)


class Conditions:
    """What the questions of one body, in its order, wait for."""

    def __init__(self, asked: Sequence[Asked] = ()) -> None:
        self._asked = asked
        self._places: dict[str | None, list[int]] = {}
        for place, question in enumerate(asked):
            self._places.setdefault(question.name, []).append(place)

    def faults(self) -> Iterator[Fault]:
        """Every fault, in the body's order."""
        circles = _circles([self._waits_for(question) for question in self._asked])
        for place, question in enumerate(self._asked):
            for loc, name in _references(question.given):
                why = self._refused(place, name, circles)
                if why:
                    yield Fault("value_error", _loc(question, loc), why, excerpt(name))
                elif loc[0] == "ask_if":
                    yield from self._unanswerable(question, name)

    def on(self, questions: Sequence[Question]) -> tuple[Question, ...]:
        """The questions with what they wait for; only right where there are no faults."""
        if not self._asked:
            return tuple(questions)
        pairs = zip(self._asked, questions, strict=True)
        return tuple([self._with(question, asked.given) for asked, question in pairs])

    def _with(self, question: Question, given: Mapping[str, Any]) -> Question:
        if FIELDS.isdisjoint(given):
            return question
        ask_if = {}
        for name, values in (given.get("ask_if") or {}).items():
            other = self._asked[self._places[name][0]]
            called = [answer_called(value, other.answers or {}) for value in values]
            ask_if[str(other.key)] = tuple(dict.fromkeys(answer for answer in called if answer is not None))
        named = dict.fromkeys(given.get("depends_on") or ())
        depends_on = tuple([str(self._asked[self._places[name][0]].key) for name in named])
        return replace(question, depends_on=depends_on, ask_if=ask_if)

    def _waits_for(self, question: Asked) -> set[int]:
        found = [self._places.get(name, ()) for _, name in _references(question.given)]
        return {places[0] for places in found if len(places) == 1}

    def _refused(self, place: int, name: str, circles: Sequence[int]) -> str | None:
        """Why a question cannot wait for the one of this name; None where it can."""
        places, shown = self._places.get(name, ()), short(name)
        if not places:
            return f"There is no question '{shown}'"
        if len(places) > 1:
            return f"{len(places)} questions are named '{shown}'"
        if places[0] == place:
            return "A question cannot wait for itself"
        if circles[places[0]] == circles[place]:
            return f"Question '{shown}' waits for this one: in a circle, none can be asked first"
        return None

    def _unanswerable(self, question: Asked, name: str) -> Iterator[Fault]:
        answers, values = self._asked[self._places[name][0]].answers, question.given["ask_if"][name]
        if answers is None or not isinstance(values, list):
            return
        for index, value in enumerate(values):
            if _is_written(value) and answer_called(value, answers) is None:
                listed = [repr(short(answer)) for answer, _ in zip(answers.values(), range(SHOWN), strict=False)]
                more = ", ..." if len(answers) > SHOWN else ""
                msg = f"Input should be an answer of '{short(name)}': {', '.join(listed)}{more}"
                yield Fault("literal_error", _loc(question, ("ask_if", name, index)), msg, excerpt(value))


def _loc(question: Asked, loc: Loc) -> Loc:
    return short_loc(("body", "questions", question.key, *loc))


def _is_written(value: object) -> bool:
    """Whether an answer may be written so at all; what may not, the schema tells."""
    return isinstance(value, str | int) or (isinstance(value, float) and value.is_integer())


def _references(given: Mapping[str, Any]) -> Iterator[tuple[Loc, str]]:
    """Where a question names another, and the name."""
    depends_on, ask_if = given.get("depends_on"), given.get("ask_if")
    for index, name in enumerate(depends_on if isinstance(depends_on, list) else ()):
        if isinstance(name, str):
            yield ("depends_on", index), name
    for name in ask_if if isinstance(ask_if, dict) else ():
        yield ("ask_if", name), name


def _circles(edges: Sequence[Collection[int]]) -> list[int]:
    """A number per node, the same for nodes that lead to each other: Kosaraju's two walks, there and back."""
    back: list[list[int]] = [[] for _ in edges]
    for node, targets in enumerate(edges):
        for target in targets:
            back[target].append(node)
    circles, seen = [0] * len(edges), set[int]()
    for root in reversed(list(_walked(range(len(edges)), edges, set()))):
        for node in _walked([root], back, seen):
            circles[node] = root
    return circles


def _walked(roots: Iterable[int], edges: Sequence[Collection[int]], seen: set[int]) -> Iterator[int]:
    """Every node that the roots lead to and that was not seen, each after those that it leads to."""
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        way = [(root, iter(edges[root]))]
        while way:
            node, onward = way[-1]
            after = next((target for target in onward if target not in seen), None)
            if after is None:
                way.pop()
                yield node
            else:
                seen.add(after)
                way.append((after, iter(edges[after])))
