"""Rules of `decisions.prompt`: what the model reads, and what it never sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.prompt import option_line, question_block, state_block
from decisions.protocol import (
    ChoiceQuestion,
    Debias,
    DecisionRequest,
    Isolation,
    Layout,
    NoulQuestion,
    Option,
    ScoreQuestion,
)
from decisions.reads import Slot
from gateway.engines.stub import MODEL, TURN_CLOSE, USER
from tests.decisions.fakes import AUTOREGRESSIVE, asked, by_hash, follow, planner, prompt_text

NOUL = NoulQuestion(id="secret-id", instructions="Is it?", true="when it is")
CHOICE = ChoiceQuestion(
    id="other-id", instructions={"ask": "wer?"}, options=(Option("ä", "één"), Option("b", ["x", 1]))
)
SCORE = ScoreQuestion(id="third-id", levels=("calm", {"mood": "angry"}))


def first_prompt(request: DecisionRequest) -> str:
    """The prompt of the first read."""
    return prompt_text(planner().plan(request).next_reads()[0])


def test_ids_never_reach_the_model() -> None:
    """G13: renaming them leaves the prompts byte-equal."""
    renamed = (replace(NOUL, id="ignore"), replace(CHOICE, id="é"), replace(SCORE, id="q1"))

    assert first_prompt(asked(NOUL, CHOICE, SCORE)) == first_prompt(asked(*renamed))
    assert "-id" not in first_prompt(asked(NOUL, CHOICE, SCORE))


@pytest.mark.parametrize(
    "text",
    [
        "e\u0301 \u00e9",
        "👩\u200d👩\u200d👧",
        "\u202eright to left\u202c",
        "line\u2028line",
        "\\u0041",
        'quo"te',
        "{{ x }}",
    ],
)
def test_a_string_reaches_the_model_verbatim(text: str) -> None:
    """G16: nothing is normalised, escaped or trimmed."""
    assert f"<<<\n{text}\n>>>" in first_prompt(asked(NOUL, state=text))


def test_other_states_are_json_without_ascii_escapes() -> None:
    """Escapes cost other systems half their accuracy on languages other than English."""
    assert state_block({"größe": ["één", None, 1.5]}) == '<<<\n{"größe": ["één", null, 1.5]}\n>>>\n\n'


def test_text_that_spells_a_control_token_stays_text() -> None:
    """The frame's control tokens are the only ones in the prompt."""
    read = planner().plan(asked(NOUL, state="<turn|> <|model> <bos>")).next_reads()[0]

    assert [token for token in read.prompt if 256 <= token <= MODEL] == [257, USER, TURN_CLOSE, MODEL]


def test_every_option_has_a_line_of_its_own() -> None:
    """Label, name, description; structured descriptions as JSON."""
    slot = Slot(0, CHOICE.instructions, CHOICE.options, ("A", "B"))

    assert question_block(slot) == '{"ask": "wer?"}\nA: ä (één)\nB: b (["x", 1])\n'


@pytest.mark.parametrize(
    ("label", "option", "expected"),
    [
        ("yes", Option("yes"), "yes"),
        ("yes", Option("yes", "when it is"), "yes: when it is"),
        ("A", Option("billing"), "A: billing"),
        ("A", Option("billing", ""), "A: billing"),
        ("0", Option("", "calm"), "0: calm"),
        ("0", Option("", ""), "0"),
        ("A", Option("billing", "money"), "A: billing (money)"),
    ],
)
def test_a_name_that_repeats_its_label_is_left_out(label: str, option: Option, expected: str) -> None:
    """A blank description is none."""
    assert option_line(label, option) == expected


def test_a_question_without_instructions_is_still_a_question() -> None:
    """Its criteria say what is asked."""
    assert "Which of these holds?\n0: calm" in first_prompt(asked(SCORE))


def test_earlier_answers_stand_before_the_question() -> None:
    """A line each."""
    slot = Slot(0, "And now?", (Option("a"),), ("A",), given=("Is it? yes",))

    assert question_block(slot) == "Already answered: Is it? yes\nAnd now?\nA: a\n"


def test_the_state_comes_first_and_is_shared_by_all_reads() -> None:
    """`document_first`: every read begins with the same tokens, state included."""
    reads = planner(AUTOREGRESSIVE).plan(asked(NOUL, CHOICE, state="Shared.")).next_reads()

    assert len({read.prompt[: read.prefix] for read in reads}) == 1
    assert "Shared." in prompt_text(replace(reads[0], prompt=reads[0].prompt[: reads[0].prefix]))


def test_schema_first_puts_the_questions_into_the_system_message() -> None:
    """They are then the prefix that requests about other states share."""
    text = first_prompt(asked(NOUL, state="Shared.", layout=Layout.SCHEMA_FIRST))

    assert text.startswith("<bos><|system>Question: Is it?")
    assert text.endswith("<|user><<<\nShared.\n>>>\n\n<turn|><|model>")


def test_top_level_instructions_stand_before_the_questions() -> None:
    """In both layouts."""
    for layout in Layout:
        request = replace(asked(NOUL, layout=layout), instructions="Be strict.")
        assert "Be strict.\n\nQuestion: Is it?" in first_prompt(request)


def test_questions_on_one_canvas_are_numbered() -> None:
    """One alone is not."""
    text = first_prompt(asked(NOUL, CHOICE))

    assert text.index("Question 1: Is it?") < text.index('Question 2: {"ask"')
    assert "Question: Is it?" in first_prompt(asked(NOUL))


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.sampled_from(Layout))
def test_any_text_reaches_the_model_byte_for_byte(text: str, layout: Layout) -> None:
    """G16: as a state, as instructions, as a name, as a description."""
    request = asked(
        ChoiceQuestion(id="c", instructions=text, options=(Option(f"1{text}", text), Option("2"))),
        state=text,
        layout=layout,
    )
    prompt = first_prompt(request)

    assert f"<<<\n{text}\n>>>" in prompt
    assert f"Question: {text}\nA: 1{text} ({text})\nB: 2\n" in prompt


@pytest.mark.parametrize("layout", list(Layout))
def test_every_read_of_a_request_begins_with_its_prefix(layout: Layout) -> None:
    """Brackets, orders, samples and lone questions too: the engine computes it once."""
    wide = ChoiceQuestion(id="w", options=tuple(Option(f"option {number}") for number in range(40)))
    settings = {"layout": layout, "debias": Debias.REVERSE, "samples": 2, "isolate": Isolation.ALL}
    plan = planner().plan(replace(asked(NOUL, wide, state="Shared.", **settings), instructions="Be strict."))
    reads = [read for reads in follow(plan, by_hash) for read in reads]

    assert len(reads) == 2 + 8 + 4
    assert len({read.prompt[: read.prefix] for read in reads}) == 1
    assert "Be strict." in prompt_text(replace(reads[0], prompt=reads[0].prompt[: reads[0].prefix]))
