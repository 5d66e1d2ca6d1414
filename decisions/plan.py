"""Gives each question its flow and hands out reads, round by round, until every distribution is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .bracket import route
from .canvas import Noise, Packer, Placement
from .combine import combine
from .distribution import CERTAIN, Distribution, from_logprobs
from .flow import Choosing, Flow, Slots, known, sampled, together
from .isolation import IsolationBounds, read_alone
from .labels import DIGITS, AnswerForm, LabelSet
from .protocol import (
    ChoiceQuestion,
    Decision,
    DecisionRequest,
    NoulQuestion,
    Option,
    Question,
    QuestionTrace,
    ReadSettings,
    SeedToken,
    Usage,
)
from .reads import Cost, EngineLimits, Read, Readout, Slot, Tokenizer


class Planner:
    """Plans requests for one served model; built once, when the engine starts.

    Raises `UnfitTokenizer` when the model's labels cannot be read.
    """

    def __init__(
        self, tokenizer: Tokenizer, limits: EngineLimits, form: AnswerForm, bounds: IsolationBounds | None = None
    ) -> None:
        self.limits = limits
        self.form = form
        self.bounds = bounds or IsolationBounds()
        self.packer = Packer(tokenizer, limits, form)

    def plan(self, request: DecisionRequest) -> Plan:
        """A plan with its first round packed. Raises `TooManyTokens` when a prompt would not fit the context."""
        return Plan(request, self)

    def flow(self, index: int, question: Question, alone: bool, settings: ReadSettings) -> Flow:
        """The flow that answers one question of a request."""
        slot = Slot(index, question.instructions, (), (), alone)
        if not self.limits.canvas or settings.seed_token is SeedToken.FIXED:
            settings = replace(settings, samples=1)
        if isinstance(question, NoulQuestion):
            options = (Option(self.form.yes, question.true), Option(self.form.no, question.false))
            return sampled(replace(slot, options=options, labels=self.form.nouls), settings)
        if isinstance(question, ChoiceQuestion):
            if len(question.options) == 1:
                return known(CERTAIN)
            return route(Choosing(slot, self.packer.alphabets[LabelSet.AZ], settings), question.options)
        if len(question.levels) == 1:
            return known(CERTAIN)
        labels = DIGITS[: len(question.levels)]
        levels = tuple(Option("", level) for level in question.levels)
        return sampled(replace(slot, options=levels, labels=labels), settings)


@dataclass(slots=True)
class _Trail:
    """Where one question has been read so far."""

    first: Placement | None = None
    orders: set[int] = field(default_factory=set)
    samples: set[int] = field(default_factory=set)
    rounds: int = 0
    isolated: bool = True

    def add(self, slots: Sequence[Slot], placements: Sequence[Placement]) -> None:
        """Note a round in which these slots of the question were read at these places."""
        self.first = self.first or placements[0]
        self.rounds += 1
        self.orders.update(slot.order for slot in slots)
        self.samples.update(slot.sample for slot in slots)
        self.isolated = self.isolated and all(place.companions == 0 for place in placements)


class Plan:
    """One request on its way: `next_reads` gives a round, `receive` takes its readouts, until no reads are left."""

    def __init__(self, request: DecisionRequest, planner: Planner) -> None:
        settings = request.settings
        self._request = request
        self._packer = planner.packer
        self._noise = Noise(settings.seed, settings.seed_token)
        self._page = planner.packer.writer.page(request.state, request.instructions, settings.layout)
        self._trails = [_Trail() for _ in request.questions]
        self._tokens = self._cached = self._reads_done = self._rounds = 0
        alone = read_alone(request.questions, settings.isolate, planner.bounds)
        flows = [
            planner.flow(index, question, alone[index], settings)
            for index, question in enumerate(request.questions)
        ]
        self._flow = together(flows)
        self._distributions: tuple[Distribution, ...] = ()
        self._slots: Slots = ()
        self._reads: tuple[Read, ...] = ()
        self._placements: tuple[Placement, ...] = ()
        self._step(None)
        self.cost = Cost(len(self._reads), sum(read.tokens for read in self._reads))

    def next_reads(self) -> tuple[Read, ...]:
        """The reads of the current round; empty when every distribution is known."""
        return self._reads

    def receive(self, readouts: Sequence[Readout]) -> None:
        """Take the current round's readouts, already checked, in the order of its reads; then plan the next round."""
        self._tokens += sum(read.tokens for read in self._reads)
        self._cached += sum(readout.cached_tokens for readout in readouts)
        self._reads_done += len(self._reads)
        self._rounds += 1
        self._note()
        self._step(tuple(from_logprobs(readouts[place.read].logprobs[place.slot]) for place in self._placements))

    def decision(self) -> Decision:
        """All answers, once no reads are left."""
        questions = self._request.questions
        temperatures = self._request.settings.temperatures
        pairs = list(zip(questions, self._distributions, strict=True))
        return Decision(
            answers={question.id: combine(question, raw, temperatures) for question, raw in pairs},
            usage=Usage(self._tokens, len(questions), self._cached),
            traces={
                question.id: _trace(trail, raw)
                for (question, raw), trail in zip(pairs, self._trails, strict=True)
            },
            reads=self._reads_done,
            rounds=self._rounds,
        )

    def _step(self, seen: tuple[Distribution, ...] | None) -> None:
        try:
            self._slots = next(self._flow) if seen is None else self._flow.send(seen)
        except StopIteration as stop:
            self._distributions = stop.value
            self._slots, self._reads, self._placements = (), (), ()
        else:
            self._reads, self._placements = self._packer.pack(self._page, self._slots, self._noise)

    def _note(self) -> None:
        by_question: dict[int, list[int]] = {}
        for index, slot in enumerate(self._slots):
            by_question.setdefault(slot.question, []).append(index)
        for question, indices in by_question.items():
            self._trails[question].add([self._slots[i] for i in indices], [self._placements[i] for i in indices])


def _trace(trail: _Trail, distribution: Distribution) -> QuestionTrace:
    first = trail.first or Placement(0, 0, 0)
    return QuestionTrace(
        entropy=distribution.entropy,
        label_mass=distribution.label_mass,
        canvas=first.read,
        slot=first.slot,
        isolated=trail.isolated,
        orders=len(trail.orders),
        samples=len(trail.samples),
        rounds=trail.rounds,
    )
