"""The contract of the in-flight queue, run against every implementation, in virtual time where one allows it."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decisions.errors import AdmissionError, DeadlineExceeded, Overloaded, QueueUnavailable
from decisions.protocol import Decision, Usage
from decisions.reads import Cost, Ticket
from gateway.config import Settings
from gateway.inflight import Answer, InFlightQueue, MemoryQueue, QueueBounds, QueueSnapshot, Sent, Work
from gateway.inflight.contract import RETRY_LEAST, RETRY_UNKNOWN
from gateway.inflight.shared import SharedQueue
from tests.redis_server import RedisServer

T = 0.1
"""One unit of time in seconds, short for implementations that need real time."""
FAILS = -1.0
"""Holding time of a decision that fails at once."""
IDLE = QueueSnapshot(
    decisions=0, reads=0, waiting_small=0, waiting_large=0, oldest=0.0, expected_wait=0.0, draining=False
)

Story = Callable[[InFlightQueue], Coroutine[None, None, None]]
Play = Callable[[QueueBounds, Story], None]
Task = asyncio.Task[None]
DECISION = Decision({}, Usage())


class JumpingSelector(selectors.SelectSelector):
    """A selector that lets time pass instead of waiting, and notices when nothing will ever happen again."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Jump to the next timer."""
        assert timeout is not None, "everybody waits for a wakeup that was lost"
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps from timer to timer."""

    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.jumping.now


@asynccontextmanager
async def memory(bounds: QueueBounds, _: RedisServer | None) -> AsyncIterator[InFlightQueue]:
    """The in-memory queue needs no surroundings."""
    yield MemoryQueue(bounds)


@asynccontextmanager
async def shared(bounds: QueueBounds, server: RedisServer | None) -> AsyncIterator[InFlightQueue]:
    """One replica on a real Redis, with a prefix of its own, of which nothing stays behind."""
    assert server is not None
    prefix = f"{uuid4().hex}:"
    queue = SharedQueue(bounds, Settings(redis_url=server.url, redis_prefix=prefix), {}, never)
    await queue.open()
    await until(lambda: queue.cluster.replicas)
    try:
        yield queue
        await until(lambda: not (queue.snapshot().decisions or queue.snapshot().waiting_small or queue.cluster.large))
    finally:
        await queue.close()
    left = [key.split(":", 2)[2] for key in server.all_keys() if key.startswith(prefix)]
    assert set(left) <= {"lane:small", "lane:large", "figures"}


async def never(sent: Sent, ticket: Ticket) -> Answer:
    """There is nobody else whose requests could come."""
    raise AssertionError(sent)


async def until(condition: Callable[[], object]) -> None:
    """Wait in real time; the test's own timeout ends what never comes."""
    while not condition():  # noqa: ASYNC110 - it looks at plain numbers, which tell nobody of their change
        await asyncio.sleep(0.001)


Opened = Callable[[QueueBounds, RedisServer | None], AbstractAsyncContextManager[InFlightQueue]]
IMPLEMENTATIONS: dict[str, tuple[Callable[[], asyncio.AbstractEventLoop], Opened]] = {
    "memory": (VirtualLoop, memory),
    "redis": (asyncio.SelectorEventLoop, shared),
}


