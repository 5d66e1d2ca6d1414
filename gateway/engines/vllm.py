"""The production engine: vLLM's `AsyncLLM` in this process, with its engine core in a process of its own.

One code path for vLLM on a GPU and for its CPU build. A model is read at its next token, or, where the architecture
is DiffusionGemma's, on a seeded canvas in one read-only denoising step. Token ids go in; log-probabilities over the
full vocabulary come out, of the label ids alone. Written against vLLM 0.32.0 and 0.33.0.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import multiprocessing
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from decisions.errors import EngineError, EngineUnavailable, UnsupportedFeature
from decisions.labels import AnswerForm
from decisions.reads import Cost, EngineLimits, Read, Readout, SlotPosition, Ticket

from . import EngineHealth, ServedModel
from .forms import DIFFUSION_GEMMA, family
from .tokenizer import HfTokenizer
from .weights import ModelSource, Progress, choose, resolve

if TYPE_CHECKING:
    from ..config import Settings

AsyncLLM: TypeAlias = Any
"""vLLM's types, which are not there where it is not installed."""
SamplingParams: TypeAlias = Any
RequestOutput: TypeAlias = Any

NEXT_TOKEN_READS, CANVAS_READS = 64, 32
"""Reads at once where nobody says: larger canvas batches were slower on an H200 (56 reads/s at 128, 79 at 32)."""
BLOCK = 32
"""Tokens of a key/value block on a CPU: the smallest that its kernels take; only whole blocks are found again."""
CPU_CACHE = 2**30
"""Bytes of key/value cache on a CPU, where vLLM would otherwise take most of the memory."""
CPU_STEP = 1024
"""Tokens of one step on a CPU: a step that has begun is finished even if nobody waits for it any more."""
STOP_SECONDS, DRAIN_SECONDS = 5.0, 30

# vLLM takes these through the environment only, and its processes inherit them. This is the one place that sets any;
# a value that the operator has set stays.
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # A process with threads and an event loop must not be forked.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
CPU_ENVIRONMENT = {
    # vLLM would keep one core of two for itself.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    # With these two the engine core holds the worker, as it does on one GPU, and need not start a third process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Otherwise the first read compiles the sampler for half a minute.
    "TORCH_COMPILE_DISABLE": "1",
    # Threads that spin while they wait take the cores from the gateway: with others at work on two cores, sleeping
    # threads read 1.4 to 2.0 times as fast.
    "OMP_WAIT_POLICY": "passive",
}

