"""Reads through a transformers model: plain, off a shared prefix, or on a canvas. Synchronous; needs torch.

Reads of one prefix compute it once: its keys and values stay in a cache, and the reads' own tokens branch off it,
several in one pass, under a mask that hides them from one another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from decisions.reads import Read, Readout, SlotPosition

if TYPE_CHECKING:
    import torch

Model: TypeAlias = Any
"""A transformers model, and ..."""
Cache: TypeAlias = Any
"""... its key/value cache: both without types that hold without transformers installed."""
Check = Callable[[], None]

CPU_CHUNK, GPU_CHUNK = 512, 4096
"""Tokens of one pass: what a cancelled call may still cost (about 0.5 s on two cores for 135 M parameters)."""
AGREEMENT, AGREEMENT_ROUNDED = 1e-3, 0.2
"""Nats by which shared reads may differ from plain ones in the trial at the start: in float32, in 16 bits."""
FAULTS = (RuntimeError, MemoryError, ArithmeticError, LookupError, TypeError, ValueError, OSError)
"""What torch and transformers raise; torch's own errors, out of memory among them, are RuntimeErrors."""


class Reader(Protocol):
    """A loaded model. `check` is called before every pass and raises when the call was given up."""

    def read(self, reads: Sequence[Read], check: Check) -> list[Readout]:
        """The readouts, in the reads' order."""


def never() -> None:
    """A check for work that nobody gives up."""


def label_row(logits: torch.Tensor, labels: Sequence[int]) -> tuple[float, ...]:
    """Log-probabilities (nats) of these ids over the full vocabulary, from one row of logits, in float32."""
    row = logits.float()
    return tuple((row[list(labels)] - row.logsumexp(-1)).tolist())


class CanvasReader:
    """One denoising step of a DiffusionGemma per read; the canvas is only read, never written.

    A thought is written by the model's own `generate`, canvas after canvas.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def read(self, reads: Sequence[Read], check: Check) -> list[Readout]:
        """The readouts, a pass per read."""
        import torch

        readouts = []
        with torch.inference_mode():
            for read in reads:
                check()
                prompt = torch.tensor([read.prompt], device=self._model.device)
                canvas = torch.tensor([read.canvas], device=self._model.device)
                logits = self._model(input_ids=prompt, decoder_input_ids=canvas).logits[0]
                rows = tuple(label_row(logits[slot.position], slot.label_ids) for slot in read.slots)
                readouts.append(Readout(rows))
        return readouts

    def think(self, prompt: tuple[int, ...], budget: int, close: Sequence[int], check: Check) -> tuple[int, ...]:
        """At most `budget` tokens; one that closes a thought may be among them, and more behind it.

        The noise is seeded by the prompt, so that equal prompts get equal thoughts. `check` is called at every step.
        """
        import torch
        from transformers import LogitsProcessorList

        def at_each_step(_: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            check()
            return logits

        with torch.inference_mode(), torch.random.fork_rng():
            torch.manual_seed(hash(prompt))
            written = self._model.generate(
                torch.tensor([prompt], device=self._model.device),
                max_new_tokens=budget,
                max_length=len(prompt) + budget,
                eos_token_id=list(close),
                logits_processor=LogitsProcessorList([at_each_step]),
                return_dict_in_generate=False,
            )
        return tuple(written[0, len(prompt) :].tolist()[:budget])


class PlainReader:
    """Next-token reads the plain way, a whole prompt a pass: right for any model, and the measure of the others."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def read(self, reads: Sequence[Read], check: Check) -> list[Readout]:
        """The readouts, a pass per read."""
        import torch

        readouts = []
        with torch.inference_mode():
            for read in reads:
                check()
                prompt = torch.tensor([read.prompt], device=self._model.device)
                logits = self._model(input_ids=prompt, use_cache=False, logits_to_keep=1).logits[0, -1]
                readouts.append(Readout((label_row(logits, read.slots[0].label_ids),)))
        return readouts


