"""Packs slots into reads: onto as few canvases as fit, or one next-token read per slot where there is no canvas.

A canvas is the answer text with noise in every slot, the token that closes the turn, and padding up to a multiple of
`CANVAS_STEP`. Where its slots stand is found by tokenising the answer text once per label, and proved: each label is
one token, at the same position, distinct, and nothing else moves.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from .errors import TooManyTokens, UnfitTokenizer
from .labels import ALPHABETS, DIGITS, AnswerForm, LabelSet, label_ids
from .prompt import Page, PromptWriter
from .protocol import SeedToken
from .reads import EngineLimits, Read, Slot, SlotPosition, Tokenizer

CANVAS_STEP = 16
"""Canvas widths are multiples of this many tokens, so that the engine sees few shapes."""
REMEMBERED_TEXTS = 4096
REMEMBERED_LENGTH = 4096
"""Texts up to this many characters are remembered with their token ids: questions come again and again."""
REMEMBERED_SHAPES = 4096

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CanvasShape:
    """Where the slots of an answer text stand: its tokens with each slot at its first label, and the positions."""

    answer: tuple[int, ...]
    slots: tuple[SlotPosition, ...]

    @property
    def width(self) -> int:
        """Canvas width in tokens: the answer and the closing token, rounded up to a multiple of `CANVAS_STEP`."""
        return -(-(len(self.answer) + 1) // CANVAS_STEP) * CANVAS_STEP

    @property
    def label_ids(self) -> frozenset[int]:
        """The distinct label ids of all slots."""
        return frozenset(label for slot in self.slots for label in slot.label_ids)


@dataclass(frozen=True, slots=True)
class Noise:
    """What a canvas' open slots are filled with: seeded noise or padding."""

    seed: int
    token: SeedToken


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a slot is read: the index of its read in the round, and of the slot within that read."""

    read: int
    slot: int
    companions: int
    """Other slots in the same read: 0 means that the slot was read alone."""


def answer_text(labels: Sequence[str], space: str) -> str:
    """The answer that a canvas holds: a bare label, or one numbered line per slot."""
    if len(labels) == 1:
        return labels[0]
    return "\n".join(f"{number}:{space}{label}" for number, label in enumerate(labels, start=1))


def prove_shape(tokenizer: Tokenizer, labels: tuple[Labels, ...], space: str) -> CanvasShape:
    """Find and prove the slots of an answer with these labels per slot; raises `UnfitTokenizer` where there are none."""
    first = [alternatives[0] for alternatives in labels]
    answer = tokenizer.encode(answer_text(first, space))
    slots = []
    for index, alternatives in enumerate(labels):
        position, ids = -1, []
        for label in alternatives[1:] or alternatives:
            changed = tokenizer.encode(answer_text([*first[:index], label, *first[index + 1 :]], space))
            moved = [at for at, (old, new) in enumerate(zip(answer, changed, strict=False)) if old != new]
            if len(changed) != len(answer) or len(moved) != 1 or position not in (-1, moved[0]):
                raise UnfitTokenizer(f"The label {label!r} is not one token in slot {index + 1} of {len(labels)}.")
            position = moved[0]
            ids.append(changed[position])
        ids.insert(0, answer[position])
        if len(set(ids)) != len(ids):
            raise UnfitTokenizer(f"Two labels of slot {index + 1} share one token.")
        slots.append(SlotPosition(position, tuple(ids)))
    return CanvasShape(tuple(answer), tuple(slots))


class Packer:
    """Turns the slots of one round into reads, for one served model; built and proved once, when the engine starts.

    Raises `UnfitTokenizer` when letters, digits or yes/no are not single tokens for the served tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, limits: EngineLimits, form: AnswerForm) -> None:
        remembered = lru_cache(maxsize=REMEMBERED_TEXTS)(tokenizer.encode)

        def encode_short(text: str) -> tuple[int, ...]:
            return remembered(text) if len(text) <= REMEMBERED_LENGTH else tokenizer.encode(text)

        self.writer = PromptWriter(tokenizer, form if not limits.canvas else AnswerForm(), encode_short)
        self._tokenizer = tokenizer
        self._limits = limits
        self._form = form
        self._shape = lru_cache(maxsize=REMEMBERED_SHAPES)(self._prove)
        self.alphabets = self._proven_alphabets()

    def _prove(self, labels: tuple[Labels, ...]) -> CanvasShape:
        if self._limits.canvas:
            return prove_shape(self._tokenizer, labels, self._form.space)
        form = self._form
        ids = label_ids(self._tokenizer, form.lead, tuple(form.space + label for label in labels[0]))
        return CanvasShape((), (SlotPosition(0, ids),))

    def _proven_alphabets(self) -> dict[LabelSet, Labels]:
        self._shape((self._form.nouls,))
        self._shape((DIGITS,))
        proven = {}
        for name, alphabet in ALPHABETS.items():
            try:
                self._shape((alphabet,))
                if self._limits.slots > 1:
                    self._shape((alphabet, self._form.nouls, DIGITS))
            except UnfitTokenizer:
                if name is LabelSet.AZ:
                    raise
            else:
                proven[name] = alphabet
        return proven

    def pack(self, page: Page, slots: Sequence[Slot], noise: Noise) -> tuple[tuple[Read, ...], tuple[Placement, ...]]:
        """Reads for all slots of a round, and where each slot is read, in the slots' order.

        First fit in request order. Raises `TooManyTokens` when a slot's prompt alone is longer than the context.
        """
        groups: list[list[int]] = []
        for index, slot in enumerate(slots):
            for group in groups:
                if self._fits(page, [slots[i] for i in group], slot):
                    group.append(index)
                    break
            else:
                groups.append([index])
        reads = tuple(self._read(page, [slots[i] for i in group], noise) for group in groups)
        placements: dict[int, Placement] = {}
        for at, group in enumerate(groups):
            placements.update({index: Placement(at, k, len(group) - 1) for k, index in enumerate(group)})
        return reads, tuple(placements[index] for index in range(len(slots)))

    def _fits(self, page: Page, group: list[Slot], slot: Slot) -> bool:
        """Whether a slot may join a group of slots that are already on one canvas."""
        first = group[0]
        if len(group) >= self._limits.slots or slot.alone or first.alone:
            return False
        if (slot.order, slot.sample) != (first.order, first.sample):
            return False
        together = [*group, slot]
        shape = self._shape(tuple(member.labels for member in together))
        if shape.width > self._limits.canvas or len(shape.label_ids) > self._limits.label_ids:
            return False
        prompt, _ = self.writer.prompt(page, self.writer.questions(together))
        return len(prompt) + shape.width <= self._limits.context

    def _read(self, page: Page, group: list[Slot], noise: Noise) -> Read:
        shape = self._shape(tuple(slot.labels for slot in group))
        prompt, prefix = self.writer.prompt(page, self.writer.questions(group))
        width = shape.width if self._limits.canvas else 1
        if len(prompt) + width > self._limits.context:
            raise TooManyTokens(len(prompt) + width, self._limits.context, "The state with one question")
        canvas = self._seeded(shape, prompt, group[0].sample, noise) if self._limits.canvas else ()
        return Read(prompt, shape.slots, canvas, prefix)

    def _seeded(self, shape: CanvasShape, prompt: tuple[int, ...], sample: int, noise: Noise) -> tuple[int, ...]:
        """The canvas, with noise that depends on the seed, the prompt and the sample alone."""
        canvas = [*shape.answer, self._tokenizer.turn_close]
        canvas += [self._tokenizer.pad] * (shape.width - len(canvas))
        if noise.token is SeedToken.FIXED:
            drawn = [self._tokenizer.pad] * len(shape.slots)
        else:
            digest = blake2b(f"{noise.seed}/{sample}/".encode() + array("I", prompt).tobytes(), digest_size=16)
            generator = random.Random(digest.digest())  # noqa: S311 - noise for a canvas, not a secret
            drawn = [generator.randrange(self._tokenizer.vocabulary) for _ in shape.slots]
        for slot, token in zip(shape.slots, drawn, strict=True):
            canvas[slot.position] = token
        return tuple(canvas)
