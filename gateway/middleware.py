"""What happens around every route: request id and record, key, body; one plain ASGI class each, outermost first."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Sequence
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decisions.errors import BodyTooLarge, DecisionError, MissingKey, WrongKey

from .encodings import decode_body
from .metrics import Metrics, RequestRecord
from .error_answers import ErrorAnswer, error_answer, internal_error

log = logging.getLogger("canvasgate")

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/openapi.json"})
"""Paths that need no key: they tell nothing of what is asked or answered."""
HEAVY_BODY = 64 * 1024
"""Bodies of more bytes than this are decompressed, parsed and planned off the event loop."""
PRINTABLE = re.compile(r"[!-~]{1,128}")


class ClientLeft(Exception):
    """The client closed the connection before its answer was ready; there is nobody to answer."""


class RequestMiddleware:
    """Outermost: names the request, answers every error, and records how the request went.

    A route below finds its `RequestRecord` in `request.state.record`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = RequestRecord(request_id=f"req_{uuid4().hex}", method=scope["method"], path=scope["path"])
        scope.setdefault("state", {})["record"] = record
        given = Headers(scope=scope).get("x-request-id", "")
        correlation = given if PRINTABLE.fullmatch(given) else record.request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-typesafe-request-id"] = record.request_id
                headers["x-request-id"] = correlation
                if record.timed:
                    headers["server-timing"] = record.server_timing()
            await send(message)

        started = time.perf_counter()
        try:
            await self._serve(scope, receive, send_named, record)
        finally:
            record.seconds = time.perf_counter() - started
            self.metrics.observe(record)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        try:
            await self.app(scope, receive, send)
        except ClientLeft:
            record.status, record.code = 499, "client_left"
        except DecisionError as error:
            await self._answer(error_answer(error), send, record)
        except Exception as error:  # the outermost handler: no request may end without an answer
            log.exception("request %s failed: %s", record.request_id, type(error).__name__)
            await self._answer(internal_error(), send, record)

    @staticmethod
    async def _answer(answer: ErrorAnswer, send: Send, record: RequestRecord) -> None:
        record.code = answer.code
        if record.status:  # the response had begun; it cannot be taken back
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
        await send({"type": "http.response.body", "body": answer.body})


class KeyMiddleware:
    """Lets only callers with a key through, where keys are set; without any, every header is accepted and ignored.

    `bearers` are compared with `Authorization: Bearer`, `server_keys` with `X-DGem-Key`, in constant time.
    Whichever kinds are set must all match.
    """

    def __init__(self, app: ASGIApp, bearers: Sequence[str], server_keys: Sequence[str]) -> None:
        self.app = app
        self.bearers = [key.encode() for key in bearers]
        self.server_keys = [key.encode() for key in server_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the keys, then pass on. Raises `MissingKey` or `WrongKey`."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = Headers(scope=scope)
            if self.bearers:
                scheme, _, token = headers.get("authorization", "").partition(" ")
                check_key(token.strip() if scheme.lower() == "bearer" else "", self.bearers)
            if self.server_keys:
                check_key(headers.get("x-dgem-key", ""), self.server_keys)
        await self.app(scope, receive, send)


def check_key(given: str, allowed: Sequence[bytes]) -> None:
    """Raise `MissingKey` for an empty key and `WrongKey` for one that is not allowed; takes as long either way."""
    if not given:
        raise MissingKey("Must supply an API key! Check your request and try again.")
    matches = [hmac.compare_digest(given.encode("utf-8", "replace"), key) for key in allowed]
    if not any(matches):
        raise WrongKey("Cannot authenticate with the server. Please check your API key and try again.")


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
        headers = Headers(scope=scope)
        raw = await self._collect(headers, receive)
        encoding = headers.get("content-encoding")
        if encoding and len(raw) > HEAVY_BODY:
            body = await asyncio.to_thread(decode_body, raw, encoding, self.cap)
        else:
            body = decode_body(raw, encoding, self.cap) if encoding else raw
        scope.setdefault("state", {})["body"] = body
        await self.app(scope, receive, send)

    async def _collect(self, headers: Headers, receive: Receive) -> bytes:
        declared = headers.get("content-length", "")
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


