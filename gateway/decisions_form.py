"""The OpenAI form of `/v1/decisions`: a checked body becomes a request, a decision becomes the answer's body.

Questions are a list here, so their ids inside are their positions. An option's value may be a boolean, which is told
from the string of the same text; a message is reduced to who said what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decisions.errors import Fault, SchemaViolation, UnsupportedFeature
from decisions.hints import DECISIONS, DECISIONS_QUESTION, Hint
from decisions.protocol import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    Decision,
    NoulAnswer,
    NoulQuestion,
    Option,
    Question,
    ReadSettings,
    ScoreQuestion,
    Skipped,
    Text,
)
from decisions.schema import capped

from .conditions import Answers, Asked, Conditions, Flag, conditional
from .forms import LEVELS, Report, Spelling, WireRequest, extras, read_settings, said
from .media import NO_IMAGES

DATA = "input"
"""The field of a body that the questions are about."""
_ITEM_FIELDS = ("type", "role", "call_id", "name", "arguments", "input", "content", "output")
"""Fields of an input item that the model is shown; ids, states and cache marks are not."""


def request_of(body: Mapping[str, Any], defaults: ReadSettings) -> WireRequest:
    """The request that a checked body spells.

    Raises `UnsupportedFeature` for images and `SchemaViolation` for what the schema cannot say: repeated option
    values, questions whose parts say nothing, and questions that wait for the wrong ones.
    """
    conditions = _conditions(body)
    faults = [fault for index, given in enumerate(body["questions"]) for fault in _faults(given, index)]
    if faults := capped([*faults, *conditions.faults()]):
        raise SchemaViolation(faults)
    built = [_question(given, index) for index, given in enumerate(body["questions"])]
    return WireRequest(
        model=body["model"],
        state=state_of(body),
        questions=conditions.on([question for question, _ in built]),
        instructions=said(body.get("instructions")),
        settings=read_settings(body, defaults),
        diagnostics=bool(body.get("diagnostics")),
        hints=tuple(_hints(body)),
        spellings=tuple(spelling for _, spelling in built),
    )


def condition_faults(body: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with what questions wait for, in any body."""
    yield from _conditions(body).faults()


def _conditions(body: Mapping[str, Any]) -> Conditions:
    """What questions wait for; here they refer to each other by `name`."""
    questions = body.get("questions")
    if not isinstance(questions, list) or not conditional(questions):
        return Conditions()
    pairs = enumerate(given if isinstance(given, dict) else {} for given in questions)
    return Conditions([Asked(index, _name(given), given, _answers(given)) for index, given in pairs])


def _name(given: Mapping[str, Any]) -> str | None:
    name = given.get("name")
    return name if isinstance(name, str) else None


def _answers(given: Mapping[str, Any]) -> Answers | None:
    kind, choices, levels = given.get("type"), given.get("choices"), given.get("levels")
    if kind == "predicate":
        return {"yes": "yes", "no": "no"}
    if kind == "choice" and isinstance(choices, list):
        values: tuple[Any, ...] = tuple(choice.get("value") if isinstance(choice, dict) else None for choice in choices)
        if all(isinstance(value, str | bool) for value in values):
            keys = [Flag(value) if isinstance(value, bool) else value for value in values]
            return dict(zip(keys, _option_names(values), strict=True))
    if kind == "score" and isinstance(levels, list):
        return {level: level for level in LEVELS[: len(levels)]}
    return None


def _faults(given: Mapping[str, Any], index: int) -> Iterator[Fault]:
    loc = ("body", "questions", index)
    if said(_content(given["instructions"])) is None:
        yield Fault("value_error", (*loc, "instructions"), f"Question must have instructions: {index}")
    seen: set[tuple[type, str | bool]] = set()
    for position, choice in enumerate(given["choices"] if given["type"] == "choice" else ()):
        value = (type(choice["value"]), choice["value"])
        if value in seen:
            yield Fault("value_error", (*loc, "choices", position, "value"), "Each choice must be unique.")
        seen.add(value)


def _question(given: Mapping[str, Any], index: int) -> tuple[Question, Spelling]:
    key, name = str(index), given.get("name")
    instructions, alone = said(_content(given["instructions"])), given.get("alone")
    if given["type"] == "predicate":
        return NoulQuestion(id=key, instructions=instructions, alone=alone), Spelling(name)
    if given["type"] == "choice":
        choices = given["choices"]
        values = tuple(choice["value"] for choice in choices)
        pairs = zip(_option_names(values), choices, strict=True)
        options = tuple(Option(option, choice.get("description")) for option, choice in pairs)
        question = ChoiceQuestion(id=key, instructions=instructions, alone=alone, options=options)
        return question, Spelling(name, values)
    levels = tuple(_level(level["label"], level.get("description")) for level in given["levels"])
    question_levels = ScoreQuestion(id=key, instructions=instructions, alone=alone, levels=levels)
    return question_levels, Spelling(name, tuple(level["label"] for level in given["levels"]))


