"""Writes what the model reads: the quoted state, the question blocks, and the order in which they stand.

Every part is tokenised on its own and the token ids are joined, so that all reads of one state begin with the same
ids, and so that no text of the caller can merge with ours or become a control token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .labels import AnswerForm
from .protocol import Layout, Text
from .reads import Slot, Tokenizer

PROMPT_VERSION = "1"
"""Changes with every change of wording below; part of the fingerprint in `x_diagnostics`."""

STATE_OPEN = "<<<\n"
STATE_CLOSE = "\n>>>\n\n"
REPLY = "Answer with one label only."
REPLY_NUMBERED = "Answer each question on its own line, with its number and one label."

Encode = Callable[[str], tuple[int, ...]]


def as_text(value: Text) -> str:
    """Text as the model sees it: strings verbatim, everything else as JSON without ASCII escapes."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def state_block(state: Text) -> str:
    """The state, quoted as data between fixed marks."""
    return f"{STATE_OPEN}{as_text(state)}{STATE_CLOSE}"


def introduction(instructions: Text | None) -> str:
    """What holds for every question of a request: its top-level instructions."""
    return f"{as_text(instructions)}\n\n" if instructions else ""


def heading(number: int | None) -> str:
    """The words before a question; questions are numbered from 1 only where one canvas holds several."""
    return "Question: " if number is None else f"Question {number}: "


def question_block(slot: Slot) -> str:
    """A question's instructions, then one line per option: its label, its name, and its description if any."""
    lines = [as_text(slot.instructions) if slot.instructions else "Which of these holds?"]
    for label, option in zip(slot.labels, slot.options, strict=True):
        lines.append(option_line(label, option.name, option.description))
    return "\n".join(lines) + "\n"


def option_line(label: str, name: str, description: Text | None) -> str:
    """One option as the model sees it. A name that only repeats its label is left out."""
    if description is None or description == "":
        return label if name == label or not name else f"{label}: {name}"
    if name == label or not name:
        return f"{label}: {as_text(description)}"
    return f"{label}: {name} ({as_text(description)})"


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a prompt that all reads of one request share: its layout, its state, its instructions, as ids."""

    layout: Layout
    state: tuple[int, ...]
    introduction: tuple[int, ...]


class PromptWriter:
    """Puts token ids together into prompts for one served model; built once, when the engine starts."""

    def __init__(self, tokenizer: Tokenizer, form: AnswerForm, encode_short: Encode) -> None:
        """`encode_short` encodes like the tokenizer, and may remember texts that come again and again."""
        self._encode = tokenizer.encode
        self._encode_short = encode_short
        self._user = tokenizer.frame(("user",)).parts
        self._system_user = tokenizer.frame(("system", "user")).parts
        lead = tokenizer.encode(form.lead) if form.lead else ()
        self._user = (*self._user[:-1], self._user[-1] + lead)
        self._system_user = (*self._system_user[:-1], self._system_user[-1] + lead)

    def page(self, state: Text, instructions: Text | None, layout: Layout) -> Page:
        """Tokenise what all reads of a request share."""
        return Page(layout, self._encode(state_block(state)), self._encode_short(introduction(instructions)))

    def questions(self, slots: Sequence[Slot]) -> tuple[int, ...]:
        """The question part of a prompt that asks exactly these slots, in order."""
        numbered = len(slots) > 1
        ids: tuple[int, ...] = ()
        for number, slot in enumerate(slots, start=1):
            ids += self._encode_short(heading(number if numbered else None)) + self._encode_short(question_block(slot))
        return ids + self._encode_short(REPLY_NUMBERED if numbered else REPLY)

    def prompt(self, page: Page, questions: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The whole prompt, and how many of its leading tokens every read of this page has in common."""
        if page.layout is Layout.SCHEMA_FIRST:
            head, between, tail = self._system_user
            shared = head + page.introduction
            return shared + questions + between + page.state + tail, len(shared)
        head, tail = self._user
        shared = head + page.state + page.introduction
        return shared + questions + tail, len(shared)