@pytest.fixture(scope="module", params=[pytest.param("memory"), pytest.param("redis", marks=pytest.mark.redis)])
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a story on a new queue, and checks that the queue is empty when the story is over."""
    new_loop, opened = IMPLEMENTATIONS[request.param]
    server = request.getfixturevalue("redis_server") if request.param == "redis" else None

    def run(bounds: QueueBounds, story: Story) -> None:
        async def told() -> None:
            async with opened(bounds, server) as queue:
                await story(queue)
                await settle(queue)
                after = queue.snapshot()
                assert (after.decisions, after.reads, after.waiting_small, after.waiting_large) == (0, 0, 0, 0)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(told())

    return run


class Crowd:
    """Decisions that come to one queue; `log` tells in which order they went in."""

    def __init__(self, queue: InFlightQueue) -> None:
        self.queue = queue
        self.log: list[str] = []
        self.tickets: list[Ticket] = []
        self.came = 0
        self.inside = 0
        self.most_inside = 0

    def come(self, name: str, reads: int = 1, *, key: str = "", hold: float = T, timeout: float | None = None) -> Task:
        """A decision of so many reads arrives and, once admitted, holds them for `hold` seconds."""
        return asyncio.create_task(self._visit(name, Cost(reads, 100 * reads), key, (hold, timeout)))

    async def _visit(self, name: str, cost: Cost, key: str, times: tuple[float, float | None]) -> None:
        hold, timeout = times

        async def compute(ticket: Ticket) -> Decision:
            self.log.append(name)
            self.tickets.append(ticket)
            self.inside += cost.reads
            self.most_inside = max(self.most_inside, self.inside)
            try:
                if hold == FAILS:
                    raise ValueError("broken")
                await asyncio.sleep(hold)
            finally:
                self.inside -= cost.reads
            return DECISION

        self.came += 1
        sent = Sent("systemone", f"{id(self)} {self.came}".encode())  # no two are identical
        await self.queue.run(Work(sent, cost, compute, key, timeout))


async def settle(queue: InFlightQueue) -> None:
    """Let everybody run who can."""
    for _ in range(5):
        if isinstance(queue, SharedQueue):  # what was asked before has been done when this is answered
            await queue.link.ask("leave", "nobody", 0)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)


async def taught(queue: InFlightQueue, reads: int, seconds: float) -> None:
    """Show the queue a decision of so many reads that takes so many seconds."""
    await Crowd(queue).come("teacher", reads, hold=seconds)


# --- Room -------------------------------------------------------------------------------------------------------------


def test_a_ticket_names_its_cost_and_its_deadline(play: Play) -> None:
    """It is proof that room was taken, for this decision and no other."""

    async def story(queue: InFlightQueue) -> None:
        now = asyncio.get_running_loop().time()
        crowd = Crowd(queue)
        await asyncio.gather(crowd.come("a", 2), crowd.come("b", 1))
        ticket, other = crowd.tickets
        assert (ticket.cost, other.cost) == (Cost(2, 200), Cost(1, 100))
        assert ticket.deadline > now + 7.0
        assert ticket.id != other.id

    play(QueueBounds(reads=4), story)


def test_reads_are_what_capacity_counts(play: Play) -> None:
    """Three decisions of two reads do not fit into five."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        tasks = [crowd.come(name, 2) for name in "abc"]
        await settle(queue)
        assert crowd.log == ["a", "b"]
        assert (queue.snapshot().reads, queue.snapshot().waiting_small) == (4, 1)
        await asyncio.gather(*tasks)
        assert crowd.log == ["a", "b", "c"]

    play(QueueBounds(reads=5), story)


def test_decisions_can_be_bound_as_well(play: Play) -> None:
    """An operator's MAX_INFLIGHT holds however few reads the decisions have."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        tasks = [crowd.come(name) for name in "abc"]
        await settle(queue)
        assert crowd.log == ["a", "b"]
        await asyncio.gather(*tasks)

    play(QueueBounds(reads=100, decisions=2), story)


def test_a_decision_larger_than_the_capacity_runs_alone(play: Play) -> None:
    """It waits until the engine is idle, and nobody joins it."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        tasks = [crowd.come("first"), crowd.come("huge", 50, hold=4 * T)]
        await asyncio.sleep(T * 1.5)
        assert (crowd.log, queue.snapshot().reads) == (["first", "huge"], 4)
        tasks.append(crowd.come("last"))
        await settle(queue)
        assert crowd.log == ["first", "huge"]
        await asyncio.gather(*tasks)

    play(QueueBounds(reads=4), story)


def test_room_is_given_back_however_a_decision_ends(play: Play) -> None:
    """One that fails or is cancelled leaves nothing behind; `play` checks that the queue is empty."""

    async def story(queue: InFlightQueue) -> None:
        with pytest.raises(ValueError, match="broken"):
            await Crowd(queue).come("a", 3, hold=FAILS)
        gone = Crowd(queue).come("b", 3, hold=100 * T)
        await settle(queue)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone

    play(QueueBounds(reads=4), story)


