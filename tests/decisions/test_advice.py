"""Likely mistakes of a policy's author."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from decisions.advice import advice, question_advice
from decisions.schema import load_schema
from decisions.template import DecisionTemplate


def said(question: dict[str, Any], key: str = "q1") -> list[str]:
    """Places and words of the advice about one question, in a line each."""
    return [f"{'.'.join(map(str, hint.loc))}: {hint.msg}" for hint in question_advice(key, question)]


def choice(**options: Any) -> dict[str, Any]:
    """A choice with these options."""
    return {"type": "choice", "instructions": "Which?", "criteria": options}


def score(*levels: Any) -> dict[str, Any]:
    """A score with these levels."""
    return {"type": "score", "instructions": "How much?", "criteria": [*levels]}


NOUL = {"type": "noul", "instructions": "Is it?", "criteria": {"true": "It is", "false": "It is not"}}


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (choice(a="The first thing", billing="Invoices"), "criteria.a: a name of one letter"),
        (choice(billing="Invoices", sales=None), "criteria.sales: the option has no description"),
        (choice(billing="Invoices", sales=" "), "criteria.sales: the option has no description"),
        (choice(billing="Invoices", sales="Sales"), "criteria.sales: the description only repeats"),
        (choice(Yes="It holds", no="It fails"), "criteria: a choice between yes and no is a noul"),
        (choice(billing="Invoices and refunds", money="Invoices and refunds."), "criteria.money: it says the same as"),
        (choice(billing="Invoices", Billing="Something else"), "criteria.Billing: it says the same as 'billing'"),
        (score("3 stars", "2 stars", "1 star"), "criteria: the levels are out of order"),
        (score("High", "Medium", "Low"), "criteria: the levels are out of order"),
        (score("Furious", "Annoyed", {"level": "Calm"}), "criteria: the levels are out of order"),
        (score("Calm", "Annoyed", "calm "), "criteria: two levels say the same"),
        ({"type": "noul", "instructions": "Is it?"}, "criteria: saying what counts"),
        ({**NOUL, "instructions": ""}, "instructions: the question has no words"),
    ],
)
def test_a_likely_mistake_is_named(question: dict[str, Any], told: str) -> None:
    """With its place in the question."""
    assert any(line.startswith(told) for line in said(question))


@pytest.mark.parametrize("key", ["answer_is_yes", "is_refund", "not_urgent", "Billing", "always"])
def test_an_id_that_carries_a_meaning_is_named(key: str) -> None:
    """Those that state an answer, and those that are one of the options."""
    assert any("the id carries a meaning" in line for line in said(choice(billing="Invoices", sales="Offers"), key))


@pytest.mark.parametrize(
    "question",
    [
        NOUL,
        choice(billing="Invoices, charges, refunds", technical="Bugs and errors", other={"means": "anything else"}),
        choice(one="Only"),
        score("0 none", "1 some", "2 much"),
        score("Calm", "Annoyed", "Furious"),
        score("Low", "Medium", "High"),
        score("Not at all", "Quite"),
        {"type": "score", "instructions": "How?", "criteria": "not a list"},
    ],
)
def test_a_good_question_is_left_alone(question: dict[str, Any]) -> None:
    """With a neutral id."""
    assert [] == said(question)


def test_a_template_is_looked_at_as_a_whole() -> None:
    """Variables, examples, and the questions as they are rendered."""
    document: dict[str, Any] = copy.deepcopy(load_schema("decision-template")["examples"][0])
    document["variables"]["unused"] = {"default": 1}
    document["variables"]["teams"]["default"] = {"a": "First team", "b": "Second"}
    found = [(hint.loc, hint.msg) for hint in advice(DecisionTemplate(document))]

    assert [
        ("variables", "unused"),
        ("variables", "unused"),
        ("examples",),
        ("questions", "q2", "criteria", "a"),
        ("questions", "q2", "criteria", "b"),
    ] == [place for place, _ in found]


def test_two_examples_are_enough() -> None:
    """And nothing else is wrong with the sample of the schema."""
    document: dict[str, Any] = copy.deepcopy(load_schema("decision-template")["examples"][0])
    document["examples"] *= 2

    assert [] == list(advice(DecisionTemplate(document)))
