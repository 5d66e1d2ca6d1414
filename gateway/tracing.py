"""OpenTelemetry: a span for each request, and below it one for each stage, every engine round among them.

Imported only where `OTEL_EXPORTER_OTLP_ENDPOINT` is set; without it no request does anything for it. Sampler, resource
and headers of the exporter are the SDK's own settings (`OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, ...). As a record
holds no content, no span does.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .inflight.contract import Stage
from .metrics import QUIET_ROUTES, SERVER_ERROR, RequestRecord

STOP_PATIENCE = 5
"""Seconds that one export may take, so also how long a stopping gateway waits for a collector that is away."""


class TracedRecord(RequestRecord):
    """A record that also tells the collector; the stage that runs is a span below the request's."""

    __slots__ = ("_context", "_stage_span", "_tracer", "span")

    def __init__(self, request_id: str, method: str, path: str, tracer: Tracer, parent: Context) -> None:
        super().__init__(request_id, method, path)
        self._tracer = tracer
        self.span = tracer.start_span(method, parent, SpanKind.SERVER)
        self._context = set_span_in_context(self.span)
        self._stage_span: Span | None = None

    def enter(self, stage: Stage) -> None:
        """Begin a stage; each time it is entered is a span of its own."""
        super().enter(stage)
        self._end_stage()
        self._stage_span = self._tracer.start_span(stage, self._context)

    def leave(self) -> None:
        """End the last stage."""
        super().leave()
        self._end_stage()

    def _end_stage(self) -> None:
        if self._stage_span is not None:
            self._stage_span.end()
            self._stage_span = None

    def log_fields(self) -> dict[str, Any]:
        """With the trace in which the request can be found."""
        return {**super().log_fields(), "trace_id": format_trace_id(self.span.get_span_context().trace_id)}


class Tracing:
    """Where spans go. `endpoint` is the collector's root, which takes OTLP over HTTP."""

    def __init__(self, endpoint: str, version: str) -> None:
        ours = Resource({"service.name": "canvasgate", "service.version": version})
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=STOP_PATIENCE)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("canvasgate", version)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request_id: str, method: str, path: str, parent: str, state: str) -> RequestRecord:
        """The record of a request, in its caller's trace, as the W3C headers `traceparent` and `tracestate` name it.

        What operators' tools ask all the time is not traced.
        """
        if path in QUIET_ROUTES:
            return RequestRecord(request_id, method, path)
        caller = self._propagator.extract({"traceparent": parent, "tracestate": state}, Context())
        return TracedRecord(request_id, method, path, self._tracer, caller)

    @staticmethod
    def end(record: RequestRecord, route: str) -> None:
        """The request has been answered on this route."""
        if not isinstance(record, TracedRecord):
            return
        span = record.span
        span.update_name(f"{record.method} {route}")
        span.set_attributes(
            {
                "http.request.method": record.method,
                "http.route": route,
                "http.response.status_code": record.status,
                "canvasgate.request_id": record.request_id,
                "canvasgate.key": record.key,
                "canvasgate.questions": sum(record.questions.values()),
                "canvasgate.reads": record.reads,
                "canvasgate.tokens": record.tokens,
                "canvasgate.cached_tokens": record.cached_tokens,
            }
        )
        if record.code:
            span.set_attribute("error.type", record.code)
        if record.status >= SERVER_ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """Send what has not been sent; may wait for the collector."""
        self._provider.shutdown()
