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
from starlette.types import Receive, Scope, Send

from decisions.protocol import Decision

from . import __version__
from .inflight import Sent
from .inflight.contract import Form
from .middleware import HEAVY_BODY, ClientLeft
from .templates import detail, listing, state_of
from .wire import Report, WireRequest

if TYPE_CHECKING:
    from .app import Gateway

T = TypeVar("T")
WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])")
"""RFC 7240's preference of how many seconds a caller is willing to wait."""

WATCH_AFTER = 0.005
"""Seconds after which a decision is worth a task that waits for its client to leave; many are done sooner."""

Leave = Callable[["asyncio.Task[Any]"], object]
Parse = Callable[[bytes, str | None], WireRequest]
Write = Callable[[WireRequest, Decision, Report], bytes]


def gateway_of(request: Request) -> Gateway:
    """The gateway that the app was made for."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def systemone(request: Request) -> Response:
    """`POST /v1/systemone`: all questions of one request about one state."""
    wire = gateway_of(request).serving.wire
    return await decide(request, "systemone", wire.parse_systemone, wire.systemone_body)


async def decisions(request: Request) -> Response:
    """`POST /v1/decisions`: the same in the OpenAI form, or in the System One form where that is what was sent."""
    wire = gateway_of(request).serving.wire
    return await decide(request, "decisions", wire.parse_decisions, wire.decisions_body)


async def decide_template(request: Request) -> Response:
    """`POST /v1/templates/{name}/decide`: what the template asks, with the body's variables."""
    wire, name = gateway_of(request).serving.wire, request.path_params["name"]
    return await decide(request, "systemone", partial(wire.parse_template, name), wire.systemone_body)


async def decide(request: Request, form: Form, parse: Parse, write: Write) -> Response:
    """What every decision route does, whatever its form."""
    gateway = gateway_of(request)
    record, body = request.state.record, request.state.body
    record.body_bytes = len(body)
    record.enter("parse")
    sent = Sent(form, body, request.headers.get("content-type"), preferred_wait(request))
    if len(body) > HEAVY_BODY:
        asked = await asyncio.to_thread(parse, body, sent.content_type)
    else:
        asked = parse(body, sent.content_type)
    if asked.expanded is not None:  # another replica's templates may be older or newer than these
        sent = Sent("systemone", asked.expanded, wait=sent.wait)
        record.rendered = len(asked.expanded)
    service = gateway.serving.service
    deciding = service.decide(asked, sent, record)
    decision = await while_connected(request, deciding, partial(service.flights.leave, sent))
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


async def list_templates(request: Request) -> Response:
    """`GET /v1/templates`: every template by name."""
    return JSONResponse(listing(gateway_of(request).catalogue.index))


async def read_template(request: Request) -> Response:
    """`GET /v1/templates/{name}`: one template, its variables as JSON Schema. The name may pin a version."""
    index = gateway_of(request).catalogue.index
    return JSONResponse(detail(index, index.find(request.path_params["name"])))


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
    body = {"ready": not reason, "reason": reason, "templates": state_of(gateway.catalogue.index)}
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


POSTS = {
    "/v1/systemone": systemone,
    "/systemone": systemone,
    "/v1/decisions": decisions,
    "/v1/templates/{name}/decide": decide_template,
}
GETS = {
    "/v1/templates": list_templates,
    "/v1/templates/{name}": read_template,
    "/v1/models": models,
    "/v1/limits": limits,
    "/health": health,
    "/ready": ready,
    "/metrics": metrics,
    "/openapi.json": openapi,
}
PATHS = frozenset(POSTS) | frozenset(GETS)


class Endpoint:
    """An endpoint as a plain ASGI app; Starlette's own wrapper looks for error handlers, and ours stand further out."""

    def __init__(self, answer: Callable[[Request], Coroutine[Any, Any, Response]]) -> None:
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self.answer(Request(scope, receive, send))
        await response(scope, receive, send)


def routes() -> list[Route]:
    """The route table. A POST is served with and without a trailing slash: a redirect would lose its body."""
    posts = [
        Route(path + slash, Endpoint(answer), methods=["POST"]) for path, answer in POSTS.items() for slash in ("", "/")
    ]
    return posts + [Route(path, Endpoint(answer), methods=["GET"]) for path, answer in GETS.items()]
