"""The System One nouns as frozen types: the request with its questions, and the decision with its answers.

Values of these types have passed validation; nothing past `gateway/wire.py` checks them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Text = str | dict[str, Any] | list[Any]
"""Text on the wire: a string, or a JSON object or array that is shown to the model as JSON."""


class Isolation(StrEnum):
    """Which questions of a request are read alone instead of jointly with their neighbours."""

    AUTO = "auto"
    NONE = "none"
    NOUL = "noul"
    ALL = "all"


class Layout(StrEnum):
    """Where the state stands: before the questions in one message, or after them in a message of its own."""

    DOCUMENT_FIRST = "document_first"
    SCHEMA_FIRST = "schema_first"


class Debias(StrEnum):
    """How many orders of a choice's options are read and combined."""

    NONE = "none"
    REVERSE = "reverse"
    CYCLIC = "cyclic"
    AUTO = "auto"


class LabelSet(StrEnum):
    """The alphabets that a choice may be labelled with: 26 letters, or 52 labels in two ways."""

    AZ = "az"
    AZ_AA = "az_aa"
    AZ_LOWER = "az_lower"


class CatchAll(StrEnum):
    """What a bracketed choice does with options such as "none of these".

    `off`: they are options like any other. `final`: they are left out of the brackets and stand in the final. `both`:
    they stand in a bracket and always in the final. `verify`: the final is read without them, and its winner is then
    read against them.
    """

    OFF = "off"
    FINAL = "final"
    BOTH = "both"
    VERIFY = "verify"


class SeedToken(StrEnum):
    """What stands in an open slot of a canvas: seeded noise, or always the padding token."""

    RANDOM = "random"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Option:
    """One allowed answer as the model sees it; a null description means "judge by the name alone"."""

    name: str
    description: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What every question has. The id is the caller's own and never reaches the model."""

    id: str
    instructions: Text | None = None
    alone: bool | None = None
    """Read this question alone (true) or jointly (false), whatever the request's isolation says."""
    depends_on: tuple[str, ...] = ()
    """Ids of questions that are answered first; the model is told their answers."""
    ask_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per id of a question, the answers of it (as `answer_names` spells them) with which this one is asked at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoulQuestion(_Asked):
    """A yes/no question, with what counts as yes and what counts as no where the caller said it."""

    true: Text | None = None
    false: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceQuestion(_Asked):
    """One of several named options, in the caller's order."""

    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreQuestion(_Asked):
    """A level on an ordered scale, lowest first; levels are numbered from 0."""

    levels: tuple[Text, ...]


Question = NoulQuestion | ChoiceQuestion | ScoreQuestion


def answer_names(question: Question) -> tuple[str, ...]:
    """What each possible answer of a question is called in `ask_if`: yes and no, option names, or level numbers."""
    if isinstance(question, NoulQuestion):
        return ("yes", "no")
    if isinstance(question, ChoiceQuestion):
        return tuple(option.name for option in question.options)
    return tuple(str(level) for level in range(len(question.levels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperatures:
    """Temperature per question type (dimensionless, above 0); 1 leaves the model's distribution as it is."""

    noul: float = 1.0
    choice: float = 1.0
    score: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How the questions of a request are read. Everything here can change an answer."""

    isolate: Isolation = Isolation.AUTO
    layout: Layout = Layout.DOCUMENT_FIRST
    debias: Debias = Debias.NONE
    samples: int | Literal["auto"] = 1
    labels: LabelSet = LabelSet.AZ
    catch_all: CatchAll = CatchAll.OFF
    steps: int = 1
    """Denoising steps of a canvas before it is read."""
    think: int = 0
    """Tokens that the model may write as a thought before it is read; 0: none is written."""
    seed: int = 42
    seed_token: SeedToken = SeedToken.RANDOM
    temperatures: Temperatures = field(default_factory=Temperatures)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """A state and the questions about it, in the caller's order."""

    model: str
    state: Text
    questions: tuple[Question, ...]
    instructions: Text | None = None
    settings: ReadSettings = field(default_factory=ReadSettings)
    diagnostics: bool = False
    asked: bytes | None = None
    """Stands for everything but the state: requests with equal values differ in nothing else. None: not known."""


@dataclass(frozen=True, slots=True)
class NoulAnswer:
    """P(yes). A noul has no confidence."""

    noul: float


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """The most probable option's name (first of equals), with every option's probability in the caller's order."""

    choice: str
    confidence: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """The expected level (sum of i * p_i from 0), the levels as sent, and every level's probability."""

    score: float
    confidence: float
    legend: tuple[Text, ...]
    probabilities: tuple[float, ...]


Answer = NoulAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens really put before the model (the state counted once per read that carried it), and what came back.

    `output_tokens` counts the answers given, and the tokens of a thought.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class QuestionTrace:
    """How one question was read: what `x_diagnostics` reports of it."""

    entropy: float
    label_mass: float
    canvas: int
    """Index of the read, within its round, that carried the question's first slot."""
    slot: int
    """Index of that slot within its read."""
    isolated: bool
    orders: int
    samples: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why a question was not asked: `because` of that question, which `was` answered so where `wanted` was needed.

    `was` is None where that question had been skipped itself.
    """

    because: str
    was: str | None
    wanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """All answers of a request, keyed by question id in the caller's order; skipped questions have none."""

    answers: Mapping[str, Answer]
    usage: Usage
    traces: Mapping[str, QuestionTrace] = field(default_factory=dict)
    skipped: Mapping[str, Skipped] = field(default_factory=dict)
    reads: int = 0
    rounds: int = 0
    thought_tokens: int = 0
    """Length of the thought that was written first, in tokens."""
