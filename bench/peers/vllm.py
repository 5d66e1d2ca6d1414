"""vLLM's own `/v1/systemone` on a CPU, and ours on the same vLLM build, model folder and engine settings.

vLLM's route takes few architectures, and Llama, which the demonstration model is, is none of them. Qwen3 is, and
differs from it in a norm of queries and keys; with that norm added, SmolLM2's weights load as a Qwen3 of the same
size. It costs what SmolLM2 costs; its answers mean nothing.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.serving import GATEWAY, Server, Start, free_port, serving
from gateway.engines.vllm_start import BLOCK, CPU_CACHE, CPU_ENVIRONMENT, CPU_STEP, ENVIRONMENT, READS_AT_ONCE

LOADING = 600.0
CONTEXT = 4096


def as_qwen3(source: Path, folder: Path) -> Path:
    """Write the Llama in `source` as a Qwen3 into `folder`, unless it is there already."""
    if folder.is_dir():
        return folder
    import torch  # noqa: PLC0415 - takes seconds, and only this needs it
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    config: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8"))
    head = config["hidden_size"] // config["num_attention_heads"]
    changed = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": head}
    weights = load_file(source / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        for name in ("q_norm", "k_norm"):
            weights[f"model.layers.{layer}.self_attn.{name}.weight"] = torch.ones(head, dtype=torch.bfloat16)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        built = Path(scratch) / "model"
        shutil.copytree(source, built, ignore=shutil.ignore_patterns("*.safetensors"))
        (built / "config.json").write_text(json.dumps(config | changed), "utf-8")
        save_file(weights, built / "model.safetensors", metadata={"format": "pt"})
        built.rename(folder)
    return folder


@contextmanager
def own(model: Path) -> Iterator[Server]:
    """Their server with the engine settings that ours uses on a CPU."""
    port = free_port()
    options = {
        "model": model,
        "port": port,
        "host": "127.0.0.1",
        "served-model-name": "jev-latest",
        "dtype": "float32",
        "max-model-len": CONTEXT,
        "max-num-seqs": READS_AT_ONCE,
        "max-num-batched-tokens": CPU_STEP,
        "block-size": BLOCK,
        "kv-cache-memory-bytes": CPU_CACHE,
        "logprobs-mode": "raw_logprobs",
        "max-logprobs": 32,
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--disable-log-stats"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    start = Start(path="/health", patience=LOADING)
    with serving("vllm", command, port, start, **ENVIRONMENT, **CPU_ENVIRONMENT) as server:
        yield server


@contextmanager
def ours(model: Path) -> Iterator[Server]:
    """The gateway with vLLM inside."""
    port = free_port()
    settings = {"ENGINE": "vllm", "MODEL": str(model), "MAX_MODEL_LEN": str(CONTEXT), "LOG_LEVEL": "error"}
    start = Start(patience=LOADING)
    with serving("canvasgate", GATEWAY, port, start, PORT=str(port), HOST="127.0.0.1", **settings) as server:
        yield server
