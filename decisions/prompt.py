"""Writes what the model reads: the quoted state, the question blocks, and the order in which they stand.

Every part is tokenised on its own and the token ids are joined, so that all reads of one state begin with the same
ids, and so that no text of the caller can merge with ours or become a control token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .protocol import Layout, Option, Text
from .reads import Slot, Tokenizer

PROMPT_VERSION = "1"
"""Changes with every change of wording below; part of the fingerprint in `x_diagnostics`."""

STATE_OPEN = "<<<\n"
STATE_CLOSE = "\n>>>\n\n"
GIVEN = "Already answered: "
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
    """Earlier answers that it depends on, its instructions, and a line per option: label, name, description if any."""
    lines = [f"{GIVEN}{line}" for line in slot.given]
    lines.append(as_text(slot.instructions) if slot.instructions else "Which of these holds?")
    for label, option in zip(slot.labels, slot.options, strict=True):
        lines.append(option_line(label, option))
    return "\n".join(lines) + "\n"


def option_line(label: str, option: Option) -> str:
    """One option as the model sees it. A name that only repeats its label is left out."""
    name, description = option.name, option.description
    if description is None or description == "":
        return label if name == label or not name else f"{label}: {name}"
    if name == label or not name:
        return f"{label}: {as_text(description)}"
    return f"{label}: {name} ({as_text(description)})"


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a prompt that all reads of one request share, as token ids around the questions."""

    before: tuple[int, ...]
    """What every read of the request begins with; an engine computes it once."""
    after: tuple[int, ...]
    holds: str = "The state"
    """What is on it, as an error names it."""

    def __len__(self) -> int:
        """Tokens of a prompt that asks nothing."""
        return len(self.before) + len(self.after)


class PromptWriter:
    """Puts token ids together into prompts for one served model; built once, when the engine starts."""

    def __init__(self, tokenizer: Tokenizer, encode_short: Encode, *, thinks: bool = False) -> None:
        """`encode_short` encodes like the tokenizer, and may remember texts that come again and again.

        `thinks`: the model can be made to write a thought before its answer.
        """
        self._encode = tokenizer.encode
        self._encode_short = encode_short
        self._thought_close = tokenizer.thought_close
        self._frames = {
            thinking: (
                tokenizer.frame(("user",), thinking=thinking).parts,
                tokenizer.frame(("system", "user"), thinking=thinking).parts,
            )
            for thinking in ((False, True) if thinks else (False,))
        }

    def page(self, state: Text, instructions: Text | None, layout: Layout, *, thinking: bool = False) -> Page:
        """Tokenise what all reads of a request share; with `thinking`, up to the thought that is not written yet."""
        data = self._encode(state_block(state))
        introduced = self._encode_short(introduction(instructions))
        user, system_user = self._frames[thinking]
        if layout is Layout.SCHEMA_FIRST:
            head, between, tail = system_user
            return Page(head + introduced, between + data + tail)
        head, tail = user
        return Page(head + data + introduced, tail)

    def thought(self, page: Page, ids: tuple[int, ...]) -> Page:
        """A page of a thinking model with the thought in it and its block closed."""
        return Page(page.before, page.after + ids + self._thought_close, "The state and a thought (think)")

    def block(self, slot: Slot) -> tuple[int, ...]:
        """The text of one question, without its heading."""
        return self._encode_short(question_block(slot))

    def heading(self, number: int | None) -> tuple[int, ...]:
        """What stands before a question; None where it is the only one."""
        return self._encode_short(heading(number))

    def reply(self, *, numbered: bool) -> tuple[int, ...]:
        """How to answer; the last words of the question part."""
        return self._encode_short(REPLY_NUMBERED if numbered else REPLY)

    def asked(self, blocks: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """What stands between the two parts of a page: exactly these questions, in order, and how to answer."""
        if len(blocks) == 1:
            return self.heading(None) + blocks[0] + self.reply(numbered=False)
        ids: list[int] = []
        for number, block in enumerate(blocks, start=1):
            ids += self.heading(number)
            ids += block
        ids += self.reply(numbered=True)
        return tuple(ids)
