"""Gives each question its flow and hands out reads, round by round, until every distribution is known."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from .bracket import most_finalists, route
from .canvas import NOTHING, Arrangement, Manner, Packer, Placement
from .combine import combine
from .distribution import CERTAIN, Distribution, from_logprobs
from .errors import MalformedReadout, TooManyTokens, UnsupportedFeature
from .flow import Choosing, Distributions, Flow, Slots, known, sampled
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
    ScoreQuestion,
    SeedToken,
    Skipped,
    Usage,
    answer_names,
)
from .reads import Cost, EngineLimits, Read, Readout, Slot, Thought, Tokenizer
from .recurring import Recurring
from .stages import Staged, staged, waiting

Given = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """What of a request's plan follows from its questions and settings alone, whatever the state is.

    `alone` says which questions are read alone; `plain`, that each is read once and waits for none. `slots` and
    `arrangement` are the first round's; the arrangement holds where its reads fit the context behind the state.
    `longest_final` is in tokens, without the state. `questions` are all of them as token ids, for a thought about them.
    """

    settings: ReadSettings
    alone: tuple[bool, ...]
    plain: bool = False
    slots: Slots = ()
    arrangement: Arrangement = NOTHING
    longest_final: int = 0
    questions: tuple[int, ...] = ()


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
        self._openings: Recurring[Hashable, Opening] = Recurring()

    def plan(self, request: DecisionRequest) -> Plan:
        """A plan with its first round packed. Raises `TooManyTokens` when a prompt would not fit the context."""
        opening = self._openings.get(request.asked)
        if opening is None:
            opening = self._opening(request)
            self._openings.put(request.asked, opening)
        return Plan(request, self, opening)

    def _opening(self, request: DecisionRequest) -> Opening:
        settings, questions = self.settings(request.settings), request.questions
        opening = Opening(settings, read_alone(questions, settings.isolate, self.bounds))
        slots = next(questions_flow(request, self, opening), ())
        flows = [flow_of(request, self, opening, index) for index in range(len(questions))]
        return replace(
            opening,
            plain=not waiting(questions) and all(isinstance(flow, Slot) for flow in flows),
            slots=slots,
            arrangement=self.packer.arrange(slots, self.limits.context),
            longest_final=max([self._longest_final(request, opening, at) for at in range(len(questions))], default=0),
            questions=self._questions(questions, settings) if settings.think else (),
        )

    def _questions(self, questions: Sequence[Question], settings: ReadSettings) -> tuple[int, ...]:
        """All questions with more than one answer, those that wait for others too, as if each were read at once."""
        writer = self.packer.writer
        open_ones = [(at, each) for at, each in enumerate(questions) if len(answer_names(each)) > 1]
        slots = [self.posed(Slot(at, each.instructions, (), ()), each, settings) for at, each in open_ones]
        return writer.asked([writer.block(slot) for slot in slots]) if slots else ()

    def _longest_final(self, request: DecisionRequest, opening: Opening, index: int) -> int:
        """Tokens, without the page, of the longest final that a choice in brackets may lead to; 0 for the others."""
        question, labels = request.questions[index], self.packer.alphabets[opening.settings.labels]
        if not isinstance(question, ChoiceQuestion) or len(question.options) <= len(labels):
            return 0
        most = most_finalists(len(question.options), len(labels))
        longest = sorted(question.options, key=lambda option: len(option_line("", option)), reverse=True)
        worst = shown(Slot(index, question.instructions, (), ()), tuple(longest[:most]), labels[:most])
        return self.packer.arrange([worst], self.limits.context).longest

    def settings(self, settings: ReadSettings) -> ReadSettings:
        """The request's settings as they hold for the served model.

        Samples differ only by noise, so one is enough where there is none. Raises `UnsupportedFeature` for what the
        model or its tokenizer cannot do.
        """
        if settings.labels not in self.packer.alphabets:
            raise UnsupportedFeature(f"The served tokenizer splits labels of the set {settings.labels}.")
        if settings.steps != 1 and not self.limits.canvas:
            raise UnsupportedFeature("The served model has no canvas, so it takes no denoising steps.")
        if settings.think and not self.limits.thinks:
            raise UnsupportedFeature("The served model writes no thought before it is read (think).")
        noiseless = not self.limits.canvas or settings.seed_token is SeedToken.FIXED
        return replace(settings, samples=1) if noiseless and settings.samples != 1 else settings

    def flow(self, slot: Slot, question: Question, settings: ReadSettings) -> Flow:
        """The flow that answers one question; `slot` says which it is, whether it is alone, and what it is told."""
        if isinstance(question, ChoiceQuestion):
            if len(question.options) == 1:
                return known(CERTAIN)
            return route(Choosing(slot, self.packer.alphabets[settings.labels], settings), question.options)
        if isinstance(question, ScoreQuestion) and len(question.levels) == 1:
            return known(CERTAIN)
        return sampled(self.posed(slot, question, settings), settings)

    def posed(self, slot: Slot, question: Question, settings: ReadSettings) -> Slot:
        """The slot with all answers of a question; options have numbers where there are more of them than labels."""
        if isinstance(question, NoulQuestion):
            options = (Option(self.form.yes, question.true), Option(self.form.no, question.false))
            return shown(slot, options, self.form.nouls)
        if isinstance(question, ScoreQuestion):
            levels = tuple([Option("", level) for level in question.levels])
            return shown(slot, levels, DIGITS[: len(levels)])
        labels = self.packer.alphabets[settings.labels]
        if len(question.options) > len(labels):
            labels = tuple([str(number) for number in range(1, len(question.options) + 1)])
        return shown(slot, question.options, labels[: len(question.options)])


def questions_flow(
    request: DecisionRequest, planner: Planner, opening: Opening
) -> Generator[Slots, Distributions, Staged]:
    """All questions of a request, stepped together and stage by stage."""
    if opening.plain:
        return Staged((yield opening.slots))
    return (yield from staged(request.questions, partial(flow_of, request, planner, opening)))


def flow_of(request: DecisionRequest, planner: Planner, opening: Opening, index: int, given: Given = ()) -> Flow:
    """The flow of the question at an index, given lines that tell earlier answers."""
    question = request.questions[index]
    slot = Slot(index, question.instructions, (), (), opening.alone[index], given=given)
    return planner.flow(slot, question, opening.settings)


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
    """One request on its way: `next_reads` gives a round, `receive` takes its readouts, until no reads are left.

    Where the request lets the model think, `thought` is to be written before the first round, and `receive_thought`
    takes it. Until then the reads are as long as with the longest thought.
    """

    def __init__(self, request: DecisionRequest, planner: Planner, opening: Opening) -> None:
        settings = opening.settings
        self._request = request
        self._packer = planner.packer
        self._temperatures = settings.temperatures
        # How much fell beside the labels is told in the diagnostics alone; and between steps all tokens play a part.
        constrained = planner.limits.constrained and settings.steps == 1 and not request.diagnostics
        self._manner = Manner(settings.seed, settings.seed_token, settings.steps, constrained)
        self._page = planner.packer.writer.page(
            request.state, request.instructions, settings.layout, thinking=settings.think > 0
        )
        self._thought_tokens = 0
        self._trails = [_Trail() for _ in request.questions] if request.diagnostics else []
        self._tokens = self._cached = self._reads_done = self._rounds = 0
        self._flow = questions_flow(request, planner, opening)
        self._outcomes: tuple[Distribution | Skipped, ...] = ()
        self._slots: Slots = ()
        self._reads: tuple[Read, ...] = ()
        self._placements: tuple[Placement, ...] = ()
        self.thought = self._open(opening)
        thinking = len(self.thought.prompt) + self.thought.budget if self.thought else 0
        self.cost = Cost(len(self._reads), _tokens(self._reads) + thinking)

    def _open(self, opening: Opening) -> Thought | None:
        """The first round, and the thought before it. Raises `TooManyTokens`, before any engine work."""
        budget = opening.settings.think
        if not budget:
            self._first_round(opening)
            return None
        page, writer = self._page, self._packer.writer
        self._page = writer.thought(page, (0,) * budget)
        self._first_round(opening)
        self._page = page
        if not self._reads:
            return None
        prompt = page.before + opening.questions + page.after
        needed, context = len(prompt) + budget, self._packer.limits.context
        if needed > context:
            raise TooManyTokens(needed, context, "The state with all questions and a thought (think)")
        return Thought(prompt, budget)

    def _first_round(self, opening: Opening) -> None:
        """The first round's reads. Raises `TooManyTokens`, also for a later final that would be too long."""
        context = self._packer.limits.context
        needed = len(self._page) + opening.longest_final
        if needed > context:
            raise TooManyTokens(needed, context, f"{self._page.holds} with one question")
        self._step(None, opening.arrangement)

    def receive_thought(self, ids: tuple[int, ...]) -> None:
        """Take the thought, which may be empty; every read has it in its prompt. Raises `MalformedReadout`."""
        if self.thought is None or len(ids) > self.thought.budget:
            raise MalformedReadout(f"A thought of {len(ids)} tokens is longer than was asked for.")
        self._tokens += len(self.thought.prompt)
        self._thought_tokens, self.thought = len(ids), None
        self._page = self._packer.writer.thought(self._page, ids)
        self._reads, self._placements = self._packer.pack(self._page, self._slots, self._manner)

    def next_reads(self) -> tuple[Read, ...]:
        """The reads of the current round; empty when every distribution is known."""
        return self._reads

    def receive(self, readouts: Sequence[Readout]) -> None:
        """Take the current round's readouts, already checked, in the order of its reads; then plan the next round.

        Raises `TooManyTokens` when a read of the next round would not fit the context.
        """
        self._tokens += _tokens(self._reads)
        self._cached += sum(readout.cached_tokens for readout in readouts)
        self._reads_done += len(self._reads)
        self._rounds += 1
        if self._trails:
            self._note()
        self._step(tuple([from_logprobs(readouts[place.read].logprobs[place.slot]) for place in self._placements]))

    def decision(self) -> Decision:
        """All answers, once no reads are left; with traces where the request asks for diagnostics."""
        temperatures = self._temperatures
        answers, traces, skipped = {}, {}, {}
        for index, (question, outcome) in enumerate(zip(self._request.questions, self._outcomes, strict=True)):
            if isinstance(outcome, Skipped):
                skipped[question.id] = outcome
                continue
            answers[question.id] = combine(question, outcome, temperatures)
            if self._trails:
                traces[question.id] = _trace(self._trails[index], outcome)
        usage = Usage(self._tokens, len(self._request.questions) + self._thought_tokens, self._cached)
        return Decision(answers, usage, traces, skipped, self._reads_done, self._rounds, self._thought_tokens)

    def _step(self, seen: Distributions | None, arrangement: Arrangement = NOTHING) -> None:
        """Move the flow on and pack its next round, as in the arrangement where there is one that fits."""
        try:
            self._slots = next(self._flow) if seen is None else self._flow.send(seen)
        except StopIteration as stop:
            self._outcomes = stop.value.outcomes
            self._slots, self._reads, self._placements = (), (), ()
            return
        packer, page = self._packer, self._page
        if arrangement.sheets and packer.fits(page, arrangement):
            self._reads, self._placements = packer.fill(page, arrangement, self._manner)
        else:
            self._reads, self._placements = packer.pack(page, self._slots, self._manner)

    def _note(self) -> None:
        by_question: dict[int, list[int]] = {}
        for index, slot in enumerate(self._slots):
            by_question.setdefault(slot.question, []).append(index)
        for question, indices in by_question.items():
            self._trails[question].add([self._slots[i] for i in indices], [self._placements[i] for i in indices])


def _tokens(reads: Sequence[Read]) -> int:
    return sum(read.tokens for read in reads)


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
