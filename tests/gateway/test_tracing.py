"""Spans: what a collector is told of a request, in whose trace, and that nothing is done where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.app import open_tracing
from gateway.config import InvalidSettings, load
from tests.conftest import ROOT, AppClient, free_port
from tests.gateway.asking import PATH, asked

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
WIDE = {"wide": {"type": "choice", "criteria": {f"option {number}": None for number in range(60)}}}


class Collector:
    """Takes what is exported."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, exported: ExportTraceServiceRequest) -> None:
        for resource in exported.resource_spans:
            named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)

    def root(self) -> Span:
        """The one request's own span."""
        (found,) = [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]
        return found

    def stages(self) -> list[Span]:
        """Those below it, by their beginning."""
        below = [span for span in self.spans if span.parent_span_id == self.root().span_id]
        return sorted(below, key=lambda span: span.start_time_unix_nano)


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Listens."""
    listening = Collector()
    thread = Thread(target=listening.server.serve_forever)
    thread.start()
    yield listening
    listening.server.shutdown()
    thread.join()
    listening.server.server_close()


async def test_every_stage_and_every_engine_round_is_a_span(collector: Collector) -> None:
    """One below the other in time; a choice in brackets is read in two rounds."""
    async with AppClient(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as client:
        answer = await client.post(PATH, json=asked(questions=WIDE))
    root, stages = collector.root(), collector.stages()
    told = {pair.key: pair.value for pair in root.attributes}

    assert ["parse", "plan", "queue", "engine", "plan", "engine", "plan", "combine"] == [span.name for span in stages]
    assert all(one.end_time_unix_nano <= then.start_time_unix_nano for one, then in pairwise(stages))
    assert (f"POST {PATH}", {"canvasgate"}) == (root.name, collector.services)
    assert (200, answer.headers["x-typesafe-request-id"]) == (
        told["http.response.status_code"].int_value,
        told["canvasgate.request_id"].string_value,
    )
    assert answer.json()["usage"]["input_tokens"] == told["canvasgate.tokens"].int_value


async def test_a_request_belongs_to_its_callers_trace(collector: Collector) -> None:
    """As W3C's `traceparent` says; a header that is none begins a trace of its own."""
    async with AppClient(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as client:
        await client.post(PATH, json=asked(), headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
        await client.get("/health")
    root = collector.root()

    assert (TRACE, CALLER) == (root.trace_id.hex(), root.parent_span_id.hex())
    assert {TRACE} == {span.trace_id.hex() for span in collector.spans}


async def test_a_caller_who_wants_no_trace_gets_none(collector: Collector) -> None:
    """Not sampled there, not sampled here; a header that is none is ignored."""
    async with AppClient(OTEL_EXPORTER_OTLP_ENDPOINT=f"{collector.url}/") as client:
        await client.post(PATH, json=asked(), headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})
        await client.post(PATH, json=asked(), headers={"traceparent": "nonsense"})

    assert not collector.root().parent_span_id
    assert collector.root().trace_id.hex() != TRACE


async def test_an_error_is_told_without_what_was_asked(collector: Collector) -> None:
    """Its code and its status; nothing of the request."""
    async with AppClient(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, STUB_MISSING_SLOT="1", STUB_LASTING="1") as client:
        status = (await client.post(PATH, json=asked("My secret state."), headers={"authorization": "x"})).status_code
    root = collector.root()
    told = {pair.key: pair.value for pair in root.attributes}

    assert (503, "malformed_readout") == (status, told["error.type"].string_value)
    assert root.status.code == root.status.STATUS_CODE_ERROR
    assert "secret" not in str(collector.spans)


async def test_a_collector_that_is_away_costs_no_answer() -> None:
    """Nor does it keep the gateway from stopping."""
    async with AppClient(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}") as client:
        statuses = [(await client.post(PATH, json=asked())).status_code for _ in range(3)]

    assert [200] * 3 == statuses


def test_without_a_collector_the_library_is_not_even_imported() -> None:
    """Nothing is paid for what is off."""
    code = (
        "import sys; from gateway.app import create_app; from gateway.config import load\n"
        "create_app(load({'ENGINE': 'stub'})); print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "[]" == ran.stdout.strip()


def test_a_missing_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, "gateway.tracing", None)

    with pytest.raises(InvalidSettings, match=r"canvasgate\[otel\]"):
        open_tracing(load({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}))
