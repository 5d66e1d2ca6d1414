"""The served model's Hugging Face tokenizer, made safe: no text of a caller can become a control token.

Two tokenizers are derived from the model's own. The *framing* one knows the control tokens and reads the chat
template, which is ours. The *plain* one has forgotten them, as added tokens and as results of merges, and reads all
other text. Both add no space before a text, so that the ids of pieces may be joined.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decisions.errors import UnfitTokenizer
from decisions.reads import ChatFrame

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerBase

SENTINEL = "canvasgate{}content"
"""Stands for a message's content while the chat template is rendered; letters only, so that no template trims it."""
FOLDED = "\n\n"
"""Between system and user text where a template knows no system role."""


class HfTokenizer:
    """`decisions.reads.Tokenizer` over a Hugging Face fast tokenizer."""

    def __init__(self, source: PreTrainedTokenizerBase, empty_thought: str = "") -> None:
        """`empty_thought` is put behind the opened turn of the model; see `forms.Family`.

        Raises `UnfitTokenizer` where the tokenizer cannot be made safe, or has no chat template.
        """
        backend: Backend | None = getattr(source, "backend_tokenizer", None)
        if backend is None or not getattr(source, "chat_template", None):
            raise UnfitTokenizer(
                "The model needs a fast tokenizer and a chat template: serve an instruction-tuned model."
            )
        state = unspaced(json.loads(backend.to_str()))
        self._source = source
        self._framing = backend_of(state)
        self._control = control_tokens(state)
        self._control_ids = frozenset(self._control.values())
        self._plain = backend_of(without_control(state, {*self._control_ids}))
        self._vocabulary = max(self._framing.get_vocab(with_added_tokens=True).values()) + 1
        self._prove_safe()
        self._thought = self._encode_thought(empty_thought)
        self._turn_close = self._find_turn_close()

    @classmethod
    def open(cls, model: str, *, empty_thought: str = "", revision: str | None = None) -> HfTokenizer:
        """The tokenizer of a model folder or hub id."""
        from transformers import AutoTokenizer

        try:
            source = AutoTokenizer.from_pretrained(model, revision=revision)
        except (OSError, ValueError) as fault:
            raise UnfitTokenizer(f"The tokenizer of {model} does not load: {fault}") from fault
        return cls(source, empty_thought)

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the tokenizer knows; the model's output rows may be padded beyond it."""
        return self._vocabulary

    @property
    def turn_close(self) -> int:
        """The control token that the chat template puts behind an answer of the model."""
        return self._turn_close

    @property
    def pad(self) -> int:
        """The padding token, or the token that closes a turn where the tokenizer names none."""
        pad = self._source.pad_token_id
        return pad if isinstance(pad, int) else self._turn_close

    @property
    def control(self) -> dict[str, int]:
        """Every token that no text of a caller may become, with its id."""
        return dict(self._control)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of ordinary text. A lone surrogate, which no token can spell, is read as U+FFFD."""
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        # The batch call is the one without offsets and under no interpreter lock; about a seventh faster.
        return tuple(self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self._framing.decode(list(ids), skip_special_tokens=False)

    @property
    def thought_close(self) -> tuple[int, ...]:
        """The control token that ends a thought block; none where the model's family has no such block."""
        return self._thought[-1:]

    def until_control(self, ids: Sequence[int]) -> tuple[int, ...]:
        """What a model wrote, up to the first control token."""
        return tuple(itertools.takewhile(lambda token: token not in self._control_ids, ids))

    def frame(self, roles: tuple[str, ...], *, thinking: bool = False) -> ChatFrame:
        """The chat template around messages of these roles, the model's turn opened, with its thought block.

        The block is empty and closed, or with `thinking` only opened, and the template is told to switch thinking on.

        What a template adds of its own accord stays: SmolLM2's default system prompt is part of what it was trained
        on. Where a template refuses the system role, or drops its text, that text opens the user's turn instead.
        """
        sentinels = [SENTINEL.format(number) for number in range(len(roles))]
        parts = self._split(list(zip(roles, sentinels, strict=True)), sentinels, thinking=thinking)
        if parts is None and roles[:2] == ("system", "user"):
            folded = [("user", FOLDED.join(sentinels[:2])), *zip(roles[2:], sentinels[2:], strict=True)]
            parts = self._split(folded, sentinels, thinking=thinking)
        if parts is None:
            raise UnfitTokenizer(f"The model's chat template does not hold messages of the roles {', '.join(roles)}.")
        ids = [self._encode_frame(part) for part in parts]
        block = self._thought[:-1] if thinking else self._thought
        if not ends_with(ids[-1], block):
            ids[-1] += block
        return ChatFrame(tuple(ids))

    def _split(
        self, messages: list[tuple[str, str]], sentinels: list[str], *, opened: bool = True, thinking: bool = False
    ) -> list[str] | None:
        """The rendered template cut at its sentinels, or None where it refuses or loses one."""
        from jinja2.exceptions import TemplateError

        try:
            rendered = self._source.apply_chat_template(
                [{"role": role, "content": content} for role, content in messages],
                tokenize=False,
                add_generation_prompt=opened,
                enable_thinking=thinking,
            )
        except TemplateError:
            return None
        rest, parts = str(rendered), []
        for sentinel in sentinels:
            part, found, rest = rest.partition(sentinel)
            if not found or sentinel in rest:
                return None
            parts.append(part)
        return [*parts, rest]

    def _encode_frame(self, text: str) -> tuple[int, ...]:
        return tuple(self._framing.encode(text, add_special_tokens=False).ids)

    def _encode_thought(self, text: str) -> tuple[int, ...]:
        """The empty thought block, proved to open and close with control tokens: a wrong tokenizer stops here."""
        ids = self._encode_frame(text) if text else ()
        if ids and not {ids[0], ids[-1]} <= self._control_ids:
            raise UnfitTokenizer(f"The tokenizer does not know the tags of the thought block {text!r}.")
        return ids

    def _find_turn_close(self) -> int:
        sentinels = [SENTINEL.format(number) for number in range(2)]
        parts = self._split([("user", sentinels[0]), ("assistant", sentinels[1])], sentinels, opened=False)
        for token in self._encode_frame(parts[-1]) if parts else ():
            if token in self._control_ids:
                return token
        eos = self._source.eos_token_id
        if not isinstance(eos, int):
            raise UnfitTokenizer("The tokenizer names no token that ends the model's turn.")
        return eos

    def _prove_safe(self) -> None:
        for token in self._control:
            if not self._control_ids.isdisjoint(self.encode(token)):
                raise UnfitTokenizer(f"Text that spells the control token {token!r} would become it.")


