"""What a family of models wants said in its own way: label spelling, answer lead-in, empty thought block.

A family is known by the architecture in the model's `config.json`. A family that is not in the table gets the plain
form; a label that is not one token there stops the start (`UnfitTokenizer`), so a missing row never answers wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass

from decisions.labels import AnswerForm

DIFFUSION_GEMMA = "DiffusionGemmaForBlockDiffusion"
"""The one architecture that is read in canvases; every other one is read at its next token."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models answers.

    `empty_thought` follows the opened turn of the model in the prompt: a thinking model that finds no thought block
    there spends its answer on one, and on a canvas its labels become far worse.
    """

    form: AnswerForm
    empty_thought: str = ""


PLAIN = Family(AnswerForm(yes="Yes", no="No"))
"""A bare label: on the demonstration model no lead, wording or prior answered measurably better, and Yes and No carry
more of its probability than yes and no. `bench/label_forms.py` compares them."""
FAMILIES = {
    DIFFUSION_GEMMA: Family(AnswerForm(lead="", space=" "), empty_thought="<|channel>thought\n<channel|>"),
}


def family(architecture: str) -> Family:
    """How models of this architecture answer."""
    return FAMILIES.get(architecture, PLAIN)
