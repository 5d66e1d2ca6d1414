"""The stub engine: exact, documented and weightless, for tests and gateway load runs.

It says `stub` wherever it answers, and reads the very prompt that a model would be given. An option's utility is a hash
of the state, the question's instructions and the option's own text, between -SPREAD and SPREAD nats; its share is
Luce's, exp(u) over the sum of exp(u) of the options shown. So every law that a gateway can keep (isolation, order,
brackets) holds exactly here, and each way in which real engines break one can be switched on in `StubFaults`.
"""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, shake_128
from itertools import pairwise

from decisions.errors import EngineUnavailable
from decisions.labels import ALPHABETS, AnswerForm
from decisions.prompt import heading
from decisions.protocol import LabelSet
from decisions.reads import ChatFrame, EngineLimits, Read, Readout, Thought, Ticket

from . import EngineHealth, ServedModel

PAD, BEGIN, TURN_CLOSE, SYSTEM, USER, MODEL = range(256, 262)
WORDS = ("yes", "no", *(label for label in ALPHABETS[LabelSet.AZ_AA] if len(label) == 2))
THOUGHT_OPEN, THOUGHT_CLOSE = range(MODEL + 1 + len(WORDS), MODEL + 3 + len(WORDS))
SPREAD = 3.0


class StubTokenizer:
    """One token per UTF-8 byte, but for yes, no and the two-letter labels, which are one token each."""

    turn_close = TURN_CLOSE
    pad = PAD
    thought_close = (THOUGHT_CLOSE,)

    def __init__(self) -> None:
        self._split = re.compile("(yes|no|A[A-Z])").split
        self._words = {word: (MODEL + 1 + index,) for index, word in enumerate(WORDS)}
        named = ["<pad>", "<bos>", "<turn|>", "<|system>", "<|user>", "<|model>", *WORDS, "<|thought>", "<thought|>"]
        self._bytes = [bytes([value]) for value in range(256)] + [name.encode() for name in named]

    @property
    def vocabulary(self) -> int:
        """256 bytes, eight control tokens, and the words."""
        return len(self._bytes)

    def encode(self, text: str) -> tuple[int, ...]:
        """Bytes and words; no text becomes a control token."""
        ids: list[int] = []
        for piece in self._split(text):
            ids += self._words.get(piece) or piece.encode("utf-8", "replace")
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids, control tokens spelled out."""
        return b"".join([self._bytes[token] for token in ids]).decode("utf-8", "replace")

    def frame(self, roles: tuple[str, ...], *, thinking: bool = False) -> ChatFrame:
        """A turn per role, then the model's turn; a thought block in it only for one to be written there."""
        opens = {"system": SYSTEM, "user": USER}
        parts: list[tuple[int, ...]] = [(BEGIN, opens[roles[0]])]
        parts += [(TURN_CLOSE, opens[role]) for role in roles[1:]]
        return ChatFrame((*parts, (TURN_CLOSE, MODEL, THOUGHT_OPEN) if thinking else (TURN_CLOSE, MODEL)))


@dataclass(frozen=True, slots=True)
class StubFaults:
    """Ways in which real engines fall short, all off by default.

    `slot_bias`: nats added by the place at which an option is shown. `coupling`: nats added by what the other slots
    of the same canvas ask. `noise`: nats added by the noise token in the slot. `missing_slot`, `missing_label`,
    `not_finite`: shares of reads (0 to 1, drawn by hash of the prompt) whose readout is broken in that way, once
    (`lasting`: every time). `dead`: the engine answers nothing.
    """

    slot_bias: float = 0.0
    coupling: float = 0.0
    noise: float = 0.0
    missing_slot: float = 0.0
    missing_label: float = 0.0
    not_finite: float = 0.0
    lasting: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as it stands in a prompt, taken apart."""

    block: bytes
    instructions: bytes
    options: tuple[bytes, ...]


def take_apart(block: str, labels: Sequence[str]) -> Asked:
    """The instructions of a question and the texts of its option lines, which are found from the last one backwards."""
    texts: list[bytes] = []
    end = block.rindex("\n") + 1
    for label in reversed(labels):
        start = max(block.rfind(f"\n{label}: ", 0, end), block.rfind(f"\n{label}\n", 0, end))
        texts.insert(0, block[start + 1 : end].removeprefix(f"{label}: ").strip("\n").encode("utf-8", "replace"))
        end = start + 1
    return Asked(block.encode("utf-8", "replace"), block[:end].encode("utf-8", "replace"), tuple(texts))


def unit(*parts: bytes) -> float:
    """A number in [0, 1) that depends on nothing but these bytes."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return int.from_bytes(digest.digest(), "big") / 2**64


