"""The templates that are shipped: each is whole, renders its examples, and passes any text on as it was given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decisions.template import DecisionTemplate, expected_faults
from tests.decisions.test_template import INJECTIONS
from tests.gates.asking import WIRE, Body, stub
from tests.gates.test_text import TEXTS

TEMPLATES = Path(__file__).parents[2] / "templates"
FILES = sorted(TEMPLATES.rglob("*.json"))
README = (TEMPLATES / "README.md").read_text("utf-8")
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
MARK = "\ue000"
"""Stands for a text; no template contains it."""
SHORT = 10_000
"""Characters of a text that is still planned for each template."""
FOLDERS = {
    *("support", "security", "moderation", "agents", "retrieval"),
    *("documents", "intents", "evaluation", "vision"),
}


def loaded(file: Path) -> DecisionTemplate:
    """The template in a file."""
    return DecisionTemplate(json.loads(file.read_text("utf-8")))


def request_of(template: DecisionTemplate, variables: Body) -> bytes:
    """The body that a template spells."""
    return json.dumps({"model": "jev-latest", **template.render(variables)}).encode()


def replaced(value: Any, make: Callable[[str], str]) -> Any:
    """JSON with other strings; keys stay."""
    if isinstance(value, str):
        return make(value)
    if isinstance(value, list):
        return [replaced(item, make) for item in value]
    if isinstance(value, dict):
        return {key: replaced(member, make) for key, member in value.items()}
    return value


def always(text: str) -> Callable[[str], str]:
    """Gives one text for any."""
    return lambda _: text


def unmarked(text: str) -> Callable[[str], str]:
    """Puts a text where the mark is."""
    return lambda leaf: leaf.replace(MARK, text)


def open_strings(template: DecisionTemplate, make: Callable[[str], str]) -> Body:
    """The first example's variables with other strings, where a schema lets them be any."""
    given = template.variables.filled(template.examples[0]["variables"])
    return {
        name: value if "enum" in template.variables.declared[name] else replaced(value, make)
        for name, value in given.items()
    }


@EACH
def test_examples_render_as_they_say_and_are_requests(file: Path) -> None:
    """Two or more; the wire takes each."""
    template = loaded(file)

    assert not list(expected_faults(template))
    assert len(template.examples) >= 2
    for example in template.examples:
        WIRE.parse_systemone(request_of(template, example["variables"]))


@EACH
def test_a_file_keeps_the_rules_of_the_catalogue(file: Path) -> None:
    """It is called as what it holds, says what it is for, uses its variables, and describes them and its options."""
    template = loaded(file)
    described = [schema.get("description") for schema in template.variables.declared.values()]

    assert file.stem == (template.name if template.version == 1 else template.label)
    assert file.parent.name in FOLDERS
    assert "Use it" in template.description
    assert all(described)
    assert template.used == template.variables.declared.keys()
    for key, question in template.document["questions"].items():
        assert re.fullmatch(r"q_[a-z0-9_]+", key)
        criteria = question["criteria"]
        if question["type"] == "choice" and isinstance(criteria, dict):
            assert all(criteria.values())
            assert len({*criteria.values()}) == len(criteria)
            assert not any(len(name) < 3 for name in criteria)


@EACH
def test_any_text_goes_through_unchanged(file: Path) -> None:
    """Into the request, in the places where the example's texts stand, and from there into the prompt's token ids."""
    template, desk = loaded(file), stub()
    marked = template.render(open_strings(template, always(MARK)))

    for text in (*TEXTS.values(), *INJECTIONS.values()):
        if len(text) > SHORT:
            continue
        variables = open_strings(template, always(text))
        reads = desk.service.planner.plan(WIRE.parse_systemone(request_of(template, variables))).next_reads()
        shown = desk.engine.tokenizer.decode(reads[0].prompt)

        assert replaced(marked, unmarked(text)) == template.render(variables)
        assert text in shown or json.dumps(text, ensure_ascii=False)[1:-1] in shown


@EACH
def test_a_megabyte_goes_through_unchanged(file: Path) -> None:
    """In one variable; nothing is cut on the way into the request."""
    template, text = loaded(file), INJECTIONS["megabyte"]
    given = template.examples[0]["variables"]
    name = next(name for name, value in given.items() if isinstance(value, str))
    marked = template.render({**given, name: MARK})

    assert replaced(marked, unmarked(text)) == template.render({**given, name: text})


def test_there_are_versions_side_by_side() -> None:
    """Two names at least; each version says what it changed."""
    later = [loaded(file) for file in FILES if "@" in file.stem]

    assert len(later) >= 2
    assert all("Changes from version" in template.description for template in later)


def test_the_readme_lists_the_catalogue() -> None:
    """Every name in its folder, once, and no other."""
    listed = re.findall(r"^\| `([a-z]+/[a-z0-9_]+)`", README, re.MULTILINE)
    names = {f"{file.parent.name}/{loaded(file).name}" for file in FILES}

    assert sorted(names) == sorted(listed)
    assert len(names) >= 26


def test_the_policies_that_the_readme_builds_are_templates() -> None:
    """Both stages of it, with examples that render as they say."""
    documents = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", README, re.DOTALL)]
    built = [DecisionTemplate(document) for document in documents]

    assert ["parcel_claim@1"] * 2 == [template.label for template in built]
    assert [[], []] == [list(expected_faults(template)) for template in built]
