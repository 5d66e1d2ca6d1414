"""Whatever stands in a variable goes into the prompt of every template of ours unchanged, and nothing else does."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from decisions.plan import Planner
from decisions.reads import EngineLimits
from decisions.template import DecisionTemplate
from gateway.config import load
from gateway.engines.stub import PAD, StubEngine
from gateway.offline import wire_of
from gateway.template_files import SHIPPED
from gateway.templates import Catalogue
from tests.decisions.test_template import INJECTIONS

LIMITS = EngineLimits(2**24, canvas=128, slots=128, reads=64)
ENGINE = StubEngine(LIMITS)
PLANNER = Planner(ENGINE.tokenizer, LIMITS, ENGINE.form)
CONTROL = range(PAD, PAD + 6)
SETTINGS = load({})


def shipped() -> list[DecisionTemplate]:
    """Every template of ours."""
    catalogue = Catalogue([SHIPPED])
    catalogue.look()
    assert catalogue.index.broken == ()
    return list(catalogue.index.all())


def texts_of(template: DecisionTemplate) -> list[tuple[str, ...]]:
    """Where the variables of the first example hold free text: paths that take any text."""
    found: list[tuple[str, ...]] = []

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, str):
            changed = replaced(template.examples[0]["variables"], path, "free text?")
            if not list(template.variables.faults(changed)):
                found.append(path)
        elif isinstance(value, dict):
            for key, member in value.items():
                walk(member, (*path, key))

    walk(template.examples[0]["variables"], ())
    return found


def replaced(variables: dict[str, Any], path: tuple[str, ...], text: str) -> dict[str, Any]:
    """The variables with another text in one place."""
    changed: dict[str, Any] = json.loads(json.dumps(variables))
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = text
    return changed


def prompts(template: DecisionTemplate, variables: dict[str, Any]) -> list[tuple[int, ...]]:
    """The prompts of the first round."""
    body = json.dumps({"variables": variables}).encode()
    request = wire_of(SETTINGS, template).parse_template(template.name, body)
    return [read.prompt for read in PLANNER.plan(request).next_reads()]


def packed(ids: Sequence[int]) -> bytes:
    """Token ids in a form that can be searched."""
    return array("I", ids).tobytes()


def control(prompt: tuple[int, ...]) -> list[int]:
    """How often each control token stands in a prompt."""
    return [prompt.count(token) for token in CONTROL]


@pytest.mark.parametrize("template", shipped(), ids=lambda template: template.label)
@pytest.mark.timeout(600)
def test_no_text_of_a_caller_is_changed_or_changes_more_than_its_place(template: DecisionTemplate) -> None:
    """On token ids: the text is there, as it is or as JSON spells it; as many control tokens as without it."""
    example = template.examples[0]["variables"]
    usual = prompts(template, example)
    all_of_them = {"all": "".join(text for name, text in INJECTIONS.items() if name != "megabyte")}
    for number, path in enumerate(texts_of(template)):
        for name, text in (all_of_them if number else INJECTIONS).items():
            seen = prompts(template, replaced(example, path, text))
            spelled = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
            wanted = [packed(ENGINE.tokenizer.encode(each)) for each in spelled]

            assert any(each in packed(prompt) for prompt in seen for each in wanted), (path, name)
            assert control(usual[0]) == control(seen[0]), (path, name)
