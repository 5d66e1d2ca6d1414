"""What a request leaves behind: numbers under declared names, one log line, and none of its content."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from decisions.protocol import ChoiceQuestion, Decision, NoulQuestion, Option, Usage
from gateway.config import LogFormat
from gateway.inflight import ClusterSnapshot, QueueSnapshot
from gateway.log_lines import LineFormatter, configure_logging
from gateway.metrics import METRICS, SECONDS, EngineState, Metrics, RequestRecord

PATH = "/v1/systemone"


def a_record(**given: object) -> RequestRecord:
    """A decision of three questions that went well, but for what is given."""
    record = RequestRecord("req_1", "POST", PATH)
    record.status, record.seconds, record.body_bytes = 200, 0.012, 700
    record.questions, record.reads, record.tokens, record.cached_tokens = {"noul": 2, "choice": 1}, 3, 900, 500
    record.stages = {"parse": 0.0002, "queue": 0.001, "engine": 0.01}
    for name, value in given.items():
        setattr(record, name, value)
    return record


@pytest.fixture
def metrics() -> Metrics:
    """The metrics of a new app."""
    return Metrics("1.2.3", [PATH, "/health"])


def scraped(metrics: Metrics) -> dict[str, float]:
    """Every sample of ours as `name{label=value}`, labels in alphabetical order."""
    text = metrics.exposition()[0].decode()
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("canvasgate_")
    }


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Where log lines go; logging is as it was afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    yield stream
    root.handlers, root.level = before, level
    for name in ("canvasgate", "uvicorn"):
        logging.getLogger(name).setLevel(logging.NOTSET)


# --- Numbers ----------------------------------------------------------------------------------------------------------


def test_a_decision_is_counted_under_every_name(metrics: Metrics) -> None:
    """Requests, questions, reads and tokens, each once."""
    metrics.observe(a_record(key="team-a"))
    seen = scraped(metrics)

    assert seen["canvasgate_requests_total{route=/v1/systemone}{status=200}"] == 1
    assert seen["canvasgate_decisions_total{key=team-a}"] == 1
    assert seen["canvasgate_questions_total{type=noul}"] == 2
    assert seen["canvasgate_questions_total{type=choice}"] == 1
    assert seen["canvasgate_reads_total"] == 3
    assert seen["canvasgate_tokens_total{source=computed}"] == 400
    assert seen["canvasgate_tokens_total{source=cached}"] == 500
    assert not any(name.startswith("canvasgate_errors") for name in seen)


def test_a_stages_time_falls_into_its_bucket(metrics: Metrics) -> None:
    """Buckets are cumulative, and a bound belongs to its own bucket."""
    for seconds in (0.0001, 0.01, 0.0100001, 99.0):
        metrics.observe(a_record(stages={"engine": seconds}))
    seen = scraped(metrics)
    name = "canvasgate_stage_seconds"

    assert seen[f"{name}_bucket{{le=0.0001}}{{stage=engine}}"] == 1
    assert seen[f"{name}_bucket{{le=0.01}}{{stage=engine}}"] == 2
    assert seen[f"{name}_bucket{{le=0.025}}{{stage=engine}}"] == 3
    assert seen[f"{name}_bucket{{le=30.0}}{{stage=engine}}"] == 3
    assert seen[f"{name}_bucket{{le=+Inf}}{{stage=engine}}"] == seen[f"{name}_count{{stage=engine}}"] == 4
    assert seen[f"{name}_sum{{stage=engine}}"] == pytest.approx(99.0201001)


def test_an_error_is_counted_by_its_code(metrics: Metrics) -> None:
    """A refused request is no decision."""
    metrics.observe(a_record(status=529, code="overloaded_error", questions={}))
    seen = scraped(metrics)

    assert seen["canvasgate_errors_total{code=overloaded_error}"] == 1
    assert "canvasgate_decisions_total{key=}" not in seen


@pytest.mark.parametrize("path", ["/admin", "/v1/systemone/x", "/" + "a" * 5000, ""])
def test_strangers_cannot_add_time_series(metrics: Metrics, path: str) -> None:
    """Whatever path is asked for, it is counted under one name."""
    metrics.observe(a_record(path=path, status=404))

    assert scraped(metrics)["canvasgate_requests_total{route=other}{status=404}"] == 1


def test_a_trailing_slash_is_the_same_route(metrics: Metrics) -> None:
    """As it is to whoever asks."""
    metrics.observe(a_record(path=PATH + "/"))

    assert scraped(metrics)[f"canvasgate_requests_total{{route={PATH}}}{{status=200}}"] == 1


def test_two_apps_count_apart(metrics: Metrics) -> None:
    """Each app has a registry of its own."""
    metrics.observe(a_record())

    assert "canvasgate_requests_total{route=/v1/systemone}{status=200}" not in scraped(Metrics("1", [PATH]))


def test_queue_and_engine_are_read_at_the_scrape(metrics: Metrics) -> None:
    """What they say now, not what they said when they were made known."""
    now = QueueSnapshot(
        decisions=2, reads=7, waiting_small=3, waiting_large=1, oldest=0.5, expected_wait=0.25, draining=True
    )
    metrics.watch(queue=lambda: now)
    metrics.watch(engine=lambda: EngineState(up=True, phase="ready", kind="stub", model="m"))
    seen = scraped(metrics)

    assert (seen["canvasgate_inflight_decisions"], seen["canvasgate_inflight_reads"]) == (2, 7)
    assert seen["canvasgate_queued_decisions{lane=small}"] == 3
    assert seen["canvasgate_queued_decisions{lane=large}"] == 1
    assert seen["canvasgate_queue_oldest_seconds"] == 0.5
    assert seen["canvasgate_queue_expected_wait_seconds"] == 0.25
    assert seen["canvasgate_draining"] == seen["canvasgate_engine_up"] == 1
    assert seen["canvasgate_build_info{engine=stub}{model=m}{version=1.2.3}"] == 1


def test_before_the_engine_is_open_metrics_say_so(metrics: Metrics) -> None:
    """`/metrics` answers from the first second."""
    seen = scraped(metrics)

    assert seen["canvasgate_engine_up"] == 0
    assert seen["canvasgate_engine_phase{phase=starting}"] == 1
    assert "canvasgate_inflight_reads" not in seen


def test_an_error_text_does_not_become_a_label(metrics: Metrics) -> None:
    """A phase such as "failed: out of memory" counts as failed."""
    metrics.watch(engine=lambda: EngineState(up=False, phase="failed: out of memory at 0x7f"))

    assert scraped(metrics)["canvasgate_engine_phase{phase=failed}"] == 1


def test_everything_shown_is_declared_and_everything_declared_is_shown(metrics: Metrics) -> None:
    """Dashboards and docs are checked against the declarations."""
    metrics.observe(a_record(code="x"))
    metrics.watch(
        queue=lambda: QueueSnapshot(
            decisions=0,
            reads=0,
            waiting_small=0,
            waiting_large=0,
            oldest=0,
            expected_wait=0,
            draining=False,
            cluster=ClusterSnapshot(up=True, inflight={"one": 1}),
        ),
        rates_shared=lambda: True,
    )
    text = metrics.exposition()[0].decode()
    kinds = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE canvasgate_")}

    assert kinds == {declared.name: declared.kind for declared in METRICS}
    assert len({declared.name for declared in METRICS}) == len(METRICS)


def test_buckets_reach_from_a_tenth_of_a_millisecond_to_half_a_minute() -> None:
    """A stage of the gateway and a queued decision are both told apart from their likes."""
    assert (SECONDS[0], SECONDS[-1]) == (0.0001, 30.0)
    assert list(SECONDS) == sorted(set(SECONDS))


# --- The record -------------------------------------------------------------------------------------------------------


def test_stages_add_up_and_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that is entered again goes on; the clock stands still outside of stages."""
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr("gateway.metrics.time.perf_counter", lambda: next(clock))
    record = RequestRecord("req_1", "POST", PATH)
    for stage in ("plan", "engine", "plan", "combine"):
        record.enter(stage)
    record.leave()
    record.leave()

    assert record.stages == {"plan": 1.0 + 3.0, "engine": 2.0, "combine": 4.0}