def ends_with(ids: tuple[int, ...], tail: tuple[int, ...]) -> bool:
    """Whether `ids` end with `tail`."""
    return ids[len(ids) - len(tail) :] == tail


def backend_of(state: dict[str, Any]) -> Backend:
    """A tokenizer built from its own JSON form."""
    from tokenizers import Tokenizer as Backend

    return Backend.from_str(json.dumps(state))


def control_tokens(state: dict[str, Any]) -> dict[str, int]:
    """The added tokens that mean something to the model: all but those that are nothing but white space."""
    return {
        token["content"]: token["id"]
        for token in state["added_tokens"]
        if token["special"] or not token["content"].isspace()
    }


def without_control(state: dict[str, Any], control: set[int]) -> dict[str, Any]:
    """The tokenizer without the tokens of these ids: neither matched in a text nor merged from its pieces.

    The token for unknown text stays in the vocabulary, as the model type demands; nothing merges to it.
    """
    model = dict(state["model"])
    if model["type"] == "BPE":
        lost = {piece for piece, token in model["vocab"].items() if token in control}
        model["merges"] = [merge for merge in model["merges"] if lost.isdisjoint(pieces(merge))]
        kept = {*model["vocab"]} - lost | {model.get("unk_token")}
        model["vocab"] = {piece: token for piece, token in model["vocab"].items() if piece in kept}
    elif model["type"] == "Unigram":
        # Ids are positions here, so a piece cannot be taken out: it is renamed to what no caller can guess.
        secret = secrets.token_hex(16)
        model["vocab"] = [
            [secret + piece, score] if token in control and token != model.get("unk_id") else [piece, score]
            for token, (piece, score) in enumerate(model["vocab"])
        ]
    else:
        raise UnfitTokenizer(f"A tokenizer of the type {model['type']} cannot be made safe against control tokens.")
    added = [token for token in state["added_tokens"] if token["id"] not in control]
    return {**state, "model": model, "added_tokens": added, "post_processor": None}


def pieces(merge: str | list[str]) -> tuple[str, str, str]:
    """The two pieces that a merge joins, and the piece that it makes; older files write it as one string."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right


def unspaced(state: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer without the space that some put before every text, and without padding and truncation."""
    spaced = {"prepend_scheme": "never", "add_prefix_space": False}

    def walk(node: Any) -> Any:  # noqa: ANN401 - JSON of any shape
        if isinstance(node, list):
            return [walk(item) for item in node if not (isinstance(item, dict) and item.get("type") == "Prepend")]
        if not isinstance(node, dict):
            return node
        return {key: spaced.get(key, walk(value)) for key, value in node.items()}

    steps = {key: walk(state[key]) for key in ("normalizer", "pre_tokenizer")}
    if isinstance(steps["normalizer"], dict) and steps["normalizer"].get("type") == "Prepend":
        steps["normalizer"] = None
    return {**state, **steps, "truncation": None, "padding": None}
