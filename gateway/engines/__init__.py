"""The engine port: what the gateway asks of any engine, whichever model or library stands behind it.

`stub`, `reference` and `vllm` implement it; one contract test suite runs against all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from decisions.labels import AnswerForm
from decisions.reads import EngineLimits, Read, Readout, Thought, Ticket, Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model behind an engine, as `/health`, `/v1/models` and every answer name it.

    `revision` pins the weights as far as they can be pinned (a commit, a digest, or "local").
    """

    name: str
    revision: str
    architecture: str


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine can read now; `detail` says why not."""

    alive: bool
    detail: str = ""


class Engine(Protocol):
    """An engine that is loaded and ready to read."""

    @property
    def kind(self) -> str:
        """The adapter's name: `stub`, `reference` or `vllm`."""

    @property
    def model(self) -> ServedModel:
        """The model that answers."""

    @property
    def limits(self) -> EngineLimits:
        """What one read, and all reads at once, may hold."""

    @property
    def form(self) -> AnswerForm:
        """How this model spells its labels and what leads its answer in."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The served tokenizer."""

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        """Read all of `reads` at once and answer in their order.

        Cancelling the call frees the engine of the work. Raises `EngineUnavailable` when the engine is dead and
        `MalformedReadout` when it answers with less than was asked.
        """

    async def think(self, thought: Thought, ticket: Ticket) -> tuple[int, ...]:
        """Write a thought: ordinary text of at most its budget's tokens, without what closes its block; may be empty.

        Asked only of an engine whose limits say that its model thinks. The same for the same prompt, as far as the
        engine can. Cancelling and errors are as in `read`.
        """

    async def health(self) -> EngineHealth:
        """Cheap enough to be asked every second."""

    async def close(self) -> None:
        """Free what the engine holds; reads still running are given up."""
