"""Where one canvas step's time goes on a GPU: reads per second, kernels and host work, under given engine settings.

Runs vLLM's `LLM` in this process on random token ids, so that nothing but the engine is measured. Weights may be random
(`load_format="dummy"`): times are real then, answers mean nothing. Writes a JSON row per cell and profiler tables.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CELLS = {
    # name: (tokens named first, tokens behind them, canvas width, slots, reads that share the first)
    "single": (480, 30, 16, 1, 1),
    "joint-10": (480, 320, 64, 10, 1),
    "isolated-8": (480, 40, 16, 1, 8),
    "schema-first-10": (320, 480, 64, 10, 10**9),
}
"""The tokens named first are shared by so many reads, one after another; the others are new in each read."""


def requests(
    cell: tuple[int, int, int, int, int], count: int, seed: int, *, constrained: bool
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Prompts of random ids with their sampling arguments."""
    first, behind, width, slots, sharing = cell
    generator = random.Random(seed)
    labels = [1000 + 7 * k for k in range(12)]
    shared: list[int] = []
    for index in range(count):
        if index % sharing == 0:
            shared = [generator.randrange(300, 40000) for _ in range(first)]
        prompt = shared + [generator.randrange(300, 40000) for _ in range(behind)]
        last = (slots - 1) * 5 + 1 if slots > 1 else 0
        extra: dict[str, Any] = {
            "diffusion_seed_canvas": [generator.randrange(300, 40000) for _ in range(width)],
            "diffusion_canvas_length": width,
            "diffusion_max_steps": 1,
            "diffusion_read_only": True,
        }
        if constrained:
            extra["diffusion_constrained"] = True
        yield prompt, {"max_tokens": last + 1, "logprob_token_ids": labels, "extra_args": extra, "detokenize": False}


def timed(llm: Any, cell: str, count: int, seed: int, *, constrained: bool) -> dict[str, Any]:
    """Reads per second of one cell, all reads given at once, and the time of one read alone."""
    from vllm import SamplingParams

    def generate(number: int, offset: int) -> float:
        pairs = list(requests(CELLS[cell], number, seed + offset, constrained=constrained))
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in pairs]
        parameters = [SamplingParams(**arguments) for _, arguments in pairs]
        started = time.perf_counter()
        llm.generate(prompts, parameters, use_tqdm=False)
        return time.perf_counter() - started

    generate(8, 1)
    alone = sorted(generate(1, 100 + k) for k in range(9))[4]
    generate(count // 2, 2)
    seconds = generate(count, 3)
    row = {
        "cell": cell,
        "constrained": constrained,
        "reads_per_s": round(count / seconds, 1),
        "one_read_ms": round(alone * 1e3, 1),
    }
    print(json.dumps(row), flush=True)
    return row


def profiled(llm: Any, cell: str, count: int, target: Path) -> None:
    """Profiler tables of one burst, by kernel time and by host time."""
    import torch
    from vllm import SamplingParams

    pairs = list(requests(CELLS[cell], count, 77, constrained=False))
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in pairs]
    parameters = [SamplingParams(**arguments) for _, arguments in pairs]
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    started = time.perf_counter()
    with torch.profiler.profile(activities=activities) as profile:
        llm.generate(prompts, parameters, use_tqdm=False)
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    table = profile.key_averages()
    text = f"{cell} reads={count} wall={seconds:.3f}s\n"
    text += table.table(sort_by="self_cuda_time_total", row_limit=32, max_name_column_width=70)
    text += "\n" + table.table(sort_by="self_cpu_time_total", row_limit=24, max_name_column_width=70)
    target.write_text(text)


def host_profile(llm: Any, cell: str, count: int, target: Path) -> None:
    """Python functions by their own time during one burst."""
    import cProfile
    import io
    import pstats

    from vllm import SamplingParams

    pairs = list(requests(CELLS[cell], count, 78, constrained=False))
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in pairs]
    parameters = [SamplingParams(**arguments) for _, arguments in pairs]
    profile = cProfile.Profile()
    profile.enable()
    llm.generate(prompts, parameters, use_tqdm=False)
    profile.disable()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(40)
    pstats.Stats(profile, stream=out).sort_stats("cumtime").print_stats(60)
    target.write_text(out.getvalue())


def engine(model: str, **settings: Any) -> Any:
    """An engine with the settings that every run shares, under these."""
    from vllm import LLM

    base: dict[str, Any] = {
        "load_format": "dummy",
        "language_model_only": True,
        "attention_backend": "TRITON_ATTN",
        "max_model_len": 4096,
        "max_num_seqs": 32,
        "gpu_memory_utilization": 0.85,
        "max_logprobs": 32,
        "diffusion_config": {"canvas_length": 128},
        "enable_prefix_caching": True,
    }
    started = time.perf_counter()
    llm = LLM(model=model, **(base | settings))
    print(f"started in {time.perf_counter() - started:.0f} s with {settings}", flush=True)
    return llm


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every cell, constrained and not; then profile, where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--settings", type=json.loads, default={}, help="engine settings over the shared ones, as JSON")
    parser.add_argument("--reads", type=int, default=128)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--profile", action="store_true", help="write profiler tables as well")
    given = parser.parse_args(arguments)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    cells = given.cells.split(",")
    llm = engine(given.model, **given.settings)
    with (given.out / "engine.jsonl").open("a") as out:
        for number, cell in enumerate(cells):
            for constrained in (False, True):
                row = timed(llm, cell, given.reads, 1000 * number, constrained=constrained)
                out.write(json.dumps({"settings": given.settings} | row) + "\n")
    if given.profile:
        for cell in cells:
            profiled(llm, cell, 32, given.out / f"profile-{cell}.txt")
        host_profile(llm, "isolated-8", given.reads, given.out / "profile-host.txt")


if __name__ == "__main__":
    main()
