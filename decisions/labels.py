"""Chooses the labels that stand for a question's options.

Options are never scored by their own first token: names may share it. A label is a yes/no, a letter or a digit, and
it must be exactly one token at its answer position; `canvas` proves that when an engine starts, for every label set.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

from .protocol import LabelSet

LETTERS = tuple(ascii_uppercase)
DIGITS = tuple("0123456789")


ALPHABETS: dict[LabelSet, tuple[str, ...]] = {
    LabelSet.AZ: LETTERS,
    LabelSet.AZ_AA: LETTERS + tuple("A" + letter for letter in ascii_uppercase),
    LabelSet.AZ_LOWER: LETTERS + tuple(ascii_lowercase),
}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How a model spells its answers: the text that leads one in, and its words for yes and no.

    `lead` opens the model's turn on an autoregressive engine ("Answer:" and then " A"); a canvas needs none.
    `space` stands between the lead, or a canvas' line number, and the label.
    """

    lead: str = ""
    space: str = ""
    yes: str = "yes"
    no: str = "no"

    @property
    def nouls(self) -> tuple[str, str]:
        """The labels of a yes/no question, yes first."""
        return (self.yes, self.no)


def choice_labels(names: tuple[str, ...], alphabet: tuple[str, ...]) -> tuple[str, ...]:
    """Labels for options of these names, in order; raises `ValueError` when the alphabet is too short.

    A name that equals another option's label would be read as that label. Where every name is itself a label, each
    stands for itself; where only some are, digits or the letters that no option is named after are used, and where
    those do not suffice, the named letters stand for themselves and the others take what is left.
    """
    if len(names) > len(alphabet):
        raise ValueError(f"{len(names)} options, but only {len(alphabet)} labels")
    taken = set(names)
    plain = alphabet[: len(names)]
    if taken.isdisjoint(plain):
        return plain
    if taken.issubset(alphabet):
        return names
    for candidates in (DIGITS, alphabet):
        free = tuple(label for label in candidates if label not in taken)
        if len(free) >= len(names):
            return free[: len(names)]
    left = iter(label for label in alphabet if label not in taken)
    return tuple(name if name in alphabet else next(left) for name in names)
