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
}
"""Field of a request -> the values that ask for nothing, and what to say to any other."""
BOX = "Bounding-box questions are not supported: the served model reads text only"


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise `UnsupportedFeature` when an unchecked body asks for something on these lists."""
    for name in REQUEST.keys() & body.keys():
        harmless, why = REQUEST[name]
        if body[name] not in harmless:
            raise UnsupportedFeature(f"{why} ({name}).")
    questions = body.get("questions")
    if isinstance(questions, dict):
        _refuse_in_questions(questions.items())
    elif isinstance(questions, list):
        _refuse_in_questions(enumerate(questions))


def _refuse_in_questions(questions: Iterable[tuple[str | int, Any]]) -> None:
    for key, question in questions:
        if isinstance(question, dict) and question.get("type") == "box":
            raise UnsupportedFeature(f"{BOX} (questions.{short(str(key))}).")