# --- Refusal ----------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses(play: Play) -> None:
    """One goes in, two wait, the fourth is refused and told when to come again."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        tasks = [crowd.come(name) for name in "abc"]
        await settle(queue)
        with pytest.raises(Overloaded, match="full") as refused:
            await crowd.come("d")
        assert refused.value.retry_after == RETRY_UNKNOWN
        await asyncio.gather(*tasks)

    play(QueueBounds(reads=1, waiting=2), story)


def test_without_waiting_places_only_room_admits(play: Play) -> None:
    """MAX_QUEUE=0 makes the queue a plain limit."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("a")
        await settle(queue)
        with pytest.raises(Overloaded):
            await crowd.come("b")
        await first
        await crowd.come("c")

    play(QueueBounds(reads=1, waiting=0), story)


def test_retry_after_is_the_time_the_queue_needs_to_drain(play: Play) -> None:
    """Two reads inside and four waiting, two at a time, each held one unit: three units."""

    async def story(queue: InFlightQueue) -> None:
        await taught(queue, 1, 2 * T)
        crowd = Crowd(queue)
        tasks = [crowd.come(str(number), hold=2 * T) for number in range(6)]
        await settle(queue)
        with pytest.raises(Overloaded) as refused:
            await crowd.come("late")
        assert refused.value.retry_after == pytest.approx(6 * T, rel=0.1)
        await asyncio.gather(*tasks)

    play(QueueBounds(reads=2, waiting=4), story)


def test_retry_after_is_never_nothing(play: Play) -> None:
    """Even a queue that drains within a millisecond does not call clients back at once."""

    async def story(queue: InFlightQueue) -> None:
        await taught(queue, 1, 0.0)
        crowd = Crowd(queue)
        first = crowd.come("a")
        await settle(queue)
        with pytest.raises(Overloaded) as refused:
            await crowd.come("b")
        assert refused.value.retry_after == RETRY_LEAST
        await first

    play(QueueBounds(reads=1, waiting=0), story)


def test_a_wait_that_would_outlast_the_timeout_is_refused_at_once(play: Play) -> None:
    """With ten units a decision and one ahead, five units are not enough, and nobody waits to learn that."""

    async def story(queue: InFlightQueue) -> None:
        await taught(queue, 1, 10 * T)
        crowd = Crowd(queue)
        first = crowd.come("a", hold=10 * T)
        await settle(queue)
        before = asyncio.get_running_loop().time()
        with pytest.raises(Overloaded, match="longer than"):
            await crowd.come("b", timeout=5 * T)
        assert asyncio.get_running_loop().time() - before < T
        await first

    play(QueueBounds(reads=1), story)


def test_whoever_finds_room_goes_in_however_slow_the_engine_was(play: Play) -> None:
    """A slow spell must not make the queue refuse for good: with room, it tries again and learns."""

    async def story(queue: InFlightQueue) -> None:
        await taught(queue, 1, 20 * T)
        await Crowd(queue).come("a", timeout=T)

    play(QueueBounds(reads=1), story)


def test_failed_decisions_teach_nothing(play: Play) -> None:
    """An engine that fails fast is not a fast engine."""

    async def story(queue: InFlightQueue) -> None:
        await taught(queue, 1, 10 * T)
        for _ in range(50):
            with pytest.raises(ValueError, match="broken"):
                await Crowd(queue).come("a", hold=FAILS)
        last = Crowd(queue).come("b")
        await settle(queue)
        assert queue.snapshot().expected_wait == pytest.approx(10 * T, rel=0.1)
        await last

    play(QueueBounds(reads=1), story)


def test_a_callers_own_timeout_is_a_deadline(play: Play) -> None:
    """Whoever said how long to wait is told that the deadline passed, and when it did."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("a", hold=10 * T)
        await settle(queue)
        before = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded):
            await crowd.come("b", timeout=2 * T)
        assert asyncio.get_running_loop().time() - before == pytest.approx(2 * T, abs=T)
        assert queue.snapshot().waiting_small == 0
        await first

    play(QueueBounds(reads=1), story)


@pytest.mark.parametrize("timeout", [None, 3 * T, 50 * T])
def test_a_wait_that_takes_all_our_patience_is_our_overload(play: Play, timeout: float | None) -> None:
    """Whoever would have waited longer is told that we are overloaded."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("a", hold=10 * T)
        await settle(queue)
        with pytest.raises(Overloaded):
            await crowd.come("b", timeout=timeout)
        await first

    play(QueueBounds(reads=1, patience=3 * T), story)


