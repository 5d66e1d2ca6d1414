"""The production engine: vLLM's `AsyncLLM` in this process, with its engine core in a process of its own.

One code path for vLLM on a GPU and for its CPU build. A model is read at its next token, or, where the architecture
is DiffusionGemma's, on a seeded canvas in one read-only denoising step. Token ids go in; log-probabilities over the
full vocabulary come out, of the label ids alone. Written against vLLM 0.32.0 and 0.33.0.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import subprocess
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from decisions.errors import EngineError, EngineUnavailable, UnsupportedFeature
from decisions.labels import AnswerForm
from decisions.reads import Cost, EngineLimits, Read, Readout, SlotPosition, Thought, Ticket

from . import EngineHealth, ServedModel
from .forms import family
from .tokenizer import HfTokenizer
from .vllm_start import Loaded, VllmOptions, has_gpu, load, silent
from .warm_up import warm_up
from .weights import ModelSource, Progress, choose, resolve

if TYPE_CHECKING:
    from ..config import Settings

AsyncLLM: TypeAlias = Any
"""vLLM's types, which are not there where it is not installed."""
SamplingParams: TypeAlias = Any
RequestOutput: TypeAlias = Any
Asked: TypeAlias = tuple[Sequence[int], SamplingParams]

STOP_SECONDS = 5.0


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
        async with AsyncExitStack() as unless_read:
            unless_read.push_async_callback(engine.close)
            # It also starts the task by which a death of the engine core is noticed.
            await engine.read([shortest_read(engine.tokenizer, engine.limits)], Ticket("first", Cost(1, 1), 0.0))
            if has_gpu():
                await warm_up(engine, progress)
            unless_read.pop_all()
        progress("read once")
        return engine

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        """All reads go to the engine at once, and are awaited in order; what is missing in a reply stays missing.

        Reads of one new state need no first one sent ahead: vLLM registers a block when it schedules it, so of 16
        questions about a new state of 950 tokens all but one found 928 tokens of it. On two busy cores in float32 one
        first, then 15, took 0.87 to 1.03 times as long (medians of 4, four runs): too little for one more round trip.
        """
        outputs = await self._outputs(ticket, [(read.prompt, self._parameters(read)) for read in reads])
        return [readout(read, output) for read, output in zip(reads, outputs, strict=True)]

    async def think(self, thought: Thought, ticket: Ticket) -> tuple[int, ...]:
        """Generated as the model does by itself, on canvases of the served width where it has those.

        No seed can be given for those, so a long thought need not come out the same twice.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        parameters = SamplingParams(
            max_tokens=thought.budget,
            stop_token_ids=list(self.tokenizer.thought_close),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
            **({} if self.limits.canvas else {"temperature": 0.0}),
        )
        [output] = await self._outputs(ticket, [(thought.prompt, parameters)])
        return self.tokenizer.until_control(output.outputs[0].token_ids)

    async def _outputs(self, ticket: Ticket, asked: Sequence[Asked]) -> list[RequestOutput]:
        """What the engine says to prompts with their parameters, all given to it at once."""
        from vllm.exceptions import VLLMError
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._closed:
            raise EngineUnavailable("The engine is closed.")
        try:
            return await self._awaited([f"{ticket.id}-{next(self._numbers)}" for _ in asked], asked)
        except EngineDeadError as fault:
            raise EngineUnavailable("The engine core has died.") from fault
        except (VLLMError, ValueError) as fault:
            raise EngineError(f"The engine refused a read: {fault}") from fault

    async def _awaited(self, names: Sequence[str], asked: Sequence[Asked]) -> list[RequestOutput]:
        from vllm.inputs.engine import tokens_input

        unread = list(names)
        try:
            replies = [
                await self._llm.add_request(name, tokens_input(list(prompt)), parameters)
                for name, (prompt, parameters) in zip(names, asked, strict=True)
            ]
            outputs = []
            for reply in replies:
                outputs.append(await reply.get())
                unread.pop(0)
            return outputs
        finally:
            if unread:
                # By our own names, so that a request that was just being added is found too.
                await asyncio.shield(self._llm.abort(unread))

    def _parameters(self, read: Read) -> SamplingParams:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        common = {
            "logprob_token_ids": list(read.constrained or read.label_ids),
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
    if read.constrained:
        arguments["diffusion_constrained"] = True
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
        settings.constrained,
        settings.extra_args,
    )
    engine = await VllmEngine.open(source, options, progress)
    if settings.served_model_name:
        engine.model = replace(engine.model, name=settings.served_model_name)
    return engine


def find(settings: Settings, progress: Progress) -> ModelSource:
    """The model that the settings ask for."""
    return resolve(choose(settings.model, settings.model_hf, gpu=has_gpu()), settings.model_cache, progress)


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