def next_token_reader(model: Model, context: int, sample: tuple[int, ...]) -> Reader:
    """A reader that shares prefixes if that is proved right for this model, else the plain one.

    `sample` is ordinary text of at least 40 tokens. Our own mask replaces the model's, so a sliding window that is
    narrower than the context rules sharing out.
    """
    plain = PlainReader(model)
    text = model.config.get_text_config()
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    if window and window < context:
        return plain
    # Passes so short that cut prefixes, branches beside prefixes and branches alone all occur.
    trial = SharingReader(model, 16, 0)
    reads = [Read(sample[: 25 + length], (SlotPosition(0, sample[:4]),), prefix=25) for length in (3, 4, 5, 6, 15)]
    try:
        shared = trial.read(reads, never)
    except FAULTS:
        return plain
    apart = max(difference(a, b) for a, b in zip(shared, plain.read(reads, never), strict=True))
    exact = str(model.dtype) == "torch.float32"
    if apart > (AGREEMENT if exact else AGREEMENT_ROUNDED):
        return plain
    return SharingReader(model, CPU_CHUNK if model.device.type == "cpu" else GPU_CHUNK, context)


def difference(left: Readout, right: Readout) -> float:
    """The largest difference in nats between two readouts of one read."""
    pairs = zip(left.logprobs, right.logprobs, strict=True)
    return max(abs(a - b) for rows in pairs for a, b in zip(*rows, strict=True))


@dataclass(frozen=True, slots=True)
class Pass:
    """What goes through the model together: more tokens of the prefix (`stem` counts them), and whole branches."""

    stem: int
    branches: tuple[int, ...]


def passes(stem: int, branches: Sequence[int], chunk: int) -> Iterator[Pass]:
    """Passes of at most `chunk` tokens for `stem` tokens of a prefix and branches of these lengths, in order.

    A branch that is longer than a chunk gets a pass of its own.
    """
    while stem > chunk:
        yield Pass(chunk, ())
        stem -= chunk
    used, members = stem, list[int]()
    for index, length in enumerate(branches):
        if used and used + length > chunk:
            yield Pass(stem, tuple(members))
            stem, used, members = 0, 0, []
        members.append(index)
        used += length
    yield Pass(stem, tuple(members))


