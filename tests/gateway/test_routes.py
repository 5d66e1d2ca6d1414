"""The endpoints: paths and methods, the caller's patience, and callers that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from decisions.schema import load_schema
from gateway.middleware import ClientLeft
from gateway.routes import preferred_wait, while_connected
from tests.conftest import AppClient
from tests.gateway.asking import PATH, Held, asked, asked_bytes, until

# --- Paths and methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/systemone", "/systemone", "/v1/systemone/", "/v1/systemone?debug=1&state=x"])
async def test_a_decision_is_made_on_every_path_that_clients_use(client: AppClient, path: str) -> None:
    """A trailing slash is served, not redirected, and a query changes nothing."""
    expected = await client.post(PATH, json=asked())
    response = await client.post(path, json=asked())

    assert (200, expected.content) == (response.status_code, response.content)
    assert "application/json" == response.headers["content-type"]
    assert ["refund", "team", "anger"] == list(response.json()["answers"])


async def test_the_openai_route_takes_both_forms(client: AppClient) -> None:
    """A System One body is answered as on its own route, an OpenAI body in OpenAI's form."""
    body = load_schema("decisions.request")["examples"][0]
    own, theirs = await client.post("/v1/decisions", json=asked()), await client.post("/v1/decisions/", json=body)

    assert (await client.post(PATH, json=asked())).content == own.content
    assert (200, len(body["questions"])) == (theirs.status_code, len(theirs.json()["answers"]))


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_another_method_is_405_with_the_one_that_is_allowed(client: AppClient, method: str) -> None:
    """Browsers' preflights too, as long as no origin may call."""
    response = await client.request(method, PATH)

    assert (405, "POST") == (response.status_code, response.headers["allow"])
    assert method == "HEAD" or {"detail": "Method Not Allowed"} == response.json()


@pytest.mark.parametrize("path", ["/", "/v1", "//v1/systemone", "/v1/systemone//", "/V1/systemone", "/v1/systemone/x"])
async def test_another_path_is_404(client: AppClient, path: str) -> None:
    """A double slash too, as on the reference."""
    response = await client.post(f"http://gateway{path}", json=asked())

    assert (404, {"detail": "Not Found"}) == (response.status_code, response.json())


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/v1/limits", "/openapi.json"])
async def test_head_is_answered_wherever_get_is(client: AppClient, path: str) -> None:
    """POST is not."""
    assert (200, 405) == ((await client.head(path)).status_code, (await client.post(path)).status_code)


async def test_a_heavy_body_gets_the_answer_of_a_light_one() -> None:
    """It is parsed and planned in a thread; blanks alone make this one heavy."""
    async with AppClient() as client:
        light = await client.post(PATH, content=asked_bytes())
        heavy = await client.post(PATH, content=asked_bytes() + b" " * 100_000)

    assert (200, light.content) == (heavy.status_code, heavy.content)


# --- Patience ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("wait=3", 3.0),
        ("respond-async, wait=10", 10.0),
        ("wait=2;foo=bar", 2.0),
        ("wait=", None),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("await=3", None),
        ("wait=99999999", None),
    ],
)
def test_a_preferred_wait_is_read_as_rfc_7240_writes_it(header: str | None, seconds: float | None) -> None:
    """Whatever else stands there is ignored."""
    headers = [(b"prefer", header.encode())] if header else []

    assert seconds == preferred_wait(Request({"type": "http", "headers": headers}))


async def test_a_caller_is_told_when_its_own_patience_ends(client: AppClient) -> None:
    """504, and its place is free again."""
    held = Held(client)
    response = await client.post(PATH, json=asked(), headers={"prefer": "wait=0"})

    assert (504, "deadline_exceeded") == (response.status_code, response.json()["detail"]["error_type"])
    assert held.begun.is_set()
    assert 0 == client.gateway.serving.queue.snapshot().reads


