"""What happens around every route: ids, errors, keys, browsers, bodies."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from decisions.errors import MissingKey, WrongKey
from gateway.keyring import check_key
from tests.conftest import AppClient
from tests.gateway.asking import PATH, Held, asked, asked_bytes
from tests.gateway.test_routes import Caller

REQUEST_ID = re.compile("req_[0-9a-f]{32}")
JSON = {"content-type": "application/json"}


def raw(response_to: Caller) -> dict[bytes, bytes]:
    """The headers that a raw ASGI caller was sent."""
    return dict(response_to.sent[0]["headers"])


# --- Ids and timing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", PATH, asked_bytes(), 200),
        ("GET", "/health", b"", 200),
        ("POST", PATH, b"{", 422),
        ("GET", PATH, b"", 405),
        ("GET", "/nowhere", b"", 404),
        ("POST", PATH, asked_bytes(model="gpt"), 400),
    ],
)
async def test_every_response_is_named(client: AppClient, method: str, path: str, content: bytes, status: int) -> None:
    """Errors too; where the caller sent no id, ours stands in for it."""
    response = await client.request(method, path, content=content, headers=JSON)

    assert status == response.status_code
    assert REQUEST_ID.fullmatch(response.headers["x-typesafe-request-id"])
    assert response.headers["x-typesafe-request-id"] == response.headers["x-request-id"]


async def test_unknown_paths_and_methods_are_counted_by_what_is_wrong(client: AppClient) -> None:
    """As every other error."""
    await client.get(PATH)
    await client.get("/nowhere")
    metrics = (await client.get("/metrics")).text

    assert 'canvasgate_errors_total{code="method_not_allowed"} 1.0' in metrics
    assert 'canvasgate_errors_total{code="not_found"} 1.0' in metrics


async def test_each_request_has_a_name_of_its_own(client: AppClient) -> None:
    """Never the same twice."""
    names = [(await client.get("/health")).headers["x-typesafe-request-id"] for _ in range(5)]

    assert 5 == len(set(names))


@pytest.mark.parametrize(
    ("given", "echoed"),
    [(b"trace-1/a:b", True), (b"a b", False), (b"x" * 128, True), (b"x" * 129, False), (b"\xe9", False), (b"", False)],
)
async def test_a_callers_id_is_echoed_where_it_is_printable(client: AppClient, given: bytes, echoed: bool) -> None:
    """Up to 128 characters, no blanks; anything else is replaced by ours, which the caller always gets as well."""
    response = await client.get("/health", headers=[(b"x-request-id", given)])

    assert echoed == (given.decode("latin-1") == response.headers["x-request-id"])
    assert REQUEST_ID.fullmatch(response.headers["x-typesafe-request-id"])


async def test_a_decision_tells_where_its_time_went(client: AppClient) -> None:
    """Milliseconds in the queue and in the engine; what used neither says nothing."""
    decided, health, bad = [
        await client.post(PATH, json=asked()),
        await client.get("/health"),
        await client.post(PATH, content=b"{"),
    ]

    assert re.fullmatch(r"queue;dur=\d+\.\d\d, engine;dur=\d+\.\d\d", decided.headers["server-timing"])
    assert not {"server-timing"} & {*health.headers, *bad.headers}


# --- Errors -----------------------------------------------------------------------------------------------------------


async def test_an_unexpected_error_is_answered_and_says_nothing(
    client: AppClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has its type and place under the request's id, but not its message, which may quote the caller."""

    def fail(request: Any, *_: Any) -> None:
        raise KeyError(request.state)

    monkeypatch.setattr(client.gateway.serving.service.planner, "plan", fail)
    response = await client.post(PATH, json=asked())

    assert (500, "internal_error") == (response.status_code, response.json()["detail"]["error_type"])
    assert "charged" not in response.text + caplog.text
    assert f"{response.headers['x-typesafe-request-id']} failed: KeyError at" in caplog.text
    assert "service.py" in caplog.text


async def test_a_request_that_the_stopping_server_cancels_is_told_so(client: AppClient) -> None:
    """503 with `Retry-After`, so that the caller asks elsewhere."""
    held, caller = Held(client), Caller(asked_bytes())
    call = asyncio.create_task(client.app(caller.scope, caller.receive, caller.send))
    await held.begun.wait()
    call.cancel()
    await call

    assert 503 == caller.sent[0]["status"]
    assert b"1" == raw(caller)[b"retry-after"]
    assert b"queue_unavailable" in caller.sent[1]["body"]


