"""Real server processes: sockets, load, stopping, and what is left in the log."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import RunningServer, Start
from tests.gateway.asking import PATH, asked, asked_bytes

BODY = asked_bytes()


@pytest.fixture(scope="module")
def slow_server(start_server: Start) -> RunningServer:
    """Its engine takes a while, it waits a second for a request to come whole, and it logs all that it ever logs."""
    return start_server(
        ENGINE="stub",
        STUB_DELAY_MS="50",
        REQUEST_TIMEOUT="1",
        HTTP_IDLE_TIMEOUT="0",
        LOG_LEVEL="debug",
        MAX_QUEUE="1000",
    )


def head(length: int = len(BODY), *lines: str, method: str = "POST", path: str = PATH) -> bytes:
    """The head of a request."""
    fixed = [
        f"{method} {path} HTTP/1.1",
        "host: gateway",
        f"content-length: {length}",
        "content-type: application/json",
    ]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


GET = head(0, method="GET", path="/health")


@contextmanager
def connected(server: RunningServer) -> Iterator[socket.socket]:
    """A raw connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        yield connection


def response(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """The next response: status, headers, body. Status 0 when the connection ends first."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            return 0, {}, received
        received += part
    first, *lines = received.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = received.partition(b"\r\n\r\n")[2]
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return int(first.split()[1]), headers, body


def ask(server: RunningServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """The response to a request on a connection of its own."""
    with connected(server) as connection:
        connection.sendall(request)
        return response(connection)


def closed(connection: socket.socket) -> bool:
    """Whether the other side has closed; waits for it."""
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def gauge(server: RunningServer, name: str) -> float:
    """A figure of `/metrics`."""
    lines = ask(server, head(0, method="GET", path="/metrics"))[2].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and not line.startswith("#"))


def lines_of(server: RunningServer) -> list[dict[str, Any]]:
    """The server's log."""
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def wait_for_line(server: RunningServer, event: str) -> None:
    """Return once the log has a line that begins so; the test's own timeout ends it otherwise."""
    while not any(line["event"].startswith(event) for line in lines_of(server)):
        time.sleep(0.01)


# --- Sockets ----------------------------------------------------------------------------------------------------------


def test_head_and_body_of_an_answer_come_in_one_segment(stub_server: RunningServer) -> None:
    """Answers and errors: a client never waits for the second half."""
    whole = []
    with connected(stub_server) as connection:
        for request in [head() + BODY, head(1) + b"{", GET] * 10:
            connection.sendall(request)
            received = connection.recv(1 << 20)
            headers, _, body = received.partition(b"\r\n\r\n")
            length = int(headers.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            whole.append(len(body) == length > 0)
            while len(body) < length:
                body += connection.recv(1 << 20)

    assert all(whole)


def test_a_connection_serves_a_hundred_requests(stub_server: RunningServer) -> None:
    """Also after errors."""
    with connected(stub_server) as connection:
        statuses = []
        for request in [head() + BODY, head(3) + b"{}}"] * 50:
            connection.sendall(request)
            statuses.append(response(connection)[0])

    assert [200, 422] * 50 == statuses


def test_an_idle_timeout_of_zero_is_never(slow_server: RunningServer) -> None:
    """The connection is still there after others were served, and longer than a request may take to come."""
    with connected(slow_server) as connection:
        connection.sendall(GET)
        first = response(connection)[0]
        connection.settimeout(1.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(10)
        connection.sendall(GET)

        assert (200, 200) == (first, response(connection)[0])


def test_pipelined_requests_are_answered_in_order(stub_server: RunningServer) -> None:
    """Each with its own answer."""
    bodies = [asked_bytes(f"Customer {number}") for number in range(5)]
    with connected(stub_server) as connection:
        connection.sendall(b"".join(head(len(body)) + body for body in bodies))
        received = b""
        while received.count(b"HTTP/1.1 200") < 5 or not received.endswith(b"}"):
            received += connection.recv(65536)
    alone = [ask(stub_server, head(len(body)) + body)[2] for body in bodies]

    assert sorted(alone, key=received.index) == alone
    assert 5 == len(set(alone))


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
@pytest.mark.parametrize("apart", [False, True])
def test_an_offer_to_upgrade_is_ignored(stub_server: RunningServer, upgrade: str, apart: bool) -> None:
    """Java's client offers h2c with every first request; its body is read all the same, wherever the packets end."""
    offer = head(len(BODY), "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAEAAEAAAA")
    with connected(stub_server) as connection:
        connection.sendall(offer if apart else offer + BODY)
        if apart:
            connection.sendall(BODY)
        first = response(connection)
        connection.sendall(head() + BODY)

        assert (200, 200) == (first[0], response(connection)[0])
        assert "upgrade" not in {name.lower() for name in first[1]}


def test_a_client_that_asks_before_it_sends_is_told_to_go_on_or_not(stub_server: RunningServer) -> None:
    """`Expect: 100-continue`: a body over the cap is refused before a byte of it is sent."""
    with connected(stub_server) as connection:
        connection.sendall(head(len(BODY), "expect: 100-continue"))
        told = connection.recv(65536)
        connection.sendall(BODY)
        answered = response(connection)[0]
    with connected(stub_server) as connection:
        connection.sendall(head(1 << 40, "expect: 100-continue"))
        refused = response(connection)[0]

    assert (b"HTTP/1.1 100 Continue\r\n\r\n", 200, 413) == (told, answered, refused)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
        b"GET\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /h\xffealth HTTP/1.1\r\n\r\n",
        b"CONNECT gateway:443 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x00" * 1000,
    ],
)
def test_what_is_not_http_is_refused_in_our_shape(stub_server: RunningServer, garbage: bytes) -> None:
    """400 with an id, and the connection ends; others do not notice."""
    with connected(stub_server) as other, connected(stub_server) as connection:
        connection.sendall(garbage)
        status, headers, body = response(connection)
        other.sendall(head() + BODY)

        assert (400, "close") == (status, headers["connection"])
        assert json.loads(body)["detail"]
        assert headers["x-typesafe-request-id"].startswith("req_")
        assert closed(connection)
        assert 200 == response(other)[0]


def test_what_never_became_a_request_is_counted(stub_server: RunningServer) -> None:
    """By what was wrong with it."""
    name = 'canvasgate_errors_total{code="not_http"}'
    before = gauge(stub_server, name)
    refused = ask(stub_server, b"\x00\r\n\r\n")[0]

    assert (400, before + 1) == (refused, gauge(stub_server, name))


def test_garbage_behind_a_request_does_not_cost_its_answer(slow_server: RunningServer) -> None:
    """The request is answered, then the connection ends."""
    with connected(slow_server) as connection:
        connection.sendall(head() + BODY + b"\x00\x01\x02 garbage\r\n\r\n")

        assert 200 == response(connection)[0]
        assert closed(connection)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /health HTTP/1.1\r\n", b"x-filler: " + b"a" * 1000 + b"\r\n"),
        (b"GET /health HTTP/1.1\r\nx-filler: ", b"a"),
        (b"GET /", b"a"),
    ],
)
def test_a_head_without_end_is_refused(stub_server: RunningServer, begin: bytes, more: bytes) -> None:
    """Many lines, one line, a path: 431 once 64 KB have come."""
    with connected(stub_server) as connection:
        connection.sendall((begin + more * 65536)[: 64 * 1024 + 1])

        assert 431 == response(connection)[0]
        assert closed(connection)


