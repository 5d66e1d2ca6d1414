"""Rules of `decisions.reads`: a readout is used only when it is whole."""

from __future__ import annotations

import math

import pytest

from decisions.errors import MalformedReadout
from decisions.reads import Read, Readout, SlotPosition, check_readout

READ = Read(prompt=(1, 2, 3), slots=(SlotPosition(0, (7, 8)), SlotPosition(4, (8, 9))), canvas=(0,) * 16)


def test_a_whole_readout_passes() -> None:
    """Every slot has a finite number per label."""
    check_readout(READ, Readout(((-1.0, -2.0), (-0.5, -3.0))))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (((-1.0, -2.0),), "1 of 2 slots"),
        (((-1.0, -2.0), (-1.0,)), "1 of 2 labels"),
        (((-1.0, -2.0), (-1.0, math.nan)), "not finite"),
        (((-1.0, -math.inf), (-1.0, -2.0)), "not finite"),
    ],
)
def test_anything_less_is_malformed(rows: tuple[tuple[float, ...], ...], reason: str) -> None:
    """G3: a missing slot, a missing label, NaN or minus infinity is an error, never a guess."""
    with pytest.raises(MalformedReadout, match=reason):
        check_readout(READ, Readout(rows))


def test_a_read_counts_its_tokens_and_names_its_labels_once() -> None:
    """Prompt and canvas are put before the model; label ids are a set."""
    assert READ.tokens == 19
    assert READ.label_ids == (7, 8, 9)