FAULTS = (RuntimeError, MemoryError, ArithmeticError, LookupError, TypeError, ValueError, OSError, AssertionError)
"""What vLLM raises at its start beside its own errors."""


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How to run a model. `context` and `canvas` are in tokens and capped by the model.

    `dtype` "auto" is float32 on a CPU, where bfloat16 would make answers depend on what else is computed, and the
    model's own on a GPU. `reads` None is chosen by the kind of model. `gpu_share` is the share of the GPU's memory.
    `attention` "auto" leaves vLLM's backend. `eager` runs without captured graphs, as a CPU always does. `text_only`
    leaves a vision tower out. `extra` are vLLM's own engine arguments; they win over all others.
    """

    context: int = 4096
    canvas: int = 128
    dtype: str = "auto"
    reads: int | None = None
    gpu_share: float = 0.85
    attention: str = "auto"
    eager: bool = True
    text_only: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


def silent(message: str) -> None:
    """Tell nobody how far loading is."""


class VllmEngine:
    """Reads with vLLM; `open` loads it. It belongs to the event loop that opened it."""

    kind = "vllm"

    def __init__(self, loaded: Loaded) -> None:
        self.model: ServedModel = loaded.model
        self.limits: EngineLimits = loaded.limits
        self.form: AnswerForm = family(loaded.model.architecture).form
        self.tokenizer: HfTokenizer = loaded.tokenizer
        self._llm = loaded.llm
        self._tether = tether(loaded.llm.engine_core.resources.engine_manager.processes[0].pid)
        self._numbers = itertools.count()
        self._closed = False

    @classmethod
    async def open(
        cls, source: ModelSource, options: VllmOptions | None = None, progress: Progress = silent
    ) -> VllmEngine:
        """Load a model in a thread, where `progress` is called; raises an `EngineError` that says why not."""
        loading = asyncio.ensure_future(asyncio.to_thread(load, source, options or VllmOptions(), progress))
        try:
            engine = cls(await asyncio.shield(loading))
        except asyncio.CancelledError:
            give_up(loading)
            raise
        try:
            # It also starts the task by which a death of the engine core is noticed.
            await engine.read([shortest_read(engine.tokenizer, engine.limits)], Ticket("first", Cost(1, 1), 0.0))
        except BaseException:
            await engine.close()
            raise
        progress("read once")
        return engine

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        """All reads go to the engine at once, and are awaited in order; what is missing in a reply stays missing.

        Reads of one new state need no first one sent ahead: vLLM registers a block when it schedules it, so that of
        16 questions about a new state of 950 tokens all but one found 928 tokens of it (and took as long as one
        first, then 15: 16.1 s to 14.9 s and 23.2 s to 23.8 s on two busy cores in float32).
        """
        from vllm.exceptions import VLLMError
        from vllm.v1.engine.exceptions import EngineDeadError

        names = [f"{ticket.id}-{next(self._numbers)}" for _ in reads]
        try:
            return await self._read(reads, names)
        except EngineDeadError as fault:
            raise EngineUnavailable("The engine core has died.") from fault
        except (VLLMError, ValueError) as fault:
            raise EngineError(f"The engine refused a read: {fault}") from fault

    async def _read(self, reads: Sequence[Read], names: Sequence[str]) -> list[Readout]:
        from vllm.inputs.engine import tokens_input

        if self._closed:
            raise EngineUnavailable("The engine is closed.")
        unread = list(names)
        try:
            replies = [
                await self._llm.add_request(name, tokens_input(list(read.prompt)), self._parameters(read))
                for name, read in zip(names, reads, strict=True)
            ]
            readouts = []
            for read, reply in zip(reads, replies, strict=True):
                readouts.append(readout(read, await reply.get()))
                unread.pop(0)
            return readouts
        finally:
            if unread:
                # By our own names, so that a request that was just being added is found too.
                await asyncio.shield(self._llm.abort(unread))

    def _parameters(self, read: Read) -> SamplingParams:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        common = {
            "logprob_token_ids": list(read.label_ids),
            "flat_logprobs": True,
            "detokenize": False,
            "output_kind": RequestOutputKind.FINAL_ONLY,
            "skip_clone": True,
        }
        if not self.limits.canvas:
            if read.steps != 1:
                raise UnsupportedFeature("An autoregressive model reads in one step.")
            return SamplingParams(max_tokens=1, temperature=0.0, **common)
        last = max(slot.position for slot in read.slots)
        return SamplingParams(max_tokens=last + 1, extra_args=canvas_arguments(read), **common)

    async def health(self) -> EngineHealth:
        """Alive unless closed, or the engine core has died."""
        if self._closed:
            return EngineHealth(alive=False, detail="closed")
        if self._llm.errored:
            return EngineHealth(alive=False, detail="the engine core has died")
        return EngineHealth(alive=True)

    async def close(self) -> None:
        """Give up all reads and end the engine's processes."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if not self._closed:
            self._closed = True
            # vLLM's own shutdown would leave those that wait for a reply waiting.
            self._llm.output_processor.propagate_error(EngineDeadError())
            if self._llm.output_handler is not None:
                self._llm.output_handler.cancel()
            await asyncio.to_thread(self._llm.shutdown, STOP_SECONDS)
            # Its finaliser shuts down once more at the interpreter's end, when that fails noisily.
            self._llm.shutdown = lambda: None
            self._llm.engine_core.resources.ctx.destroy(linger=0)
            self._tether.kill()
            self._tether.communicate()


