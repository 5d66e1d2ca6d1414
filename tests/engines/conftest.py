"""The engines under contract, each loaded once per test run; their tests share its event loop."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from decisions.reads import EngineLimits
from gateway.engines import Engine
from gateway.engines.stub import StubEngine
from gateway.engines.weights import ModelSource, demonstration

CONTEXT, STUB_CONTEXT = 2048, 8192
"""Tokens; the stub's are bytes."""
DELAY = 0.002
"""Seconds that the stub takes, so that there is something to cancel."""
CACHE = Path("~/.cache/canvasgate").expanduser()
"""Where `make serve` keeps the model too, so that it is fetched once."""


def needs(*packages: str) -> None:
    """Skip the test unless these are installed; does not import them."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="session")
def model_source() -> ModelSource:
    """The demonstration model, fetched if need be."""
    needs("torch", "transformers", "gguf")
    return demonstration(CACHE, print)


@pytest.fixture(scope="session")
def stub() -> StubEngine:
    """The stub as a canvas engine."""
    return StubEngine(EngineLimits(STUB_CONTEXT, 128, slots=128, reads=64), DELAY)


@pytest.fixture(scope="session")
def next_token_stub() -> StubEngine:
    """The stub as an engine without canvases."""
    return StubEngine(EngineLimits(STUB_CONTEXT, reads=64), DELAY)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reference(model_source: ModelSource) -> AsyncIterator[Engine]:
    """The reference engine with the demonstration model."""
    from gateway.engines.reference import ReferenceEngine, ReferenceOptions

    with calm():
        engine = await ReferenceEngine.open(model_source, ReferenceOptions(context=CONTEXT))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm(model_source: ModelSource) -> AsyncIterator[Engine]:
    """The vLLM engine with the demonstration model."""
    needs("vllm")
    from gateway.engines.vllm import VllmEngine
    from gateway.engines.vllm_start import VllmOptions

    with calm():
        engine = await VllmEngine.open(model_source, VllmOptions(context=CONTEXT), print)
    yield engine
    await engine.close()


def calm() -> warnings.catch_warnings[None]:
    """Lets the packages that an engine imports warn as they like, in any thread."""
    return warnings.catch_warnings(action="ignore")


ENGINES = [
    "stub",
    "next_token_stub",
    pytest.param("reference", marks=pytest.mark.model),
    pytest.param("vllm", marks=[pytest.mark.model, pytest.mark.vllm]),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    engine: Engine = request.getfixturevalue(request.param)
    return engine
