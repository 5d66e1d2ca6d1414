"""Rules of `decisions.canvas`: slots are proved, canvases are filled first fit, noise is seeded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decisions.canvas import CANVAS_STEP, Manner, Packer, Placement, prove_line
from decisions.errors import TooManyTokens, UnfitTokenizer
from decisions.labels import DIGITS, LETTERS, AnswerForm
from decisions.protocol import (
    ChoiceQuestion,
    Isolation,
    LabelSet,
    Layout,
    NoulQuestion,
    Option,
    ReadSettings,
    ScoreQuestion,
    SeedToken,
)
from decisions.reads import ChatFrame, EngineLimits, Read, Slot
from gateway.engines.stub import PAD, TURN_CLOSE, StubTokenizer
from tests.decisions.fakes import AUTOREGRESSIVE, CANVAS, asked, planner, prompt_text


class Merging(StubTokenizer):
    """A tokenizer that joins some texts into one token."""

    def __init__(self, **merged: tuple[int, ...]) -> None:
        super().__init__()
        self.merged = merged

    def encode(self, text: str) -> tuple[int, ...]:
        return self.merged.get(text) or super().encode(text)


def nouls(count: int) -> list[NoulQuestion]:
    """Yes/no questions that differ."""
    return [NoulQuestion(id=f"q{index}", instructions=f"Is it {index}?") for index in range(count)]


def reads_of(count: int, limits: EngineLimits = CANVAS, **settings: Any) -> tuple[Read, ...]:
    """The first round of a request with so many yes/no questions."""
    return planner(limits).plan(asked(*nouls(count), isolate=Isolation.NONE, **settings)).next_reads()


def test_a_slot_is_where_only_the_label_changes() -> None:
    """One position, and an id per label."""
    line = prove_line(StubTokenizer(), "1: ", ("yes", "no"))

    assert (line.position, len(line.tokens), len(set(line.label_ids))) == (3, 4, 2)


@pytest.mark.parametrize(
    ("merged", "reason"),
    [
        ({"1: B": (1, 2, 3)}, "not one token"),
        ({"1: B": (49, 58, 32, 66, 66)}, "not one token"),
        ({"1: B": (50, 58, 32, 65)}, "not one token"),
        ({"1: B": (49, 58, 32, 67)}, "share one token"),
    ],
)
def test_a_label_that_is_not_one_distinct_token_is_refused(merged: dict[str, tuple[int, ...]], reason: str) -> None:
    """Fewer tokens, more tokens, another position, or the token of another label."""
    with pytest.raises(UnfitTokenizer, match=reason):
        prove_line(Merging(**merged), "1: ", ("A", "B", "C"))


def test_a_tokenizer_without_single_letters_stops_the_start() -> None:
    """The message names the label."""
    with pytest.raises(UnfitTokenizer, match="'Q'"):
        Packer(Merging(Q=(1, 2)), CANVAS, AnswerForm(space=" "))


def test_an_extended_label_set_that_does_not_fit_is_left_out() -> None:
    """Requests that ask for it are refused; all others are served."""
    packer = Packer(Merging(AB=(1, 2)), CANVAS, AnswerForm(space=" "))

    assert set(packer.alphabets) == {LabelSet.AZ, LabelSet.AZ_LOWER}


def test_a_label_that_is_not_the_last_token_cannot_be_read_next() -> None:
    """An autoregressive model is read at exactly one position."""
    merged = {label: (ord(label[0]), 32) for label in (*LETTERS, *"0123456789")}

    with pytest.raises(UnfitTokenizer, match="not the last token"):
        Packer(Merging(yes=(1, 32), no=(2, 32), **merged), AUTOREGRESSIVE, AnswerForm())


def test_an_answer_is_led_in_up_to_its_label() -> None:
    """What the lead-in splits into goes into the prompt; the label is what the model reads next."""
    packer = Packer(StubTokenizer(), AUTOREGRESSIVE, AnswerForm(lead="Answer:", space=" "))
    plan = planner(AUTOREGRESSIVE)
    plan.packer = packer

    assert prompt_text(plan.plan(asked(*nouls(1))).next_reads()[0]).endswith("<|model>Answer: ")


def test_a_canvas_is_answer_close_and_padding_up_to_a_multiple_of_16() -> None:
    """With noise in the slot and nothing else changed."""
    (read,) = reads_of(1, seed_token=SeedToken.FIXED)

    assert read.canvas == (PAD, TURN_CLOSE, *[PAD] * 14)
    assert (read.slots[0].position, len(read.canvas) % CANVAS_STEP) == (0, 0)


def test_questions_share_as_few_canvases_as_hold_them() -> None:
    """First fit, in request order; every prompt lists exactly its own questions."""
    reads = reads_of(60)

    assert sum(len(read.slots) for read in reads) == 60
    assert len(reads) == 3
    assert [f"Is it {index}?" in prompt_text(reads[0]) for index in (0, 15, 59)] == [True, True, False]
    assert all(len(read.canvas) <= CANVAS.canvas for read in reads)


@pytest.mark.parametrize(
    ("limits", "canvases"),
    [
        (replace(CANVAS, slots=4), 3),
        (replace(CANVAS, canvas=32), 2),
        (replace(CANVAS, label_ids=2), 1),
        (replace(CANVAS, context=220), 4),
    ],
)
def test_every_limit_of_the_engine_is_kept(limits: EngineLimits, canvases: int) -> None:
    """Slots per read, canvas width, label ids, and context."""
    assert len(reads_of(10, limits)) == canvases


def test_label_ids_of_one_read_stay_under_the_engine_s_limit() -> None:
    """fr-002: no label is cut; the read is split."""
    choice = ChoiceQuestion(id="c", options=tuple(Option(f"option {number}") for number in range(26)))
    score = ScoreQuestion(id="s", levels=("a", "b", "c"))
    reads = planner(replace(CANVAS, label_ids=28)).plan(asked(choice, score, *nouls(1))).next_reads()

    assert sorted(len(read.label_ids) for read in reads) == [3, 28]


def test_lone_slots_and_other_orders_and_samples_never_share() -> None:
    """Isolation is a property of the slot; the packer only obeys it."""
    first, second = nouls(2)
    alone = planner().plan(asked(replace(first, alone=True), second)).next_reads()
    sampled = planner().plan(asked(first, second, isolate=Isolation.NONE, samples=3)).next_reads()

    assert [len(read.slots) for read in alone] == [1, 1]
    assert [len(read.slots) for read in sampled] == [2, 2, 2]
    assert len({read.canvas for read in sampled}) == 3
    assert len({read.prompt for read in sampled}) == 1


def test_the_same_request_reads_the_same_canvas() -> None:
    """G10: noise depends on seed, prompt and sample, and on nothing else."""
    assert reads_of(3) == reads_of(3)
    assert reads_of(3)[0].canvas != reads_of(3, seed=7)[0].canvas
    assert (
        reads_of(3)[0].canvas
        != planner().plan(asked(*nouls(3), state="Other.", isolate=Isolation.NONE)).next_reads()[0].canvas
    )


def test_a_prompt_beyond_the_context_tells_its_tokens() -> None:
    """Nothing is truncated."""
    with pytest.raises(TooManyTokens) as caught:
        reads_of(1, replace(CANVAS, context=64))

    assert caught.value.allowed == 64
    assert caught.value.counted > 64


def test_long_texts_are_not_remembered() -> None:
    """Only short ones, so that memory is bounded; both are encoded alike."""
    long = NoulQuestion(id="q", instructions="x" * 5000)

    assert "x" * 5000 in prompt_text(planner().plan(asked(long)).next_reads()[0])


def test_a_chat_frame_has_one_part_more_than_messages() -> None:
    """The last one opens the model's turn."""
    assert isinstance(StubTokenizer().frame(("user",)), ChatFrame)
    assert len(StubTokenizer().frame(("system", "user")).parts) == 3


