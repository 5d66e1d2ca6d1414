"""The assembled app: what each endpoint says, and how it goes from loading to ready, draining and failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from decisions.errors import EngineUnavailable
from decisions.protocol import LabelSet
from gateway import __version__, app
from gateway.app import how_to_ask, url_of
from gateway.config import Settings, load
from gateway.engines import ServedModel
from gateway.engines.opening import caution, open_stub
from gateway.engines.stub import StubEngine, StubFaults
from gateway.engines.weights import GGUF_SHA256
from gateway.routes import PATHS
from tests.conftest import AppClient
from tests.gateway.asking import PATH, asked


@asynccontextmanager
async def starting(**settings: str) -> AsyncIterator[AppClient]:
    """An app whose engine may not be open yet."""
    client = AppClient(**settings)
    async with client.app.router.lifespan_context(client.app):
        yield client


class Loading:
    """Stands for the opening of an engine that takes until `done`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.done = asyncio.Event()
        monkeypatch.setattr(app, "open_engine", self.open)

    async def open(self, settings: Settings, progress: Any) -> StubEngine:
        progress("loading: half of it")
        self.begun.set()
        await self.done.wait()
        return open_stub(settings)


# --- What each endpoint says ------------------------------------------------------------------------------------------


async def test_health_tells_what_is_served(client: AppClient) -> None:
    """Version, engine, model, revision and phase."""
    body = (await client.get("/health")).json()

    assert {
        "status": "ok",
        "version": __version__,
        "phase": "ready",
        "ready": True,
        "engine": "stub",
        "model": "stub",
        "revision": "1",
        "architecture": "stub",
    } == body


async def test_ready_is_200_when_a_decision_would_be_answered(client: AppClient) -> None:
    """With an empty reason."""
    response = await client.get("/ready")

    body = response.json()

    assert (200, True, "", []) == (response.status_code, body["ready"], body["reason"], body["templates"]["broken"])


async def test_limits_tell_what_a_request_may_hold_and_what_holds_otherwise() -> None:
    """They are the settings' and the engine's."""
    async with AppClient(MAX_QUESTIONS="7", CANVAS="64", MAX_SEQS="5", TEMPERATURE='{"noul": 2}') as client:
        body = (await client.get("/v1/limits")).json()

    assert (7, 64, 5, 255, 10) == tuple(
        body[name] for name in ("max_questions", "canvas_tokens", "reads_at_once", "max_options", "max_levels")
    )
    assert ("auto", {"noul": 2.0, "choice": 1.0, "score": 1.0}) == (
        body["defaults"]["isolate"],
        body["defaults"]["temperatures"],
    )
    assert 0 == body["expected_wait_seconds"]


async def test_limits_tell_which_labels_and_steps_the_engine_can_take() -> None:
    """Every label set that the tokenizer does not split; steps only where there is a canvas."""
    async with AppClient(CATCH_ALL="verify") as client:
        body = (await client.get("/v1/limits")).json()
        serving = client.gateway.serving
        serving.engine.limits = replace(serving.engine.limits, canvas=0)
        del serving.service.planner.packer.alphabets[LabelSet.AZ_AA]
        without = (await client.get("/v1/limits")).json()

    assert (["az", "az_aa", "az_lower"], 8) == (body["labels"], body["max_steps"])
    assert ("az", 1, "verify") == tuple(body["defaults"][name] for name in ("labels", "steps", "catch_all"))
    assert ["az", "az_lower"] == without["labels"]
    assert "max_steps" not in without
    assert "steps" not in without["defaults"]


async def test_models_are_listed_for_both_kinds_of_client(client: AppClient) -> None:
    """TypeSafe's clients read `models`, OpenAI's read `data`; both name the served model."""
    body = (await client.get("/v1/models")).json()

    assert {"jev-latest", "stub"} <= {model["name"] for model in body["models"]}
    assert {model["name"] for model in body["models"]} == {model["id"] for model in body["data"]}


async def test_openapi_describes_every_path_that_is_served(client: AppClient) -> None:
    """Without `/metrics`, which is not JSON, or with it; never one that does not exist."""
    described = set((await client.get("/openapi.json")).json()["paths"])

    assert {PATH, "/v1/decisions", "/v1/models", "/v1/limits", "/health", "/ready"} <= described
    assert described <= PATHS


async def test_metrics_count_what_was_asked(client: AppClient) -> None:
    """In Prometheus' text form, with its content type."""
    await client.post(PATH, json=asked())
    response = await client.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=")
    assert 'canvasgate_requests_total{route="/v1/systemone",status="200"} 1.0' in response.text
    assert "canvasgate_inflight_reads 0.0" in response.text
    assert "canvasgate_engine_up 1.0" in response.text


# --- Loading ----------------------------------------------------------------------------------------------------------