class SharingReader:
    """Next-token reads of models whose cache can be branched: a prefix that reads share is computed once.

    Prefixes of up to `kept` tokens in all are remembered, those last used longest, so that the next round of a
    request finds its state computed.
    """

    def __init__(self, model: Model, chunk: int, kept: int) -> None:
        self._model = model
        self._chunk = chunk
        self._kept = kept
        self._caches: OrderedDict[tuple[int, ...], Cache] = OrderedDict()

    def read(self, reads: Sequence[Read], check: Check) -> list[Readout]:
        """The readouts; reads with one prefix are computed together."""
        import torch

        groups: dict[tuple[int, ...], list[int]] = {}
        for index, read in enumerate(reads):
            # A read needs a token of its own, from which its answer is read.
            prefix = read.prompt[: min(read.prefix, len(read.prompt) - 1)]
            groups.setdefault(prefix, []).append(index)
        readouts: dict[int, Readout] = {}
        with torch.inference_mode():
            for prefix, members in groups.items():
                found = self._read_group(prefix, [reads[index] for index in members], check)
                readouts.update(zip(members, found, strict=True))
        return [readouts[index] for index in range(len(reads))]

    def _read_group(self, prefix: tuple[int, ...], reads: list[Read], check: Check) -> list[Readout]:
        cache, known = self._recall(prefix)
        branches = [read.prompt[len(prefix) :] for read in reads]
        readouts: list[Readout] = []
        done = known
        for part in passes(len(prefix) - known, [len(branch) for branch in branches], self._chunk):
            stem = prefix[done : done + part.stem]
            done += part.stem
            logits = self._pass(cache, stem, [branches[index] for index in part.branches], check)
            for index, row in zip(part.branches, logits, strict=False):  # a bare stem gives a row nobody asked for
                shares = label_row(row, reads[index].slots[0].label_ids)
                readouts.append(Readout((shares,), len(prefix) if index else known))
        self._remember(prefix, cache)
        return readouts

    def _recall(self, prefix: tuple[int, ...]) -> tuple[Cache, int]:
        """The cache of a prefix and the tokens it holds: all or none of them."""
        from transformers import DynamicCache

        # Taken out while it is at work, so that a pass that fails half way leaves no broken cache behind.
        cache = self._caches.pop(prefix, None)
        return (DynamicCache(), 0) if cache is None else (cache, len(prefix))

    def _remember(self, prefix: tuple[int, ...], cache: Cache) -> None:
        if prefix:
            self._caches[prefix] = cache
        # A cropped cache keeps the memory of the pass before it: up to a chunk more than its prefix.
        while sum(len(held) + self._chunk for held in self._caches) > self._kept + self._chunk:
            self._caches.popitem(last=False)

    def _pass(
        self,
        cache: Cache,
        stem: tuple[int, ...],
        branches: list[tuple[int, ...]],
        check: Check,
    ) -> torch.Tensor:
        """A row of logits behind each branch; the cache then holds the stem too, and no branch."""
        tokens = sum(map(len, branches))
        if len(branches) > 1:
            check()
            logits = self._branched(cache, stem, branches)
        else:
            logits = self._straight(cache, stem + (branches[0] if branches else ()), check)
        if tokens:
            cache.crop(-tokens)
        return logits

    def _straight(self, cache: Cache, ids: tuple[int, ...], check: Check) -> torch.Tensor:
        """Tokens one behind the other, cut into chunks where there are many."""
        cuts = range(0, len(ids), self._chunk)
        for start in cuts[:-1]:
            check()
            self._forward(cache, ids[start : start + self._chunk], logits_to_keep=1)
        check()
        return self._forward(cache, ids[cuts[-1] :], logits_to_keep=1)

    def _branched(self, cache: Cache, stem: tuple[int, ...], branches: list[tuple[int, ...]]) -> torch.Tensor:
        """Several branches side by side: each sees the cache, the stem and itself, and counts positions from there."""
        import torch

        known = cache.get_seq_length()
        root = known + len(stem)
        positions = [*range(known, root)]
        ids, ends = stem, []
        for branch in branches:
            positions += range(root, root + len(branch))
            ids += branch
            ends.append(len(ids) - 1)
        return self._forward(
            cache,
            ids,
            position_ids=torch.tensor([positions], device=self._model.device),
            attention_mask=self._additive(branch_mask(known, [len(stem), *map(len, branches)])),
            logits_to_keep=torch.tensor(ends, device=self._model.device),
        )

    def _additive(self, seen: torch.Tensor) -> torch.Tensor:
        """A mask as attention adds it; as truth values it would be converted again in every layer."""
        import torch

        hidden = torch.zeros(seen.shape, dtype=self._model.dtype).masked_fill_(~seen, -torch.inf)
        return hidden.to(self._model.device)

    def _forward(self, cache: Cache, ids: tuple[int, ...], **settings: Any) -> torch.Tensor:
        import torch

        input_ids = torch.tensor([ids], device=self._model.device)
        logits: torch.Tensor = self._model(
            input_ids=input_ids, past_key_values=cache, use_cache=True, **settings
        ).logits
        return logits[0]


def branch_mask(known: int, lengths: list[int]) -> torch.Tensor:
    """Which earlier token each token sees: all that are known, all of the first part, and its own part."""
    import torch

    parts = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (parts[:, None] == parts[None, :]) | (parts[None, :] == 0)
    before = torch.ones(len(parts), known, dtype=torch.bool)
    return torch.cat([before, seen.tril()], dim=1)[None, None]