def test_what_follows_a_body_without_end_is_refused(stub_server: RunningServer) -> None:
    """Trailers of a chunked body are bounded as a head is."""
    with connected(stub_server) as connection:
        connection.sendall(head(1).replace(b"content-length: 1", b"transfer-encoding: chunked") + b"1\r\n \r\n0\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(b"x-trailer: aaaaaaaa\r\n" * 1_000_000)


@pytest.mark.parametrize("sent", [b"GET /hea", head() + BODY[:10], b"\r\n"])
def test_a_request_that_does_not_come_whole_ends(slow_server: RunningServer, sent: bytes) -> None:
    """408 after REQUEST_TIMEOUT, whether the head or the body is missing; nothing is left behind."""
    with connected(slow_server) as connection:
        connection.sendall(sent)

        assert response(connection)[0] in {408, 0}
        assert sent == b"\r\n" or closed(connection)


def test_a_connection_that_says_nothing_ends(slow_server: RunningServer) -> None:
    """Without an answer, as nothing was asked."""
    with connected(slow_server) as connection:
        assert b"" == connection.recv(1)


def test_many_slow_and_half_closed_connections_hurt_nobody(stub_server: RunningServer) -> None:
    """Fifty that send a byte and wait, fifty that have sent half a request and all they ever will."""
    host, port = stub_server.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(100)]
    for index, connection in enumerate(idle):
        connection.sendall(head() + BODY[: index % 20])
        if index % 2:
            connection.shutdown(socket.SHUT_WR)
    answered = [ask(stub_server, head() + BODY)[0] for _ in range(5)]
    for connection in idle:
        connection.close()

    assert [200] * 5 == answered


