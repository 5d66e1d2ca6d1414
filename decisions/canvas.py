"""Packs slots into reads: onto as few canvases as fit, or one next-token read per slot where there is no canvas.

A canvas is the answer with noise in every slot, the token that closes the turn, and padding up to a multiple of
`CANVAS_STEP`. An answer is a bare label, or one numbered line per slot. Every line is tokenised on its own and the ids
are joined, as in a prompt; where a line's slot stands is found by tokenising it once per label, and proved: each label
is one token, at the same position, distinct, and nothing else moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import shake_128
from struct import iter_unpack

from .errors import TooManyTokens, UnfitTokenizer
from .labels import ALPHABETS, DIGITS, AnswerForm
from .prompt import Page, PromptWriter
from .protocol import LabelSet, SeedToken
from .reads import EngineLimits, Read, Slot, SlotPosition, Tokenizer

CANVAS_STEP = 16
"""Canvas widths are multiples of this many tokens, so that the engine sees few shapes."""
REMEMBERED_TEXTS = 4096
REMEMBERED_LENGTH = 4096
"""Texts up to this many characters are remembered with their token ids: questions come again and again."""
REMEMBERED_LINES = 4096

Labels = tuple[str, ...]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """One line of an answer: its tokens with the first label in the slot, where the slot is, and the label ids."""

    tokens: tuple[int, ...]
    position: int
    label_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manner:
    """How the canvases of a request are read.

    `seed` and `token`: what fills the open slots, seeded noise or padding. `steps`: denoising steps. `constrained`:
    over the label ids alone; it spares an engine work, and cannot tell the label mass.
    """

    seed: int
    token: SeedToken
    steps: int = 1
    constrained: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a slot is read: the index of its read in the round, and of the slot within that read."""

    read: int
    slot: int
    companions: int
    """Other slots in the same read: 0 means that the slot was read alone."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A read without its page: the questions, and behind them the answer, which on a canvas has `width` tokens.

    Without a canvas `width` is 0, and `answer` is what leads in the label. `among` are the ids to which a read of it
    may be constrained, ascending; empty where these would be too many.
    """

    asked: tuple[int, ...]
    answer: tuple[int, ...]
    slots: tuple[SlotPosition, ...]
    width: int
    sample: int
    among: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Tokens that it takes of the context; a next-token read takes one more for the token that is read."""
        return len(self.asked) + (self.width or len(self.answer) + 1)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The slots of one round on their sheets, and where each slot is, in the slots' order.

    `longest` is the length of the longest sheet, in tokens.
    """

    sheets: tuple[Sheet, ...]
    placements: tuple[Placement, ...]
    longest: int


NOTHING = Arrangement((), (), 0)


def line_opening(number: int | None, space: str) -> str:
    """What a canvas holds before a label: nothing where it is the only one, else a new line with the number."""
    if number is None:
        return ""
    return f"{number}:{space}" if number == 1 else f"\n{number}:{space}"


def prove_line(tokenizer: Tokenizer, opening: str, labels: Labels) -> AnswerLine:
    """Find and prove the slot behind this opening; raises `UnfitTokenizer` where labels do not stand in one slot."""
    tokens = tokenizer.encode(opening + labels[0])
    position, ids = -1, []
    for label in labels[1:] or labels:
        changed = tokenizer.encode(opening + label)
        moved = [at for at, (old, new) in enumerate(zip(tokens, changed, strict=False)) if old != new]
        if len(changed) != len(tokens) or len(moved) != 1 or position not in (-1, moved[0]):
            raise UnfitTokenizer(f"The label {label!r} is not one token behind {opening!r} for the served tokenizer.")
        position = moved[0]
        ids.append(changed[position])
    ids.insert(0, tokens[position])
    if len(set(ids)) != len(ids):
        raise UnfitTokenizer(f"Two labels share one token behind {opening!r} for the served tokenizer.")
    return AnswerLine(tokens, position, tuple(ids))


