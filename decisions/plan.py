"""Gives each question its flow and hands out reads, round by round, until every distribution is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .bracket import most_finalists, route
from .canvas import Noise, Packer, Placement
from .combine import combine
from .distribution import CERTAIN, Distribution, from_logprobs
from .errors import UnsupportedFeature
from .flow import Choosing, Flow, Slots, known, sampled
from .isolation import IsolationBounds, read_alone
from .labels import DIGITS, AnswerForm
from .prompt import option_line
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
    Skipped,
    Usage,
)
from .reads import Cost, EngineLimits, Read, Readout, Slot, Tokenizer
from .stages import staged


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

    def settings(self, settings: ReadSettings) -> ReadSettings:
        """The request's settings as they hold for the served model.

        Samples differ only by noise, so one is enough where there is none. Raises `UnsupportedFeature` for what the
        model or its tokenizer cannot do.
        """
        if settings.labels not in self.packer.alphabets:
            raise UnsupportedFeature(f"The served tokenizer splits labels of the set {settings.labels}.")
        if settings.steps != 1 and not self.limits.canvas:
            raise UnsupportedFeature("The served model has no canvas, so it takes no denoising steps.")
        noiseless = not self.limits.canvas or settings.seed_token is SeedToken.FIXED
        return replace(settings, samples=1) if noiseless and settings.samples != 1 else settings

    def flow(self, slot: Slot, question: Question, settings: ReadSettings) -> Flow:
        """The flow that answers one question; `slot` says which it is, whether it is alone, and what it is told."""
        if isinstance(question, NoulQuestion):
            options = (Option(self.form.yes, question.true), Option(self.form.no, question.false))
            return sampled(shown(slot, options, self.form.nouls), settings)
        if isinstance(question, ChoiceQuestion):
            if len(question.options) == 1:
                return known(CERTAIN)
            return route(Choosing(slot, self.packer.alphabets[settings.labels], settings), question.options)
        if len(question.levels) == 1:
            return known(CERTAIN)
        levels = tuple([Option("", level) for level in question.levels])
        return sampled(shown(slot, levels, DIGITS[: len(levels)]), settings)


def shown(slot: Slot, options: tuple[Option, ...], labels: tuple[str, ...]) -> Slot:
    """The slot with its options and their labels."""
    return Slot(slot.question, slot.instructions, options, labels, slot.alone, given=slot.given)


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
        settings = planner.settings(request.settings)
        self._request = request
        self._planner = planner
        self._settings = settings
        self._noise = Noise(settings.seed, settings.seed_token)
        self._page = planner.packer.writer.page(request.state, request.instructions, settings.layout)
        self._alone = read_alone(request.questions, settings.isolate, planner.bounds)
        self._trails = [_Trail() for _ in request.questions]
        self._tokens = self._cached = self._reads_done = self._rounds = 0
        self._flow = staged(request.questions, self._flow_of)
        self._outcomes: tuple[Distribution | Skipped, ...] = ()
        self._slots: Slots = ()
        self._reads: tuple[Read, ...] = ()
        self._placements: tuple[Placement, ...] = ()
        self._step(None)
        self.cost = self._round_cost()

    def _round_cost(self) -> Cost:
        return Cost(len(self._reads), sum(read.tokens for read in self._reads))

    def next_reads(self) -> tuple[Read, ...]:
        """The reads of the current round; empty when every distribution is known."""
        return self._reads

    def receive(self, readouts: Sequence[Readout]) -> None:
        """Take the current round's readouts, already checked, in the order of its reads; then plan the next round.

        Raises `TooManyTokens` when a read of the next round would not fit the context.
        """
        self._tokens += sum(read.tokens for read in self._reads)
        self._cached += sum(readout.cached_tokens for readout in readouts)
        self._reads_done += len(self._reads)
        self._rounds += 1
        if self._request.diagnostics:
            self._note()
        self._step(tuple([from_logprobs(readouts[place.read].logprobs[place.slot]) for place in self._placements]))

    def decision(self) -> Decision:
        """All answers, once no reads are left; with traces where the request asks for diagnostics."""
        temperatures = self._settings.temperatures
        answers, traces, skipped = {}, {}, {}
        for question, outcome, trail in zip(self._request.questions, self._outcomes, self._trails, strict=True):
            if isinstance(outcome, Skipped):
                skipped[question.id] = outcome
                continue
            answers[question.id] = combine(question, outcome, temperatures)
            if self._request.diagnostics:
                traces[question.id] = _trace(trail, outcome)
        usage = Usage(self._tokens, len(self._request.questions), self._cached)
        return Decision(answers, usage, traces, skipped, self._reads_done, self._rounds)

    def _flow_of(self, index: int, given: tuple[str, ...]) -> Flow:
        question = self._request.questions[index]
        slot = Slot(index, question.instructions, (), (), self._alone[index], given=given)
        if isinstance(question, ChoiceQuestion):
            self._prove_final_fits(slot, question)
        return self._planner.flow(slot, question, self._settings)

    def _prove_final_fits(self, slot: Slot, question: ChoiceQuestion) -> None:
        """Raise `TooManyTokens` before any engine work, if the longest final of a wide choice would be too long."""
        labels = self._planner.packer.alphabets[self._settings.labels]
        if len(question.options) > len(labels):
            most = most_finalists(len(question.options), len(labels))
            longest = sorted(question.options, key=lambda option: len(option_line("", option)), reverse=True)
            worst = shown(slot, tuple(longest[:most]), labels[:most])
            self._planner.packer.pack(self._page, [worst], self._noise)

    def _step(self, seen: tuple[Distribution, ...] | None) -> None:
        try:
            self._slots = next(self._flow) if seen is None else self._flow.send(seen)
        except StopIteration as stop:
            self._outcomes = stop.value.outcomes
            self._slots, self._reads, self._placements = (), (), ()
            return
        reads, self._placements = self._planner.packer.pack(self._page, self._slots, self._noise)
        steps = self._settings.steps
        self._reads = reads if steps == 1 else tuple([replace(read, steps=steps) for read in reads])

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
