"""The engine contract: what the gateway may rely on, whichever engine reads."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine
from typing import Any

import pytest

from decisions.errors import EngineError, TooManyTokens
from decisions.plan import Plan, Planner
from decisions.reads import Read, SlotPosition, Thought, check_readout
from gateway.engines import Engine
from tests.gates.asking import WIRE

from .asking import TICKET, apart, ask, story

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

COMPANY = 1e-3
"""Nats by which company, or a cached prefix, may move a label in float32."""
AGREEMENT = 1e-4
"""Nats by which two engines may differ in float32 on the same weights; 3.5e-5 was the worst of 24 reads."""


async def test_readouts_come_in_the_order_of_the_reads(engine: Engine) -> None:
    reads = ask(engine, story(1), range(4)) + ask(engine, story(2), [1, 0])
    together = await engine.read(reads, TICKET)

    assert [2, 3, 4, 6, 3, 2] == [len(readout.logprobs[0]) for readout in together]
    for read, readout in zip(reads, together, strict=True):
        assert COMPANY >= apart([readout], await engine.read([read], TICKET))


async def test_a_readout_has_a_finite_share_of_the_vocabulary_for_each_label(engine: Engine) -> None:
    reads = ask(engine, story(3), range(4))
    for read, readout in zip(reads, await engine.read(reads, TICKET), strict=True):
        check_readout(read, readout)
        for row in readout.logprobs:
            assert 1 + 1e-6 >= math.fsum(map(math.exp, row)) > 0


async def test_labels_keep_their_places_in_any_order(engine: Engine) -> None:
    [read] = ask(engine, story(4), [1])
    if engine.kind == "stub":
        pytest.skip("the stub finds options by the order of their labels")
    [slot] = read.slots
    turned = Read(read.prompt, (SlotPosition(slot.position, slot.label_ids[::-1]),), read.canvas, read.prefix)
    [one], [other] = await engine.read([read], TICKET), await engine.read([turned], TICKET)

    assert COMPANY >= max(abs(a - b) for a, b in zip(one.logprobs[0], other.logprobs[0][::-1], strict=True))


async def test_a_read_is_the_same_alone_and_among_fifteen_others(engine: Engine) -> None:
    [read] = ask(engine, story(5), [2])
    others = [other for number in range(15) for other in ask(engine, story(100 + number, 1), [number])]
    alone = await engine.read([read], TICKET)
    together = await engine.read([*others[:7], read, *others[7:]], TICKET)

    assert COMPANY >= apart(alone, together[7:8])


async def test_a_shared_prefix_changes_no_answer(engine: Engine) -> None:
    reads = ask(engine, story(6, 12), range(5))
    assert {reads[0].prefix} == {read.prefix for read in reads} != {0}
    cold = [*await engine.read(reads[:1], TICKET), *await engine.read(reads[1:], TICKET)]
    warm = await engine.read(reads, TICKET)

    assert COMPANY >= apart(cold, warm)
    if engine.kind != "stub":
        unshared = [Read(read.prompt, read.slots, read.canvas) for read in reads]
        assert COMPANY >= apart(cold, await engine.read(unshared, TICKET))


async def test_a_state_is_computed_once_for_all_its_questions(engine: Engine) -> None:
    if engine.kind == "stub":
        pytest.skip("the stub computes no state")
    if engine.kind == "reference" and engine.limits.canvas:
        pytest.skip("the reference engine computes each canvas with all of its prompt")
    reads = ask(engine, story(7, 12), range(8))
    readouts = await engine.read(reads, TICKET)

    # All but a block of the state, for all reads but the first.
    assert 0.8 * reads[0].prefix <= sorted(readout.cached_tokens for readout in readouts)[1]


async def given_up(work: Coroutine[Any, Any, object]) -> None:
    """Begin something and cancel it; it has to end in that."""
    call = asyncio.ensure_future(work)
    await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancelled_read_ends_at_once_and_frees_the_engine(engine: Engine) -> None:
    [read] = ask(engine, story(8), [0])
    before = await engine.read([read], TICKET)
    many = [long for number in range(8) for long in ask(engine, story(200 + number, 40), [number])]
    await given_up(engine.read(many, TICKET))

    assert COMPANY >= apart(before, await engine.read([read], TICKET))
    assert (await engine.health()).alive


async def test_calls_at_the_same_time_never_swap_answers(engine: Engine) -> None:
    calls = [ask(engine, story(300 + number, 1), [number, number + 1]) for number in range(6)]
    together = await asyncio.gather(*[engine.read(reads, TICKET) for reads in calls])

    for reads, readouts in zip(calls[::3], together[::3], strict=True):
        assert COMPANY >= apart(readouts, await engine.read(reads, TICKET))


def thoughtful(engine: Engine, budget: int) -> tuple[Plan, Thought]:
    """A plan with a thought before its read."""
    if not engine.limits.thinks:
        pytest.skip("its model writes no thoughts, as its limits say")
    questions = {"q": {"type": "noul", "instructions": "Is it so?"}}
    body = {"model": "jev-latest", "state": story(10), "questions": questions, "think": budget}
    plan = Planner(engine.tokenizer, engine.limits, engine.form).plan(WIRE.parse_systemone(json.dumps(body).encode()))
    assert plan.thought is not None
    return plan, plan.thought


@pytest.mark.parametrize("budget", [1, 24, 140], ids=["one token", "part of a canvas", "more than a canvas"])
async def test_a_thought_is_plain_text_within_its_budget_and_reads_go_on_behind_it(engine: Engine, budget: int) -> None:
    plan, asked = thoughtful(engine, budget)
    thought = await engine.think(asked, TICKET)
    assert len(thought) <= budget
    if not engine.kind.startswith("vllm"):  # which takes no seed for it
        assert thought == await engine.think(asked, TICKET)
    assert not set(thought) & {engine.tokenizer.turn_close, *engine.tokenizer.thought_close}
    plan.receive_thought(thought)
    [read] = plan.next_reads()
    assert read.prompt == plan_prompt_behind(thought, engine, read.prompt)
    [readout] = await engine.read([read], TICKET)
    check_readout(read, readout)


def plan_prompt_behind(thought: tuple[int, ...], engine: Engine, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt, which has to end with the thought and what closes it."""
    end = thought + engine.tokenizer.thought_close
    return prompt[: len(prompt) - len(end)] + end