# --- Many at once -----------------------------------------------------------------------------------------------------


async def post_all(server: RunningServer, bodies: list[bytes]) -> list[httpx.Response]:
    """All of them at once, each over a connection of its own."""
    limits = httpx.Limits(max_connections=len(bodies))
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=20, headers=headers) as client:
        return list(await asyncio.gather(*(client.post(PATH, content=body) for body in bodies)))


async def test_each_of_many_clients_gets_its_own_answer(slow_server: RunningServer, stub_server: RunningServer) -> None:
    """Sixty-four at once, each with the body that it gets alone, byte for byte, and from any replica."""
    bodies = [asked_bytes(f"Customer {number} was charged {number} times.") for number in range(64)]
    together = await post_all(slow_server, bodies)
    alone = [ask(stub_server, head(len(body)) + body)[2] for body in bodies]

    assert {200} == {each.status_code for each in together}
    assert alone == [each.content for each in together]
    assert 64 == len(set(alone))


async def test_identical_requests_get_identical_bodies(slow_server: RunningServer) -> None:
    """Alone, and among sixty-three others."""
    others = [asked_bytes(f"Customer {number}") for number in range(63)]
    alone = [ask(slow_server, head() + BODY)[2] for _ in range(3)]
    among = [(await post_all(slow_server, [*others[:at], BODY, *others[at:]]))[at].content for at in (0, 31, 63)]

    assert 1 == len({*alone, *among})


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(slow_server: RunningServer) -> None:
    """Two hundred, from before the head is whole to after the answer is there."""
    draw = random.Random(7)
    host, port = slow_server.url.removeprefix("http://").split(":")

    async def leave_early() -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        request = head() + BODY
        writer.write(request[: draw.choice([5, len(request) // 2, len(request), len(request)])])
        await writer.drain()
        await asyncio.sleep(draw.uniform(0, 0.12))
        writer.transport.abort()

    await asyncio.gather(*(leave_early() for _ in range(200)))
    await asyncio.to_thread(wait_until_idle, slow_server)
    after = await post_all(slow_server, [BODY])

    assert 200 == after[0].status_code


def wait_until_idle(server: RunningServer) -> None:
    """Return once nobody is worked on and nobody waits; the test's own timeout ends it otherwise."""
    while gauge(server, "canvasgate_inflight_reads") or gauge(server, "canvasgate_queued_decisions"):
        time.sleep(0.01)


# --- Large bodies -----------------------------------------------------------------------------------------------------

MIB = 1024 * 1024


def peak_memory(server: RunningServer) -> int:
    """Bytes of memory that the process has had at most."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


async def healths_meanwhile(client: httpx.AsyncClient, body: bytes) -> int:
    """How often `/health` was answered while a large request was."""
    posting = asyncio.create_task(client.post(PATH, content=body, headers={"content-type": "application/json"}))
    answered = 0
    while not posting.done():
        assert 200 == (await client.get("/health")).status_code
        answered += 1
    assert posting.result().status_code in {400, 413}
    return answered


@pytest.mark.parametrize(
    "body",
    [asked_bytes({"rows": [[number, f"row {number}"] for number in range(100_000)]}), asked_bytes("x" * 5 * MIB)],
    ids=["many values", "one text"],
)
async def test_health_is_answered_while_a_large_body_is_parsed(stub_server: RunningServer, body: bytes) -> None:
    """Several times over before the large one is: parsing and planning are off the event loop."""
    async with httpx.AsyncClient(base_url=stub_server.url, timeout=20) as client:
        assert max([await healths_meanwhile(client, body) for _ in range(4)]) > 1


LARGE = {
    "not JSON": b'{"state":"' + b"x" * (8 * MIB - 100),
    "one long text": asked_bytes("x" * (8 * MIB - 1000)),
    "many numbers": b'{"model":"jev-latest","state":[' + b"1," * (4 * MIB - 100) + b'1],"questions":{}}',
    "many faults": b'{"model":"jev-latest","state":"x","questions":{%b}}'
    % b",".join(b'"%d":{}' % number for number in range(500_000)),
    "no ASCII": b'"' + "é".encode() * (4 * MIB - 10) + b'"',
}
FACTOR = 32
"""The stub makes a token of every byte, and eight bytes of memory of every token, some three times over."""


def test_memory_stays_near_the_cap(start_server: Start) -> None:
    """Whatever bodies of eight megabytes hold, they are refused, and the process grows by a small factor of that."""
    server = start_server(ENGINE="stub", MAX_BODY=str(8 * MIB))
    before = peak_memory(server)
    statuses = {name: ask(server, head(len(body)) + body)[0] for name, body in LARGE.items()}

    assert {"not JSON": 422, "one long text": 400, "many numbers": 413, "many faults": 413, "no ASCII": 422} == statuses
    assert peak_memory(server) - before < FACTOR * 8 * MIB
    server.process.kill()


# --- Stopping ---------------------------------------------------------------------------------------------------------


async def ask_until_turned_away(client: httpx.AsyncClient, responses: list[httpx.Response]) -> None:
    """Ask again and again, until an answer ends its connection, as a load balancer would see."""
    while not responses or responses[-1].headers.get("connection") != "close":
        responses.append(await client.post(PATH, json=asked()))


async def test_a_server_that_is_told_to_stop_finishes_what_it_has(start_server: Start) -> None:
    """Under load: unready at once, no request fails, answers end their connections, exit code 0."""
    server = start_server(ENGINE="stub", STUB_DELAY_MS="20", DRAIN_DELAY="1")
    responses: list[httpx.Response] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        clients = [asyncio.create_task(ask_until_turned_away(client, responses)) for _ in range(16)]
        await until_in_flight(server)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(wait_for_line, server, "draining")
        ready = await client.get("/ready")
        await asyncio.gather(*clients)

    assert (503, "draining") == (ready.status_code, ready.json()["reason"])
    assert {200} == {response.status_code for response in responses}
    assert len(responses) >= 16
    assert 0 == await asyncio.to_thread(server.process.wait, 10)


async def until_in_flight(server: RunningServer) -> None:
    """Return once a decision is worked on."""
    while not await asyncio.to_thread(gauge, server, "canvasgate_inflight_decisions"):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)


async def test_what_is_in_flight_when_serving_ends_is_answered(start_server: Start) -> None:
    """SIGINT takes no drain time, but waits for answers."""
    server = start_server(ENGINE="stub", STUB_DELAY_MS="500", DRAIN_DELAY="3600")
    posting = asyncio.create_task(post_all(server, [BODY] * 8))
    await until_in_flight(server)
    server.process.send_signal(signal.SIGINT)
    responses = await posting

    assert [200] * 8 == [response.status_code for response in responses]
    assert 0 == await asyncio.to_thread(server.process.wait, 10)


async def test_what_takes_longer_than_the_drain_is_told_to_go_elsewhere(start_server: Start) -> None:
    """503 in our shape, no broken connection."""
    server = start_server(ENGINE="stub", STUB_DELAY_MS="600000", DRAIN_TIMEOUT="0")
    posting = asyncio.create_task(post_all(server, [BODY]))
    await until_in_flight(server)
    server.process.send_signal(signal.SIGTERM)
    (response,) = await posting

    assert (503, "queue_unavailable") == (response.status_code, response.json()["detail"]["error_type"])
    assert 0 == await asyncio.to_thread(server.process.wait, 10)


async def test_a_second_signal_stops_at_once(start_server: Start) -> None:
    """Whatever is in flight, and however long the drain would be."""
    server = start_server(ENGINE="stub", STUB_DELAY_MS="600000", DRAIN_DELAY="3600", DRAIN_TIMEOUT="3600")
    posting = asyncio.create_task(post_all(server, [BODY]))
    await until_in_flight(server)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(wait_for_line, server, "draining")
    server.process.send_signal(signal.SIGTERM)

    assert 0 == await asyncio.to_thread(server.process.wait, 5)
    with pytest.raises(httpx.TransportError):
        await posting


def test_a_dead_engine_ends_the_process_with_a_failure(start_server: Start) -> None:
    """So that a supervisor starts it again; the reason is in the log."""
    server = start_server(ENGINE="stub", STUB_DEAD="1", ready=False)

    assert 1 == server.process.wait(20)
    assert "failed: The engine has died: told to be dead" in {line["event"] for line in lines_of(server)}


def test_a_port_that_is_taken_ends_the_process_before_anything_is_loaded(
    start_server: Start, stub_server: RunningServer
) -> None:
    """With a line that names it."""
    port = stub_server.url.rpartition(":")[2]
    server = start_server(ENGINE="stub", PORT=port, ready=False)

    assert 1 == server.process.wait(20)
    assert [f"cannot listen on 127.0.0.1 port {port}: Address already in use"] == [
        line["event"] for line in lines_of(server)
    ]


@pytest.mark.model
def test_a_process_that_loads_answers_for_itself_and_fails_when_it_cannot(start_server: Start) -> None:
    """While torch is imported `/health` is answered, decisions are 503; no such model, and the process ends with 1."""
    server = start_server(ENGINE="auto", MODEL="/nowhere", ready=False)
    wait_for_line(server, "listening on")
    statuses = set()
    with suppress(OSError):  # until the process ends
        while True:
            statuses |= {
                (path, ask(server, head(0, method="GET", path=path))[0]) for path in ("/health", "/ready", "/v1/models")
            }

    assert {("/health", 200), ("/ready", 503), ("/v1/models", 503)} == statuses - {
        (path, 0) for path in ("/health", "/ready", "/v1/models")
    }
    assert 1 == server.process.wait(20)
    assert "MODEL is /nowhere, but there is no config.json" in server.log.read_text()


@pytest.mark.model
def test_a_process_that_is_told_to_stop_while_it_loads_ends_promptly(start_server: Start) -> None:
    """With 0, whatever its loading thread still does."""
    server = start_server(ENGINE="reference", MODEL="/nowhere", DRAIN_DELAY="3600", ready=False)
    wait_for_line(server, "listening on")
    assert 503 == ask(server, head(0, method="GET", path="/ready"))[0]
    server.process.send_signal(signal.SIGTERM)

    assert 0 == server.process.wait(5)


# --- The log ----------------------------------------------------------------------------------------------------------


def test_the_log_says_how_to_ask_and_nothing_of_the_servers_own(stub_server: RunningServer) -> None:
    """Listening, ready, what the answers are worth, a command to copy; no line of uvicorn's."""
    events = [line["event"] for line in lines_of(stub_server)]

    assert f"listening on {stub_server.url}" == events[0]
    assert any(event.startswith("ready after") and "stub engine" in event for event in events)
    assert any("answers are hashes" in event for event in events)
    assert any(f"try it: canvasgate decide --url {stub_server.url}" in event for event in events)
    assert not [
        line for line in lines_of(stub_server) if line["logger"].startswith("uvicorn") and line["level"] == "info"
    ]


def test_no_content_and_no_key_reaches_the_log(start_server: Start) -> None:
    """At its most talkative, for answers and errors of every kind."""
    secrets = ["sk-right", "sk-wrong", "dg-key", "STATE-secret", "QUESTION-secret", "OPTION-secret", "MODEL-secret"]
    server = start_server(ENGINE="stub", LOG_LEVEL="debug", API_KEY="sk-right", DGEM_SERVER_KEY="dg-key")
    right = {"authorization": "Bearer sk-right", "x-dgem-key": "dg-key", "content-type": "application/json"}
    question = {"type": "choice", "instructions": "QUESTION-secret", "criteria": {"OPTION-secret": None, "other": None}}
    body = asked("STATE-secret", questions={"q": question})
    bodies = [body, body | {"model": "MODEL-secret"}, body | {"questions": {"q": {"type": "OPTION-secret"}}}]
    contents = [*map(json.dumps, bodies), '{"STATE-secret', json.dumps(body | {"state": "STATE-secret" * 10_000})]
    with httpx.Client(base_url=server.url) as client:
        statuses = [client.post(PATH, content=content, headers=right).status_code for content in contents]
        client.post(PATH, json=body, headers=right | {"authorization": "Bearer sk-wrong"})
        client.post(f"{PATH}?state=STATE-secret", json=body, headers=right)
    log = server.log.read_text()

    assert [200, 400, 422, 422, 400] == statuses
    assert 7 == log.count('"path":"/v1/systemone"')
    assert [] == [secret for secret in secrets if secret in log]
    server.process.kill()