async def test_a_response_that_has_begun_is_not_begun_again(client: AppClient) -> None:
    """An error while the body is sent cannot be told any more; it is recorded."""
    caller = Caller(asked_bytes())

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise RuntimeError
        caller.sent.append(message)

    await client.app(caller.scope, caller.receive, send)

    assert [200] == [message["status"] for message in caller.sent]
    assert 'canvasgate_errors_total{code="internal_error"} 1.0' in (await client.get("/metrics")).text


# --- Keys -------------------------------------------------------------------------------------------------------------

BEARER = {"authorization": "Bearer sk-1"}
DGEM = {"x-dgem-key": "new"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"authorization": ""}, 403),
        ({"authorization": "Bearer "}, 403),
        ({"authorization": "Basic sk-1"}, 403),
        ({"x-dgem-key": "sk-1"}, 403),
        ({"authorization": "Bearer sk-2"}, 401),
        ({"authorization": "Bearer sk-1x"}, 401),
        (BEARER, 200),
        ({"authorization": "bearer   sk-1"}, 200),
    ],
)
async def test_a_bearer_key_is_asked_for(headers: dict[str, str], status: int) -> None:
    """No key is 403, a wrong one 401 with the scheme; both in the reference's words."""
    async with AppClient(API_KEY="sk-1") as client:
        response = await client.post(PATH, json=asked(), headers=headers)

    assert status == response.status_code
    assert status == 200 or "authentication_error" == response.json()["detail"]["error_type"]
    assert (status == 401) == ("www-authenticate" in response.headers)


@pytest.mark.parametrize(("key", "status"), [("new", 200), ("old", 200), ("new,old", 401), ("", 403), (None, 403)])
async def test_a_server_key_may_be_any_of_the_list(key: str | None, status: int) -> None:
    """So that keys can be rotated; the Authorization header is the platform's then, and is not looked at."""
    headers = {"authorization": "Bearer of-the-platform"} | ({} if key is None else {"x-dgem-key": key})
    async with AppClient(DGEM_SERVER_KEY="new, old") as client:
        assert status == (await client.post(PATH, json=asked(), headers=headers)).status_code


@pytest.mark.parametrize(("headers", "status"), [({}, 403), (BEARER, 403), (DGEM, 403), (BEARER | DGEM, 200)])
async def test_where_both_kinds_are_set_both_are_asked_for(headers: dict[str, str], status: int) -> None:
    """Neither stands in for the other."""
    async with AppClient(API_KEY="sk-1", DGEM_SERVER_KEY="new") as client:
        assert status == (await client.post(PATH, json=asked(), headers=headers)).status_code


async def test_only_what_operators_watch_is_open_without_a_key() -> None:
    """Everything else is closed, whatever the path or method."""
    async with AppClient(API_KEY="sk-1") as client:
        opened = [(await client.get(path)).status_code for path in ("/health", "/ready", "/metrics", "/openapi.json")]
        closed = [
            (await client.request(method, f"http://gateway{path}")).status_code
            for method, path in [
                ("GET", "/v1/models"),
                ("GET", "/v1/limits"),
                ("POST", "/v1/decisions"),
                ("OPTIONS", PATH),
                ("GET", "/nowhere"),
                ("GET", "//health"),
                ("GET", "/health/"),
            ]
        ]

    assert ([200] * 4, [403] * 7) == (opened, closed)


async def test_without_keys_every_header_is_accepted(client: AppClient) -> None:
    """The SDK insists on sending one."""
    headers = {"authorization": "Bearer anything", "x-dgem-key": "anything"}

    assert 200 == (await client.post(PATH, json=asked(), headers=headers)).status_code


async def test_a_stranger_cannot_make_us_read_a_body() -> None:
    """The key is checked first."""
    async with AppClient(API_KEY="sk-1") as client:
        caller = Caller(asked_bytes())
        await client.app(caller.scope, caller.receive, caller.send)

    assert (403, 1) == (caller.sent[0]["status"], len(caller.messages))