def test_server_timing_names_queue_and_engine_in_milliseconds() -> None:
    """A request that was refused in the queue shows how long it waited there."""
    assert a_record().server_timing() == "queue;dur=1.00, engine;dur=10.00"
    refused = RequestRecord("req_1", "POST", PATH)
    before = refused.server_timing()
    refused.enter("queue")

    assert before == ""
    assert refused.server_timing().startswith("queue;dur=")


def test_a_decision_tells_the_record_what_it_took() -> None:
    """Questions by type, reads, and tokens as the answer's usage gives them."""
    record = RequestRecord("req_1", "POST", PATH)
    questions = (NoulQuestion(id="a"), NoulQuestion(id="b"), ChoiceQuestion(id="c", options=(Option("x"),)))
    record.decided(questions, Decision({}, Usage(input_tokens=90, output_tokens=3, cached_tokens=40), reads=3))

    assert record.questions == {"noul": 2, "choice": 1}
    assert (record.reads, record.tokens, record.cached_tokens) == (3, 90, 40)


# --- Log lines --------------------------------------------------------------------------------------------------------


def test_a_request_is_one_json_line(metrics: Metrics, lines: io.StringIO) -> None:
    """It names the request and what it took; times are in milliseconds."""
    configure_logging("info", LogFormat.JSON, lines)
    metrics.observe(a_record(key="team-a"))
    (line,) = lines.getvalue().splitlines()
    said = json.loads(line)

    assert said.pop("at").endswith("Z")
    assert said == {
        "level": "info",
        "logger": "canvasgate.request",
        "event": "request",
        "request_id": "req_1",
        "method": "POST",
        "path": PATH,
        "status": 200,
        "ms": 12.0,
        "key": "team-a",
        "body_bytes": 700,
        "questions": {"noul": 2, "choice": 1},
        "reads": 3,
        "tokens": 900,
        "cached_tokens": 500,
        "stages_ms": {"parse": 0.2, "queue": 1.0, "engine": 10.0},
    }


