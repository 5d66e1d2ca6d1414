"""Asks one server System One requests and reads its answers; what the quality commands share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.answers import Body, answers_of, faults, numbers
from bench.cases import Case
from bench.openloop import Exchange, Reply, Target
from bench.scores import Scored


class Refused(Exception):
    """The server answered a request with an error; `reply` is what it said."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"{reply.status}: {reply.body[:200].decode('utf-8', 'replace')}")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Asker:
    """One server. `model` and `fields` are in every request."""

    target: Target
    exchange: Exchange
    model: str = "jev-latest"
    fields: Body = field(default_factory=dict)

    async def reply(self, request: Body) -> Reply:
        """The answer as it came."""
        body = {"model": self.model, **request, **self.fields}
        return await self.exchange(self.target.request(json.dumps(body).encode()))

    async def ask(self, request: Body) -> Body:
        """Coherent answers by question. Raises `Refused` for anything else."""
        reply = await self.reply(request)
        answers = answers_of(reply.body) if reply.status == 200 else None
        if answers is None or faults(request, answers):
            raise Refused(reply)
        return answers

    async def together(self, requests: Sequence[Body], at_once: int) -> list[Body]:
        """The answers to several requests, so many of them in flight at a time. Raises `Refused`."""
        room = asyncio.Semaphore(at_once)

        async def one(request: Body) -> Body:
            async with room:
                return await self.ask(request)

        return list(await asyncio.gather(*(one(request) for request in requests)))


async def answered(asker: Asker, cases: Sequence[Case], step: Callable[[], None] = lambda: None) -> list[Scored]:
    """Every question of the cases with its answer, asked one request after another."""
    clock, found = asyncio.get_running_loop().time, []
    for case in cases:
        began = clock()
        reply = await asker.reply(case.request)
        seconds = clock() - began
        answers = answers_of(reply.body) if reply.status == 200 else None
        wrong = faults(case.request, answers) if reply.status == 200 else [f"status {reply.status}"]
        found += scored(case, answers if not wrong else None, seconds, "; ".join(wrong))
        step()
    return found


def scored(case: Case, answers: Body | None, seconds: float, fault: str) -> list[Scored]:
    """The questions of one case that have a known answer."""
    found = []
    for name, expected in case.expected.items():
        question = case.request["questions"][name]
        if question["type"] == "noul":
            gold = 0 if expected else 1
        else:
            gold = list(question["criteria"]).index(expected) if question["type"] == "choice" else int(expected)
        shares = in_order(question, answers[name]) if answers else ()
        found.append(
            Scored(
                *(case.id, name, case.suite, case.tier, case.group, question["type"]),
                shares=shares,
                gold=gold,
                seconds=seconds,
                fault=fault,
            )
        )
    return found


def in_order(question: Body, answer: Body) -> tuple[float, ...]:
    """The probabilities in the request's order."""
    if question["type"] == "choice":
        return tuple(answer["probabilities"][name] for name in question["criteria"])
    return tuple(numbers(answer))