async def test_while_the_engine_opens_health_answers_and_decisions_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 with the phase; 503 with `Retry-After` and the reason for everything that needs the engine."""
    loading = Loading(monkeypatch)
    async with starting() as client:
        await loading.begun.wait()
        health, ready, decided = [
            await client.get("/health"),
            await client.get("/ready"),
            await client.post(PATH, json=asked()),
        ]
        loading.done.set()
        await client.gateway.opened.wait()
        after = await client.post(PATH, json=asked())

    assert (200, "loading: half of it", False) == (health.status_code, health.json()["phase"], health.json()["ready"])
    assert (503, "loading: half of it") == (ready.status_code, ready.json()["reason"])
    assert (503, "engine_unavailable", "2") == (
        decided.status_code,
        decided.json()["detail"]["error_type"],
        decided.headers["retry-after"],
    )
    assert 200 == after.status_code


async def test_an_engine_that_cannot_be_opened_ends_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is in `/ready`, and whoever runs the app is told to stop."""

    async def fail(*_: Any) -> StubEngine:
        raise EngineUnavailable("There is no such model.")

    monkeypatch.setattr(app, "open_engine", fail)
    stopped = asyncio.Event()
    client = AppClient()
    client.gateway.stop_serving = stopped.set
    async with client.app.router.lifespan_context(client.app):
        await stopped.wait()
        ready, decided = await client.get("/ready"), await client.post(PATH, json=asked())

    assert (503, "failed: There is no such model.") == (ready.status_code, ready.json()["reason"])
    assert (503, True) == (decided.status_code, client.gateway.failed)


async def test_an_engine_that_dies_ends_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests get 503 from then on."""
    monkeypatch.setattr(app, "HEALTH_INTERVAL", 0.001)
    async with AppClient() as client:
        stopped = asyncio.Event()
        client.gateway.stop_serving = stopped.set
        before = await client.post(PATH, json=asked())
        client.gateway.serving.engine.faults = StubFaults(dead=True)
        await stopped.wait()
        after, ready = await client.post(PATH, json=asked()), await client.get("/ready")

    assert (200, 503, 503) == (before.status_code, after.status_code, ready.status_code)
    assert "has died: told to be dead" in after.json()["detail"]["message"]


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with AppClient(ENGINE="reference") as client:
        body = (await client.get("/health")).json()

    assert "needs torch and transformers: pip install 'canvasgate[reference]'" in body["phase"]


# --- Draining ---------------------------------------------------------------------------------------------------------


async def test_a_draining_app_is_unready_at_once_and_goes_on_deciding() -> None:
    """Its answers end their connections; after the drain time it stops, once."""
    async with AppClient(DRAIN_DELAY="0.05") as client:
        stops: list[bool] = []
        stopped = asyncio.Event()

        def stop() -> None:
            stops.append(True)
            stopped.set()

        client.gateway.stop_serving = stop
        before = await client.post(PATH, json=asked())
        client.gateway.start_draining()
        client.gateway.start_draining()
        ready, health, decided = [
            await client.get("/ready"),
            await client.get("/health"),
            await client.post(PATH, json=asked()),
        ]
        await stopped.wait()

    assert (503, "draining", "draining") == (ready.status_code, ready.json()["reason"], health.json()["phase"])
    assert (200, "close") == (decided.status_code, decided.headers["connection"])
    assert "connection" not in before.headers
    assert [True] == stops


async def test_an_app_that_is_told_to_stop_while_it_loads_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it never becomes ready after that."""
    loading = Loading(monkeypatch)
    async with starting(DRAIN_DELAY="3600") as client:
        stopped = asyncio.Event()
        client.gateway.stop_serving = stopped.set
        client.gateway.start_draining()
        await stopped.wait()
        loading.done.set()
        await client.gateway.opened.wait()

        assert 503 == (await client.get("/ready")).status_code


# --- What it says in the log ------------------------------------------------------------------------------------------


async def test_a_ready_app_logs_how_to_ask_it(caplog: pytest.LogCaptureFixture) -> None:
    """And that the stub's answers are hashes."""
    with caplog.at_level(logging.INFO, "canvasgate"):
        async with AppClient(PORT="9000"):
            pass

    assert "its answers are hashes" in caplog.text
    assert "try it: canvasgate decide --url http://127.0.0.1:9000 --state" in caplog.text


def test_how_to_ask_names_an_address_that_can_be_called() -> None:
    """Not the wildcard; with a key where one is needed, but not the key."""
    command = how_to_ask(load({"HOST": "::", "API_KEY": "sk-secret"}))

    assert "--url http://[::1]:8080 --key KEY" in command
    assert "secret" not in command
    assert "http://gateway.internal:80" == url_of("gateway.internal", 80)


def test_the_demonstration_model_is_announced_as_such() -> None:
    """By what it is, whatever name it is served under; a model that someone chose is not commented on."""
    engine: Any = open_stub(load({}))
    engine.kind = "reference"
    engine.model = ServedModel("our-model", GGUF_SHA256[:12], "LlamaForCausalLM")
    told = caution(engine)
    engine.model = ServedModel("our-model", "local", "LlamaForCausalLM")

    assert "for trying out" in told
    assert "" == caution(engine)
