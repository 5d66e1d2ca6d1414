"""How the vLLM engine starts: what vLLM is told through its environment and its arguments, and how it is loaded."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from decisions.errors import EngineUnavailable
from decisions.reads import EngineLimits

from . import ServedModel
from .forms import DIFFUSION_GEMMA, family
from .tokenizer import HfTokenizer
from .weights import ModelSource, Progress

AsyncLLM: TypeAlias = Any
"""vLLM's type, which is not there where it is not installed."""

READS_AT_ONCE = 64
"""Reads at once where nobody says. On an H200, canvases of one slot about a shared state came to 236 reads/s with 64 at
once and 188 with 32, canvases of ten slots to 44 and 43; 128 at once were slower than either (graphs to 512 tokens)."""
BLOCK = 32
"""Tokens of a key/value block on a CPU: the smallest that its kernels take; only whole blocks are found again."""
CPU_CACHE = 2**30
"""Bytes of key/value cache on a CPU, where vLLM would otherwise take most of the memory."""
CPU_STEP = 1024
"""Tokens of one step on a CPU: a step that has begun is finished even if nobody waits for it any more."""
DRAIN_SECONDS = 30
LARGEST_STEP = 8192
"""Tokens of the largest step of vLLM's server; where its steps are smaller, on smaller devices, it leaves sizes out."""

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
    leaves a vision tower out. `constrained` reads canvases over the label ids alone. `extra` are vLLM's own engine
    arguments; they win over all others.
    """

    context: int = 4096
    canvas: int = 128
    dtype: str = "auto"
    reads: int | None = None
    gpu_share: float = 0.85
    attention: str = "auto"
    eager: bool = True
    text_only: bool = False
    constrained: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


def silent(message: str) -> None:
    """Tell nobody how far loading is."""


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
    limits = limits_of(llm.vllm_config, constrained=options.constrained, thinks=bool(tokenizer.thought_close))
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
        "max_num_seqs": options.reads or READS_AT_ONCE,
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
        if not arguments["enforce_eager"]:
            arguments["compilation_config"] = {"cudagraph_capture_sizes": graph_sizes()}
    if on_cpu:
        arguments |= {"block_size": BLOCK, "kv_cache_memory_bytes": CPU_CACHE, "max_num_batched_tokens": CPU_STEP}
    else:
        arguments["gpu_memory_utilization"] = options.gpu_share
    if options.attention != "auto":
        arguments["attention_backend"] = options.attention
    if options.text_only:
        arguments["language_model_only"] = True
    return arguments | dict(options.extra)


def graph_sizes() -> list[int]:
    """Tokens of the steps that graphs are captured for; a step takes the next larger one, at most an eighth larger.

    vLLM stops at 512 by itself, since its generating requests bring one token each. Reads bring a prompt and a canvas,
    so nearly every step would launch its kernels one by one: on an H200 graphs up to 8,192 tokens took a request of
    ten questions alone from 68 to 52 ms, and from 109 to 80 ms isolated.
    """
    sizes = [1, 2, 4, *range(8, 64, 8)]
    for octave in (64, 128, 256, 512, 1024, 2048, 4096):
        sizes += range(octave, 2 * octave, octave // 8)
    return [*sizes, LARGEST_STEP]


def start_core(model: str, arguments: Mapping[str, Any]) -> AsyncLLM:
    """Start the engine core; returns once it holds the weights."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    # As vLLM's own server: for any other use it takes 2,048 tokens a step, with which 64 clients on an H200 got 333
    # answers/s of ten-question requests, against 483 with the server's 8,192.
    config = AsyncEngineArgs(model=model, **arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    if config.model_config.is_diffusion and not config.use_v2_model_runner:
        raise EngineUnavailable(
            "Canvases need vLLM's model runner V2, which needs Triton for this device: a GPU, or Triton for CPUs."
        )
    return AsyncLLM.from_vllm_config(config, disable_log_stats=True)


def limits_of(config: Any, *, constrained: bool, thinks: bool) -> EngineLimits:  # noqa: ANN401 - vLLM's configuration
    """What the started engine takes. vLLM constrains reads only where one GPU holds the whole model."""
    context, reads = config.model_config.max_model_len, config.scheduler_config.max_num_seqs
    if not config.model_config.is_diffusion:
        return EngineLimits(context, reads=reads, thinks=thinks)
    width = config.diffusion_config.canvas_length
    constrained = constrained and config.parallel_config.tensor_parallel_size == 1
    return EngineLimits(context, width, slots=width, reads=reads, constrained=constrained, thinks=thinks)


def has_gpu() -> bool:
    """Whether this process sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())
