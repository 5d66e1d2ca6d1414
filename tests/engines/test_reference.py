"""The reference engine: what it reads equals a plain forward pass, in any company, and it always lets go."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from decisions.canvas import Packer
from decisions.errors import EngineUnavailable, UnsupportedFeature
from decisions.reads import Cost, Read, Readout, SlotPosition, Thought, Ticket, check_readout
from gateway.engines import readers
from gateway.engines.readers import Pass, PlainReader, SharingReader, branch_mask, difference, never, passes
from gateway.engines.reference import ReferenceEngine, ReferenceOptions
from gateway.engines.weights import ModelSource, resolve

from .tiny import tiny_diffusion_gemma, tiny_llama

pytest.importorskip("transformers")

TICKET = Ticket("t", Cost(1, 1), math.inf)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return ModelSource(str(tiny_llama(tmp_path_factory.mktemp("llama"))), "tiny-llama")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return ModelSource(str(tiny_diffusion_gemma(tmp_path_factory.mktemp("gemma"))), "tiny-gemma")


@pytest.fixture
async def engine(llama: ModelSource) -> AsyncIterator[ReferenceEngine]:
    engine = await ReferenceEngine.open(llama)
    yield engine
    await engine.close()


def ask(engine: ReferenceEngine, state: str, questions: int = 1) -> list[Read]:
    """Reads of questions of different lengths about one state."""
    head, tail = engine.tokenizer.frame(("user",)).parts
    shared = head + engine.tokenizer.encode(state)
    slot = SlotPosition(0, engine.tokenizer.encode("ABC"))
    texts = [f"\nWhich? {'very ' * number}{number}" for number in range(questions)]
    return [Read(shared + engine.tokenizer.encode(text) + tail, (slot,), prefix=len(shared)) for text in texts]


def plainly(engine: ReferenceEngine, reads: list[Read]) -> list[Readout]:
    reader: Any = engine._reader
    return PlainReader(reader._model).read(reads, never)


def apart(left: Any, right: Any) -> float:
    """The largest difference in nats."""
    return max(difference(a, b) for a, b in zip(left, right, strict=True))


class Slow:
    """A reader that notes its passes and waits in each until it is let go."""

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.began, self.go = threading.Event(), threading.Event()
        self.fault: Exception | None = None

    def read(self, reads: Any, check: Any) -> list[Readout]:
        for read in reads:
            check()
            self.passes.append(read.prompt[0])
            self.began.set()
            self.go.wait(5)
            if self.fault:
                raise self.fault
        return [Readout(((-1.0,),)) for _ in reads]


def numbered(number: int, count: int = 1) -> list[Read]:
    return [Read((number, 0), (SlotPosition(0, (1,)),))] * count


@pytest.fixture
async def slow(engine: ReferenceEngine) -> AsyncIterator[Slow]:
    reader = Slow()
    engine._reader = reader
    yield reader
    reader.go.set()


@pytest.mark.parametrize("length", [3, 400, 1300])
async def test_reads_off_a_shared_prefix_equal_plain_ones(engine: ReferenceEngine, length: int) -> None:
    assert isinstance(engine._reader, SharingReader)
    reads = ask(engine, "x" * length, questions=12)

    assert apart(plainly(engine, reads), await engine.read(reads, TICKET)) < 1e-4


async def test_an_answer_does_not_depend_on_the_company_it_is_read_in(engine: ReferenceEngine) -> None:
    reads = [read for state in ("red" * 9, "green" * 90, "blue" * 200) for read in ask(engine, state, questions=7)]
    together = await engine.read(reads, TICKET)
    alone = await asyncio.gather(*(engine.read([read], TICKET) for read in reversed(reads)))

    assert apart(together, [one for (one,) in reversed(alone)]) < 1e-4


async def test_the_prefix_is_computed_once_and_still_there_in_the_next_round(engine: ReferenceEngine) -> None:
    reads = ask(engine, "state" * 30, questions=3)
    first, again = await engine.read(reads, TICKET), await engine.read(reads, TICKET)

    assert [readout.cached_tokens for readout in first] == [0, reads[0].prefix, reads[0].prefix]
    assert {readout.cached_tokens for readout in again} == {reads[0].prefix}
    assert apart(first, again) < 1e-4


async def test_remembered_prefixes_do_not_pile_up(engine: ReferenceEngine) -> None:
    for number in range(40):
        await engine.read(ask(engine, f"{number} " * 60), TICKET)
    reader: Any = engine._reader

    assert sum(map(len, reader._caches)) <= engine.limits.context


async def test_log_probabilities_are_over_the_full_vocabulary(engine: ReferenceEngine) -> None:
    (read,) = ask(engine, "state")
    everything = Read(read.prompt, (SlotPosition(0, tuple(range(engine.tokenizer.vocabulary))),))
    (readout,) = await engine.read([everything], TICKET)

    assert math.fsum(map(math.exp, readout.logprobs[0])) == pytest.approx(1, abs=1e-5)


async def test_a_sliding_window_inside_the_context_rules_sharing_out(llama: ModelSource, engine: Any) -> None:
    model = engine._reader._model
    model.config.sliding_window = 100
    sample = engine.tokenizer.encode("abc def " * 10)

    assert isinstance(readers.next_token_reader(model, 2048, sample), PlainReader)
    assert isinstance(readers.next_token_reader(model, 100, sample), SharingReader)


async def test_labels_are_proved_with_the_models_own_form(engine: ReferenceEngine) -> None:
    assert (engine.limits.canvas, engine.limits.slots) == (0, 1)
    assert "az" in Packer(engine.tokenizer, engine.limits, engine.form).alphabets


async def test_calls_are_served_in_the_order_of_their_arrival(engine: ReferenceEngine, slow: Slow) -> None:
    calls = [asyncio.create_task(engine.read(numbered(number, 2), TICKET)) for number in range(3)]
    await asyncio.sleep(0)
    slow.go.set()
    await asyncio.gather(*calls)

    assert slow.passes == [0, 0, 1, 1, 2, 2]


async def test_a_cancelled_call_stops_at_its_next_pass_and_frees_the_worker(engine: Any, slow: Slow) -> None:
    running = asyncio.create_task(engine.read(numbered(1, 100), TICKET))
    waiting = asyncio.create_task(engine.read(numbered(2), TICKET))
    await asyncio.to_thread(slow.began.wait, 5)
    running.cancel()
    waiting.cancel()
    await asyncio.wait([running, waiting])
    slow.go.set()
    await engine.read(numbered(3), TICKET)

    assert slow.passes == [1, 3]
    assert running.cancelled()


async def test_the_event_loop_runs_on_while_the_model_works(engine: ReferenceEngine, slow: Slow) -> None:
    call = asyncio.create_task(engine.read(numbered(1), TICKET))
    await asyncio.sleep(0.01)

    assert not call.done()
    slow.go.set()
    await call


@pytest.mark.parametrize("fault", [RuntimeError("out of memory"), MemoryError(), ValueError("shape")])
async def test_a_failed_pass_is_an_unavailable_engine_until_a_read_works_again(
    engine: ReferenceEngine, slow: Slow, fault: Exception
) -> None:
    slow.go.set()
    slow.fault = fault
    with pytest.raises(EngineUnavailable, match=type(fault).__name__):
        await engine.read(numbered(1), TICKET)
    assert not (await engine.health()).alive

    slow.fault = None
    assert (await engine.health()).alive


async def test_closing_gives_up_what_runs_and_what_waits(engine: ReferenceEngine, slow: Slow) -> None:
    calls = [asyncio.create_task(engine.read(numbered(number, 50), TICKET)) for number in range(3)]
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0.01)
    slow.go.set()
    await closing

    for call in calls:
        with pytest.raises(EngineUnavailable):
            await call
    assert len(slow.passes) == 1
    assert not (await engine.health()).alive
    with pytest.raises(EngineUnavailable):
        await engine.read(numbered(1), TICKET)


async def test_a_canvas_is_read_as_transformers_reads_it(gemma: ModelSource) -> None:
    import torch

    engine = await ReferenceEngine.open(gemma)
    (prompt,) = (read.prompt for read in ask(engine, "refund"))
    slots = (SlotPosition(0, (12, 13, 14)), SlotPosition(7, (15, 16)))
    read = Read(prompt, slots, canvas=tuple(range(20, 36)))
    readouts = await engine.read([read, read], TICKET)
    reader: Any = engine._reader
    with torch.inference_mode():
        ids, canvas = torch.tensor([read.prompt]), torch.tensor([read.canvas])
        rows = reader._model(input_ids=ids, decoder_input_ids=canvas).logits[0].log_softmax(-1)
    await engine.close()

    check_readout(read, readouts[0])
    assert engine.limits.canvas == 32
    assert readouts[0] == readouts[1]
    assert readouts[0].logprobs[1] == pytest.approx(rows[7, [15, 16]].tolist(), abs=1e-6)


async def test_a_canvas_prompt_ends_with_an_empty_thought_block_and_holds_several_slots(gemma: ModelSource) -> None:
    engine = await ReferenceEngine.open(gemma, ReferenceOptions(canvas=16))
    tail = engine.tokenizer.decode(engine.tokenizer.frame(("user",)).parts[-1])
    packer = Packer(engine.tokenizer, engine.limits, engine.form)
    await engine.close()

    assert tail.endswith("<|turn>model\n<|channel>thought\n<channel|>")
    assert (engine.limits.canvas, engine.limits.slots) == (16, 16)
    assert "az" in packer.alphabets


async def test_more_than_one_step_is_refused(engine: ReferenceEngine) -> None:
    with pytest.raises(UnsupportedFeature):
        await engine.read([Read((1, 2), (SlotPosition(0, (1,)),), steps=2)], TICKET)


async def test_a_model_of_next_tokens_does_not_think(engine: ReferenceEngine) -> None:
    assert not engine.limits.thinks
    with pytest.raises(UnsupportedFeature):
        await engine.think(Thought((1, 2), 5), TICKET)


async def test_a_model_that_does_not_load_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(EngineUnavailable, match=tmp_path.name):
        await ReferenceEngine.open(ModelSource(str(tmp_path), "broken"))


@pytest.mark.parametrize(
    ("stem", "branches", "expected"),
    [
        (3, [2, 2], [Pass(3, (0, 1))]),
        (25, [2, 2], [Pass(10, ()), Pass(10, ()), Pass(5, (0, 1))]),
        (9, [2, 2], [Pass(9, ()), Pass(0, (0, 1))]),
        (0, [30, 2, 9], [Pass(0, (0,)), Pass(0, (1,)), Pass(0, (2,))]),
        (10, [6, 6], [Pass(10, ()), Pass(0, (0,)), Pass(0, (1,))]),
    ],
)
def test_passes_fill_chunks_and_never_split_a_branch(stem: int, branches: list[int], expected: list[Pass]) -> None:
    assert list(passes(stem, branches, chunk=10)) == expected


def test_a_branch_sees_the_prefix_and_itself_alone() -> None:
    rows = ["".join("x" if seen else "." for seen in row) for row in branch_mask(1, [1, 2, 1])[0, 0].tolist()]

    assert rows == ["xx...", "xxx..", "xxxx.", "xx..x"]


@pytest.fixture
def demonstration() -> ModelSource:
    return resolve("", Path("~/.cache/canvasgate").expanduser(), print)


@pytest.mark.model
@pytest.mark.timeout(600)
async def test_the_demonstration_model_answers_alike_alone_and_among_others(demonstration: ModelSource) -> None:
    engine = await ReferenceEngine.open(demonstration)
    reads = ask(engine, "I was charged twice for my renewal. Please refund one payment. " * 12, questions=4)
    together = await engine.read(reads, TICKET)
    alone = [(await engine.read([read], TICKET))[0] for read in reads[:2]]
    await engine.close()

    assert apart(together[:2], alone) < 1e-4
    assert apart(together[2:], plainly(engine, reads[2:])) < 1e-4
