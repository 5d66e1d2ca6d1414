"""Requests that name a template: what they become, what is refused, and the routes that speak of templates."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decisions.errors import BodyTooLarge, Fault, SchemaViolation
from decisions.protocol import ChoiceQuestion, Isolation, ReadSettings
from decisions.schema import ValueShape, load_schema
from gateway.templates import Catalogue
from gateway.wire import ServedNames, ShapeLimits, Wire, WireRequest
from tests.conftest import AppClient
from tests.decisions.test_template import INJECTIONS
from tests.gateway.policies import ROUTER, TRIAGE, write

TICKET = {"ticket": "I was charged twice."}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two templates, one in two versions."""
    made = tmp_path_factory.mktemp("templates")
    write(made, file="support/triage_sample.json")
    write(made, file="support/triage_sample@2.json", version=2, settings={})
    write(made, ROUTER)
    return made


@pytest.fixture(scope="module")
def wire(folder: Path) -> Wire:
    """A wire with those."""
    catalogue = Catalogue([folder])
    catalogue.look()
    return Wire(ShapeLimits(options=30), ReadSettings(), ServedNames("own-model"), catalogue)


@pytest.fixture
async def served(folder: Path) -> AsyncIterator[AppClient]:
    """A gateway with those."""
    async with AppClient(TEMPLATES_DIR=str(folder)) as client:
        yield client


def parse(wire: Wire, name: str = "triage_sample@1", **fields: Any) -> WireRequest:
    """A System One request with a template, parsed."""
    body = {"model": "jev-latest", "template": name, "variables": TICKET, **fields}
    return wire.parse_systemone(json.dumps(body).encode())


def faults(wire: Wire, name: str = "triage_sample@1", **fields: Any) -> list[Fault]:
    """What is wrong with such a request."""
    with pytest.raises(SchemaViolation) as refused:
        parse(wire, name, **fields)
    return list(refused.value.faults)


# --- What a template becomes ------------------------------------------------------------------------------------------


def test_a_template_is_the_request_that_it_spells(wire: Wire) -> None:
    """State, questions, instructions and settings; the request's diagnostics name it."""
    request = parse(wire)
    written = {part: TRIAGE[part] for part in ("questions", "settings")}
    plain = wire.parse_systemone(
        json.dumps(
            {
                "model": "jev-latest",
                "state": {"ticket": TICKET["ticket"], "customer": {"plan": "free"}},
                "instructions": "The customer's plan is free.",
                "questions": written["questions"],
                **written["settings"],
            }
        ).encode()
    )

    assert (plain.state, plain.questions, plain.instructions) == (
        request.state,
        request.questions,
        request.instructions,
    )
    assert (plain.settings, Isolation.NONE) == (request.settings, request.settings.isolate)
    assert ("triage_sample@1", None) == (request.template, plain.template)
    assert request.expanded is not None
    assert replace(wire.parse_systemone(request.expanded), asked=None) == replace(plain, asked=None)


def test_a_bare_name_means_the_highest_version(wire: Wire) -> None:
    """Which has no settings here."""
    assert ("triage_sample@2", Isolation.AUTO) == (
        parse(wire, "triage_sample").template,
        parse(wire, "triage_sample").settings.isolate,
    )


def test_what_the_request_says_itself_stands_above_the_template(wire: Wire) -> None:
    """State, instructions and settings replace the template's, questions are added; null leaves a setting to it."""
    extra = {"type": "noul", "instructions": "Is it polite?"}
    request = parse(
        wire, state="own", instructions="mine", isolate="all", temperature=None, questions={"q1": extra, "q9": extra}
    )

    assert ("own", "mine", Isolation.ALL) == (request.state, request.instructions, request.settings.isolate)
    assert 2.0 == request.settings.temperatures.noul
    assert ["q1", "q2", "q3", "q9"] == [question.id for question in request.questions]
    assert "Is it polite?" == request.questions[0].instructions


def test_options_come_from_a_variable(wire: Wire) -> None:
    """Checked as any options: their number, their names."""
    intents = {f"intent {number}": None for number in range(30)}
    (question,) = parse(wire, "router_sample", variables={"message": "x", "intents": intents}).questions
    (many,) = faults(wire, "router_sample", variables={"message": "x", "intents": {**intents, "one more": None}})
    (empty,) = faults(wire, "router_sample", variables={"message": "x", "intents": {"": None, "b": None}})

    assert isinstance(question, ChoiceQuestion)
    assert 30 == len(question.options)
    assert ("too_long", ("body", "questions", "q1", "criteria")) == (many.type, many.loc)
    assert "at most 30 choices. (from template 'router_sample@1')" in many.msg
    assert "string_too_short" == empty.type


