"""What can be seen from outside: every metric, declared once, and the one record of a request that feeds them all.

The app's edge hands a finished `RequestRecord` to `Metrics.observe`, which counts it and writes its one log line. No
state, question, answer or key is in a record, so none can reach a metric or a log.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from decisions.protocol import ChoiceQuestion, Decision, NoulQuestion, Question, ScoreQuestion

from .inflight.contract import QueueSnapshot, Stage
from .log_lines import RequestLine

Labels = tuple[str, ...]

OTHER = "other"
"""The route of every path that is not ours, so that strangers cannot add time series."""
QUIET_ROUTES = frozenset({"/health", "/ready", "/metrics"})
"""Routes that machines ask all the time; their log lines are of level debug."""
LOGGED = ("code", "key", "body_bytes", "rendered", "questions", "reads", "tokens", "cached_tokens", "joined")
"""Figures of a request that its log line shows where they are not zero or empty."""
LONGEST_PATH = 100
"""Characters of a path that a log line shows."""
TOO_MANY, SERVER_ERROR = 429, 500

QUESTION_TYPES = {NoulQuestion: "noul", ChoiceQuestion: "choice", ScoreQuestion: "score"}

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of every histogram's buckets, in seconds: a stage takes 0.1 ms, a queued decision some seconds."""


# --- Every metric -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric: its name with its unit, what it counts, and its labels."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()


REQUESTS = Declared("counter", "canvasgate_requests_total", "HTTP requests answered.", ("route", "status"))
ERRORS = Declared("counter", "canvasgate_errors_total", "Requests that ended in an error, by its code.", ("code",))
REQUEST_SECONDS = Declared("histogram", "canvasgate_request_seconds", "Time from request to answer.", ("route",))
STAGE_SECONDS = Declared("histogram", "canvasgate_stage_seconds", "Time that a request spent in a stage.", ("stage",))
DECISIONS = Declared("counter", "canvasgate_decisions_total", "Decisions made, by the name of the key.", ("key",))
QUESTIONS = Declared("counter", "canvasgate_questions_total", "Questions answered.", ("type",))
READS = Declared("counter", "canvasgate_reads_total", "Engine reads of the decisions made.")
TOKENS = Declared(
    "counter", "canvasgate_tokens_total", "Tokens put before the model, computed anew or cached.", ("source",)
)
JOINED = Declared("counter", "canvasgate_joined_total", "Decisions that were made for an identical request before.")
INFLIGHT_DECISIONS = Declared("gauge", "canvasgate_inflight_decisions", "Decisions being worked on.")
INFLIGHT_READS = Declared("gauge", "canvasgate_inflight_reads", "Reads that these decisions hold.")
QUEUED = Declared("gauge", "canvasgate_queued_decisions", "Decisions that wait.", ("lane",))
OLDEST = Declared("gauge", "canvasgate_queue_oldest_seconds", "Time that the longest-waiting decision has waited.")
EXPECTED_WAIT = Declared("gauge", "canvasgate_queue_expected_wait_seconds", "Time that a small newcomer would wait.")
DRAINING = Declared("gauge", "canvasgate_draining", "1 while the queue takes nothing new.")
RATE_LIMITED = Declared(
    "counter", "canvasgate_rate_limited_total", "Requests over a limit of their key, by its name.", ("key",)
)
RATES_SHARED = Declared("gauge", "canvasgate_rates_shared", "1 while limits of keys are counted over all replicas.")
REDIS_UP = Declared("gauge", "canvasgate_redis_up", "1 while Redis answers; only with REDIS_URL.")
REPLICAS = Declared("gauge", "canvasgate_replica_inflight_decisions", "The same for each replica.", ("replica",))
LANE_OLDEST = Declared("gauge", "canvasgate_lane_oldest_seconds", "Time that a lane's oldest has waited.", ("lane",))
HANDED_OFF = Declared("counter", "canvasgate_handoffs_total", "Decisions made on another replica.", ("direction",))
LEASES_EXPIRED = Declared("counter", "canvasgate_leases_expired_total", "Entries taken over from dead replicas.")
ENGINE_UP = Declared("gauge", "canvasgate_engine_up", "1 while a decision would be answered.")
ENGINE_PHASE = Declared("gauge", "canvasgate_engine_phase", "1 for what the gateway is doing now.", ("phase",))
TEMPLATES = Declared("gauge", "canvasgate_templates", "Decision templates served, every version counted.")
BROKEN_TEMPLATES = Declared("gauge", "canvasgate_templates_broken", "Template files not used as they are.")
BUILD_INFO = Declared("gauge", "canvasgate_build_info", "1, with what is served.", ("version", "engine", "model"))