def canvas_arguments(read: Read) -> dict[str, Any]:
    """What vLLM's DiffusionGemma takes besides sampling parameters: the seeded canvas, only read, never written."""
    arguments: dict[str, Any] = {
        "diffusion_seed_canvas": list(read.canvas),
        "diffusion_canvas_length": len(read.canvas),
        "diffusion_max_steps": read.steps,
        "diffusion_read_only": True,
    }
    if read.steps > 1:
        # Only the slots may change from step to step: everything else is the answer text that they stand in.
        open_slots = {slot.position for slot in read.slots}
        arguments["diffusion_pinned"] = [at for at in range(len(read.canvas)) if at not in open_slots]
    return arguments


def readout(read: Read, output: RequestOutput) -> Readout:
    """What a reply says about the read's slots. What it does not say is left out, so that `check_readout` tells."""
    flat = output.outputs[0].logprobs
    rows = []
    for slot in read.slots:
        seen: dict[int, float] = {}
        if flat is not None and slot.position < len(flat.start_indices):
            part = slice(flat.start_indices[slot.position], flat.end_indices[slot.position])
            seen = dict(zip(flat.token_ids[part], flat.logprobs[part], strict=True))
        rows.append(tuple(seen[label] for label in slot.label_ids if label in seen))
    return Readout(tuple(rows), output.num_cached_tokens or 0)


def shortest_read(tokenizer: HfTokenizer, limits: EngineLimits) -> Read:
    """A read of one token, with a canvas where the model reads those."""
    token = tokenizer.turn_close
    return Read((token,), (SlotPosition(0, (token,)),), (token,) * 16 if limits.canvas else ())


async def open_vllm(settings: Settings, progress: Progress) -> VllmEngine:
    """The vLLM engine as the settings want it; without a GPU and a MODEL it fetches the demonstration model."""
    source = await asyncio.to_thread(find, settings, progress)
    options = VllmOptions(
        settings.max_model_len,
        settings.canvas,
        settings.dtype,
        settings.max_seqs,
        settings.gpu_util,
        settings.attn,
        settings.enforce_eager,
        settings.disable_mm,
        settings.extra_args,
    )
    engine = await VllmEngine.open(source, options, progress)
    if settings.served_model_name:
        engine.model = replace(engine.model, name=settings.served_model_name)
    return engine


def find(settings: Settings, progress: Progress) -> ModelSource:
    """The model that the settings ask for."""
    return resolve(choose(settings.model, settings.model_hf, gpu=has_gpu()), settings.model_cache, progress)


def has_gpu() -> bool:
    """Whether this process sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def tether(core: int) -> subprocess.Popen[bytes]:
    """Let the engine core die with this process, however that ends.

    Left alone, a core whose gateway was killed waits for it for ever and keeps the GPU's memory. The shell waits for
    the end of a pipe that only this process holds open.
    """
    command = ["/bin/sh", "-c", "read -r _; kill -9 $0 2>/dev/null", str(core)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - no outside input


def give_up(loading: asyncio.Future[Loaded]) -> None:
    """End a load that nobody waits for. Its thread cannot be stopped, but the process that it waits for can."""
    for child in multiprocessing.active_children():
        if child.name.startswith("EngineCore"):
            child.terminate()

    def discard(done: asyncio.Future[Loaded]) -> None:
        if done.exception() is None:
            done.result().llm.shutdown(STOP_SECONDS)

    loading.add_done_callback(discard)


# --- In the loading thread ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load` hands to the engine."""

    model: ServedModel
    limits: EngineLimits
    tokenizer: HfTokenizer
    llm: AsyncLLM


def load(source: ModelSource, options: VllmOptions, progress: Progress) -> Loaded:
    """Load configuration and tokenizer, and start the engine core with the weights."""
    started = time.monotonic()
    progress("loading vLLM")
    on_cpu = not has_gpu()
    prepare_environment(on_cpu=on_cpu)
    try:
        import vllm
        from transformers import AutoConfig
        from vllm.exceptions import VLLMError
    except ImportError as fault:
        raise EngineUnavailable(f"The vllm engine needs `pip install canvasgate[vllm]`: {fault}") from fault
    try:
        config = AutoConfig.from_pretrained(source.model)
        architecture = (config.architectures or [""])[0]
        check_capabilities(architecture)
        tokenizer = HfTokenizer.open(source.model, empty_thought=family(architecture).empty_thought)
        arguments = engine_arguments(config, options, canvas=architecture == DIFFUSION_GEMMA, on_cpu=on_cpu)
        progress(
            f"starting vLLM {vllm.__version__} with {source.name} after {time.monotonic() - started:.1f} s of imports"
        )
        llm = start_core(source.model, arguments)
    except (*FAULTS, VLLMError) as fault:
        raise EngineUnavailable(f"vLLM does not serve {source.model}: {fault}") from fault
    progress(f"loaded after {time.monotonic() - started:.1f} s")
    revision = getattr(config, "_commit_hash", None) or source.revision
    limits = limits_of(llm.vllm_config)
    return Loaded(ServedModel(source.name, revision, architecture), limits, tokenizer, llm)


