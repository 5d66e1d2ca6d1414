"""The same reads as the vLLM engine's, made by a separate `vllm serve` that is reached over HTTP.

One request per read to `/v1/completions`, all at once over one pool of connections: token ids in, log-probabilities of
the label ids out. A call that is cancelled closes its connections, on which the server aborts the reads. Configuration
and tokenizer are read here, so the model's folder or hub id must be at hand; its weights need not be.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from decisions.errors import EngineError, EngineUnavailable, MalformedReadout, UnsupportedFeature
from decisions.labels import AnswerForm
from decisions.reads import Cost, EngineLimits, Read, Readout, SlotPosition, Thought, Ticket, check_readout

from . import EngineHealth, ServedModel
from .forms import DIFFUSION_GEMMA, family
from .tokenizer import HfTokenizer
from .vllm import canvas_arguments
from .vllm_start import READS_AT_ONCE, silent
from .weights import ModelSource, Progress, choose, resolve

if TYPE_CHECKING:
    from ..config import Settings

CONNECT_SECONDS = 5.0
ASK_AGAIN_SECONDS = 0.5
NO_PROBABILITY = -9999.0
"""What vLLM writes for minus infinity, which JSON lacks."""
ID_PREFIX = "token_id:"
"""Before an id where a token's text would stand otherwise."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where the server is and what it was started with.

    `canvas` (tokens) and `reads` are not told by the server: they must not be above its `canvas_length` and should be
    its `max_num_seqs`; `reads` None is the default of the vLLM engine. `constrained` reads canvases over the label ids
    alone, which a server that spreads the model over several GPUs refuses. `key` is its bearer key. `patience` is the
    time in seconds that it may take to be up.
    """

    url: str
    canvas: int = 128
    reads: int | None = None
    constrained: bool = False
    key: str = ""
    patience: float = 600.0


class VllmHttpEngine:
    """Reads with a vLLM server; `open` waits for it and tries it."""

    kind = "vllm_http"

    def __init__(self, client: httpx.AsyncClient, served: Served, limits: EngineLimits) -> None:
        self.model: ServedModel = served.model
        self.limits: EngineLimits = limits
        self.form: AnswerForm = family(served.model.architecture).form
        self.tokenizer: HfTokenizer = served.tokenizer
        self._client = client
        self._name = ""

    @classmethod
    async def open(cls, source: ModelSource, options: HttpOptions, progress: Progress = silent) -> VllmHttpEngine:
        """Wait for the server and prove that it makes our reads; raises an `EngineError` that says why not."""
        served = await asyncio.to_thread(describe, source, progress)
        canvas = served.canvas and min(served.canvas, options.canvas)
        reads = options.reads or READS_AT_ONCE
        async with AsyncExitStack() as unless_proved:
            client = await unless_proved.enter_async_context(client_for(options, reads))
            progress(f"waiting for {options.url}")
            name, context = await wait_for_model(client, options.patience)
            limits = EngineLimits(
                min(context, served.context),
                canvas,
                slots=canvas or 1,
                reads=reads,
                constrained=options.constrained and bool(canvas),
                thinks=bool(served.tokenizer.thought_close),
            )
            engine = cls(client, served, limits)
            engine._name = name
            await engine._prove()
            unless_proved.pop_all()
        return engine

    async def _prove(self) -> None:
        """A read of the widest canvas: a server that ignores or refuses what we send is found at the start."""
        token, other = self.tokenizer.turn_close, self.tokenizer.pad or 1
        width = self.limits.canvas
        last = SlotPosition(width - 1 if width else 0, tuple({token, other}))
        read = Read((token,), (last,), (token,) * width)
        [seen] = await self.read([read], Ticket("first", Cost(1, 1), 0.0))
        try:
            check_readout(read, seen)
        except MalformedReadout as fault:
            raise EngineUnavailable(f"The server does not read label ids; vLLM 0.32.0 does. {fault.message}") from fault

    async def read(self, reads: Sequence[Read], ticket: Ticket) -> Sequence[Readout]:
        """A request per read, all at once; what is missing in a reply stays missing."""
        calls = [asyncio.ensure_future(self._read(read)) for read in reads]
        try:
            return [await call for call in calls]
        finally:
            for call in calls:
                call.cancel()
            # Until they have closed their connections.
            await asyncio.gather(*calls, return_exceptions=True)

    async def think(self, thought: Thought, ticket: Ticket) -> tuple[int, ...]:
        """One completion, ended where the thought's block is closed."""
        asked = {
            "model": self._name,
            "prompt": thought.prompt,
            "max_tokens": thought.budget,
            "stop_token_ids": self.tokenizer.thought_close,
            "return_token_ids": True,
        }
        try:
            ids = orjson.loads(await self._complete(asked))["choices"][0]["token_ids"]
            return self.tokenizer.until_control([int(token) for token in ids])
        except (ValueError, LookupError, TypeError) as fault:
            raise MalformedReadout("The server's reply is no completion with token ids.") from fault

    async def _read(self, read: Read) -> Readout:
        return readout(read, await self._complete(self._request(read)))

    async def _complete(self, request: Mapping[str, Any]) -> bytes:
        """The body of a completion. Raises `EngineUnavailable`, or `EngineError` where the server refuses it."""
        body = orjson.dumps(request)
        try:
            answer = await self._client.post("/v1/completions", content=body)
        except httpx.HTTPError as fault:
            raise EngineUnavailable(f"The vLLM server does not answer: {named(fault)}") from fault
        except RuntimeError as fault:  # httpx's word for a client that was closed
            raise EngineUnavailable("The engine is closed.") from fault
        if answer.status_code >= 500 or answer.status_code == 429:
            raise EngineUnavailable(f"The vLLM server failed at a read: {fault_of(answer)}")
        if answer.status_code != 200:
            raise EngineError(f"The vLLM server refused a read: {fault_of(answer)}")
        return answer.content

    def _request(self, read: Read) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._name,
            "prompt": read.prompt,
            "logprob_token_ids": read.constrained or read.label_ids,
            # The server wants it beside label ids, and does not use it.
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
        }
        if self.limits.canvas:
            last = max(slot.position for slot in read.slots)
            return request | {"max_tokens": last + 1, "vllm_xargs": canvas_arguments(read)}
        if read.steps != 1:
            raise UnsupportedFeature("An autoregressive model reads in one step.")
        return request | {"max_tokens": 1, "temperature": 0}

    async def health(self) -> EngineHealth:
        """Whether the server says that its engine lives."""
        if self._client.is_closed:
            return EngineHealth(alive=False, detail="closed")
        try:
            answer = await self._client.get("/health", timeout=CONNECT_SECONDS)
        except httpx.HTTPError as fault:
            return EngineHealth(alive=False, detail=f"the vLLM server is away: {named(fault)}")
        alive = answer.status_code == 200
        return EngineHealth(alive, "" if alive else f"the vLLM server answers {answer.status_code}")

    async def close(self) -> None:
        """Close all connections; the server lives on."""
        await self._client.aclose()


