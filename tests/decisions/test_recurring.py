"""Rules of `decisions.recurring`: what is remembered stays within bounds, and changes no plan."""

from __future__ import annotations

from dataclasses import replace

from decisions.plan import Planner
from decisions.protocol import ChoiceQuestion, Debias, DecisionRequest, NoulQuestion, Option, ReadSettings
from decisions.reads import EngineLimits, Read
from decisions.recurring import Recurring
from tests.decisions.fakes import asked, by_hash, follow, planner

QUESTIONS = (
    NoulQuestion(id="a", instructions="Is it?"),
    ChoiceQuestion(id="b", options=tuple(Option(f"option {number}") for number in range(60))),
    ChoiceQuestion(id="c", options=(Option("left"), Option("right"))),
)


def recurring(request: DecisionRequest, state: str) -> DecisionRequest:
    """The same request about another state, marked as one that comes again and again."""
    return replace(request, state=state, asked=b"the same")


def first_reads(planning: Planner, request: DecisionRequest) -> tuple[Read, ...]:
    """The reads of the first round."""
    return planning.plan(request).next_reads()


def test_it_forgets_everything_when_full() -> None:
    """So it never holds more than it may."""
    memory = Recurring[int, str](2)
    for number in (1, 2, 3):
        memory.put(number, str(number))

    assert [memory.get(number) for number in (1, 2, 3)] == [None, None, "3"]


def test_nothing_is_remembered_without_a_key() -> None:
    """A request of which nobody knows what it asks is worked out each time."""
    memory = Recurring[int, str]()
    memory.put(None, "x")

    assert memory.get(None) is None


def test_a_remembered_plan_is_the_plan() -> None:
    """Reads and answers of a request that came before are those of one that is planned anew."""
    for settings in (ReadSettings(), ReadSettings(debias=Debias.REVERSE), ReadSettings(samples=3)):
        request = replace(asked(*QUESTIONS), settings=settings)
        remembering = planner()
        first_reads(remembering, recurring(request, "one"))
        for state in ("two", {"three": [3]}, "x" * 50):
            again = recurring(request, str(state))
            anew = replace(again, asked=None)

            assert first_reads(remembering, again) == first_reads(planner(), anew)
            assert follow(remembering.plan(again), by_hash) == follow(planner().plan(anew), by_hash)


def test_a_state_that_leaves_less_room_is_packed_anew() -> None:
    """What fitted one canvas behind a short state goes to several behind a long one."""
    limits = EngineLimits(context=420, canvas=64, slots=64, reads=64)
    request = asked(*(NoulQuestion(id=str(number), instructions=f"Is it number {number}?") for number in range(6)))
    remembering = planner(limits)

    assert len(first_reads(remembering, recurring(request, "short"))) == 1
    long = recurring(request, "long " * 30)
    assert len(first_reads(remembering, long)) > 1
    assert first_reads(remembering, long) == first_reads(planner(limits), long)
