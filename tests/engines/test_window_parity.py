"""Canvases about states longer than the model's sliding window: vLLM and transformers see other ends of the state.

In a sliding layer, transformers lets every canvas token see the last `window - 1` tokens of the prompt; vLLM lets the
window slide on, so that the canvas token at offset i sees i fewer. Past the window the two engines therefore differ,
and by nothing else: the model read with vLLM's window gives what vLLM gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from decisions.reads import Read, Readout
from gateway.engines.reference import ReferenceEngine, ReferenceOptions
from gateway.engines.vllm_start import VllmOptions
from gateway.engines.weights import ModelSource

from .asking import apart, story
from .conftest import calm, needs
from .hosted import HostedEngine
from .test_canvas_parity import PARITY, checked, planned
from .tiny import CANVAS_CONTEXT, tiny_diffusion_gemma

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

WINDOW = 64
"""Tokens; the canvas is up to 32 wide, so that half a window slides away."""


def slid(model: Any, reads: Sequence[Read]) -> list[Readout]:
    """What transformers reads when the window slides on with the canvas."""
    import torch

    from gateway.engines.readers import label_row

    readouts = []
    for read in reads:
        prompt, width = len(read.prompt), len(read.canvas)
        kept = min(prompt, WINDOW - 1)
        canvas = torch.arange(prompt, prompt + width)
        seen = torch.cat([torch.arange(prompt - kept, prompt), canvas])
        masks = {
            "full_attention": torch.ones(1, 1, width, prompt + width, dtype=torch.bool),
            "sliding_attention": ((canvas[:, None] - seen[None]).abs() < WINDOW)[None, None],
        }
        with torch.inference_mode():
            logits = model(
                input_ids=torch.tensor([read.prompt]),
                decoder_input_ids=torch.tensor([read.canvas]),
                decoder_attention_mask=masks,
            ).logits[0]
        readouts.append(Readout(tuple(label_row(logits[slot.position], slot.label_ids) for slot in read.slots)))
    return readouts


async def test_past_the_window_the_engines_differ_by_its_place_alone(tmp_path: Path) -> None:
    """Isolated and joint; the difference itself is shown with `pytest -rP`."""
    needs("torch", "transformers", "vllm", "triton")
    from transformers import DiffusionGemmaForBlockDiffusion

    source = ModelSource(str(tiny_diffusion_gemma(tmp_path, WINDOW)), "tiny")
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(source.model, dtype="float32").eval()
    options = VllmOptions(CANVAS_CONTEXT, text_only=True, extra={"kv_cache_memory_bytes": 2**28})
    with calm():
        reference = await ReferenceEngine.open(source, ReferenceOptions(CANVAS_CONTEXT))
        vllm = await HostedEngine.open(source, options)
    try:
        reads = [
            read
            for number, isolate in ((0, "none"), (0, "all"), (3, "none"))
            for read in planned(vllm, story(number, number), isolate=isolate)
        ]
        assert min(len(read.prompt) for read in reads) > WINDOW
        from_vllm = await checked(vllm, reads)
        held = apart(await checked(reference, reads), from_vllm)
        print(f"worst difference {held:.2e} nats; with vLLM's window {apart(slid(model, reads), from_vllm):.2e}")

        assert apart(slid(model, reads), from_vllm) <= PARITY
        assert held > PARITY, "vLLM no longer slides the window: the reference needs no excuse then"
    finally:
        await vllm.close()
        await reference.close()
