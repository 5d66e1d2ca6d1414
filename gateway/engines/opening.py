"""Opens the engine that the settings ask for, telling how far it is; the only place that chooses between engines."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from decisions.reads import EngineLimits

from ..config import EngineChoice, Settings
from . import Engine
from .stub import StubEngine, StubFaults

Progress = Callable[[str], None]
STUB_READS = 64
"""Reads that the stub works on at once where `MAX_SEQS` does not say."""


def chosen(settings: Settings) -> EngineChoice:
    """The engine to open: `auto` is vLLM where it is installed and a CUDA device is there, else the reference."""
    if settings.engine is not EngineChoice.AUTO:
        return settings.engine
    if importlib.util.find_spec("vllm") and _has_cuda():
        return EngineChoice.VLLM
    return EngineChoice.REFERENCE


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


async def open_engine(settings: Settings, progress: Progress) -> Engine:
    """Load the engine. Raises an `EngineError` that says what is missing or wrong."""
    choice = chosen(settings)
    if choice is EngineChoice.STUB:
        return open_stub(settings)
    if choice is EngineChoice.VLLM:
        from .vllm import open_vllm

        return await open_vllm(settings, progress)
    from .reference import open_reference

    return await open_reference(settings, progress)


def open_stub(settings: Settings) -> StubEngine:
    """The stub engine with canvases, and with the faults that the settings switch on."""
    slots = settings.canvas
    limits = EngineLimits(settings.max_model_len, settings.canvas, slots=slots, reads=settings.max_seqs or STUB_READS)
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