def _option_names(values: tuple[str | bool, ...]) -> list[str]:
    """What the model is shown for each value; names differ even where a boolean and a string read the same."""
    taken = {value for value in values if isinstance(value, str)}
    names: list[str] = []
    for value in values:
        name = value if isinstance(value, str) else ("true" if value else "false")
        while isinstance(value, bool) and name in taken:
            name += " (boolean)"
        names.append(name)
    return names


def _level(label: str, description: str | None) -> Text:
    return f"{label}: {description}" if description else label


def state_of(body: Mapping[str, Any]) -> Text:
    """The state of a checked body. Raises `UnsupportedFeature` for images."""
    given: str | list[dict[str, Any]] = body[DATA]
    if isinstance(given, str):
        return given
    items = [_item(item) for item in given]
    if len(items) == 1 and items[0].keys() == {"role", "content"} and items[0]["role"] == "user":
        content: Text = items[0]["content"]
        return content
    return items


def _item(item: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: item[name] for name in _ITEM_FIELDS if item.get(name) is not None}
    if shown.get("type") == "message":
        del shown["type"]
    for name in ("content", "output"):
        if name in shown:
            shown[name] = _content(shown[name])
    return shown


def _content(given: str | list[dict[str, Any]]) -> Text:
    """A string, or parts as plain text where all of them are text, as a JSON value where there is one, else a list."""
    if isinstance(given, str):
        return given
    parts = [_part(part) for part in given]
    if all(isinstance(part, str) for part in parts):
        return "\n".join(map(str, parts))
    return parts[0] if len(parts) == 1 else parts


def _part(part: Mapping[str, Any]) -> Text:
    kind = part["type"]
    if kind == "input_image":
        raise UnsupportedFeature(NO_IMAGES)
    content: Text = part["data" if kind == "input_json" else "refusal" if kind == "refusal" else "text"]
    return content


def _hints(body: Mapping[str, Any]) -> Iterator[Hint]:
    yield from DECISIONS.hints(body, ("body",))
    for index, question in enumerate(body["questions"]):
        yield from DECISIONS_QUESTION.hints(question, ("body", "questions", index))


def body_of(model: str, request: WireRequest, decision: Decision, report: Report | None) -> dict[str, Any]:
    """The answer's body in the OpenAI form, answers in question order; a skipped question's is a refusal."""
    usage, skipped = decision.usage, decision.skipped
    spelled = list(zip(request.questions, request.spellings or (), strict=True))
    body = {
        "answers": [
            _answer(decision.answers[question.id], spelling)
            if question.id not in skipped
            else {"type": "refusal", "name": spelling.name}
            for question, spelling in spelled
        ],
        "model": model,
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": decision.thought_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }
    if skipped:
        body["x_skipped"] = [_skipped(int(key), why, spelled) for key, why in skipped.items()]
    return body | extras(request, decision, report)


def _skipped(index: int, why: Skipped, spelled: Sequence[tuple[Question, Spelling]]) -> dict[str, Any]:
    """Why a question was not asked, with names and option values as the caller wrote them."""
    other, spelling = spelled[int(why.because)]
    values: dict[str, str | bool] = {}
    if isinstance(other, ChoiceQuestion):
        values = dict(zip([option.name for option in other.options], spelling.values, strict=True))
    return {
        "question": index,
        "name": spelled[index][1].name,
        "because": spelling.name,
        "was": None if why.was is None else values.get(why.was, why.was),
        "wanted": [values.get(answer, answer) for answer in why.wanted],
    }


def _answer(answer: Answer, spelling: Spelling) -> dict[str, Any]:
    if isinstance(answer, NoulAnswer):
        return {"type": "predicate", "name": spelling.name, "probability": answer.noul}
    if isinstance(answer, ChoiceAnswer):
        top = list(answer.probabilities).index(answer.choice)
        pairs = zip(spelling.values, answer.probabilities.values(), strict=True)
        return {
            "type": "choice",
            "name": spelling.name,
            "choice": spelling.values[top],
            "confidence": answer.confidence,
            "probabilities": [{"value": value, "probability": share} for value, share in pairs],
        }
    levels = enumerate(zip(spelling.values, answer.probabilities, strict=True))
    return {
        "type": "score",
        "name": spelling.name,
        "score": answer.score,
        "confidence": answer.confidence,
        "probabilities": [{"value": index, "label": label, "probability": share} for index, (label, share) in levels],
    }