def prepare_environment(*, on_cpu: bool) -> None:
    """Set what vLLM takes from the environment, where the operator has not."""
    for name, value in (ENVIRONMENT | (CPU_ENVIRONMENT if on_cpu else {})).items():
        os.environ.setdefault(name, value)


def check_capabilities(architecture: str) -> None:
    """Raise `EngineUnavailable` where this vLLM cannot make the reads that this architecture needs."""
    import vllm
    from vllm.sampling_params import SamplingParams

    if "logprob_token_ids" not in SamplingParams.__struct_fields__:
        raise EngineUnavailable(f"vLLM {vllm.__version__} cannot read label ids; 0.32.0 and 0.33.0 can.")
    if architecture == DIFFUSION_GEMMA and not importlib.util.find_spec("vllm.utils.diffusion"):
        raise EngineUnavailable(f"vLLM {vllm.__version__} cannot read a seeded canvas; 0.32.0 and 0.33.0 can.")


def engine_arguments(
    config: Any,  # noqa: ANN401 - transformers' configuration, untyped
    options: VllmOptions,
    *,
    canvas: bool,
    on_cpu: bool,
) -> dict[str, Any]:
    """Engine arguments of vLLM for a model of this configuration."""
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or options.context
    arguments: dict[str, Any] = {
        "dtype": "float32" if on_cpu and options.dtype == "auto" else options.dtype,
        "max_model_len": min(options.context, longest),
        "max_num_seqs": options.reads or (CANVAS_READS if canvas else NEXT_TOKEN_READS),
        "enable_prefix_caching": True,
        "enforce_eager": options.eager or on_cpu,
        # Of the full vocabulary, before anything that sampling does to it.
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": True,
        # Ctrl-C reaches the engine core too: it then finishes what it reads, as the gateway does.
        "shutdown_timeout": DRAIN_SECONDS,
    }
    if canvas:
        arguments["diffusion_config"] = {"canvas_length": min(options.canvas, config.canvas_length)}
    if on_cpu:
        arguments |= {"block_size": BLOCK, "kv_cache_memory_bytes": CPU_CACHE, "max_num_batched_tokens": CPU_STEP}
    else:
        arguments["gpu_memory_utilization"] = options.gpu_share
    if options.attention != "auto":
        arguments["attention_backend"] = options.attention
    if options.text_only:
        arguments["language_model_only"] = True
    return arguments | dict(options.extra)


def start_core(model: str, arguments: Mapping[str, Any]) -> AsyncLLM:
    """Start the engine core; returns once it holds the weights."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    config = AsyncEngineArgs(model=model, **arguments).create_engine_config(UsageContext.ENGINE_CONTEXT)
    if config.model_config.is_diffusion and not config.use_v2_model_runner:
        raise EngineUnavailable(
            "Canvases need vLLM's model runner V2, which needs Triton for this device: a GPU, or Triton for CPUs."
        )
    return AsyncLLM.from_vllm_config(config, disable_log_stats=True)


def limits_of(config: Any) -> EngineLimits:  # noqa: ANN401 - vLLM's configuration
    """What the started engine takes."""
    context, reads = config.model_config.max_model_len, config.scheduler_config.max_num_seqs
    if not config.model_config.is_diffusion:
        return EngineLimits(context, reads=reads)
    width = config.diffusion_config.canvas_length
    return EngineLimits(context, width, slots=width, reads=reads)