def test_whoever_is_late_lets_those_behind_in(play: Play) -> None:
    """A large entry that gives up frees the room that was kept for it."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("a", 5, hold=10 * T)
        await settle(queue)
        late, behind = crowd.come("late", 12, timeout=2 * T), crowd.come("behind", 5)
        await asyncio.sleep(T)
        assert crowd.log == ["a"]
        with pytest.raises(DeadlineExceeded):
            await late
        await behind
        assert crowd.log == ["a", "behind"]
        await first

    play(QueueBounds(reads=12), story)


# --- Order ------------------------------------------------------------------------------------------------------------


def test_within_a_key_the_first_to_come_is_the_first_to_go(play: Play) -> None:
    """Hundreds wait, and not one is passed."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        names = [str(number) for number in range(1000 if isinstance(queue, MemoryQueue) else 200)]
        await asyncio.gather(*[crowd.come(name, 1 + int(name) % 3, key="k", hold=T / 100) for name in names])
        assert crowd.log == names

    play(QueueBounds(reads=4, waiting=1000), story)


def test_keys_take_turns(play: Play) -> None:
    """A key that sends much waits for itself, not others for it."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        names = ["a0", "a1", "a2", "a3", "b1", "b2", "c1"]
        await asyncio.gather(*[crowd.come(name, key=name[0]) for name in names])
        assert crowd.log == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]

    play(QueueBounds(reads=1), story)


def test_a_new_key_is_not_refused_for_a_busy_keys_backlog(play: Play) -> None:
    """What a key would wait for is its turn, not the whole queue."""

    async def story(queue: InFlightQueue) -> None:
        await taught(queue, 1, T)
        crowd = Crowd(queue)
        busy = [crowd.come(str(number), key="busy") for number in range(20)]
        await settle(queue)
        with pytest.raises(Overloaded):
            await crowd.come("one more", key="busy", timeout=5 * T)
        await crowd.come("new", key="new", timeout=5 * T)
        assert crowd.log.index("new") <= 2
        await asyncio.gather(*busy)

    play(QueueBounds(reads=1), story)


def test_small_decisions_pass_large_ones_four_to_one(play: Play) -> None:
    """Both lanes move while both wait."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("-", 8)
        await settle(queue)
        tasks = [crowd.come("L", 8) for _ in range(3)] + [crowd.come("s", 4, hold=T) for _ in range(12)]
        await asyncio.gather(first, *tasks)
        assert "".join(crowd.log) == "-ssssLssssLssssL"

    play(QueueBounds(reads=8), story)


def test_a_small_decision_starts_beside_a_large_one_that_waits(play: Play) -> None:
    """Room that the large one cannot use yet is not left empty."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        tasks = [crowd.come("a", 5), crowd.come("L", 8), crowd.come("s", 2)]
        await settle(queue)
        assert crowd.log == ["a", "s"]
        await asyncio.gather(*tasks)

    play(QueueBounds(reads=8), story)


def test_an_endless_stream_of_small_ones_does_not_starve_a_large_one(play: Play) -> None:
    """After four have passed it, room is kept until it fits."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        tasks = []
        for number in range(40):
            tasks.append(crowd.come("s", 2, hold=T * 2))
            if number == 10:
                tasks.append(crowd.come("L", 8))
            await asyncio.sleep(T / 2)
        await asyncio.gather(*tasks)
        assert crowd.log.index("L") <= 10 + 1 + 4

    play(QueueBounds(reads=8), story)


# --- Departure --------------------------------------------------------------------------------------------------------


def test_a_departed_client_leaves_the_queue_at_once(play: Play) -> None:
    """Its place is free and its turn goes to the next."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first, gone, last = (crowd.come(name) for name in ("a", "gone", "b"))
        await settle(queue)
        gone.cancel()
        await settle(queue)
        assert queue.snapshot().waiting_small == 1
        await asyncio.gather(first, last)
        assert crowd.log == ["a", "b"]

    play(QueueBounds(reads=1), story)


def test_a_departed_large_entry_frees_the_room_kept_for_it(play: Play) -> None:
    """Those behind it start when it goes, not when somebody else leaves."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("a", 5, hold=10 * T)
        await settle(queue)
        gone, behind = crowd.come("gone", 12), crowd.come("behind", 5)
        await settle(queue)
        gone.cancel()
        await behind
        assert not first.done()
        await first

    play(QueueBounds(reads=12), story)


