"""The endpoints, a few lines each: parse, ask the service, answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from decisions.protocol import Decision

from . import __version__
from .inflight import Sent
from .inflight.contract import Form
from .middleware import HEAVY_BODY, ClientLeft
from .wire import Report, WireRequest

if TYPE_CHECKING:
    from .app import Gateway

T = TypeVar("T")
WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])")
"""RFC 7240's preference of how many seconds a caller is willing to wait."""

WATCH_AFTER = 0.005
"""Seconds after which a decision is worth a task that waits for its client to leave; many are done sooner."""

Leave = Callable[["asyncio.Task[Any]"], None]
Write = Callable[[WireRequest, Decision, Report], bytes]


def gateway_of(request: Request) -> Gateway:
    """The gateway that the app was made for."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def systemone(request: Request) -> Response:
    """`POST /v1/systemone`: all questions of one request about one state."""
    return await decide(request, "systemone", gateway_of(request).serving.wire.systemone_body)


async def decisions(request: Request) -> Response:
    """`POST /v1/decisions`: the same in the OpenAI form, or in the System One form where that is what was sent."""
    return await decide(request, "decisions", gateway_of(request).serving.wire.decisions_body)


async def decide(request: Request, form: Form, write: Write) -> Response:
    """What every decision route does, whatever its form."""
    gateway = gateway_of(request)
    record, body = request.state.record, request.state.body
    record.body_bytes = len(body)
    record.enter("parse")
    sent = Sent(form, body, request.headers.get("content-type"), preferred_wait(request))
    serving = gateway.serving
    asked = await asyncio.to_thread(serving.parse, sent) if len(body) > HEAVY_BODY else serving.parse(sent)
    flights = serving.service.flights
    decision = await while_connected(request, serving.service.decide(asked, sent, record), partial(flights.leave, sent))
    record.decided(asked.questions, decision)
    return Response(write(asked, decision, gateway.report(record)), media_type="application/json")


async def while_connected(request: Request, work: Coroutine[Any, Any, T], leave: Leave) -> T:
    """The result of `work`, which `leave` is to cancel when the client leaves; raises `ClientLeft` then."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    left, watcher = False, None

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        if task is not None:
            leave(task)

    def start_watching() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    timer = loop.call_later(WATCH_AFTER, start_watching)
    try:
        result = await work
    except asyncio.CancelledError:
        if left and task is not None:
            task.uncancel()
            raise ClientLeft from None
        raise
    else:
        if left:
            raise ClientLeft
        return result
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


def preferred_wait(request: Request) -> float | None:
    """Seconds of `Prefer: wait=N`, where the caller sent it."""
    found = WAIT.search(request.headers.get("prefer", ""))
    return float(found.group(1)) if found else None


async def models(request: Request) -> Response:
    """`GET /v1/models`: what may stand in a request's `model`, in TypeSafe's form and in OpenAI's."""
    return JSONResponse(gateway_of(request).serving.wire.models_body())


async def limits(request: Request) -> Response:
    """`GET /v1/limits`: what one request may hold, and what holds where it says nothing."""
    return JSONResponse(gateway_of(request).limits_body())


async def health(request: Request) -> Response:
    """`GET /health`: 200 while the process lives, with what it serves and how far along it is."""
    return JSONResponse(gateway_of(request).health_body())


async def ready(request: Request) -> Response:
    """`GET /ready`: 200 only when a decision would be answered; else 503 with the reason."""
    gateway = gateway_of(request)
    reason = gateway.unready_reason()
    body = {"ready": not reason, "reason": reason}
    if (fault := gateway.queue_fault()) and fault != reason:
        body["degraded"] = fault
    return JSONResponse(body, status_code=503 if reason else 200)


async def metrics(request: Request) -> Response:
    """`GET /metrics`: everything counted, in Prometheus' text form."""
    body, content_type = gateway_of(request).metrics.exposition()
    return Response(body, headers={"content-type": content_type})


async def openapi(request: Request) -> Response:
    """`GET /openapi.json`: this API, composed from the files in `schemas/`."""
    return JSONResponse(gateway_of(request).serving.wire.openapi(__version__))


POSTS = {"/v1/systemone": systemone, "/systemone": systemone, "/v1/decisions": decisions}
GETS = {
    "/v1/models": models,
    "/v1/limits": limits,
    "/health": health,
    "/ready": ready,
    "/metrics": metrics,
    "/openapi.json": openapi,
}
PATHS = frozenset(POSTS) | frozenset(GETS)


def routes() -> list[Route]:
    """The route table. A POST is served with and without a trailing slash: a redirect would lose its body."""
    posts = [Route(path + slash, endpoint, methods=["POST"]) for path, endpoint in POSTS.items() for slash in ("", "/")]
    return posts + [Route(path, endpoint, methods=["GET"]) for path, endpoint in GETS.items()]