def test_a_request_is_one_text_line(metrics: Metrics, lines: io.StringIO) -> None:
    """The same for people; what is zero or empty is left out."""
    configure_logging("info", LogFormat.TEXT, lines)
    metrics.observe(
        RequestRecord("req_1", "GET", "/a b\nc", status=404, seconds=0.001, questions={"noul": 1, "score": 2})
    )

    at, _, rest = lines.getvalue().partition(" ")
    assert at.endswith("Z")
    assert rest == (
        "info canvasgate.request request request_id=req_1 method=GET path='/a b\\nc' status=404 ms=1.0 "
        "questions=noul:1,score:2\n"
    )


@pytest.mark.parametrize(
    ("record", "level", "shown"),
    [
        (a_record(path="/health"), "info", False),
        (a_record(path="/health"), "debug", True),
        (a_record(), "warning", False),
        (a_record(status=503, code="engine_unavailable"), "warning", True),
    ],
)
def test_levels_keep_the_log_readable(
    metrics: Metrics, lines: io.StringIO, record: RequestRecord, level: str, shown: bool
) -> None:
    """Probes are of level debug, and what we could not answer is a warning."""
    configure_logging(level, LogFormat.JSON, lines)
    metrics.observe(record)

    assert bool(lines.getvalue()) == shown


def test_a_line_of_anybody_else_has_the_same_form(lines: io.StringIO) -> None:
    """A traceback stays within its line; libraries speak up only for warnings."""
    configure_logging("info", LogFormat.JSON, lines)
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("canvasgate").error("failed after %d s", 3, exc_info=ValueError("broken"))

    (line,) = lines.getvalue().splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"]) == ("failed after 3 s", "error")
    assert said["exception"].endswith("ValueError: broken")


@pytest.mark.parametrize(
    ("created", "written"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (0.999, "1970-01-01T00:00:00.999Z"),
        (1796083200.5, "2026-12-01T00:00:00.500Z"),
    ],
)
def test_times_are_utc_to_the_millisecond(created: float, written: str) -> None:
    """Whatever the machine's own time zone."""
    record = logging.makeLogRecord({"msg": "x", "created": created})

    assert json.loads(LineFormatter(LogFormat.JSON).format(record))["at"] == written


def test_two_lines_of_one_second_differ_in_milliseconds() -> None:
    """The second is written out once, and the rest each time."""
    formatter = LineFormatter(LogFormat.JSON)
    lines = [formatter.format(logging.makeLogRecord({"msg": "x", "created": at})) for at in (5.25, 5.75)]

    assert [json.loads(line)["at"][-8:] for line in lines] == [":05.250Z", ":05.750Z"]
