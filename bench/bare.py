"""A bare ASGI app that reads a body and answers a fixed one: what uvicorn and this machine take without a gateway."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

ANSWER = b'{"model":"bare","answers":{},"usage":{"input_tokens":0,"output_tokens":0}}'


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request alike."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})