def test_a_key_is_compared_as_the_bytes_that_were_sent() -> None:
    """Headers come decoded as Latin-1, whatever the key is written in."""
    check_key("ключ".encode().decode("latin-1"), ["ключ".encode()])

    with pytest.raises(WrongKey):
        check_key("é", ["é".encode()])
    with pytest.raises(MissingKey):
        check_key("", [b"x"])


# --- Browsers ---------------------------------------------------------------------------------------------------------

ORIGIN = {"origin": "https://app.example"}
PREFLIGHT = ORIGIN | {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-typesafe-sdk",
}


async def test_a_browser_may_call_from_an_allowed_origin() -> None:
    """The preflight needs no key and lists what it asked for; answers and errors alike can be read."""
    async with AppClient(CORS_ORIGINS="https://app.example", API_KEY="sk-1") as client:
        preflight = await client.options(PATH, headers=PREFLIGHT)
        answers = [
            await client.post(PATH, json=asked(), headers=ORIGIN | BEARER),
            await client.post(PATH, json=asked(), headers=ORIGIN),
            await client.post(PATH, content=b"{", headers=ORIGIN | BEARER),
            await client.get("/nowhere", headers=ORIGIN | BEARER),
        ]

    assert (200, "https://app.example") == (preflight.status_code, preflight.headers["access-control-allow-origin"])
    assert "x-typesafe-sdk" in preflight.headers["access-control-allow-headers"]
    assert REQUEST_ID.fullmatch(preflight.headers["x-typesafe-request-id"])
    assert [200, 403, 422, 404] == [response.status_code for response in answers]
    assert {"https://app.example"} == {response.headers["access-control-allow-origin"] for response in answers}
    assert all("retry-after-ms" in response.headers["access-control-expose-headers"] for response in answers)


async def test_a_browser_may_not_call_from_elsewhere() -> None:
    """The reference's 400; without the setting there is no CORS at all."""
    async with AppClient(CORS_ORIGINS="https://other.example") as client:
        refused = await client.options(PATH, headers=PREFLIGHT)
        answered = await client.post(PATH, json=asked(), headers=ORIGIN)
    async with AppClient() as client:
        off = await client.post(PATH, json=asked(), headers=ORIGIN)

    assert 400 == refused.status_code
    assert "access-control-allow-origin" not in {*refused.headers, *answered.headers, *off.headers}


# --- Bodies -----------------------------------------------------------------------------------------------------------


async def parts(*given: bytes) -> AsyncIterator[bytes]:
    """A body that is sent in chunks, its length untold."""
    for part in given:
        yield part


async def test_a_body_over_the_cap_is_refused_by_its_length_and_by_what_came() -> None:
    """413 either way, and for what it decompresses to; a body of exactly the cap is read."""
    async with AppClient(MAX_BODY="2048") as client:
        fits = asked_bytes() + b" " * (2048 - len(asked_bytes()))
        statuses = [
            (await client.post(PATH, content=fits, headers=JSON)).status_code,
            (await client.post(PATH, content=fits + b" ", headers=JSON)).status_code,
            (await client.post(PATH, content=parts(fits, b" "), headers=JSON)).status_code,
            (await client.post(PATH, content=parts(fits[:100], fits[100:]), headers=JSON)).status_code,
            (
                await client.post(PATH, content=gzip.compress(fits + b" "), headers=JSON | {"content-encoding": "gzip"})
            ).status_code,
        ]

    assert [200, 413, 413, 200, 413] == statuses


async def test_a_declared_length_over_the_cap_is_refused_before_the_body_is_read(client: AppClient) -> None:
    """So that a client which waits for 100-continue sends nothing."""
    caller = Caller(b"{")
    caller.scope["headers"] = [(b"content-length", b"9" * 12)]
    await client.app(caller.scope, caller.receive, caller.send)

    assert (413, 1) == (caller.sent[0]["status"], len(caller.messages))


async def test_an_unknown_encoding_is_415_and_a_broken_one_422(client: AppClient) -> None:
    """A light and a heavy body alike."""
    statuses = [
        (await client.post(PATH, content=content, headers=JSON | {"content-encoding": encoding})).status_code
        for encoding, content in [
            ("br", b"x"),
            ("gzip", b"x"),
            ("gzip", b"x" * 100_000),
            ("gzip", gzip.compress(asked_bytes())),
            ("gzip", gzip.compress(asked_bytes() + b" " * 100_000, compresslevel=0)),
        ]
    ]

    assert [415, 422, 422, 200, 200] == statuses