METRICS = (
    *(REQUESTS, ERRORS, REQUEST_SECONDS, STAGE_SECONDS, DECISIONS, QUESTIONS, READS, TOKENS),
    *(INFLIGHT_DECISIONS, INFLIGHT_READS, QUEUED, OLDEST, EXPECTED_WAIT, DRAINING, RATE_LIMITED, RATES_SHARED),
    *(JOINED, REDIS_UP, REPLICAS, LANE_OLDEST, HANDED_OFF, LEASES_EXPIRED),
    *(ENGINE_UP, ENGINE_PHASE, TEMPLATES, BROKEN_TEMPLATES, BUILD_INFO),
)
"""All of them, for docs and dashboards; the process' own memory, CPU and files come beside them as `process_*`."""


# --- A request --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RequestRecord:
    """What one request did and how long it took, filled in while it is served. Times are in seconds.

    `key` is the name of the caller's key, never the key; `spend` counts tokens against the key's limit, where it has
    one. `code` is the error's code, empty where there was none. `rendered` counts bytes of the body that a template
    stands for. `joined`: the decision was made for an identical request.
    """

    request_id: str
    method: str
    path: str
    status: int = 0
    code: str = ""
    key: str = ""
    spend: Callable[[int], Awaitable[None]] | None = None
    seconds: float = 0.0
    body_bytes: int = 0
    rendered: int = 0
    questions: Mapping[str, int] = field(default_factory=dict)
    reads: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    joined: bool = False
    stages: dict[Stage, float] = field(default_factory=dict)
    _stage: Stage | None = None
    _since: float = 0.0

    def enter(self, stage: Stage) -> None:
        """Leave the stage before and begin this one; a stage that is entered again adds to its time."""
        now = time.perf_counter()
        if self._stage is not None:
            self.stages[self._stage] = self.stages.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def leave(self) -> None:
        """End the last stage; harmless when none runs."""
        if self._stage is not None:
            self.stages[self._stage] = self.stages.get(self._stage, 0.0) + time.perf_counter() - self._since
            self._stage = None

    def answered(self, seconds: Mapping[Stage, float], *, joined: bool) -> None:
        """Note a decision that was made for somebody else first, or elsewhere, in so many `seconds` by stage."""
        self.joined = joined
        self.leave()
        if joined:
            self.stages["queue"] = self.stages.get("queue", 0.0) + self.stages.pop("plan", 0.0)
            return
        self.stages["queue"] = max(0.0, self.stages.get("queue", 0.0) - sum(seconds.values()))
        for stage, each in seconds.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + each

    def decided(self, questions: Iterable[Question], decision: Decision) -> None:
        """Count what the decision took, unless it was counted for the request that it was made for."""
        counts: dict[str, int] = {}
        for question in questions:
            name = QUESTION_TYPES[type(question)]
            counts[name] = counts.get(name, 0) + 1
        self.questions = counts
        if not self.joined:
            self.reads = decision.reads
            self.tokens = decision.usage.input_tokens
            self.cached_tokens = decision.usage.cached_tokens

    def server_timing(self) -> str:
        """The value of a `Server-Timing` header: milliseconds in the queue and in the engine; empty without either."""
        self.leave()
        queue, engine = self.stages.get("queue"), self.stages.get("engine")
        if queue is not None and engine is not None:
            return f"queue;dur={queue * 1000:.2f}, engine;dur={engine * 1000:.2f}"
        only = f"queue;dur={queue * 1000:.2f}" if queue is not None else ""
        return only if engine is None else f"engine;dur={engine * 1000:.2f}"

    def log_fields(self) -> dict[str, Any]:
        """What the request's log line says; what is zero or empty is left out. Times are in milliseconds."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path[:LONGEST_PATH],
            "status": self.status,
            "ms": int(self.seconds * 1e6) / 1000,
        }
        for name in LOGGED:
            if value := getattr(self, name):
                fields[name] = value
        if self.stages:
            fields["stages_ms"] = {stage: int(seconds * 1e6) / 1000 for stage, seconds in self.stages.items()}
        return fields


# --- Counting ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineState:
    """The engine as `/metrics` shows it. Of `phase`, only what stands before a colon becomes a label."""

    up: bool
    phase: str
    kind: str = ""
    model: str = ""


class Metrics(Collector):
    """The metrics of one app, in a registry of their own, so that a process can hold many apps.

    `paths` are the routes that get a label of their own. Everything is counted on the event loop in plain numbers
    and handed to the library at a scrape, for its own counters take a lock and several microseconds each time.
    """

    def __init__(self, version: str, paths: Collection[str] = ()) -> None:
        self.version = version
        self.log = logging.getLogger("canvasgate.request")
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._patterns = {path: re.compile(re.sub(r"\{.*?\}", "[^/]+", path)) for path in paths if "{" in path}
        self._queue: Callable[[], QueueSnapshot] | None = None
        self._engine: Callable[[], EngineState] | None = None
        self._templates: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._rates_shared: Callable[[], bool] | None = None
        self._rate_limited: defaultdict[Labels, int] = defaultdict(int)
        self._requests: defaultdict[Labels, int] = defaultdict(int)
        self._errors: defaultdict[Labels, int] = defaultdict(int)
        self._decisions: defaultdict[Labels, int] = defaultdict(int)
        self._questions: defaultdict[Labels, int] = defaultdict(int)
        self._reads = self._computed = self._cached = self._joined = 0
        self._request_seconds: defaultdict[str, _Timings] = defaultdict(_Timings)
        self._stage_seconds: defaultdict[str, _Timings] = defaultdict(_Timings)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def watch(
        self,
        *,
        queue: Callable[[], QueueSnapshot] | None = None,
        engine: Callable[[], EngineState] | None = None,
        templates: Callable[[], tuple[int, int]] | None = None,
        rates_shared: Callable[[], bool] | None = None,
    ) -> None:
        """Show these at every scrape; each may come later. `templates` counts those served and those broken."""
        self._rates_shared = rates_shared or self._rates_shared
        self._queue = queue or self._queue
        self._engine = engine or self._engine
        self._templates = templates or self._templates

    def observe(self, record: RequestRecord) -> str:
        """Count a request that has ended, and write its log line; the route that it is counted for."""
        record.leave()
        path = record.path.rstrip("/")
        named = (pattern for pattern, names in self._patterns.items() if names.fullmatch(path))
        route = path if path in self._paths else next(named, OTHER)
        self._requests[route, str(record.status)] += 1
        self._request_seconds[route].add(record.seconds)
        for stage, seconds in record.stages.items():
            self._stage_seconds[stage].add(seconds)
        if record.code:
            self._errors[(record.code,)] += 1
            if record.status == TOO_MANY:
                self._rate_limited[(record.key,)] += 1
        if record.questions:
            self._observe_decision(record)
        self._write(record, route)
        return route

    def _observe_decision(self, record: RequestRecord) -> None:
        self._decisions[(record.key,)] += 1
        for name, count in record.questions.items():
            self._questions[(name,)] += count
        self._joined += record.joined
        self._reads += record.reads
        self._computed += record.tokens - record.cached_tokens
        self._cached += record.cached_tokens

    def _write(self, record: RequestRecord, route: str) -> None:
        level = logging.WARNING if record.status >= SERVER_ERROR else logging.INFO
        if route in QUIET_ROUTES:
            level = logging.DEBUG
        if self.log.isEnabledFor(level):
            self.log.handle(RequestLine(self.log.name, level, record.log_fields()))

    def exposition(self) -> tuple[bytes, str]:
        """The body and the content type of `/metrics`."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Everything counted so far, and the queue and the engine as they are now; the library asks at a scrape."""
        yield _counter(REQUESTS, self._requests)
        yield _counter(ERRORS, self._errors)
        yield _histogram(REQUEST_SECONDS, self._request_seconds)
        yield _histogram(STAGE_SECONDS, self._stage_seconds)
        yield _counter(DECISIONS, self._decisions)
        yield _counter(RATE_LIMITED, self._rate_limited)
        if self._rates_shared:
            yield _gauge(RATES_SHARED, {(): float(self._rates_shared())})
        yield _counter(QUESTIONS, self._questions)
        yield _counter(READS, {(): self._reads})
        yield _counter(JOINED, {(): self._joined})
        yield _counter(TOKENS, {("computed",): self._computed, ("cached",): self._cached})
        if self._queue:
            yield from self._collect_queue(self._queue())
        engine = self._engine() if self._engine else EngineState(up=False, phase="starting")
        yield _gauge(ENGINE_UP, {(): float(engine.up)})
        yield _gauge(ENGINE_PHASE, {(engine.phase.partition(":")[0],): 1.0})
        for declared, count in zip((TEMPLATES, BROKEN_TEMPLATES), self._templates(), strict=True):
            yield _gauge(declared, {(): count})
        yield _gauge(BUILD_INFO, {(self.version, engine.kind, engine.model): 1.0})

    @staticmethod
    def _collect_queue(seen: QueueSnapshot) -> Iterator[Metric]:
        yield _gauge(INFLIGHT_DECISIONS, {(): seen.decisions})
        yield _gauge(INFLIGHT_READS, {(): seen.reads})
        yield _gauge(QUEUED, {("small",): seen.waiting_small, ("large",): seen.waiting_large})
        yield _gauge(OLDEST, {(): seen.oldest})
        yield _gauge(EXPECTED_WAIT, {(): seen.expected_wait})
        yield _gauge(DRAINING, {(): float(seen.draining)})
        if (cluster := seen.cluster) is None:
            return
        yield _gauge(REDIS_UP, {(): float(cluster.up)})
        yield _gauge(REPLICAS, {(replica,): count for replica, count in cluster.inflight.items()})
        yield _gauge(LANE_OLDEST, {("small",): cluster.oldest_small, ("large",): cluster.oldest_large})
        yield _counter(HANDED_OFF, {("sent",): cluster.handed_off, ("taken",): cluster.taken})
        yield _counter(LEASES_EXPIRED, {(): cluster.leases_expired})


class _Timings:
    """A histogram's numbers: how many times fell into each bucket, the last one above all bounds, and their sum."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


def _counter(declared: Declared, values: Mapping[Labels, float]) -> Metric:
    family = CounterMetricFamily(declared.name, declared.help, labels=declared.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _gauge(declared: Declared, values: Mapping[Labels, float]) -> Metric:
    family = GaugeMetricFamily(declared.name, declared.help, labels=declared.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(declared: Declared, values: Mapping[str, _Timings]) -> Metric:
    family = HistogramMetricFamily(declared.name, declared.help, labels=declared.labels)
    bounds = [*map(str, SECONDS), "+Inf"]
    for label, timings in values.items():
        counts = map(float, accumulate(timings.buckets))
        family.add_metric([label], list(zip(bounds, counts, strict=True)), timings.total)
    return family