@dataclass(frozen=True, slots=True)
class Served:
    """What the model's folder tells: `context` and `canvas` in tokens, the latter 0 without canvases."""

    model: ServedModel
    tokenizer: HfTokenizer
    context: int
    canvas: int


def describe(source: ModelSource, progress: Progress) -> Served:
    """Load configuration and tokenizer."""
    progress("loading the tokenizer")
    try:
        from transformers import AutoConfig
    except ImportError as fault:
        raise EngineUnavailable(f"The tokenizer needs `pip install transformers`: {fault}") from fault
    try:
        config = AutoConfig.from_pretrained(source.model)
    except (OSError, ValueError) as fault:
        raise EngineUnavailable(f"The configuration of {source.model} does not load: {fault}") from fault
    architecture = (config.architectures or [""])[0]
    tokenizer = HfTokenizer.open(source.model, empty_thought=family(architecture).empty_thought)
    revision = getattr(config, "_commit_hash", None) or source.revision
    context = getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31
    canvas = config.canvas_length if architecture == DIFFUSION_GEMMA else 0
    return Served(ServedModel(source.name, revision, architecture), tokenizer, context, canvas)


def client_for(options: HttpOptions, reads: int) -> httpx.AsyncClient:
    """A client with a connection for each read at once, and one for its health.

    Reads have no time limit here: whoever waits for them has one, and cancels.
    """
    headers = {"content-type": "application/json"}
    if options.key:
        headers["authorization"] = f"Bearer {options.key}"
    pool = httpx.Limits(max_connections=reads + 1, max_keepalive_connections=reads + 1)
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(base_url=options.url, headers=headers, limits=pool, timeout=timeout, trust_env=False)


