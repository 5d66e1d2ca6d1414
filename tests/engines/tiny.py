"""Tiny models with random weights and a real tokenizer: both kinds that the engines read."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|image|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
SAMPLER = {
    "max_denoising_steps": 8,
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
}
"""How a DiffusionGemma denoises; vLLM wants to know before it loads one. A single step needs none of it, and a thought
of random weights takes all the steps that there are, so there are few."""
CANVAS_CONTEXT = 4096
WORDS = ["yes", "no", "Yes", "No", "thought", *string.ascii_letters]


def tiny_tokenizer(folder: Path) -> int:
    """Write a byte-level tokenizer with Gemma's turns, labels with and without a space as single tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate([*CONTROL, *alphabet])}
    merges: dict[tuple[str, str], None] = {}
    for word in [*WORDS, *("Ġ" + word for word in [*WORDS, *string.digits])]:
        for end in range(2, len(word) + 1):
            vocabulary.setdefault(word[:end], len(vocabulary))
            merges[word[: end - 1], word[end - 1]] = None
    backend = Tokenizer(models.BPE(vocabulary, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevel()
    backend.add_special_tokens(CONTROL)
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE, **named).save_pretrained(folder)
    return len(vocabulary)


def tiny_llama(folder: Path, **changes: Any) -> Path:
    """An autoregressive model of two layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 2048}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=tiny_tokenizer(folder), **sizes, **heads, initializer_range=0.3, **changes)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def tiny_diffusion_gemma(folder: Path, window: int = CANVAS_CONTEXT) -> Path:
    """A DiffusionGemma of two layers with a sliding window of so many tokens, and a canvas of 32."""
    import torch
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig
    from transformers import Gemma4VisionConfig as Vision

    text = DiffusionGemmaTextConfig(
        vocab_size=tiny_tokenizer(folder), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, global_head_dim=32, num_global_key_value_heads=2,
        sliding_window=window, layer_types=["sliding_attention", "full_attention"],
        num_experts=4, top_k_experts=2, moe_intermediate_size=32, max_position_embeddings=CANVAS_CONTEXT,
        pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    vision = Vision(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=16, global_head_dim=16, patch_size=16, max_position_embeddings=256, position_embedding_size=64,
    )  # fmt: skip
    torch.manual_seed(0)
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=32, image_token_id=8)
    DiffusionGemmaForBlockDiffusion(config).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(SAMPLER))
    return folder
