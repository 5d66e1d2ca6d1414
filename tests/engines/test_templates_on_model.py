"""Every shipped template on the real CPU model: its first two examples are rendered, asked and answered.

Structure only: each question is answered or skipped for a reason, and its probabilities are coherent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.config import load
from gateway.engines.reference import open_reference
from tests.gates.asking import Body, Desk
from tests.gates.checks import check_response
from tests.gates.test_shipped_templates import EACH, loaded

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk() -> AsyncIterator[Desk]:
    """A desk at the reference engine with the demonstration model, on one thread."""
    engine = await open_reference(load({"THREADS": "1"}), print)
    yield Desk(engine)
    await engine.close()


@EACH
async def test_the_first_two_examples_are_answered(desk: Desk, file: Path) -> None:
    """What is neither answered nor skipped, or has shares that do not sum to 1, fails."""
    template = loaded(file)

    for example in template.examples[:2]:
        request = template.render(example["variables"])
        response: Body = json.loads(await desk.answer(request))
        skipped: Body = response.get("x_skipped", {})
        asked = {key: question for key, question in request["questions"].items() if key not in skipped}

        assert all("ask_if" in request["questions"][key] for key in skipped)
        check_response({**request, "questions": asked}, response)