async def test_a_full_queue_tells_when_to_come_again() -> None:
    """529 with `Retry-After` in seconds and `retry-after-ms`; what is inside goes on."""
    async with AppClient(MAX_SEQS="1", MAX_QUEUE="0") as client:
        held = Held(client)
        inside = asyncio.create_task(client.post(PATH, json=asked()))
        await held.begun.wait()
        refused = await client.post(PATH, json=asked("Somebody else."))
        held.go.set()

        assert 200 == (await inside).status_code
    assert (529, "overloaded_error") == (refused.status_code, refused.json()["detail"]["error_type"])
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000


async def test_a_decision_that_takes_too_long_in_all_is_given_up() -> None:
    """504 after REQUEST_TIMEOUT, though the queue let it in."""
    async with AppClient(REQUEST_TIMEOUT="0.01") as client:
        Held(client)
        response = await client.post(PATH, json=asked())

    assert (504, "No answer within 0.01 seconds.") == (response.status_code, response.json()["detail"]["message"])


# --- Callers that leave -----------------------------------------------------------------------------------------------


class Caller:
    """One raw ASGI call: sends its body at once and leaves when told to."""

    def __init__(self, body: bytes = b"") -> None:
        self.left = asyncio.Event()
        self.sent: list[Message] = []
        self.messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": PATH,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

    async def receive(self) -> Message:
        if self.messages:
            return self.messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def test_a_caller_that_leaves_frees_its_place_and_the_engine() -> None:
    """Nothing is sent, nothing is worked on, and it is recorded as 499."""
    async with AppClient(STUB_DELAY_MS="600000") as client:
        engine, queue = client.gateway.serving.engine, client.gateway.serving.queue
        caller = Caller(asked_bytes())
        call = asyncio.create_task(client.app(caller.scope, caller.receive, caller.send))
        await until(lambda: engine.working)
        caller.left.set()
        await call

        assert ([], 0, 0) == (caller.sent, engine.working, queue.snapshot().reads)
        assert 'route="/v1/systemone",status="499"} 1.0' in (await client.get("/metrics")).text


async def test_a_caller_that_leaves_the_queue_is_not_worked_on() -> None:
    """The one inside is not disturbed."""
    async with AppClient(MAX_SEQS="1") as client:
        held, queue = Held(client), client.gateway.serving.queue
        inside = asyncio.create_task(client.post(PATH, json=asked()))
        await held.begun.wait()
        caller = Caller(asked_bytes("Another."))
        call = asyncio.create_task(client.app(caller.scope, caller.receive, caller.send))
        await until(lambda: queue.snapshot().waiting_small)
        caller.left.set()
        await call
        held.go.set()

        assert 200 == (await inside).status_code
        assert (0, 0, 0) == (queue.snapshot().waiting_small, queue.snapshot().reads, len(caller.sent))


async def test_a_caller_that_leaves_amid_its_body_is_no_error(client: AppClient) -> None:
    """There is nobody to answer."""
    caller = Caller()
    caller.messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"{", "more_body": True}]
    await client.app(caller.scope, caller.receive, caller.send)

    assert [] == caller.sent


def stop(task: asyncio.Task[Any]) -> None:
    """What becomes of the work when nobody else needs it."""
    task.cancel()


async def test_work_of_a_connected_caller_is_returned_and_the_watch_ends() -> None:
    """No task is left behind."""

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    caller = Caller()
    caller.messages = []
    before = asyncio.all_tasks()
    result = await while_connected(Request(caller.scope, caller.receive), work(), stop)
    await asyncio.sleep(0)

    assert (7, before) == (result, asyncio.all_tasks())


async def test_leaving_and_being_cancelled_are_told_apart() -> None:
    """A caller that leaves raises `ClientLeft`; a task that is cancelled stays cancelled."""
    gone, there = Caller(), Caller()
    gone.messages, there.messages = [], []
    gone.left.set()
    forever = asyncio.get_running_loop().create_future
    with pytest.raises(ClientLeft):
        await while_connected(Request(gone.scope, gone.receive), asyncio.wait_for(forever(), None), stop)
    waiting = asyncio.wait_for(forever(), None)
    task = asyncio.create_task(while_connected(Request(there.scope, there.receive), waiting, stop))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