@st.composite
def slots(draw: st.DrawFn) -> Slot:
    """A slot of any kind, its text ending in a mark of its own."""
    labels = draw(st.sampled_from([("yes", "no"), LETTERS, LETTERS[:3], DIGITS, DIGITS[:2]]))
    text = draw(st.text("x y", max_size=60))
    order, sample = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    return Slot(
        0, text + "?", tuple(Option(f"o{label}") for label in labels), labels, draw(st.booleans()), order, sample
    )


BOUNDED = st.builds(
    EngineLimits,
    context=st.integers(700, 1500),
    canvas=st.sampled_from([0, 16, 40, 64, 128]),
    label_ids=st.integers(26, 64),
    slots=st.integers(1, 8),
)
PACKERS: dict[EngineLimits, Packer] = {}


def packed(round_: list[Slot], limits: EngineLimits) -> tuple[tuple[Read, ...], tuple[Placement, ...]]:
    """These slots as reads, each question marked by its place in the round."""
    if not limits.canvas:
        limits = replace(limits, slots=1)
    packer = PACKERS.setdefault(limits, Packer(StubTokenizer(), limits, AnswerForm(space=" " if limits.canvas else "")))
    marked = [replace(slot, instructions=f"{slot.instructions} [{index}]") for index, slot in enumerate(round_)]
    page = packer.writer.page("s", None, Layout.DOCUMENT_FIRST)
    return packer.pack(page, marked, Manner(1, SeedToken.RANDOM))


