"""The reference engine: transformers on a CPU or one GPU. Small and plain: the oracle that other engines are held to.

All torch work runs in one worker thread, call after call in the order of arrival, a pass of at most `chunk` tokens at
a time; between two passes a call that was given up stops. `readers` says how the passes are made.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from decisions.errors import EngineUnavailable, UnsupportedFeature
from decisions.labels import AnswerForm
from decisions.reads import EngineLimits, Read, Readout, SlotPosition, Thought, Ticket

from . import EngineHealth, ServedModel
from .forms import DIFFUSION_GEMMA, family
from .readers import FAULTS, CanvasReader, Check, Reader, never, next_token_reader
from .tokenizer import HfTokenizer
from .weights import ModelSource, Progress, choose, resolve

if TYPE_CHECKING:
    from ..config import Settings

Done = TypeVar("Done")

READS_AT_ONCE = 64
SAMPLE = "The quick brown fox jumps over the lazy dog. 12 boxes were sent on Monday. " * 4


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """How to run a model. `context` and `canvas` are in tokens and capped by the model; `threads` None leaves torch's.

    `dtype` "auto" is float32 on a CPU, where bfloat16 would make answers depend on what else is computed, and the
    model's own on a GPU. `reads` is how many reads the gateway may send at once.
    """

    context: int = 4096
    canvas: int = 128
    dtype: str = "auto"
    threads: int | None = None
    reads: int = READS_AT_ONCE


class GivenUp(Exception):
    """Nobody waits for this call any more."""


def silent(message: str) -> None:
    """Tell nobody how far loading is."""


class ReferenceEngine:
    """Reads with transformers in one worker thread; `open` loads it."""

    kind = "reference"

    def __init__(self, loaded: Loaded, worker: ThreadPoolExecutor) -> None:
        self.model: ServedModel = loaded.model
        self.limits: EngineLimits = loaded.limits
        self.form: AnswerForm = family(loaded.model.architecture).form
        self.tokenizer: HfTokenizer = loaded.tokenizer
        self._reader = loaded.reader
        self._worker = worker
        self._closed = threading.Event()
        self._fault = ""
        """What the last read failed with, until a later one has worked."""

    @classmethod
    async def open(
        cls, source: ModelSource, options: ReferenceOptions | None = None, progress: Progress = silent
    ) -> ReferenceEngine:
        """Load a model in the worker thread, where `progress` is called; raises an `EngineError` that says why not."""
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reference-engine")
        loop = asyncio.get_running_loop()
        with ExitStack() as unless_loaded:
            unless_loaded.callback(worker.shutdown, wait=False)
            loaded = await loop.run_in_executor(worker, load, source, options or ReferenceOptions(), progress)
            unless_loaded.pop_all()
        return cls(loaded, worker)

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        """The readouts, in order. Calls wait for each other first come, first served."""
        if any(read.steps != 1 for read in reads):
            raise UnsupportedFeature("The reference engine reads a canvas in one step.")
        given_up = threading.Event()
        try:
            return await self._in_worker(self._work, tuple(reads), given_up)
        finally:
            given_up.set()

    async def think(self, thought: Thought, ticket: Ticket) -> tuple[int, ...]:
        """A call that is given up stops at the next denoising step. Equal thoughts for equal prompts."""
        reader, close = self._reader, self.tokenizer.thought_close
        if not isinstance(reader, CanvasReader):
            raise UnsupportedFeature("The reference engine writes a thought on canvases alone.")
        given_up = threading.Event()
        check = self._check(given_up)

        def work() -> tuple[int, ...]:
            check()
            return reader.think(thought.prompt, thought.budget, close, check)

        try:
            return self.tokenizer.until_control(await self._in_worker(work))
        finally:
            given_up.set()

    async def _in_worker(self, work: Callable[..., Done], *arguments: Any) -> Done:
        if self._closed.is_set():
            raise EngineUnavailable("The engine is closed.")
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)
        except FAULTS as fault:
            self._fault = f"{type(fault).__name__}: {fault}"
            raise EngineUnavailable(f"The engine failed at a read: {self._fault}") from fault
        self._fault = ""
        return done

    def _work(self, reads: tuple[Read, ...], given_up: threading.Event) -> list[Readout]:
        """Run in the worker thread."""
        check = self._check(given_up)
        check()
        return self._reader.read(reads, check)

    def _check(self, given_up: threading.Event) -> Check:
        """Raises once the call was given up, or the engine is closing."""

        def check() -> None:
            if self._closed.is_set():
                raise EngineUnavailable("The engine is closing.")
            if given_up.is_set():
                raise GivenUp

        return check

    async def health(self) -> EngineHealth:
        """Alive unless closed; after a failed read, whether a short one works again."""
        if self._closed.is_set():
            return EngineHealth(alive=False, detail="closed")
        if self._fault:
            try:
                await self._in_worker(self._work, (shortest_read(self.tokenizer, self.limits),), threading.Event())
            except EngineUnavailable as fault:
                return EngineHealth(alive=False, detail=fault.message)
        return EngineHealth(alive=True)

    async def close(self) -> None:
        """Give up all reads, wait for the pass that runs, and let go of the thread."""
        if not self._closed.is_set():
            self._closed.set()
            await asyncio.get_running_loop().run_in_executor(self._worker, int)
            self._worker.shutdown(wait=False)


async def open_reference(settings: Settings, progress: Progress) -> ReferenceEngine:
    """The reference engine as the settings want it; fetches the demonstration model where they name no other."""
    source = await asyncio.to_thread(find, settings, progress)
    options = ReferenceOptions(
        settings.max_model_len, settings.canvas, settings.dtype, settings.threads, settings.max_seqs or READS_AT_ONCE
    )
    engine = await ReferenceEngine.open(source, options, progress)
    if settings.served_model_name:
        engine.model = replace(engine.model, name=settings.served_model_name)
    return engine


def find(settings: Settings, progress: Progress) -> ModelSource:
    """The model that the settings ask for."""
    import torch

    return resolve(
        choose(settings.model, settings.model_hf, gpu=torch.cuda.is_available()), settings.model_cache, progress
    )


def shortest_read(tokenizer: HfTokenizer, limits: EngineLimits) -> Read:
    """A read of one token, with a canvas where the model reads those."""
    token = tokenizer.turn_close
    return Read((token,), (SlotPosition(0, (token,)),), (token,) * 16 if limits.canvas else ())


# --- In the worker thread -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load` hands to the engine."""

    model: ServedModel
    limits: EngineLimits
    tokenizer: HfTokenizer
    reader: Reader