class StubEngine:
    """Reads prompts by hashing; see the module's docstring for what it computes."""

    kind = "stub"
    form = AnswerForm()

    def __init__(self, limits: EngineLimits, delay: float = 0.0, faults: StubFaults | None = None) -> None:
        """`delay` is the time in seconds that every call of `read` takes."""
        self.limits = limits
        self.form = AnswerForm(space=" " if limits.canvas else "")
        self.tokenizer = StubTokenizer()
        self.model = ServedModel("stub", "1", "stub")
        self.delay = delay
        self.faults = faults or StubFaults()
        self.working = 0
        """Reads being worked on; back at zero when nobody asks."""
        self._broken: set[bytes] = set()
        self._asked = lru_cache(maxsize=1024)(self._find)
        self._named = lru_cache(maxsize=1024)(self._spelled)
        self._names = {self.tokenizer.encode(label)[0]: label for label in self._labels()}

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        """All reads at once, after `delay` seconds."""
        self.working += len(reads)
        try:
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.faults.dead:
                raise EngineUnavailable("The stub engine was told to be dead.")
            return [self._readout(read) for read in reads]
        finally:
            self.working -= len(reads)

    async def think(self, thought: Thought, ticket: Ticket) -> tuple[int, ...]:
        """Letters by hash of the prompt, up to half of the budget; they mean nothing, but answers depend on them."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.faults.dead:
            raise EngineUnavailable("The stub engine was told to be dead.")
        letters = shake_128(array("H", thought.prompt).tobytes()).hexdigest(thought.budget)
        return self.tokenizer.encode(letters[: (thought.budget + 1) // 2])

    async def health(self) -> EngineHealth:
        """Alive unless told to be dead."""
        return EngineHealth(not self.faults.dead, "told to be dead" if self.faults.dead else "")

    async def close(self) -> None:
        """Nothing to free."""

    def _labels(self) -> list[str]:
        return [*ALPHABETS[LabelSet.AZ_AA], *ALPHABETS[LabelSet.AZ_LOWER], *"0123456789", *self.form.nouls]

    def _readout(self, read: Read) -> Readout:
        """What the labels' utilities come to, with a label mass between 0.6 and 1 that the state decides.

        In a constrained read it is 1, as if the questions' own labels were all that was read.
        """
        state, questions = self._parts(read)
        labels = tuple([self._named(slot.label_ids) for slot in read.slots])
        asked = self._asked(questions, labels)
        mass = 0.0 if read.constrained else math.log(0.6 + 0.4 * unit(b"mass", state))
        rows = []
        for index, slot in enumerate(read.slots):
            logits = self._utilities(state, asked[index])
            if self.faults.coupling:
                around = b"".join([one.block for one in asked if one is not asked[index]])
                logits = self._moved(logits, labels[index], self.faults.coupling, around)
            if self.faults.noise and read.canvas:
                seen = read.canvas[slot.position].to_bytes(4, "big")
                logits = self._moved(logits, labels[index], self.faults.noise, seen)
            rows.append(self._shares(logits, mass))
        return self._break(read, Readout(tuple(rows)))

    def _spelled(self, label_ids: tuple[int, ...]) -> tuple[str, ...]:
        return tuple([self._names[token] for token in label_ids])

    @staticmethod
    def _parts(read: Read) -> tuple[bytes, tuple[int, ...]]:
        """What the state hashes to, and the tokens of the questions."""
        prompt = read.prompt
        close = prompt.index(TURN_CLOSE, read.prefix)
        # A tuple of ints hashes alike in every process, and many times faster than its bytes would.
        state = hash(prompt[: read.prefix] + prompt[close:])
        return state.to_bytes(8, "big", signed=True), prompt[read.prefix : close]

    def _find(self, questions: tuple[int, ...], labels: tuple[tuple[str, ...], ...]) -> tuple[Asked, ...]:
        """The questions of a prompt, taken apart: headings cut off, then option lines from the last one backwards."""
        text, count = self.tokenizer.decode(questions), len(labels)
        starts = [0, *(text.index("\n" + heading(number)) + 1 for number in range(2, count + 1)), len(text)]
        asked = []
        for number, (start, stop) in enumerate(pairwise(starts), start=1):
            block = text[start:stop].removeprefix(heading(number if count > 1 else None))
            asked.append(take_apart(block, labels[number - 1]))
        return tuple(asked)

    def _utilities(self, state: bytes, asked: Asked) -> list[float]:
        """Utility per label in nats, by hash."""
        bias = self.faults.slot_bias
        seed = blake2b(state + asked.instructions, digest_size=8)
        utilities = []
        for place, text in enumerate(asked.options):
            digest = seed.copy()
            digest.update(text)
            utilities.append(SPREAD * (int.from_bytes(digest.digest(), "big") / 2**63 - 1))
            if bias:
                utilities[place] += bias * (2 * unit(b"place", bytes([place])) - 1)
        return utilities

    @staticmethod
    def _moved(logits: list[float], labels: Sequence[str], strength: float, by: bytes) -> list[float]:
        return [
            logit + strength * (2 * unit(by, label.encode()) - 1) if by else logit
            for logit, label in zip(logits, labels, strict=True)
        ]

    @staticmethod
    def _shares(logits: Sequence[float], mass: float) -> tuple[float, ...]:
        """Log-probabilities over the full vocabulary, of which the labels have `mass` (a logarithm) together."""
        offset = mass - math.log(math.fsum(map(math.exp, logits)))
        return tuple([logit + offset for logit in logits])

    def _break(self, read: Read, readout: Readout) -> Readout:
        """The readout, broken where `faults` say so."""
        faults = self.faults
        if not (faults.missing_slot or faults.missing_label or faults.not_finite):
            return readout
        key = array("H", read.prompt).tobytes()
        if key in self._broken and not faults.lasting:
            return readout
        self._broken.add(key)
        drawn, rows = unit(b"fault", key), readout.logprobs
        if drawn < faults.missing_slot:
            return Readout(rows[1:])
        if drawn < faults.missing_slot + faults.missing_label:
            return Readout((rows[0][1:], *rows[1:]))
        if drawn < faults.missing_slot + faults.missing_label + faults.not_finite:
            return Readout(((math.nan, *rows[0][1:]), *rows[1:]))
        return readout
