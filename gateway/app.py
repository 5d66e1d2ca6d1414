"""The composition root: opens the engine, builds planner, queue and service, and lists routes and middleware."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from decisions.errors import DecisionError, EngineUnavailable
from decisions.isolation import IsolationBounds
from decisions.plan import Planner
from decisions.prompt import PROMPT_VERSION
from decisions.protocol import ReadSettings
from decisions.reads import Ticket

from . import __version__
from .config import InvalidSettings, Settings
from .engines import Engine
from .engines.opening import caution, open_engine
from .inflight import Answer, InFlightQueue, MemoryQueue, QueueBounds, Sent
from .inflight.joined import Flights
from .keyring import Keyring
from .metrics import EngineState, Metrics, RequestRecord
from .middleware import HEAVY_BODY, BodyMiddleware, ErrorMiddleware, KeyMiddleware, RequestMiddleware
from .rates import Rates
from .routes import PATHS, routes
from .service import DecisionService, Patience
from .template_files import folders_of
from .template_form import Templates
from .templates import Catalogue, Watcher
from .wire import MAX_STEPS, MAX_THOUGHT, Report, ServedNames, ShapeLimits, Wire, WireRequest

if TYPE_CHECKING:
    from .tracing import Tracing

log = logging.getLogger("canvasgate")

HEALTH_INTERVAL = 1.0
"""Seconds between two looks at the engine's health."""
ANSWER_HEADERS = ("x-typesafe-request-id", "x-request-id", "retry-after", "retry-after-ms", "server-timing")


