"""G17: limits are told with a stable code, and nothing is ever cut short to fit one."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.errors import TooManyTokens
from decisions.reads import EngineLimits
from tests.conftest import AppClient
from tests.gates.asking import Body, Desk, stub
from tests.gates.checks import check_response

REFUND = {"type": "noul", "instructions": "Money back?"}
LIMITS = [EngineLimits(1000, canvas=128, slots=128, reads=64), EngineLimits(1000, reads=64)]
BOTH = pytest.mark.parametrize("limits", LIMITS, ids=["canvas", "next-token"])


def choice(count: int) -> Body:
    """A choice of so many options."""
    return {"type": "choice", "instructions": "?", "criteria": {f"o{k}": None for k in range(count)}}


def score(count: int) -> Body:
    """A score of so many levels."""
    return {"type": "score", "instructions": "?", "criteria": [f"level {k}" for k in range(count)]}


async def posted(question: Body, state: Any = "s", **settings: str) -> tuple[int, Body]:
    """Status and body from the whole app."""
    async with AppClient(**settings) as client:
        body = {"model": "jev-latest", "state": state, "questions": {"q": question}}
        response = await client.post("/v1/systemone", json=body)
        if response.status_code == 200:
            check_response(body, response.json())
        return response.status_code, response.json()


@pytest.mark.parametrize("question", [choice(1), choice(2), choice(255), score(1), score(10)])
async def test_what_is_within_the_limits_is_answered(question: Body) -> None:
    """1 and 255 options, 1 and 10 levels."""
    assert (await posted(question))[0] == 200


@pytest.mark.parametrize(
    ("question", "code"),
    [(choice(0), "too_short"), (choice(256), "too_long"), (score(0), "too_short"), (score(11), "too_long")],
)
async def test_what_is_not_is_told_with_its_code_and_place(question: Body, code: str) -> None:
    """422, the code in the words of the protocol's own validator, the place down to the field."""
    status, body = await posted(question)

    assert (422, [code]) == (status, [fault["type"] for fault in body["detail"]])
    assert body["detail"][0]["loc"][:3] == ["body", "questions", "q"]


async def test_a_raised_limit_lets_2000_options_through() -> None:
    """MAX_OPTIONS; three rounds, one coherent distribution."""
    assert (await posted(choice(2000), MAX_OPTIONS="2000", MAX_MODEL_LEN="65536"))[0] == 200


async def test_a_state_that_is_too_long_is_refused_with_both_counts() -> None:
    """400 max_tokens_exceeded."""
    status, body = await posted(REFUND, "long " * 2000, MAX_MODEL_LEN="2048")

    assert (400, "max_tokens_exceeded") == (status, body["detail"]["error_type"])
    assert "2048" in body["detail"]["message"]


def too_long(desk: Desk, request: Body) -> bool:
    """Whether the request is refused for its length."""
    try:
        desk.ask(request)
    except TooManyTokens:
        return True
    return False


@BOTH
@pytest.mark.parametrize("question", [REFUND, choice(5), choice(30)])
def test_nothing_is_cut_up_to_the_last_token(question: Body, limits: EngineLimits) -> None:
    """The longest state that is accepted is shown whole in every read; one more token is refused, before any read."""
    desk, length = stub(limits), 1000

    def asked(count: int) -> Body:
        return {"state": "x" * (count - 1) + "|", "questions": {"q": question}}

    while too_long(desk, asked(length)):
        assert not desk.engine.seen
        length -= 1

    assert all("x" * (length - 1) + "|" in prompt for prompt in desk.prompts())
    assert 1000 == max(read.tokens + (not read.canvas) for read in desk.engine.seen)
