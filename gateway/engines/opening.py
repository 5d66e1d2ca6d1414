"""Opens the engine that the settings ask for, telling how far it is; the only place that chooses between engines."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable

from decisions.errors import EngineUnavailable
from decisions.reads import EngineLimits

from ..config import EngineChoice, Settings
from . import Engine
from .stub import StubEngine, StubFaults
from .weights import DEMONSTRATION, GGUF_SHA256, Progress

Opener = Callable[[Settings, Progress], Awaitable[Engine]]
STUB_READS = 64
"""Reads that the stub works on at once where `MAX_SEQS` does not say."""
NEEDED = {
    EngineChoice.VLLM: ("vllm",),
    EngineChoice.VLLM_HTTP: ("transformers",),
    EngineChoice.REFERENCE: ("torch", "transformers"),
}
"""Packages without which an engine cannot be opened; each engine's are an extra of ours by its name."""


def chosen(settings: Settings) -> EngineChoice:
    """The engine to open: `auto` is vLLM where it is installed and a CUDA device is there, else the reference."""
    if settings.engine is not EngineChoice.AUTO:
        return settings.engine
    if importlib.util.find_spec("vllm") and _has_cuda():
        return EngineChoice.VLLM
    return EngineChoice.REFERENCE


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


async def open_engine(settings: Settings, progress: Progress) -> Engine:
    """Load the engine, off the event loop. Raises an `EngineError` that says what is missing or wrong."""
    if settings.engine is EngineChoice.STUB:
        return open_stub(settings)
    opener = await asyncio.to_thread(opener_for, settings)
    return await opener(settings, progress)


def opener_for(settings: Settings) -> Opener:
    """What opens the engine; imports it, which takes seconds. Raises `EngineUnavailable` where packages are missing."""
    choice = chosen(settings)
    missing = [package for package in NEEDED[choice] if importlib.util.find_spec(package) is None]
    if missing:
        needs = f"The {choice} engine needs {' and '.join(missing)}"
        raise EngineUnavailable(f"{needs}: pip install 'canvasgate[{choice}]', or set ENGINE=stub to try without.")
    if choice is EngineChoice.VLLM:
        from .vllm import open_vllm

        return open_vllm
    if choice is EngineChoice.VLLM_HTTP:
        from .vllm_http import open_vllm_http

        return open_vllm_http
    from .reference import open_reference

    return open_reference


def open_stub(settings: Settings) -> StubEngine:
    """The stub engine with canvases, and with the faults that the settings switch on."""
    limits = EngineLimits(
        settings.max_model_len,
        settings.canvas,
        slots=settings.canvas,
        reads=settings.max_seqs or STUB_READS,
        constrained=settings.constrained,
        thinks=True,
    )
    faults = StubFaults(
        slot_bias=settings.stub_slot_bias,
        coupling=settings.stub_coupling,
        noise=settings.stub_noise,
        missing_slot=settings.stub_missing_slot,
        missing_label=settings.stub_missing_label,
        not_finite=settings.stub_not_finite,
        lasting=settings.stub_lasting,
        dead=settings.stub_dead,
    )
    return StubEngine(limits, settings.stub_delay_ms / 1000, faults)


def caution(engine: Engine) -> str:
    """What must be known before an answer of this engine is used; empty for a model that someone chose."""
    if engine.kind == "stub":
        return "The stub engine reads no model: its answers are hashes, for tests and load runs."
    if engine.model.revision == GGUF_SHA256[:12]:
        return f"{DEMONSTRATION} is for trying out: it answers hardly better than chance. Set MODEL for real answers."
    return ""