async def wait_for_model(client: httpx.AsyncClient, patience: float) -> tuple[str, int]:
    """The name of the first model that the server serves, and its context in tokens."""
    deadline = time.monotonic() + patience
    fault = ""
    while time.monotonic() < deadline:
        try:
            answer = await client.get("/v1/models", timeout=CONNECT_SECONDS)
        except httpx.HTTPError as error:
            fault = named(error)
        else:
            if answer.status_code == 200:
                return first_model(answer.content)
            fault = fault_of(answer)
            if answer.status_code < 500:
                break
        await asyncio.sleep(ASK_AGAIN_SECONDS)
    raise EngineUnavailable(f"The vLLM server at {client.base_url} is not there: {fault}")


def first_model(body: bytes) -> tuple[str, int]:
    """Name and context of the first model in a list of models."""
    try:
        model = orjson.loads(body)["data"][0]
        return str(model["id"]), int(model["max_model_len"])
    except (ValueError, LookupError, TypeError) as fault:
        raise EngineUnavailable("The server's list of models is none of vLLM's.") from fault


def named(fault: Exception) -> str:
    """What went wrong; some of httpx's errors say nothing but their name."""
    return str(fault) or type(fault).__name__


def fault_of(answer: httpx.Response) -> str:
    """What an answer says about why it is none, cut short."""
    return f"{answer.status_code} {answer.text[:500]}"


def readout(read: Read, body: bytes) -> Readout:
    """What a reply says about the read's slots. What it does not say is left out, so that `check_readout` tells."""
    try:
        reply = orjson.loads(body)
        positions: list[Mapping[str, float] | None] = reply["choices"][0]["logprobs"]["top_logprobs"]
        rows = [row_at(positions, slot) for slot in read.slots]
        cached = (reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    except (ValueError, LookupError, TypeError, AttributeError) as fault:
        raise MalformedReadout("The server's reply is no completion with log-probabilities.") from fault
    return Readout(tuple(rows), cached)


def row_at(positions: Sequence[Mapping[str, float] | None], slot: SlotPosition) -> tuple[float, ...]:
    """The log-probabilities (nats) of a slot's labels, as far as they are there."""
    seen = (positions[slot.position] if slot.position < len(positions) else None) or {}
    found = [seen[ID_PREFIX + str(label)] for label in slot.label_ids if ID_PREFIX + str(label) in seen]
    return tuple(value if value > NO_PROBABILITY else -math.inf for value in found)


async def open_vllm_http(settings: Settings, progress: Progress) -> VllmHttpEngine:
    """The engine over HTTP as the settings want it; MODEL names the model that the server serves."""
    if not settings.vllm_url:
        raise EngineUnavailable("ENGINE=vllm_http needs VLLM_URL, the root of a running `vllm serve`.")
    model = choose(settings.model, settings.model_hf, gpu=False)
    source = await asyncio.to_thread(resolve, model, settings.model_cache, progress)
    options = HttpOptions(
        settings.vllm_url, settings.canvas, settings.max_seqs, settings.constrained, settings.vllm_key
    )
    engine = await VllmHttpEngine.open(source, options, progress)
    if settings.served_model_name:
        engine.model = replace(engine.model, name=settings.served_model_name)
    return engine