class Gateway:
    """What one process serves: its engine, once that is open, and how far along it is."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failed = False
        self.draining = False
        self.stop_serving: Callable[[], None] = lambda: None
        """Called when the process should end; the server sets it."""
        self.metrics = Metrics(__version__, PATHS)
        self.metrics.watch(engine=self._engine_state)
        self.opened = asyncio.Event()
        """Set once the engine is open, or has failed to open."""
        self.catalogue = Catalogue(folders_of(settings.templates_dir))
        self.metrics.watch(templates=self.catalogue.counts)
        self._watcher = Watcher(self.catalogue)
        self._watching: asyncio.Task[None] | None = None
        self._phase = "starting"
        self._serving: Serving | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def phase(self) -> str:
        """What the gateway is doing; a reason may follow behind a colon."""
        return "draining" if self.draining and not self.failed else self._phase

    @property
    def serving(self) -> Serving:
        """What serves decisions. Raises `EngineUnavailable` until the engine is open, and after it has died."""
        if self._serving is None or self.failed:
            raise EngineUnavailable(f"The engine is not ready: {self.phase}.", retry_after=2.0)
        return self._serving

    def start(self) -> None:
        """Begin to open the engine in the background, so that `/health` answers meanwhile."""
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop watching, and close the engine."""
        tasks = [task for task in (self._running, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._serving is not None:
            await self._serving.queue.close()
            await self._serving.engine.close()

    def start_draining(self) -> None:
        """Become unready at once, and stop serving after the drain delay; at once where nothing is served yet."""
        if self.draining:
            return
        delay = self.settings.drain_delay if self._serving is not None else 0.0
        self.draining = True
        if self._serving is not None:
            self._serving.queue.retire()
        log.info("draining: unready now, serving for another %g s", delay)
        asyncio.get_running_loop().call_later(delay, self.stop_serving)

    async def _run(self) -> None:
        started = time.monotonic()
        await asyncio.to_thread(self.catalogue.look)
        self._watching = asyncio.create_task(self._watcher.run())
        self._watching.add_done_callback(tell_of_failure)
        engine = await open_engine(self.settings, self._progress)
        self._serving = await asyncio.to_thread(Serving, self.settings, engine, self.catalogue)
        await self._serving.queue.open()
        self.metrics.watch(queue=self._serving.queue.snapshot)
        self._phase = "ready"
        self.opened.set()
        log.info("ready after %.1f s: %s engine, model %s", time.monotonic() - started, engine.kind, engine.model.name)
        if warning := caution(engine):
            log.warning("%s", warning)
        log.info("try it: %s", how_to_ask(self.settings))
        while (health := await engine.health()).alive:  # noqa: ASYNC110 - an engine tells of its death when asked
            await asyncio.sleep(HEALTH_INTERVAL)
        raise EngineUnavailable(f"The engine has died: {health.detail}")

    def reload_templates(self) -> None:
        """Look at the templates' files now, as on SIGHUP; they are looked at every second anyway."""
        log.info("looking at the templates")
        self._watcher.look_now()

    def _progress(self, phase: str) -> None:
        self._phase = phase
        log.info("%s", phase)

    def _ended(self, running: asyncio.Task[None]) -> None:
        """The engine could not be opened or has died: say so, and let a supervisor start the process again."""
        if running.cancelled():
            return
        error = running.exception()
        self.failed = True
        self._phase = f"failed: {error}"
        if self._serving is not None:
            self._serving.queue.retire()
        self.opened.set()
        log.critical("%s", self._phase, exc_info=None if isinstance(error, DecisionError) else error)
        self.stop_serving()

    def unready_reason(self) -> str:
        """Why a decision would not be answered now; empty when it would be."""
        if self.phase != "ready":
            return self.phase
        return self.queue_fault() if self.serving.queue.stuck else ""

    def queue_fault(self) -> str:
        """What the queue lacks and may do without; empty where all is well."""
        return "" if self._serving is None else self._serving.queue.fault()

    def health_body(self) -> dict[str, Any]:
        """The body of `/health`."""
        body: dict[str, Any] = {
            "status": "ok",
            "version": __version__,
            "phase": self.phase,
            "ready": not self.unready_reason(),
        }
        if self._serving is not None:
            model = self._serving.engine.model
            body |= {
                "engine": self._serving.engine.kind,
                "model": model.name,
                "revision": model.revision,
                "architecture": model.architecture,
            }
        return body

    def limits_body(self) -> dict[str, Any]:
        """The body of `/v1/limits`."""
        serving, settings = self.serving, self.settings
        limits, queue = serving.engine.limits, serving.queue.snapshot()
        defaults = asdict(serving.wire.defaults)
        able = {"steps": ("max_steps", MAX_STEPS, limits.canvas), "think": ("max_think", MAX_THOUGHT, limits.thinks)}
        most = {name: value for name, value, can in able.values() if can}
        for setting, (_, _, can) in able.items():
            if not can:
                del defaults[setting]
        return {
            "model": serving.wire.names.served,
            "context_tokens": limits.context,
            "canvas_tokens": limits.canvas,
            "slots_per_read": limits.slots,
            "label_ids_per_read": limits.label_ids,
            "reads_at_once": limits.reads,
            "max_questions": settings.max_questions,
            "max_options": settings.max_options,
            "max_levels": settings.max_levels,
            "labels": list(serving.service.planner.packer.alphabets),
            **most,
            "max_body_bytes": settings.max_body,
            "max_queue": settings.max_queue,
            "queue_timeout_seconds": settings.queue_timeout,
            "expected_wait_seconds": queue.expected_wait,
            "defaults": defaults,
        }

    def report(self, record: RequestRecord) -> Report:
        """What a decision's diagnostics tell of this gateway."""
        stages = record.stages
        return Report(
            self.serving.fingerprint, stages.get("queue", 0.0), stages.get("engine", 0.0), joined=record.joined
        )

    def _engine_state(self) -> EngineState:
        serving = self._serving
        if serving is None:
            return EngineState(up=False, phase=self.phase)
        return EngineState(not self.unready_reason(), self.phase, serving.engine.kind, serving.engine.model.name)


class Serving:
    """What is built around an open engine: planner, queue, service and wire. Raises `UnfitTokenizer`."""

    def __init__(self, settings: Settings, engine: Engine, templates: Templates | None = None) -> None:
        bounds = IsolationBounds(settings.isolate_auto_max, settings.isolate_max_questions)
        planner = Planner(engine.tokenizer, engine.limits, engine.form, bounds)
        patience = Patience(settings.queue_timeout, settings.request_timeout)
        self.engine = engine
        self.wire = Wire(
            ShapeLimits(settings.max_questions, settings.max_options, settings.max_levels),
            defaults(settings),
            ServedNames(settings.served_model_name or engine.model.name),
            templates,
        )
        self.fingerprint = {
            "model": engine.model.name,
            "revision": engine.model.revision,
            "engine": engine.kind,
            "gateway": __version__,
            "prompt": PROMPT_VERSION,
            "canvas": engine.limits.canvas,
            "constrained": engine.limits.constrained,
        }
        self.queue = self._queue(settings)
        flights = Flights(settings.answer_cache_seconds)
        self.service = DecisionService(engine, planner, self.queue, patience, flights)

    def _queue(self, settings: Settings) -> InFlightQueue:
        bounds = QueueBounds(
            reads=self.engine.limits.reads,
            decisions=settings.max_inflight or None,
            waiting=settings.max_queue,
            patience=settings.queue_timeout,
        )
        if not settings.redis_url:
            return MemoryQueue(bounds)
        from .inflight.shared import SharedQueue  # noqa: PLC0415 - the client of Redis takes a while to import

        alike = self.fingerprint | {"limits": asdict(self.wire.limits), "defaults": asdict(self.wire.defaults)}
        return SharedQueue(bounds, settings, alike, self.decide_sent)

    def parse(self, sent: Sent) -> WireRequest:
        """The request that was sent, checked."""
        parse = self.wire.parse_systemone if sent.form == "systemone" else self.wire.parse_decisions
        return parse(sent.body, sent.content_type)

    async def decide_sent(self, sent: Sent, ticket: Ticket) -> Answer:
        """Decide a request that came to another replica, which has checked it."""
        record = RequestRecord(request_id=ticket.id, method="POST", path=sent.form, body_bytes=len(sent.body))
        record.enter("parse")
        heavy = len(sent.body) > HEAVY_BODY
        request = await asyncio.to_thread(self.parse, sent) if heavy else self.parse(sent)
        return await self.service.decide_sent(request, ticket, record)


def tell_of_failure(watching: asyncio.Task[None]) -> None:
    """Log why the templates' files are no longer looked at, unless we have stopped it."""
    if not watching.cancelled() and (error := watching.exception()):
        log.critical("templates are no longer looked at", exc_info=error)


def defaults(settings: Settings) -> ReadSettings:
    """How questions are read where the request does not say."""
    return ReadSettings(
        isolate=settings.default_isolate,
        layout=settings.default_layout,
        debias=settings.default_debias,
        samples=settings.default_samples,
        catch_all=settings.catch_all,
        seed_token=settings.default_seed_token,
        temperatures=settings.temperature,
    )


def url_of(host: str, port: int) -> str:
    """The root of a gateway that listens there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def how_to_ask(settings: Settings) -> str:
    """A command line that asks this gateway, to be copied from the log."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared, not bound
    key = " --key KEY" if settings.api_key or settings.api_key_file or settings.api_keys_file else ""
    question = "--state 'I was charged twice.' --noul 'Does the customer complain?'"
    return f"canvasgate decide --url {url_of(here, settings.port)}{key} {question}"


class App(Starlette):
    """Starlette without its own two layers for errors: `ErrorMiddleware` stands in front of all that may fail."""

    def build_middleware_stack(self) -> ASGIApp:
        """The layers, the first outermost, around the routes."""
        app: ASGIApp = self.router
        for layer, arguments, named in reversed(self.user_middleware):
            app = layer(app, *arguments, **named)
        return app


def create_app(settings: Settings) -> App:
    """The ASGI app; its gateway is `app.state.gateway`. Raises `InvalidSettings`, or `KeysFileError` for a bad file."""
    gateway = Gateway(settings)
    keys = Keyring(settings)
    rates = Rates(
        settings.redis_url,
        prefix=settings.redis_prefix,
        required=settings.redis_required,
        lease=settings.redis_lease,
    )
    if settings.redis_url:
        gateway.metrics.watch(rates_shared=lambda: rates.shared)
    tracing = open_tracing(settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        gateway.start()
        watching = asyncio.create_task(keys.watch())
        yield
        watching.cancel()
        await gateway.close()
        await rates.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)

    app = App(routes=routes(), middleware=middleware(gateway, tracing, keys, rates), lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return app


def open_tracing(settings: Settings) -> Tracing | None:
    """Where spans go, if anywhere. Raises `InvalidSettings` where the packages for it are missing."""
    if not settings.otel_exporter_otlp_endpoint:
        return None
    try:
        from .tracing import Tracing  # noqa: PLC0415 - an optional dependency, and slow to import
    except ImportError as error:
        raise InvalidSettings(
            [f"OTEL_EXPORTER_OTLP_ENDPOINT needs canvasgate[otel] to be installed: {error}"]
        ) from error
    return Tracing(settings.otel_exporter_otlp_endpoint, __version__)


def middleware(gateway: Gateway, tracing: Tracing | None, keys: Keyring, rates: Rates) -> list[Middleware]:
    """Outermost first. Errors are answered inside CORS, so that a browser may read them."""
    settings = gateway.settings
    layers = [
        Middleware(RequestMiddleware, metrics=gateway.metrics, draining=lambda: gateway.draining, tracing=tracing)
    ]
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=ANSWER_HEADERS,
            )
        )
    layers.append(Middleware(ErrorMiddleware))
    if keys.asks_bearer or keys.asks_server_key:
        layers.append(Middleware(KeyMiddleware, keys=keys, rates=rates))
    layers.append(Middleware(BodyMiddleware, cap=settings.max_body))
    return layers
