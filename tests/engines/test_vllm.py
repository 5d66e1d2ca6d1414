"""The vLLM engine beyond the contract: what it asks of vLLM, what it makes of replies, and how it ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from decisions.errors import EngineError, EngineUnavailable, MalformedReadout, UnsupportedFeature
from decisions.reads import Read, Readout, SlotPosition, check_readout
from gateway.engines import vllm_start as adapter
from gateway.engines.forms import DIFFUSION_GEMMA
from gateway.engines.vllm import VllmEngine, canvas_arguments, readout
from gateway.engines.vllm_start import LARGEST_STEP, VllmOptions, engine_arguments
from gateway.engines.weights import ModelSource

from .asking import TICKET, ask, story
from .conftest import calm, needs
from .tiny import tiny_llama

FREE_SECONDS = 20.0
CANVAS = Read((1, 2, 3), (SlotPosition(1, (7, 5)), SlotPosition(3, (5, 9))), (20, 99, 21, 98, 22, 0, 0, 0))


@dataclass
class Flat:
    """A reply's log-probabilities, as vLLM lays them out."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, **row: float) -> Flat:
        """One more position; names are token ids with a t before."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids += [int(name[1:]) for name in row]
        self.logprobs += row.values()
        self.end_indices.append(len(self.token_ids))
        return self


def reply(flat: Flat | None, cached: int | None = 0) -> Any:
    return SimpleNamespace(outputs=[SimpleNamespace(logprobs=flat)], num_cached_tokens=cached)


def test_a_reply_is_read_by_position_and_by_label_and_not_by_order() -> None:
    flat = Flat().add(t1=-9.0).add(t99=-1.0, t5=-2.0, t7=-3.0, t9=-4.0).add(t1=-9.0).add(t5=-5.0, t7=-6.0, t9=-7.0)

    assert Readout(((-3.0, -2.0), (-5.0, -7.0)), 32) == readout(CANVAS, reply(flat, 32))


@pytest.mark.parametrize(
    "flat",
    [
        None,
        Flat(),
        Flat().add(t1=-9.0).add(t5=-2.0, t7=-3.0),
        Flat().add(t1=-9.0).add(t5=-2.0, t7=-3.0).add().add(t5=-1.0),
        Flat().add(t1=-9.0).add(t5=-2.0, t7=float("nan")).add().add(t5=-1.0, t9=-2.0),
    ],
    ids=["nothing", "no position", "no second slot", "no second label", "not finite"],
)
def test_what_a_reply_lacks_is_never_guessed(flat: Flat | None) -> None:
    with pytest.raises(MalformedReadout):
        check_readout(CANVAS, readout(CANVAS, reply(flat, None)))


def test_a_canvas_is_sent_as_it_is_and_only_read() -> None:
    assert {
        "diffusion_seed_canvas": [20, 99, 21, 98, 22, 0, 0, 0],
        "diffusion_canvas_length": 8,
        "diffusion_max_steps": 1,
        "diffusion_read_only": True,
    } == canvas_arguments(CANVAS)


def test_everything_but_the_slots_is_held_where_there_are_more_steps() -> None:
    read = Read(CANVAS.prompt, CANVAS.slots, CANVAS.canvas, steps=3)

    assert [0, 2, 4, 5, 6, 7] == canvas_arguments(read)["diffusion_pinned"]


def model_config(**fields: Any) -> Any:
    return SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=1000), **fields)


def test_the_model_caps_context_and_canvas_and_extra_arguments_win() -> None:
    config = model_config(canvas_length=64)
    options = VllmOptions(canvas=128, attention="TRITON_ATTN", text_only=True, extra={"max_num_seqs": 7, "seed": 1})
    arguments = engine_arguments(config, options, canvas=True, on_cpu=False)

    assert 1000 == arguments["max_model_len"]
    assert {"canvas_length": 64} == arguments["diffusion_config"]
    assert 7 == arguments["max_num_seqs"]
    assert 1 == arguments["seed"]
    assert "TRITON_ATTN" == arguments["attention_backend"]
    assert 0.85 == arguments["gpu_memory_utilization"]
    assert arguments["language_model_only"]
    assert "auto" == arguments["dtype"]


def test_graphs_cover_every_step_of_a_canvas_model_within_an_eighth() -> None:
    graphs = engine_arguments(model_config(canvas_length=64), VllmOptions(eager=False), canvas=True, on_cpu=False)
    sizes = graphs["compilation_config"]["cudagraph_capture_sizes"]

    assert sorted(set(sizes)) == sizes
    assert LARGEST_STEP == sizes[-1]
    for step in range(64, LARGEST_STEP + 1):
        assert min(size for size in sizes if size >= step) <= step * 9 / 8

    eager = engine_arguments(model_config(canvas_length=64), VllmOptions(eager=True), canvas=True, on_cpu=False)
    assert "compilation_config" not in eager


def test_a_cpu_reads_eagerly_in_float32_with_small_blocks() -> None:
    arguments = engine_arguments(model_config(), VllmOptions(context=500, eager=False), canvas=False, on_cpu=True)

    assert ("float32", True, 32, 500) == tuple(
        arguments[name] for name in ("dtype", "enforce_eager", "block_size", "max_model_len")
    )
    assert "gpu_memory_utilization" not in arguments
    assert "diffusion_config" not in arguments


def test_the_environment_is_completed_and_not_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*adapter.ENVIRONMENT, *adapter.CPU_ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    adapter.prepare_environment(on_cpu=False)

    assert "DEBUG" == os.environ["VLLM_LOGGING_LEVEL"]
    assert "1" == os.environ["VLLM_NO_USAGE_STATS"]
    assert "TORCH_COMPILE_DISABLE" not in os.environ

    adapter.prepare_environment(on_cpu=True)
    assert "1" == os.environ["TORCH_COMPILE_DISABLE"]


@pytest.mark.model
@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(600)
class TestWithTheModel:
    async def test_a_cancelled_read_leaves_nothing_in_the_engine(self, vllm: VllmEngine) -> None:
        for wait in (0.0, 0.001, 0.05):
            many = [read for number in range(12) for read in ask(vllm, story(number, 40), [number])]
            call = asyncio.ensure_future(vllm.read(many, TICKET))
            await asyncio.sleep(wait)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

            assert 0 == vllm._llm.get_num_unfinished_requests()
            await free(vllm)

    async def test_more_steps_are_refused_without_a_canvas(self, vllm: VllmEngine) -> None:
        [read] = ask(vllm, story(1), [0])
        with pytest.raises(UnsupportedFeature):
            await vllm.read([Read(read.prompt, read.slots, steps=2)], TICKET)

        assert 0 == vllm._llm.get_num_unfinished_requests()

    async def test_a_prompt_that_is_too_long_after_all_is_refused_and_not_cut(self, vllm: VllmEngine) -> None:
        token = vllm.tokenizer.turn_close
        with pytest.raises(EngineError, match="maximum model length"):
            await vllm.read([Read((token,) * (vllm.limits.context + 1), (SlotPosition(0, (token,)),))], TICKET)

    async def test_more_reads_than_the_engine_works_on_at_once_wait_in_it(self, vllm: VllmEngine) -> None:
        reads = ask(vllm, story(2, 1), range(vllm.limits.reads + 3))

        assert len(reads) == len(await vllm.read(reads, TICKET))


async def free(engine: VllmEngine) -> None:
    """Return once no read holds any memory in the engine core, which finishes the step that it has begun."""
    deadline = time.monotonic() + FREE_SECONDS
    while not await engine._llm.reset_prefix_cache():
        assert time.monotonic() < deadline, "the engine core still works on cancelled reads"
        await asyncio.sleep(0.01)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_dead_core_is_told_and_leaves_no_process(tmp_path: Any) -> None:
    """One engine for all of an engine's end, as each start takes seconds."""
    needs("torch", "transformers", "vllm")
    others = set(multiprocessing.active_children())
    with calm():
        source = ModelSource(str(tiny_llama(tmp_path, head_dim=32)), "tiny")
        engine = await VllmEngine.open(source, VllmOptions(context=512))
    [core] = set(multiprocessing.active_children()) - others
    reads = ask(engine, story(1, 2), range(3))
    assert 3 == len(await engine.read(reads, TICKET))

    assert core.pid
    os.kill(core.pid, signal.SIGSTOP)
    call = asyncio.ensure_future(engine.read(reads, TICKET))
    await asyncio.sleep(0.1)
    os.kill(core.pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailable):
        await call
    assert not (await engine.health()).alive
    with pytest.raises(EngineUnavailable):
        await engine.read(reads, TICKET)

    await engine.close()
    await engine.close()
    assert "closed" == (await engine.health()).detail
    assert others == set(multiprocessing.active_children())
    assert engine._tether.poll() is not None


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_a_model_that_vllm_cannot_serve_is_named(tmp_path: Any) -> None:
    needs("torch", "transformers", "vllm")
    with calm(), pytest.raises(EngineUnavailable, match=str(tmp_path)):
        await VllmEngine.open(ModelSource(str(tmp_path), "nothing"))


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_a_vllm_that_cannot_read_canvases_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("vllm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with calm(), pytest.raises(EngineUnavailable, match="seeded canvas"):
        adapter.check_capabilities(DIFFUSION_GEMMA)
