"""What happens around every route: id and record, errors, key, body; one plain ASGI class each, outermost first."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decisions.errors import BodyTooLarge, DecisionError, QueueUnavailable

from .encodings import decode_body
from .error_answers import ErrorAnswer, error_answer, internal_error, routing_answer
from .keyring import Keyring
from .keys import Key
from .metrics import Metrics, RequestRecord
from .rates import Rates

if TYPE_CHECKING:
    from .tracing import Tracing

log = logging.getLogger("canvasgate")

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/openapi.json"})
"""Paths that need no key: they tell nothing of what is asked or answered."""
HEAVY_BODY = 64 * 1024
"""Bodies of more bytes than this are decompressed, parsed and planned off the event loop."""
PRINTABLE = re.compile(r"[!-~]{1,128}")


def header(scope: Scope, name: bytes) -> str:
    """The first header of this name, in lower case; empty where there is none."""
    for given, value in scope["headers"]:
        if given == name:
            text: str = value.decode("latin-1")
            return text
    return ""


class ClientLeft(Exception):
    """The client closed the connection before its answer was ready; there is nobody to answer."""


class RequestMiddleware:
    """Outermost: names the request and records how it went; answers given while `draining` end their connection.

    Whatever is below finds the `RequestRecord` in the scope's state. With `tracing` it is a traced one.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, draining: Callable[[], bool], tracing: Tracing | None = None
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.draining = draining
        self.tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        named = f"req_{token_hex(16)}", scope["method"], scope["path"]
        if self.tracing is None:
            record = RequestRecord(*named)
        else:
            record = self.tracing.begin(*named, header(scope, b"traceparent"), header(scope, b"tracestate"))
        scope.setdefault("state", {})["record"] = record
        given = header(scope, b"x-request-id")
        correlation = given if PRINTABLE.fullmatch(given) else record.request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [*message.get("headers", ())]
                headers.append((b"x-typesafe-request-id", record.request_id.encode()))
                headers.append((b"x-request-id", correlation.encode()))
                if timing := record.server_timing():
                    headers.append((b"server-timing", timing.encode()))
                if self.draining():
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        started = time.perf_counter()
        try:
            await self.app(scope, receive, send_named)
        finally:
            record.seconds = time.perf_counter() - started
            route = self.metrics.observe(record)
            if self.tracing is not None:
                self.tracing.end(record, route)


class ErrorMiddleware:
    """Answers every error that comes from below, so that no request ends without an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and answer in the app's place where it fails."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record: RequestRecord = scope["state"]["record"]
        try:
            await self.app(scope, receive, send)
        except ClientLeft:
            record.status, record.code = 499, "client_left"
        except DecisionError as error:
            await self._answer(error_answer(error), send, record)
        except HTTPException as error:
            await self._answer(routing_answer(error.status_code, error.detail, error.headers), send, record)
        except asyncio.CancelledError:  # by the server, which stops and has waited for this request long enough
            await self._answer(error_answer(QueueUnavailable("The gateway has stopped.")), send, record)
        except Exception as error:  # noqa: BLE001 - the outermost handler
            log.error(  # noqa: TRY400 - with the place but not the message
                "request %s failed: %s at\n%s", record.request_id, type(error).__name__, place_of(error)
            )
            await self._answer(internal_error(), send, record)

    @staticmethod
    async def _answer(answer: ErrorAnswer, send: Send, record: RequestRecord) -> None:
        record.code = answer.code
        if record.status:  # the response had begun; it cannot be taken back
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
        await send({"type": "http.response.body", "body": answer.body})


def place_of(error: BaseException) -> str:
    """Where an error was raised. Without its message, which may quote what the caller sent."""
    return "".join(traceback.format_tb(error.__traceback__))


class KeyMiddleware:
    """Lets only callers with a key through, and only within the limits of a key that has a name.

    The key is checked before the body is read, on every path and method but `OPEN_PATHS`. Requests a second count all
    of these; the record takes along how tokens are counted, once it is known how many a request has.
    """

    def __init__(self, app: ASGIApp, keys: Keyring, rates: Rates) -> None:
        self.app = app
        self.keys = keys
        self.rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the key, then pass on. Raises `MissingKey`, `WrongKey`, `RateLimited` or `QueueUnavailable`."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        key = self.keys.check(header(scope, b"authorization"), header(scope, b"x-dgem-key"))
        if key is not None:
            scope["state"]["record"].key = key.name
        if key is not None and key.limited:
            await self._pass_on_within(key, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _pass_on_within(self, key: Key, scope: Scope, receive: Receive, send: Send) -> None:
        await self.rates.ask(key)
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if key.tokens_per_minute is not None:
            scope["state"]["record"].spend = partial(self.rates.spend, key)
        async with self.rates.running(key):
            await self.app(scope, receive, send)


class BodyMiddleware:
    """Reads and decodes the whole body of a POST, within `cap` bytes, before any route sees the request.

    A route finds the decoded bytes in `request.state.body`. Its `receive` then tells only of a disconnect.
    """

    def __init__(self, app: ASGIApp, cap: int) -> None:
        self.app = app
        self.cap = cap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collect the body, then pass on. Raises `BodyTooLarge`, `UnsupportedEncoding` or `SchemaViolation`."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        raw = await self._collect(header(scope, b"content-length"), receive)
        encoding = header(scope, b"content-encoding")
        if encoding and len(raw) > HEAVY_BODY:
            body = await asyncio.to_thread(decode_body, raw, encoding, self.cap)
        else:
            body = decode_body(raw, encoding, self.cap) if encoding else raw
        scope.setdefault("state", {})["body"] = body
        await self.app(scope, receive, send)

    async def _collect(self, declared: str, receive: Receive) -> bytes:
        if declared.isdecimal() and int(declared) > self.cap:
            raise BodyTooLarge(f"The body has {declared} bytes, but at most {self.cap} are allowed.")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > self.cap:
                raise BodyTooLarge(f"The body has more than the {self.cap} bytes that are allowed.")
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
