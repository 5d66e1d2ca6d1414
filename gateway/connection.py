"""One client's connection: what it may send is bounded, and what it is sent goes out in one piece.

uvicorn's own protocol waits for a request without end and lets its head grow without end; it loses the body of a
request that offers an upgrade, as Java's client does; and it writes an answer's head and body apart.
"""

from __future__ import annotations

import asyncio
import re
from secrets import token_hex
from typing import Any, cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .metrics import Metrics, RequestRecord

HEAD_BYTES = 64 * 1024
"""Most bytes of a request's head, or of what stands between two parts of its body."""
REFUSALS = {400: "not_http", 408: "request_timeout", 431: "head_too_large"}
"""What metrics and logs call a request that never became one."""
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class Connection(HttpToolsProtocol):
    """uvicorn's connection within bounds; a request has to come whole within `patience` seconds."""

    def __init__(self, *, patience: float, metrics: Metrics, **given: Any) -> None:
        super().__init__(**given)
        self._patience = patience
        self._metrics = metrics
        self._begun = False
        self._awaits_head = True
        self._unframed = 0
        """Bytes since the last whole head or part of a body."""
        self._current: RequestResponseCycle | None = None
        """The latest request of which the head is whole."""
        self._receiving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(cast("asyncio.Transport", OnePiece(cast("asyncio.Transport", transport), self.loop)))
        self._wait_for_message()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; refuse what goes on and on without saying anything."""
        if self._awaits_head:
            data = without_upgrade(data)
        self._unframed += len(data)
        super().data_received(data)
        if self._unframed > HEAD_BYTES and not self.transport.is_closing():
            self.refuse(431, "Request Header Fields Too Large")

    # --- What the parser meets ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first bytes of a request."""
        self._wait_for_message()
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A whole head."""
        self._awaits_head, self._unframed = False, 0
        super().on_headers_complete()
        self._current = self.cycle

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._unframed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A whole request."""
        self._begun, self._awaits_head, self._unframed = False, True, 0
        self._stop_waiting()
        super().on_message_complete()

    # --- What is not answered by the app ------------------------------------------------------------------------------

    def _wait_for_message(self) -> None:
        if self._receiving is None:
            self._receiving = self.loop.call_later(self._patience, self._give_up)

    def _stop_waiting(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _give_up(self) -> None:
        self._receiving = None
        answered = not self._awaits_head and self.cycle.response_complete
        if answered or not self._begun:
            self.transport.close()
        else:
            self.refuse(408, "Request Timeout")

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to bytes that are not HTTP."""
        self.refuse(400, msg)

    def refuse(self, status: int, reason: str) -> None:
        """Answer with an error and close; where an earlier request is being answered, close behind that answer."""
        earlier = self._current
        if earlier and not (earlier.response_complete or earlier.more_body):
            earlier.keep_alive = False
            return
        request_id = f"req_{token_hex(16)}"
        self._metrics.observe(RequestRecord(request_id, method="", path="", status=status, code=REFUSALS[status]))
        name, body = request_id.encode(), orjson.dumps({"detail": reason})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        names = b"x-typesafe-request-id: %s\r\nx-request-id: %s\r\n\r\n" % (name, name)
        self.transport.write(STATUS_LINE[status] + head + names + body)
        self.transport.close()


class OnePiece:
    """A transport that sends in one piece what is written during one turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send these bytes at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Close once everything is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else a transport has
        return getattr(self._transport, name)


def without_upgrade(data: bytes) -> bytes:
    """The beginning of a request with its offer to upgrade put out of sight: the parser would stop behind the head."""
    if b"pgrade:" not in data and b"PGRADE:" not in data:
        return data
    head, end, rest = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"\r\nignored-upgrade:", head) + end + rest
