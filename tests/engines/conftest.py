"""The engines under contract, each loaded once per test run; their tests share its event loop."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from decisions.reads import EngineLimits
from gateway.engines import Engine
from gateway.engines.stub import StubEngine
from gateway.engines.weights import ModelSource, demonstration

from .tiny import CANVAS_CONTEXT, tiny_diffusion_gemma

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


@pytest.fixture(scope="session", autouse=True)
def imported() -> None:
    """Import what takes long before any test's time counts: half a minute on a busy machine without bytecode."""
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        with calm():
            importlib.import_module("torch._dynamo")
            for name in ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "LlamaForCausalLM"):
                getattr(importlib.import_module("transformers"), name)


@pytest.fixture(scope="session")
def model_source() -> ModelSource:
    """The demonstration model, fetched if need be."""
    needs("torch", "transformers", "gguf")
    return demonstration(CACHE, print)


@pytest.fixture(scope="session")
def stub() -> StubEngine:
    """The stub as a canvas engine."""
    return StubEngine(EngineLimits(STUB_CONTEXT, 128, slots=128, reads=64, thinks=True), DELAY)


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


@pytest.fixture(scope="session")
def vllm_server(model_source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real `vllm serve` on loopback with the demonstration model; nothing waits for it here."""
    needs("vllm")
    with serving(model_source, CONTEXT, tmp_path_factory.mktemp("vllm") / "log", {}) as url:
        yield url


@contextmanager
def serving(
    source: ModelSource, context: int, log: Path, environment: Mapping[str, str], more: Sequence[str] = ()
) -> Iterator[str]:
    """The address of a `vllm serve` that is just starting, with a context in tokens and `more` arguments."""
    from gateway.engines.vllm_start import CPU_ENVIRONMENT, ENVIRONMENT

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The CPU build has no `vllm` command that works.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", source.model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(context)]
    command += ["--block-size", "32", "--max-num-seqs", "64", "--kv-cache-memory-bytes", str(2**29), "--enforce-eager"]
    command += ["--enable-prompt-tokens-details", *more]
    with log.open("w") as out:
        inherited = {**os.environ, **ENVIRONMENT, **CPU_ENVIRONMENT, **environment}
        server = subprocess.Popen(command, env=inherited, stdout=out, stderr=out)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_http(model_source: ModelSource, vllm_server: str) -> AsyncIterator[Engine]:
    """The vLLM engine over HTTP with the demonstration model."""
    from gateway.engines.vllm_http import HttpOptions, VllmHttpEngine

    with calm():
        engine = await VllmHttpEngine.open(model_source, HttpOptions(vllm_server, patience=900), print)
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def canvas_model(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """A tiny DiffusionGemma of random weights."""
    needs("torch", "transformers")
    with calm():
        return ModelSource(str(tiny_diffusion_gemma(tmp_path_factory.mktemp("canvas"))), "tiny-diffusion-gemma")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def canvas_reference(canvas_model: ModelSource) -> AsyncIterator[Engine]:
    """The reference engine with the tiny DiffusionGemma."""
    from gateway.engines.reference import ReferenceEngine, ReferenceOptions

    with calm():
        engine = await ReferenceEngine.open(canvas_model, ReferenceOptions(context=CANVAS_CONTEXT))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def canvas_vllm(canvas_model: ModelSource) -> AsyncIterator[Engine]:
    """The vLLM engine with the tiny DiffusionGemma, in a process that can read canvases without a GPU."""
    needs("vllm")
    from gateway.engines.vllm_start import VllmOptions

    from .hosted import HostedEngine

    less = {"kv_cache_memory_bytes": 2**28}
    options = VllmOptions(context=CANVAS_CONTEXT, text_only=True, constrained=True, extra=less)
    engine = await HostedEngine.open(canvas_model, options)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def canvas_vllm_http(
    canvas_model: ModelSource, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    """The vLLM engine over HTTP, with a server of the tiny DiffusionGemma that can read canvases without a GPU."""
    needs("vllm")
    from gateway.engines.vllm_http import HttpOptions, VllmHttpEngine

    from .hosted import ENVIRONMENT

    log = tmp_path_factory.mktemp("canvas-vllm") / "log"
    with serving(canvas_model, CANVAS_CONTEXT, log, ENVIRONMENT, ["--language-model-only"]) as url:
        engine = await VllmHttpEngine.open(canvas_model, HttpOptions(url, constrained=True, patience=900))
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
    pytest.param("vllm_http", marks=[pytest.mark.model, pytest.mark.vllm, pytest.mark.slow]),
    "canvas_reference",
    pytest.param("canvas_vllm", marks=[pytest.mark.vllm, pytest.mark.slow]),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    engine: Engine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Engine:
    """An engine that is held to the reference."""
    engine: Engine = request.getfixturevalue(request.param)
    return engine
