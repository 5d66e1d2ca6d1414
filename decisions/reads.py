"""What crosses to an engine and back: reads with their slots, readouts, limits, cost and the ticket of admission."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import MalformedReadout
from .protocol import Option, Text

MAX_LABEL_IDS = 128
"""Label ids that one engine read may ask for (vLLM's MAX_LOGPROB_TOKEN_IDS)."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one engine can take. The planner knows nothing else about it.

    `context`: tokens of prompt and canvas together. `canvas`: width of the widest canvas in tokens, or 0 for an
    autoregressive engine, which has one slot per read and no canvas. `label_ids`: distinct label ids per read.
    `slots`: slots per read. `reads`: reads that the engine works on at once. `constrained`: whether a canvas is read
    over the label ids alone where nobody asks how much probability fell beside them. `thinks`: whether the model can
    write a thought before it is read.
    """

    context: int
    canvas: int = 0
    label_ids: int = MAX_LABEL_IDS
    slots: int = 1
    reads: int = 1
    constrained: bool = False
    thinks: bool = False


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Token ids of a chat template around its messages' contents; one part more than there are messages.

    The last part opens the model's turn, and holds an empty thought block where the model expects one, or opens one.
    """

    parts: tuple[tuple[int, ...], ...]


class Tokenizer(Protocol):
    """The served model's tokenizer, as far as a prompt or a canvas needs it."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids; ids are 0 to vocabulary - 1."""

    @property
    def turn_close(self) -> int:
        """Id of the token that ends the model's turn; it closes the answer in a canvas."""

    @property
    def pad(self) -> int:
        """Id of the padding token; it fills a canvas behind the answer."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of ordinary text: whatever it spells, none of them is a control token."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included, for people to read."""

    @property
    def thought_close(self) -> tuple[int, ...]:
        """Ids that end a thought block; none where the model knows no such block."""

    def frame(self, roles: tuple[str, ...], *, thinking: bool = False) -> ChatFrame:
        """The chat template around messages of these roles (`system`, `user`), the model's turn opened at the end.

        With `thinking`, a thought block is opened in that turn, for the model to write in.
        """


@dataclass(frozen=True, slots=True)
class Slot:
    """One answer position to be read: a question's text, the options that stand for its answers, and their labels.

    `question` is the index of the question in the request. Slots that differ in `order` (another order of the same
    options) or in `sample` (another noise draw) never share a canvas; a slot that is `alone` shares it with no other.
    """

    question: int
    instructions: Text | None
    options: tuple[Option, ...]
    labels: tuple[str, ...]
    alone: bool = False
    order: int = 0
    sample: int = 0
    given: tuple[str, ...] = ()
    """Earlier questions with their answers, a line each, that the model is told before this one."""


@dataclass(frozen=True, slots=True)
class SlotPosition:
    """An answer position of a read and the label ids that are read there.

    `position` counts canvas tokens from 0; without a canvas it is 0, the token that follows the prompt.
    """

    position: int
    label_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """One engine pass: a prompt, the seeded canvas behind it (empty: a next-token read), and the slots to read.

    `prefix` is the number of leading prompt tokens that the reads of this state have in common, for engines that
    compute such a prefix once. `steps` counts denoising steps. `constrained` are the token ids over which this read
    normalises, ascending, the slots' label ids among them; empty: the full vocabulary.
    """

    prompt: tuple[int, ...]
    slots: tuple[SlotPosition, ...]
    canvas: tuple[int, ...] = ()
    prefix: int = 0
    steps: int = 1
    constrained: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that this read puts before the model."""
        return len(self.prompt) + len(self.canvas)

    @property
    def label_ids(self) -> tuple[int, ...]:
        """The distinct label ids of all slots, ascending."""
        return tuple(sorted({label for slot in self.slots for label in slot.label_ids}))


@dataclass(frozen=True, slots=True)
class Thought:
    """A thought to be written behind a prompt that has opened its block; at most `budget` tokens."""

    prompt: tuple[int, ...]
    budget: int


@dataclass(frozen=True, slots=True)
class Readout:
    """What the engine saw: per slot, per label, the natural log of its probability (nats).

    The probability is over the full vocabulary, or over the ids to which the read was constrained.

    `cached_tokens` of the prompt were not computed again because the engine still had them.
    """

    logprobs: tuple[tuple[float, ...], ...]
    cached_tokens: int = 0


def check_readout(read: Read, readout: Readout) -> None:
    """Raise `MalformedReadout` unless every slot has a finite log-probability for each of its labels."""
    if len(readout.logprobs) != len(read.slots):
        raise MalformedReadout(f"The engine answered {len(readout.logprobs)} of {len(read.slots)} slots.")
    for index, (slot, row) in enumerate(zip(read.slots, readout.logprobs, strict=True)):
        if len(row) != len(slot.label_ids):
            raise MalformedReadout(f"Slot {index} came back with {len(row)} of {len(slot.label_ids)} labels.")
        if not all(map(math.isfinite, row)):
            raise MalformedReadout(f"Slot {index} came back with a log-probability that is not finite.")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a decision asks of the engine in its first round: reads at once, and tokens put before the model.

    Later rounds are narrower for brackets; dependent questions and `auto` modes may ask for more than this says.
    """

    reads: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """Proof of admission, demanded by an engine's `read`. `deadline` is on the event loop's clock, in seconds."""

    id: str
    cost: Cost
    deadline: float