def canvas_width(answer: int) -> int:
    """Canvas width in tokens for an answer of so many tokens and the closing token: a multiple of `CANVAS_STEP`."""
    return -(-(answer + 1) // CANVAS_STEP) * CANVAS_STEP


@dataclass(slots=True)
class _Group:
    """Slots that go to one read, and what they take of it as numbered questions."""

    prompt: int
    """Tokens of the prompt so far."""
    indices: list[int] = field(default_factory=list)
    answer: int = 0
    """Tokens of the answer so far."""
    label_ids: set[int] = field(default_factory=set)


class Packer:
    """Turns the slots of one round into reads, for one served model; built and proved once, when the engine starts.

    Raises `UnfitTokenizer` when letters, digits or yes/no are not single tokens for the served tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, limits: EngineLimits, form: AnswerForm) -> None:
        remembered = lru_cache(maxsize=REMEMBERED_TEXTS)(tokenizer.encode)

        def encode_short(text: str) -> tuple[int, ...]:
            return remembered(text) if len(text) <= REMEMBERED_LENGTH else tokenizer.encode(text)

        self.writer = PromptWriter(tokenizer, encode_short, thinks=limits.thinks)
        self._tokenizer = tokenizer
        self.limits = limits
        self._form = form
        self._line = lru_cache(maxsize=REMEMBERED_LINES)(self._prove)
        self.alphabets = self._proven_alphabets()
        self._common = self._common_ids()

    def _prove(self, number: int | None, labels: Labels) -> AnswerLine:
        form = self._form
        if self.limits.canvas:
            return prove_line(self._tokenizer, line_opening(number, form.space), labels)
        line = prove_line(self._tokenizer, form.lead + form.space, labels)
        if line.position != len(line.tokens) - 1:
            raise UnfitTokenizer(f"A label of {labels} is not the last token of an answer for the served tokenizer.")
        return line

    def _proven_alphabets(self) -> dict[LabelSet, Labels]:
        numbers = (None, 1, 2) if self.limits.slots > 1 else (None,)
        for number in numbers:
            self._line(number, self._form.nouls)
            self._line(number, DIGITS)
        proven = {}
        for name, alphabet in ALPHABETS.items():
            try:
                for number in numbers:
                    self._line(number, alphabet)
            except UnfitTokenizer:
                if name is LabelSet.AZ:
                    raise
            else:
                proven[name] = alphabet
        return proven

    def _common_ids(self) -> frozenset[int]:
        """Ids of all labels but those of the extended sets.

        Constrained reads ask for all of them, whatever their questions need: an engine reads a batch faster where all
        reads in it are constrained to one set.
        """
        sets = (self._form.nouls, DIGITS, ALPHABETS[LabelSet.AZ])
        numbers = (None, 1) if self.limits.slots > 1 else (None,)
        return frozenset(
            label for number in numbers for labels in sets for label in self._line(number, labels).label_ids
        )

    def pack(self, page: Page, slots: Sequence[Slot], manner: Manner) -> tuple[tuple[Read, ...], tuple[Placement, ...]]:
        """Reads for all slots of a round, and where each slot is read, in the slots' order.

        First fit in request order. Raises `TooManyTokens` when a slot's prompt alone is longer than the context.
        """
        return self.fill(page, self.arrange(slots, self.limits.context - len(page)), manner)

    def arrange(self, slots: Sequence[Slot], room: int) -> Arrangement:
        """Which slots share a read where `room` tokens are left for the questions, the answer and its canvas."""
        blocks = [self.writer.block(slot) for slot in slots]
        groups = self._grouped(slots, blocks, room)
        placements: dict[int, Placement] = {}
        for at, group in enumerate(groups):
            placements.update({index: Placement(at, k, len(group) - 1) for k, index in enumerate(group)})
        sheets = [self._sheet([slots[i] for i in group], [blocks[i] for i in group]) for group in groups]
        in_order = tuple([placements[index] for index in range(len(slots))])
        return Arrangement(tuple(sheets), in_order, max(map(len, sheets), default=0))

    def fits(self, page: Page, arrangement: Arrangement) -> bool:
        """Whether every read of an arrangement fits the context behind this page.

        One that does is the very arrangement that `pack` would make: a slot that fits beside all that came to its
        read at last has fitted beside those that were there before.
        """
        return len(page) + arrangement.longest <= self.limits.context

    def fill(
        self, page: Page, arrangement: Arrangement, manner: Manner
    ) -> tuple[tuple[Read, ...], tuple[Placement, ...]]:
        """The reads of an arrangement behind this page. Raises `TooManyTokens` where one is longer than the context."""
        if not self.fits(page, arrangement):
            needed = len(page) + arrangement.longest
            raise TooManyTokens(needed, self.limits.context, f"{page.holds} with one question")
        return tuple([self._read(page, sheet, manner) for sheet in arrangement.sheets]), arrangement.placements

    def _grouped(self, slots: Sequence[Slot], blocks: Sequence[Tokens], room: int) -> list[list[int]]:
        """Indices of the slots, by read."""
        groups: list[_Group] = []
        joinable: dict[tuple[int, int], list[_Group]] = {}
        frame = len(self.writer.reply(numbered=True))
        for index, (slot, block) in enumerate(zip(slots, blocks, strict=True)):
            if slot.alone or self.limits.slots == 1:
                groups.append(_Group(frame, [index]))
                continue
            beside = joinable.setdefault((slot.order, slot.sample), [])
            if not any(self._join(group, index, slot, block, room) for group in beside):
                group = _Group(frame)
                self._add(group, index, slot, block)
                groups.append(group)
                beside.append(group)
        return [group.indices for group in groups]

    def _join(self, group: _Group, index: int, slot: Slot, block: Tokens, room: int) -> bool:
        """Put a slot into a group, if the group has room for it."""
        if len(group.indices) >= self.limits.slots:
            return False
        number = len(group.indices) + 1
        line = self._line(number, slot.labels)
        width = canvas_width(group.answer + len(line.tokens))
        prompt = group.prompt + len(self.writer.heading(number)) + len(block)
        if width > self.limits.canvas or prompt + width > room:
            return False
        if len(group.label_ids.union(line.label_ids)) > self.limits.label_ids:
            return False
        self._add(group, index, slot, block)
        return True

    def _add(self, group: _Group, index: int, slot: Slot, block: Tokens) -> None:
        group.indices.append(index)
        number = len(group.indices)
        line = self._line(number, slot.labels)
        group.prompt += len(self.writer.heading(number)) + len(block)
        group.answer += len(line.tokens)
        group.label_ids.update(line.label_ids)

    def _sheet(self, slots: Sequence[Slot], blocks: Sequence[Tokens]) -> Sheet:
        answer, positions = self._answer(slots)
        asked = self.writer.asked(blocks)
        if self.limits.canvas:
            among = tuple(sorted(self._common.union(*[position.label_ids for position in positions])))
            if len(among) > self.limits.label_ids:
                among = ()
            return Sheet(asked, answer, positions, canvas_width(len(answer)), slots[0].sample, among)
        # The answer is led in up to its label; what the model reads next is the label.
        return Sheet(asked, answer[:-1], (SlotPosition(0, positions[0].label_ids),), 0, slots[0].sample)

    def _read(self, page: Page, sheet: Sheet, manner: Manner) -> Read:
        prompt = page.before + sheet.asked + page.after
        if not self.limits.canvas:
            return Read(prompt + sheet.answer, sheet.slots, (), len(page.before))
        drawn = self._drawn(prompt, sheet.sample, len(sheet.slots), manner)
        among = sheet.among if manner.constrained else ()
        return Read(prompt, sheet.slots, self._seeded(sheet, drawn), len(page.before), manner.steps, among)

    def _answer(self, slots: Sequence[Slot]) -> tuple[Tokens, tuple[SlotPosition, ...]]:
        """The answer's tokens with each slot at its first label, and where the slots are."""
        numbered = len(slots) > 1
        answer: Tokens = ()
        positions = []
        for number, slot in enumerate(slots, start=1):
            line = self._line(number if numbered else None, slot.labels)
            positions.append(SlotPosition(len(answer) + line.position, line.label_ids))
            answer += line.tokens
        return answer, tuple(positions)

    def _drawn(self, prompt: Tokens, sample: int, count: int, manner: Manner) -> list[int]:
        """A token per slot: padding, or noise that depends on the seed, the prompt and the sample alone."""
        if manner.token is SeedToken.FIXED:
            return [self._tokenizer.pad] * count
        # A tuple of ints hashes alike in every process, and many times faster than its bytes would.
        drawn = shake_128(f"{manner.seed}/{sample}/{hash(prompt)}".encode()).digest(8 * count)
        return [value % self._tokenizer.vocabulary for (value,) in iter_unpack("<Q", drawn)]

    def _seeded(self, sheet: Sheet, drawn: Sequence[int]) -> Tokens:
        """The canvas: the answer with the drawn tokens in its slots, the closing token, and padding."""
        canvas = [*sheet.answer, self._tokenizer.turn_close]
        canvas += [self._tokenizer.pad] * (sheet.width - len(canvas))
        for slot, token in zip(sheet.slots, drawn, strict=True):
            canvas[slot.position] = token
        return tuple(canvas)