@settings(max_examples=60)
@given(st.lists(slots(), min_size=1, max_size=12), BOUNDED)
def test_no_read_outgrows_the_engine(round_: list[Slot], limits: EngineLimits) -> None:
    """Context, canvas width, label ids, slots; a width is a multiple of 16."""
    for read in packed(round_, limits)[0]:
        assert read.tokens <= limits.context
        assert len(read.canvas) <= limits.canvas
        assert len(read.canvas) % CANVAS_STEP == 0
        assert len(read.label_ids) <= limits.label_ids
        assert len(read.slots) <= limits.slots


@settings(max_examples=60)
@given(st.lists(slots(), min_size=1, max_size=12), BOUNDED)
def test_every_slot_is_read_once_and_its_prompt_lists_its_companions_alone(
    round_: list[Slot], limits: EngineLimits
) -> None:
    """In request order; a lone slot has no companion, and none has one of another order or sample."""
    reads, placements = packed(round_, limits)
    members: dict[int, list[int]] = {}
    for index, place in enumerate(placements):
        members.setdefault(place.read, []).append(index)
        assert place.slot == len(members[place.read]) - 1

    assert len(members) == len(reads)
    for at, read in enumerate(reads):
        assert [f"[{index}]" in prompt_text(read) for index in range(len(round_))] == [
            index in members[at] for index in range(len(round_))
        ]
        assert len({(round_[index].order, round_[index].sample) for index in members[at]}) == 1
        assert len(members[at]) == 1 or not any(round_[index].alone for index in members[at])


@settings(max_examples=60)
@given(st.lists(slots(), min_size=1, max_size=12), BOUNDED)
def test_a_canvas_is_its_answer_but_for_the_slots(round_: list[Slot], limits: EngineLimits) -> None:
    """With the first label of every slot put back, it reads as the answer that the prompt asks for."""
    reads, placements = packed(round_, replace(limits, canvas=limits.canvas or 16))
    for at, read in enumerate(reads):
        shown = [slot for slot, place in zip(round_, placements, strict=True) if place.read == at]
        canvas = list(read.canvas)
        for slot in read.slots:
            canvas[slot.position] = slot.label_ids[0]
        lines = [f"{number}: {slot.labels[0]}" for number, slot in enumerate(shown, start=1)]

        answer = "\n".join(lines) if len(shown) > 1 else shown[0].labels[0]
        assert StubTokenizer().decode(canvas).replace("<pad>", "") == f"{answer}<turn|>"


def test_first_fit_goes_back_to_a_canvas_that_still_has_room() -> None:
    """A lone question in between starts a read of its own and closes none."""
    first, second, third = nouls(3)
    reads = planner().plan(asked(first, replace(second, alone=True), third, isolate=Isolation.NONE)).next_reads()

    assert [len(read.slots) for read in reads] == [2, 1]
    assert "Is it 2?" in prompt_text(reads[0])


# --- Constrained reads ------------------------------------------------------------------------------------------------


def test_constrained_reads_ask_for_one_set_whatever_their_questions_need() -> None:
    """An engine reads a batch faster where all of it is constrained to one set."""
    limits = replace(CANVAS, constrained=True)
    requests = [
        asked(NoulQuestion(id="a")),
        asked(ChoiceQuestion(id="a", options=(Option("x"), Option("y"))), NoulQuestion(id="b")),
        asked(ScoreQuestion(id="a", levels=("low", "high"))),
    ]
    reads = [
        read for request in requests for read in planner(limits).plan(replace(request, diagnostics=False)).next_reads()
    ]

    assert len({read.constrained for read in reads}) == 1
    assert all(set(read.label_ids) <= set(read.constrained) for read in reads)
    assert list(reads[0].constrained) == sorted(set(reads[0].constrained))
    assert len(reads[0].constrained) <= limits.label_ids


@pytest.mark.parametrize("changed", [{"diagnostics": True}, {"settings": ReadSettings(steps=2)}])
def test_what_needs_the_whole_vocabulary_gets_it(changed: dict[str, Any]) -> None:
    """Label mass is told in diagnostics, and between steps all tokens play a part."""
    request = replace(asked(NoulQuestion(id="a")), **({"diagnostics": False} | changed))

    assert planner(replace(CANVAS, constrained=True)).plan(request).next_reads()[0].constrained == ()


def test_labels_beyond_the_common_ones_are_added_where_there_is_room() -> None:
    """A read of an extended set is constrained to more ids, or to none where these would be too many."""
    options = tuple(Option(f"option {number}") for number in range(52))
    request = replace(asked(ChoiceQuestion(id="a", options=options), labels=LabelSet.AZ_AA), diagnostics=False)
    for room, constrained in ((128, True), (52, False)):
        [read] = planner(replace(CANVAS, constrained=True, label_ids=room)).plan(request).next_reads()

        assert bool(read.constrained) is constrained
        assert not constrained or set(read.label_ids) <= set(read.constrained)