@pytest.mark.parametrize("name", INJECTIONS)
def test_a_value_over_the_wire_is_unchanged(wire: Wire, name: str) -> None:
    """Whatever it holds, as the same state without a template."""
    value = INJECTIONS[name]
    state = parse(wire, variables={"ticket": value}).state

    assert {"ticket": value, "customer": {"plan": "free"}} == state
    assert value == parse(wire, "router_sample", variables={"message": value, "intents": {"a": "", "b": ""}}).state


def test_lone_surrogates_and_large_numbers_are_what_they_are_elsewhere(wire: Wire) -> None:
    """U+FFFD in text; a number beyond 64 bits is its digits, as text."""
    body = b'{"model": "jev-latest", "template": "triage_sample", "variables": {"ticket": "a\\ud800b\\udc00"}}'

    assert {"ticket": "a\ufffdb\ufffd", "customer": {"plan": "free"}} == wire.parse_systemone(body).state
    large = b'{"model": "jev-latest", "template": "triage_sample", "variables": {"ticket": 99999999999999999999}}'
    assert "99999999999999999999" == json.loads(json.dumps(wire.parse_systemone(large).state))["ticket"]


def test_a_repeated_key_and_nan_in_variables_are_refused(wire: Wire) -> None:
    """As everywhere."""
    for spelled in (b'{"ticket": "a", "ticket": "b"}', b'{"ticket": NaN}'):
        with pytest.raises(SchemaViolation):
            wire.parse_systemone(b'{"model": "m", "template": "triage_sample", "variables": ' + spelled + b"}")


# --- What is refused --------------------------------------------------------------------------------------------------


def test_every_fault_of_a_request_comes_at_once(wire: Wire) -> None:
    """Of the variables, and of the request's own fields; what the template brings is not missed."""
    found = faults(wire, variables={"tikcet": 1, "customer": {"plan": "gold"}}, samples=99, model=3)

    assert [
        ("missing", "ticket"),
        ("literal_error", "plan"),
        ("extra_forbidden", "tikcet"),
        ("string_type", "model"),
        ("value_error", "samples"),
    ] == [(fault.type, fault.loc[-1]) for fault in found]
    assert all("triage_sample" in fault.msg for fault in found[:3])


def test_variables_are_refused_beside_a_body_that_is_right_otherwise(wire: Wire) -> None:
    """No fault is made up."""
    assert ["missing"] == [
        fault.type
        for fault in faults(wire, variables=None, state="x", questions={"q": {"type": "noul", "instructions": "?"}})
    ]


@pytest.mark.parametrize(
    ("fields", "kind", "place"),
    [
        ({"name": "triage_sampel"}, "unknown_template", ("body", "template")),
        ({"name": 3}, "string_type", ("body", "template")),
        ({"name": None}, "missing", ("body", "template")),
        ({"variables": [1]}, "dict_type", ("body", "variables")),
        ({"state": None}, "string_type", ("body", "state")),
        ({"questions": []}, "dict_type", ("body", "questions")),
        ({"questions": {"q": {"type": "boo"}}}, "union_tag_invalid", ("body", "questions", "q", "type")),
        ({"isolate": "some"}, "literal_error", ("body", "isolate")),
    ],
)
def test_faults_name_their_field(wire: Wire, fields: dict[str, Any], kind: str, place: tuple[str, ...]) -> None:
    """Whether the template's name, its variables or the request's own."""
    (fault,) = faults(wire, **fields)

    assert (kind, place) == (fault.type, fault.loc)
    assert "(from template" not in fault.msg


def test_a_name_nobody_serves_is_told_with_near_ones(wire: Wire) -> None:
    """And where there are no templates at all, that is told."""
    bare = Wire(ShapeLimits(), ReadSettings(), ServedNames("own-model"))

    assert "Did you mean triage_sample" in faults(wire, "triage_sampel")[0].msg
    assert "No templates are served here" in faults(bare, "x")[0].msg


def test_null_and_empty_ask_for_no_template(wire: Wire) -> None:
    """What clients send for "none"."""
    fields = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}, "variables": {}}
    body = {"model": "jev-latest", "template": None, **fields}
    openai = {
        "model": "jev-latest",
        "input": "x",
        "template": None,
        "questions": [{"type": "predicate", "instructions": "?"}],
    }

    assert None is wire.parse_systemone(json.dumps(body).encode()).template
    assert () != wire.parse_decisions(json.dumps(openai).encode()).spellings


