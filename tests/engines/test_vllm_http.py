"""The vLLM engine over HTTP, against a server of our own: what it sends, what it makes of any reply, how it lets go."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import orjson
import pytest

from decisions.errors import EngineError, EngineUnavailable, MalformedReadout
from decisions.reads import EngineLimits, Read, Readout, SlotPosition, check_readout
from gateway.config import load
from gateway.engines import ServedModel
from gateway.engines import vllm_http as adapter
from gateway.engines.opening import open_engine
from gateway.engines.vllm_http import HttpOptions, Served, VllmHttpEngine, readout

from .asking import TICKET

CANVAS = Read((1, 2, 3), (SlotPosition(1, (7, 5)), SlotPosition(3, (5, 9))), (20, 99, 21, 98, 22, 0, 0, 0))
NEXT = Read((1, 2, 3), (SlotPosition(0, (5, 7)),))


def reply(*positions: Any, **usage: Any) -> bytes:
    return orjson.dumps({"choices": [{"logprobs": {"top_logprobs": positions}}], "usage": usage})


def engine_that_hears(answer: Any, canvas: int = 0) -> VllmHttpEngine:
    """An engine whose server is a function."""
    served = Served(ServedModel("m", "r", "LlamaForCausalLM"), Any, 512, canvas)  # type: ignore[arg-type]
    client = httpx.AsyncClient(base_url="http://vllm", transport=httpx.MockTransport(answer))
    return VllmHttpEngine(client, served, EngineLimits(512, canvas, slots=canvas or 1, reads=8))


def test_a_reply_is_read_by_position_and_by_label_and_not_by_order() -> None:
    noise = {"token_id:1": -9.0}
    first = {"token_id:99": -1.0, "token_id:5": -2.0, "token_id:7": -3.0}
    last = {"token_id:5": -5.0, "token_id:9": -7.0}
    body = reply(noise, first, noise, last, prompt_tokens_details={"cached_tokens": 32})

    assert Readout(((-3.0, -2.0), (-5.0, -7.0)), 32) == readout(CANVAS, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"choices":[]}',
        b'{"choices":[{"logprobs":null}],"usage":{}}',
        b'{"choices":[{"logprobs":{"top_logprobs":null}}],"usage":{}}',
        reply(),
        reply(None),
        reply({"token_id:5": -1.0}),
        reply({"token_id:5": -1.0, "token_id:7": -9999.0}),
        reply({"token_id:5": -1.0, "7": -2.0}),
    ],
)
def test_what_a_reply_lacks_is_never_guessed(body: bytes) -> None:
    with pytest.raises(MalformedReadout):
        check_readout(NEXT, readout(NEXT, body))


async def test_a_next_token_read_asks_for_one_token_and_its_label_ids() -> None:
    sent: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(orjson.loads(request.content))
        return httpx.Response(200, content=reply({"token_id:5": -1.0, "token_id:7": -2.0}))

    engine = engine_that_hears(answer)
    assert [Readout(((-1.0, -2.0),))] == list(await engine.read([NEXT], TICKET))
    assert ([1, 2, 3], [5, 7], 1, 0) == tuple(
        sent[0][name] for name in ("prompt", "logprob_token_ids", "max_tokens", "temperature")
    )


async def test_a_canvas_goes_along_and_a_temperature_does_not() -> None:
    sent: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(orjson.loads(request.content))
        row = {"token_id:5": -1.0, "token_id:7": -2.0, "token_id:9": -3.0}
        return httpx.Response(200, content=reply(row, row, row, row))

    await engine_that_hears(answer, canvas=16).read([CANVAS], TICKET)
    assert [20, 99, 21, 98, 22, 0, 0, 0] == sent[0]["vllm_xargs"]["diffusion_seed_canvas"]
    assert [5, 7, 9] == sent[0]["logprob_token_ids"]
    assert 4 == sent[0]["max_tokens"]
    assert "temperature" not in sent[0]


@pytest.mark.parametrize(
    ("status", "expected"), [(400, EngineError), (404, EngineError), (429, EngineUnavailable), (500, EngineUnavailable)]
)
async def test_a_refusal_is_told_from_a_failure(status: int, expected: type[EngineError]) -> None:
    engine = engine_that_hears(lambda request: httpx.Response(status, text="because"))
    with pytest.raises(EngineError, match="because") as fault:
        await engine.read([NEXT], TICKET)

    assert expected is type(fault.value)


async def test_a_server_that_is_away_is_told() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("")

    engine = engine_that_hears(answer)
    with pytest.raises(EngineUnavailable, match="ConnectError"):
        await engine.read([NEXT], TICKET)
    assert not (await engine.health()).alive


async def test_one_failure_ends_the_other_reads_of_the_call() -> None:
    working = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal working
        if len(orjson.loads(request.content)["prompt"]) == 1:
            return httpx.Response(500)
        working += 1
        try:
            await asyncio.sleep(60)
        finally:
            working -= 1
        return httpx.Response(200)

    engine = engine_that_hears(answer)
    with pytest.raises(EngineUnavailable):
        await engine.read([Read((1,), NEXT.slots), NEXT, NEXT], TICKET)

    assert 0 == working


async def test_health_is_the_servers_and_a_closed_engine_reads_no_more() -> None:
    statuses = iter([200, 503])
    engine = engine_that_hears(lambda request: httpx.Response(next(statuses)))

    assert (await engine.health()).alive
    assert "the vLLM server answers 503" == (await engine.health()).detail
    await engine.close()
    assert "closed" == (await engine.health()).detail
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.read([NEXT], TICKET)


async def test_a_server_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "ASK_AGAIN_SECONDS", 0.01)
    async with adapter.client_for(HttpOptions("http://127.0.0.1:9", key="k"), 4) as client:
        assert "Bearer k" == client.headers["authorization"]
        with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:9"):
            await adapter.wait_for_model(client, 0.05)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data":[]}', b'{"data":[{"id":"m"}]}'])
def test_a_list_of_models_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(EngineUnavailable, match="list of models"):
        adapter.first_model(body)


def test_minus_infinity_comes_back_from_the_number_that_stands_for_it() -> None:
    assert ((-math.inf, -2.0),) == readout(NEXT, reply({"token_id:5": -9999.0, "token_id:7": -2.0})).logprobs


async def test_the_engine_over_http_needs_an_address() -> None:
    """ENGINE=vllm_http without VLLM_URL says what is missing, before anything loads."""
    with pytest.raises(EngineUnavailable, match="VLLM_URL"):
        await open_engine(load({"ENGINE": "vllm_http"}), print)