def load(source: ModelSource, options: ReferenceOptions, progress: Progress) -> Loaded:
    """Load configuration, tokenizer and weights, and try one read."""
    started = time.monotonic()
    progress("loading torch and transformers")
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, DiffusionGemmaForBlockDiffusion
        from transformers.utils import logging
    except ImportError as fault:
        raise EngineUnavailable(f"The reference engine needs `pip install canvasgate[reference]`: {fault}") from fault
    logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"auto": "auto" if device == "cuda" else "float32"}.get(options.dtype, options.dtype)
    progress(f"loading {source.name} as {dtype} on {device} after {time.monotonic() - started:.1f} s of imports")
    try:
        config = AutoConfig.from_pretrained(source.model)
        architecture = (config.architectures or [""])[0]
        kind = DiffusionGemmaForBlockDiffusion if architecture == DIFFUSION_GEMMA else AutoModelForCausalLM
        model = kind.from_pretrained(source.model, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    except FAULTS as fault:
        raise EngineUnavailable(f"The model {source.model} does not load: {fault}") from fault
    tokenizer = HfTokenizer.open(source.model, empty_thought=family(architecture).empty_thought)
    canvas = kind is DiffusionGemmaForBlockDiffusion
    limits = limits_of(config, options, canvas=canvas, thinks=canvas and bool(tokenizer.thought_close))
    reader: Reader = CanvasReader(model)
    if not limits.canvas:
        reader = next_token_reader(model, limits.context, tokenizer.encode(SAMPLE))
    reader.read([shortest_read(tokenizer, limits)], never)
    progress(f"loaded after {time.monotonic() - started:.1f} s ({type(reader).__name__})")
    revision = getattr(config, "_commit_hash", None) or source.revision
    return Loaded(ServedModel(source.name, revision, architecture), limits, tokenizer, reader)


def limits_of(
    config: Any,  # noqa: ANN401 - transformers' configuration, untyped
    options: ReferenceOptions,
    *,
    canvas: bool,
    thinks: bool,
) -> EngineLimits:
    """What the model can take of what was asked for."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or options.context
    context = min(options.context, longest)
    if not canvas:
        return EngineLimits(context, reads=options.reads, thinks=thinks)
    width = min(options.canvas, config.canvas_length)
    return EngineLimits(context, width, slots=width, reads=options.reads, thinks=thinks)
