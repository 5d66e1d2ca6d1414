"""What the tests of the served app ask, and an engine's `read` that waits until it is told to go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from decisions.reads import Read, Readout, Ticket
from tests.conftest import AppClient

NOUL = {"type": "noul", "instructions": "Does the customer ask for money back?"}
CHOICE = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "Invoices", "technical": None}}
SCORE = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Annoyed", "Furious"]}
QUESTIONS = {"refund": NOUL, "team": CHOICE, "anger": SCORE}
PATH = "/v1/systemone"


def asked(state: object = "I was charged twice.", **fields: Any) -> dict[str, Any]:
    """A request with a question of each type."""
    return {"model": "jev-latest", "state": state, "questions": QUESTIONS, **fields}


def asked_bytes(state: object = "I was charged twice.", **fields: Any) -> bytes:
    """The same as it goes over the wire."""
    return json.dumps(asked(state, **fields)).encode()


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until it holds; the test's own timeout ends what never does."""
    while not condition():  # noqa: ASYNC110 - it looks at plain numbers, which tell nobody of their change
        await asyncio.sleep(0)


class Held:
    """Stands before the engine of an app: its reads begin, and end once they are let go."""

    def __init__(self, client: AppClient) -> None:
        self.engine = client.gateway.serving.engine
        self.read_on = self.engine.read
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.engine.read = self.read

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        self.begun.set()
        await self.go.wait()
        readouts: Sequence[Readout] = await self.read_on(reads, ticket)
        return readouts