def test_cancelled_between_admission_and_waking_gives_the_room_on(play: Play) -> None:
    """The client goes in the very moment in which its turn has come."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)

        async def compute(_: Ticket) -> Decision:
            await asyncio.sleep(T)
            asyncio.get_running_loop().call_soon(gone.cancel)  # runs when its turn has come, and before it does
            return DECISION

        first = asyncio.create_task(queue.run(Work(Sent("systemone", b"first"), Cost(1, 1), compute)))
        await settle(queue)
        gone, behind = crowd.come("gone"), crowd.come("behind")
        await asyncio.gather(first, behind)
        assert crowd.log == ["behind"]

    play(QueueBounds(reads=1), story)


def test_everybody_who_waits_may_depart_at_once(play: Play) -> None:
    """No entry is left, and the queue goes on."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("a", 8)
        waiting = [crowd.come(str(number), 1 + number % 8, key=str(number % 3)) for number in range(50)]
        await settle(queue)
        for task in waiting:
            task.cancel()
        await first
        await crowd.come("b", 8)
        assert crowd.log == ["a", "b"]

    play(QueueBounds(reads=8), story)


def test_departure_and_deadline_may_come_in_the_same_moment(play: Play) -> None:
    """The client's leaving wins, and the entry is taken out once."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        first = crowd.come("a", hold=5 * T)
        await settle(queue)
        gone = crowd.come("gone", timeout=2 * T)
        asyncio.get_running_loop().call_later(2 * T, gone.cancel)  # the timer before the entry's own
        with pytest.raises(asyncio.CancelledError):
            await gone
        await settle(queue)
        assert queue.snapshot().waiting_small == 0
        await first

    play(QueueBounds(reads=1), story)


# --- Drain ------------------------------------------------------------------------------------------------------------


def test_a_draining_queue_finishes_what_it_has_and_takes_nothing_new(play: Play) -> None:
    """Those who wait have been promised an answer; those who come are sent to another replica."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        tasks = [crowd.come(name) for name in "abc"]
        await settle(queue)
        drained = asyncio.create_task(queue.drain(60.0))
        await settle(queue)
        with pytest.raises(QueueUnavailable):
            await crowd.come("late")
        assert queue.snapshot().draining
        assert await drained
        assert crowd.log == ["a", "b", "c"]
        await asyncio.gather(*tasks)

    play(QueueBounds(reads=1), story)


def test_draining_ends_with_its_timeout(play: Play) -> None:
    """A decision that does not end holds nobody up for longer than was said."""

    async def story(queue: InFlightQueue) -> None:
        crowd = Crowd(queue)
        task = crowd.come("a", hold=100 * T)
        await settle(queue)
        assert not await queue.drain(2 * T)
        task.cancel()
        assert await queue.drain(2 * T)

    play(QueueBounds(reads=1), story)


def test_an_empty_queue_has_drained_at_once(play: Play) -> None:
    """A gateway that nobody uses stops without waiting."""

    async def story(queue: InFlightQueue) -> None:
        assert await queue.drain(T)

    play(QueueBounds(reads=1), story)


# --- What can be seen -------------------------------------------------------------------------------------------------


def test_the_snapshot_tells_who_is_in_and_who_waits(play: Play) -> None:
    """Decisions and reads inside, entries by lane, the age of the oldest, and what a newcomer would wait."""

    async def story(queue: InFlightQueue) -> None:
        assert replace(queue.snapshot(), cluster=None) == IDLE
        await taught(queue, 8, 2 * T)
        crowd = Crowd(queue)
        tasks = [crowd.come("a", 8, hold=4 * T), crowd.come("s", 1), crowd.come("L", 6)]
        await asyncio.sleep(2 * T)
        seen = queue.snapshot()
        assert (seen.decisions, seen.reads, seen.waiting_small, seen.waiting_large) == (1, 8, 1, 1)
        assert seen.oldest == pytest.approx(2 * T, abs=T)
        assert 0 < seen.expected_wait <= 2 * T
        await asyncio.gather(*tasks)

    play(QueueBounds(reads=8), story)


