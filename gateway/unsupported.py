"""What the protocol has and this gateway does not do yet: refused by name, never silently ignored.

The one list of such fields. A field leaves it when it is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from decisions.errors import UnsupportedFeature
from decisions.excerpt import short

REQUEST: Mapping[str, tuple[tuple[object, ...], str]] = {
    "assets": ((None, {}), "The served model reads text only; images are not supported"),
    "images": ((None, []), "The served model reads text only; images are not supported"),
    "template": ((None,), "Decision templates are not supported yet"),
    "think": ((None, 0), "Thinking before the answer is not supported yet"),
    "variables": ((None, {}), "Decision templates are not supported yet"),
}
"""Field of a request -> the values that ask for nothing, and what to say to any other."""
QUESTION: Mapping[str, tuple[tuple[object, ...], str]] = {
    "ask_if": ((None, {}), "Conditional questions are not supported yet"),
    "depends_on": ((None, []), "Questions that depend on others are not supported yet"),
}
"""The same for the fields of a question."""
BOX = "Bounding-box questions are not supported: the served model reads text only"


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise `UnsupportedFeature` when an unchecked body asks for something on these lists."""
    if not REQUEST.keys().isdisjoint(body):
        _refuse(body, REQUEST, "")
    questions = body.get("questions")
    if isinstance(questions, dict):
        _refuse_in_questions(questions.items())
    elif isinstance(questions, list):
        _refuse_in_questions(enumerate(questions))


def _refuse_in_questions(questions: Iterable[tuple[str | int, Any]]) -> None:
    for key, question in questions:
        if not isinstance(question, dict):
            continue
        if question.get("type") == "box":
            raise UnsupportedFeature(f"{BOX} (questions.{short(str(key))}).")
        if not QUESTION.keys().isdisjoint(question):
            _refuse(question, QUESTION, f"questions.{short(str(key))}.")


def _refuse(given: Mapping[str, Any], fields: Mapping[str, tuple[tuple[object, ...], str]], path: str) -> None:
    for name, (harmless, why) in fields.items():
        if name in given and given[name] not in harmless:
            raise UnsupportedFeature(f"{why} ({path}{name}).")