def test_too_much_is_413(wire: Wire, folder: Path) -> None:
    """However small the body."""
    write(folder, ROUTER, name="wide_sample", state=["{{ message }}"] * 100)
    catalogue = Catalogue([folder])
    catalogue.look()
    wide = Wire(ShapeLimits(), ReadSettings(), ServedNames("own-model"), catalogue)

    with pytest.raises(BodyTooLarge, match="wide_sample"):
        parse(wide, "wide_sample", variables={"message": "x" * 100_000, "intents": {"a": "", "b": ""}})


# --- Routes -----------------------------------------------------------------------------------------------------------


async def test_all_ways_to_ask_give_the_same_answer(served: AppClient) -> None:
    """In a request of either route, or on the template's own path, with the model left out."""
    body = {"model": "jev-latest", "template": "triage_sample@1", "variables": TICKET}
    own = await served.post("/v1/systemone", json=body)
    theirs = await served.post("/v1/decisions", json=body)
    path = await served.post("/v1/templates/triage_sample@1/decide", json={"variables": TICKET})

    assert [200, 200, 200] == [each.status_code for each in (own, theirs, path)]
    assert own.content == theirs.content == path.content
    assert ["q1", "q2", "q3"] == list(own.json()["answers"])


async def test_settings_and_diagnostics_go_with_the_path(served: AppClient) -> None:
    """And the path's own name may stand in the body."""
    url = "/v1/templates/triage_sample/decide/"
    told = await served.post(url, json={"variables": TICKET, "diagnostics": True, "template": "triage_sample"})
    other = await served.post(url, json={"variables": TICKET, "template": "router_sample"})
    wrong = await served.post(url, json={"variables": {}, "samples": 99})

    assert "triage_sample@2" == told.json()["x_diagnostics"]["template"]
    assert [("body", "template")] == [tuple(fault["loc"]) for fault in other.json()["detail"]]
    assert ["ticket", "samples"] == [fault["loc"][-1] for fault in wrong.json()["detail"]]


async def test_templates_are_listed_and_shown(served: AppClient) -> None:
    """As their schemas say; variables are a JSON Schema that the examples fit."""
    listed = (await served.get("/v1/templates")).json()
    shown = (await served.get("/v1/templates/triage_sample")).json()
    pinned = (await served.get("/v1/templates/triage_sample@1")).json()
    rows = {row["name"]: row for row in listed["templates"]}

    assert [] == list(ValueShape({**load_schema("templates.response"), "properties": {}}).faults(listed, ("x",)))
    assert {"router_sample", "triage_sample"} <= rows.keys()
    assert (2, [2, 1], "support") == tuple(rows["triage_sample"][key] for key in ("version", "versions", "folder"))
    assert (2, 1) == (shown["version"], pinned["version"])
    assert (TRIAGE["state"], TRIAGE["settings"]) == (pinned["state"], pinned["settings"])
    assert ["ticket"] == shown["variables"]["required"]
    assert [] == list(ValueShape(shown["variables"]).faults(shown["examples"][0]["variables"], ("x",)))


@pytest.mark.parametrize("path", ["/v1/templates/nope", "/v1/templates/triage_sample@9"])
async def test_an_unknown_name_in_a_path_is_404(served: AppClient, path: str) -> None:
    """With the error's own name."""
    for response in (await served.get(path), await served.post(f"{path}/decide", json={})):
        assert (404, "unknown_template") == (response.status_code, response.json()["detail"]["error_type"])


async def test_metrics_know_the_route_and_not_the_name(served: AppClient) -> None:
    """So that strangers cannot add time series; and how many templates there are."""
    await served.get("/v1/templates/nope")
    await served.get("/v1/templates/triage_sample")
    await served.post("/v1/templates/router_sample/decide", json={})
    text = (await served.get("/metrics")).text

    assert 'route="/v1/templates/{name}",status="404"' in text
    assert 'route="/v1/templates/{name}",status="200"' in text
    assert 'route="/v1/templates/{name}/decide",status="422"' in text
    assert "triage_sample" not in text
    assert "canvasgate_templates_broken 0.0" in text


async def test_templates_need_a_key_where_others_do(folder: Path) -> None:
    """They are somebody's policies."""
    async with AppClient(TEMPLATES_DIR=str(folder), API_KEY="sk-1") as client:
        closed = [await client.get("/v1/templates"), await client.get("/v1/templates/triage_sample")]

    assert [403, 403] == [response.status_code for response in closed]


async def test_a_large_rendering_is_planned_off_the_event_loop(served: AppClient) -> None:
    """As a large body is."""
    answer = await served.post("/v1/templates/triage_sample/decide", json={"variables": {"ticket": "x" * 100_000}})

    assert (400, "max_tokens_exceeded") == (answer.status_code, answer.json()["detail"]["error_type"])