def test_a_decision_larger_than_the_capacity_is_timed_by_its_reads(play: Play) -> None:
    """Ten reads that took ten units, one after the other, promise one unit to a newcomer of one read."""

    async def story(queue: InFlightQueue) -> None:
        await taught(queue, 10, 10 * T)
        last = Crowd(queue).come("a")
        await settle(queue)
        assert queue.snapshot().expected_wait == pytest.approx(T, rel=0.1)
        await last

    play(QueueBounds(reads=1), story)


# --- Chance -----------------------------------------------------------------------------------------------------------


async def chaos(queue: InFlightQueue, bounds: QueueBounds, chance: random.Random) -> None:
    """Decisions of all sizes come, go, fail and give up at random moments; nothing may be exceeded or lost."""
    crowd = Crowd(queue)
    tasks: list[Task] = []
    for number in range(60):
        reads, hold = chance.randint(1, bounds.reads), chance.choice([0.0, T, 3 * T])
        timeout = chance.choice([None, T, 5 * T])
        tasks.append(crowd.come(str(number), reads, key=chance.choice("abc"), hold=hold, timeout=timeout))
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice([0.0, T / 2, T]))
        seen = queue.snapshot()
        assert seen.reads <= bounds.reads
        assert seen.decisions <= (bounds.decisions or bounds.reads)
        assert seen.waiting_small + seen.waiting_large <= bounds.waiting
        assert seen.cluster or seen.decisions or not (seen.waiting_small or seen.waiting_large)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert crowd.most_inside <= bounds.reads
    assert all(end is None or isinstance(end, AdmissionError | asyncio.CancelledError) for end in ended)
    assert len({ticket.id for ticket in crowd.tickets}) == len(crowd.tickets)


CHANCES = {
    "seed": st.integers(0, 2**32),
    "bounds": st.builds(
        QueueBounds,
        reads=st.integers(1, 40),
        decisions=st.none() | st.integers(1, 5),
        waiting=st.integers(0, 30),
        patience=st.sampled_from([T, 10 * T, 1000 * T]),
    ),
}
SIZES = st.lists(st.integers(1, 12), min_size=2, max_size=40)


@pytest.mark.parametrize("play", ["memory"], indirect=True)
@settings(max_examples=150, deadline=None)
@given(**CHANCES)
def test_nothing_is_exceeded_or_lost_by_chance(play: Play, seed: int, bounds: QueueBounds) -> None:
    """Whatever comes and goes: bounds hold, everybody is answered, and all room comes back."""
    play(bounds, lambda queue: chaos(queue, bounds, random.Random(seed)))


@pytest.mark.redis
@pytest.mark.parametrize("play", ["redis"], indirect=True)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(**CHANCES)
def test_nothing_is_exceeded_or_lost_by_chance_in_redis(play: Play, seed: int, bounds: QueueBounds) -> None:
    """The same in real time."""
    play(bounds, lambda queue: chaos(queue, bounds, random.Random(seed)))


async def ordered(queue: InFlightQueue, sizes: list[int]) -> None:
    """Of two entries of one key and one lane, the earlier one starts first."""
    crowd = Crowd(queue)
    await asyncio.gather(*[crowd.come(f"{index}:{reads}", reads, hold=T / 10) for index, reads in enumerate(sizes)])
    for lane in (range(1, 5), range(5, 13)):
        order = [int(name.split(":")[0]) for name in crowd.log if int(name.split(":")[1]) in lane]
        assert all(earlier < later for earlier, later in pairwise(order))


@pytest.mark.parametrize("play", ["memory"], indirect=True)
@settings(max_examples=50, deadline=None)
@given(sizes=SIZES)
def test_within_a_lane_nobody_of_the_same_key_is_passed(play: Play, sizes: list[int]) -> None:
    """Whatever the sizes."""
    play(QueueBounds(reads=12, waiting=100), lambda queue: ordered(queue, sizes))


@pytest.mark.redis
@pytest.mark.parametrize("play", ["redis"], indirect=True)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(sizes=SIZES)
def test_within_a_lane_nobody_of_the_same_key_is_passed_in_redis(play: Play, sizes: list[int]) -> None:
    """The same in real time."""
    play(QueueBounds(reads=12, waiting=100), lambda queue: ordered(queue, sizes))
