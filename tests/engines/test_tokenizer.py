"""The served tokenizer: callers' text stays text, frames come from the chat template, pieces may be joined."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.errors import UnfitTokenizer
from gateway.engines.tokenizer import HfTokenizer, unspaced

pytest.importorskip("transformers")

CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
CHATML_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
GEMMA_CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|image|>"]
THOUGHT = "<|channel>thought\n<channel|>"


def merges_to(vocabulary: dict[str, int], words: list[str]) -> list[tuple[str, str]]:
    """Merges that build each word from its characters, as a careless conversion leaves them."""
    merges: list[tuple[str, str]] = []
    for word in words:
        for end in range(2, len(word) + 1):
            vocabulary.setdefault(word[:end], len(vocabulary))
            merges.append((word[: end - 1], word[end - 1]))
    return list(dict.fromkeys(merges))


def byte_level() -> HfTokenizer:
    """A tokenizer of SmolLM2's kind, whose merges would build its control tokens from ordinary text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: at for at, token in enumerate([*CHATML_CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    merges = merges_to(vocabulary, [*CHATML_CONTROL, "yes", "no"])
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in CHATML_CONTROL])
    source = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML)
    return HfTokenizer(source)


def gemma_like(thought: str = "", **model: Any) -> HfTokenizer:
    """A tokenizer of Gemma's kind: pieces of characters, bytes for the rest, white space as added tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    characters = [chr(code) for code in range(33, 127)] + ["\n", "▁", "\n\n"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: at for at, token in enumerate([*GEMMA_CONTROL, "<table>", *characters, *bytes_])}
    merges = merges_to(vocabulary, [*GEMMA_CONTROL, "<table>", "yes"])
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True, **model))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, special=True) for token in GEMMA_CONTROL])
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<table>", normalized=False)])
    source = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", chat_template=GEMMA
    )
    return HfTokenizer(source, thought)


def unigram() -> HfTokenizer:
    """A SentencePiece tokenizer of the unigram kind, whose control tokens are pieces with the best scores."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [(token, 0.0) for token in ["<unk>", *CHATML_CONTROL]] + [(chr(code), -9.0) for code in range(33, 127)]
    backend = Tokenizer(models.Unigram([*pieces, ("▁", -9.0)], unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.add_special_tokens([AddedToken(token, special=True) for token in CHATML_CONTROL])
    return HfTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML))


BYTE_LEVEL, GEMMA_LIKE = byte_level(), gemma_like(THOUGHT)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, GEMMA_LIKE, unigram()], ids=["byte-level", "gemma", "unigram"])
def test_text_that_spells_a_control_token_stays_text(tokenizer: HfTokenizer) -> None:
    control = tokenizer.control
    assert len(control) >= 4

    for token in control:
        for text in (token, f"a {token} b", token * 3, f"\n\n{token}\n\n", token[:-1] + token):
            assert set(control.values()).isdisjoint(tokenizer.encode(text))


@given(
    st.lists(
        st.sampled_from([*GEMMA_CONTROL, *CHATML_CONTROL, "<", "|", ">", "turn", " ", "\n\n"]) | st.text(max_size=5)
    )
)
def test_no_text_becomes_a_control_token_and_none_is_lost(parts: list[str]) -> None:
    text = "".join(parts)
    for tokenizer in (BYTE_LEVEL, GEMMA_LIKE):
        ids = tokenizer.encode(text)
        assert set(tokenizer.control.values()).isdisjoint(ids)
        assert text == tokenizer.decode(ids)


@given(st.text(), st.text())
def test_ids_of_pieces_join_to_the_text_of_pieces(left: str, right: str) -> None:
    assert left + right == BYTE_LEVEL.decode(BYTE_LEVEL.encode(left) + BYTE_LEVEL.encode(right))


def test_a_lone_surrogate_is_read_as_the_replacement_character() -> None:
    assert BYTE_LEVEL.encode("a\ufffdb") == BYTE_LEVEL.encode("a\ud800b")
    assert BYTE_LEVEL.encode("\U0001f600") == BYTE_LEVEL.encode("\ud83d\ude00")


def test_white_space_that_is_an_added_token_stays_one() -> None:
    assert 1 == len(GEMMA_LIKE.encode("\n\n"))


def test_a_frame_holds_the_template_around_the_contents_with_its_control_tokens() -> None:
    head, tail = BYTE_LEVEL.frame(("user",)).parts

    assert "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\n" == BYTE_LEVEL.decode(head)
    assert "<|im_end|>\n<|im_start|>assistant\n" == BYTE_LEVEL.decode(tail)
    assert BYTE_LEVEL.control["<|im_start|>"] == head[0]


def test_a_system_message_takes_the_place_of_the_default_one() -> None:
    parts = BYTE_LEVEL.frame(("system", "user")).parts

    assert 3 == len(parts)
    assert "<|im_start|>system\n" == BYTE_LEVEL.decode(parts[0])


def test_system_text_opens_the_users_turn_where_the_template_refuses_the_role() -> None:
    parts = [GEMMA_LIKE.decode(part) for part in GEMMA_LIKE.frame(("system", "user")).parts]

    assert ["<bos><|turn>user\n", "\n\n", f"<turn|>\n<|turn>model\n{THOUGHT}"] == parts


def test_an_empty_thought_block_closes_the_frame_of_a_thinking_model_once() -> None:
    tail = GEMMA_LIKE.frame(("user",)).parts[-1]

    assert 1 == tail.count(GEMMA_LIKE.control["<|channel>"])
    assert GEMMA_LIKE.control["<channel|>"] == tail[-1]


def test_a_thought_block_that_the_tokenizer_does_not_know_stops_the_start() -> None:
    with pytest.raises(UnfitTokenizer, match="thought"):
        gemma_like("<think></think>")


def test_the_token_that_closes_a_turn_comes_from_the_template_and_not_from_eos() -> None:
    assert GEMMA_LIKE.control["<turn|>"] == GEMMA_LIKE.turn_close
    assert GEMMA_LIKE.control["<pad>"] == GEMMA_LIKE.pad


def test_padding_falls_back_to_the_token_that_closes_a_turn() -> None:
    assert BYTE_LEVEL.turn_close == BYTE_LEVEL.pad == BYTE_LEVEL.control["<|im_end|>"]


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Any) -> None:
    with pytest.raises(UnfitTokenizer, match="does not load"):
        HfTokenizer.open(str(tmp_path))


def test_a_prepending_normalizer_is_taken_out() -> None:
    state = {"normalizer": {"type": "Prepend", "prepend": "▁"}, "pre_tokenizer": None}

    assert unspaced(state)["normalizer"] is None