async def test_a_cancelled_thought_ends_at_once_and_frees_the_engine(engine: Engine) -> None:
    _, asked = thoughtful(engine, 2000)
    [read] = ask(engine, story(8), [0])
    before = await engine.read([read], TICKET)
    await given_up(engine.think(asked, TICKET))

    assert COMPANY >= apart(before, await engine.read([read], TICKET))
    assert (await engine.health()).alive


async def test_no_reads_no_readouts(engine: Engine) -> None:
    assert [] == list(await engine.read([], TICKET))


async def test_a_ticket_is_demanded(engine: Engine) -> None:
    unguarded: Any = engine
    with pytest.raises(TypeError, match="ticket"):
        await unguarded.read(ask(engine, story(9), [0]))


async def test_a_prompt_beyond_the_context_is_refused_by_the_packer(engine: Engine) -> None:
    """Engines may rely on it: no read that is too long for them is ever made."""
    with pytest.raises(TooManyTokens) as refused:
        ask(engine, story(10, 600), [0])

    assert engine.limits.context == refused.value.allowed < refused.value.counted


async def test_a_label_that_the_model_does_not_know_is_an_error_and_no_answer(engine: Engine) -> None:
    if engine.kind == "stub":
        pytest.skip("the stub knows its labels by name")
    [read] = ask(engine, story(11), [0])
    unknown = Read(read.prompt, (SlotPosition(0, (10**6, 10**6 + 1)),), read.canvas)
    with pytest.raises(EngineError):
        await engine.read([read, unknown], TICKET)

    assert (await engine.health()).alive
    check_readout(read, (await engine.read([read], TICKET))[0])


async def test_an_engine_says_what_it_is(engine: Engine) -> None:
    assert (await engine.health()).alive
    assert engine.model.name
    assert engine.model.revision
    assert engine.model.architecture
    assert 128 == engine.limits.label_ids
    assert engine.limits.slots == (engine.limits.canvas or 1)
    assert engine.limits.reads >= 8


@pytest.mark.model
@pytest.mark.vllm
@pytest.mark.parametrize("other", ["vllm", pytest.param("vllm_http", marks=pytest.mark.slow)], indirect=True)
async def test_vllm_reads_what_the_reference_reads(reference: Engine, other: Engine) -> None:
    assert reference.model == other.model
    assert reference.form == other.form
    reads = [read for number in range(6) for read in ask(other, story(400 + number, 2 * number), range(4))]
    expected, found = await reference.read(reads, TICKET), await other.read(reads, TICKET)
    print(f"worst difference {apart(expected, found):.2e} nats over {len(reads)} reads")

    assert AGREEMENT >= apart(expected, found)
