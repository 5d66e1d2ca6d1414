"""`think` over HTTP, with the stub's meaningless thoughts: what it changes, what is counted, and who refuses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import AppClient
from tests.gateway.asking import PATH, asked

OPENAI = {
    "model": "jev-latest",
    "input": "I was charged twice.",
    "questions": [{"type": "predicate", "instructions": "Money is asked for."}],
}


async def answer(client: AppClient, **fields: Any) -> dict[str, Any]:
    """The body of an answer that has to come."""
    response = await client.post(PATH, json=asked(**fields))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_answers_depend_on_the_thought_and_are_the_same_every_time(client: AppClient) -> None:
    plain, one, again, longer = [await answer(client, think=think) for think in (0, 40, 40, 400)]
    assert one == again
    assert len({body["answers"]["refund"]["noul"] for body in (plain, one, longer)}) == 3


async def test_usage_and_diagnostics_count_its_tokens_and_nothing_shows_it(client: AppClient) -> None:
    plain = await answer(client, diagnostics=True)
    body = await answer(client, think=40, diagnostics=True)
    assert "thought_tokens" not in plain["x_diagnostics"]
    assert body["x_diagnostics"]["thought_tokens"] == 20
    assert body["usage"]["output_tokens"] == plain["usage"]["output_tokens"] + 20
    assert body["usage"]["input_tokens"] > plain["usage"]["input_tokens"] + 20
    assert body.keys() == plain.keys()


async def test_the_openai_form_counts_it_as_reasoning(client: AppClient) -> None:
    body = (await client.post("/v1/decisions", json={**OPENAI, "think": 40})).json()
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 20}
    assert body["usage"]["output_tokens"] == 21


@pytest.mark.parametrize("think", [True, -1, 4097, "40", 1.5, [40]])
async def test_only_a_number_of_tokens_is_taken(client: AppClient, think: object) -> None:
    response = await client.post(PATH, json=asked(think=think))
    assert response.status_code == 422
    assert all(fault["loc"] == ["body", "think"] for fault in response.json()["detail"])


async def test_a_budget_beyond_the_context_is_refused(client: AppClient) -> None:
    response = await client.post(PATH, json=asked(think=4096))
    assert response.status_code == 400
    assert response.json()["detail"]["error_type"] == "max_tokens_exceeded"


async def test_a_model_that_does_not_think_says_so(client: AppClient) -> None:
    assert (await client.get("/v1/limits")).json()["max_think"] == 4096
    serving = client.gateway.serving
    serving.engine.limits = replace(serving.engine.limits, thinks=False)
    serving.service.planner.limits = serving.engine.limits
    limits = (await client.get("/v1/limits")).json()
    assert "max_think" not in limits
    assert "think" not in limits["defaults"]
    response = await client.post(PATH, json=asked(think=40))
    assert response.status_code == 400
    assert "(think)" in response.json()["detail"]["message"]


async def test_a_dead_engine_at_the_thought_is_an_error() -> None:
    async with AppClient(STUB_DEAD="1") as client:
        assert (await client.post(PATH, json=asked(think=40))).status_code == 503
