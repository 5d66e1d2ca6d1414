"""Inputs that broke other servers, sent to the whole app with the stub engine: the files in `tests/field_cases`."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.body import MAX_DEPTH

if TYPE_CHECKING:
    from tests.conftest import AppClient

CASES = Path(__file__).parent.parent / "field_cases"


def case(name: str) -> dict[str, Any]:
    """What a case gives."""
    (path,) = CASES.glob(f"{name}-*.json")
    given: dict[str, Any] = json.loads(path.read_text("utf-8"))["given"]
    return given


async def ask(client: AppClient, request: dict[str, Any]) -> httpx.Response:
    """Send a request that names no model."""
    return await client.post("/v1/systemone", json={"model": "jev-latest", **request})


async def send(client: AppClient, body: bytes) -> httpx.Response:
    """Send bytes that no JSON library has touched."""
    return await client.post("/v1/systemone", content=body, headers={"content-type": "application/json"})


async def answer(client: AppClient, request: dict[str, Any], question: str) -> dict[str, Any]:
    """The answer to one question of a request that must succeed."""
    response = await ask(client, request)
    assert 200 == response.status_code, response.text
    found: dict[str, Any] = response.json()["answers"][question]
    return found


@pytest.fixture
def reads(client: AppClient, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every read that the engine is asked for."""
    engine = client.gateway.serving.engine
    asked: list[Any] = []
    real = engine.read

    async def read(reads: Any, ticket: Any) -> Any:
        asked.extend(reads)
        return await real(reads, ticket)

    monkeypatch.setattr(engine, "read", read)
    return asked


# --- FR-002: more options than one read may ask for -------------------------------------------------------------------


async def test_no_option_of_150_loses_its_reading(client: AppClient) -> None:
    """In any order of the options: every one a probability of its own, the sum 1, the choice the largest."""
    given = case("fr-002")
    (question,) = given["request"]["questions"]
    options = list(given["request"]["questions"][question]["criteria"])
    for order in (options, options[::-1], random.Random(2).sample(options, len(options))):
        asked = {"type": "choice", "instructions": "Which country?", "criteria": dict.fromkeys(order)}
        found = await answer(client, {"state": given["request"]["state"], "questions": {question: asked}}, question)
        shares = found["probabilities"]

        assert order == list(shares)
        assert 1 == pytest.approx(sum(shares.values()), abs=1e-9)
        assert max(shares, key=shares.__getitem__) == found["choice"]
        assert 3 >= max(Counter(shares.values()).values())


async def test_two_large_choices_in_one_request_do_not_share_a_limit(client: AppClient) -> None:
    """100 options each."""
    options = list(case("fr-002")["request"]["questions"]["destination"]["criteria"])
    questions = {
        name: {"type": "choice", "instructions": "Which country?", "criteria": dict.fromkeys(part)}
        for name, part in (("q1", options[:100]), ("q2", options[50:]))
    }
    answers = (await ask(client, {"state": "To Kuwait.", "questions": questions})).json()["answers"]

    assert [options[:100], options[50:]] == [list(answers[name]["probabilities"]) for name in ("q1", "q2")]


async def test_no_read_asks_for_more_than_128_label_ids(client: AppClient, reads: list[Any]) -> None:
    """Whatever the number of options."""
    await ask(client, case("fr-002")["request"])

    assert reads
    for read in reads:
        assert 128 >= len({label for slot in read.slots for label in slot.label_ids})


# --- FR-003: option names that begin with the same token --------------------------------------------------------------


@pytest.mark.parametrize("request_name", ["request", "second_request"])
async def test_options_with_a_common_beginning_are_not_merged(client: AppClient, request_name: str) -> None:
    """Keys byte for byte as sent ("no" is not "No"), and no two shares equal."""
    request = case("fr-003")[request_name]
    ((name, question),) = request["questions"].items()
    shares = (await answer(client, request, name))["probabilities"]

    assert list(question["criteria"]) == list(shares)
    assert len(shares) == len(set(shares.values()))
    assert 1 == pytest.approx(sum(shares.values()), abs=1e-9)


# --- FR-006: malformed questions --------------------------------------------------------------------------------------


def malformed() -> list[Any]:
    """Each bad question beside a good one, and each bad map of questions, with what the fault must name."""
    given = case("fr-006")
    good = given["request"]["questions"]["good"]
    questions = [
        pytest.param({"good": good, "bad": entry["question"]}, ["questions", "bad"], id=entry["name"])
        for entry in given["bad_questions"]
    ]
    maps = [
        pytest.param(entry["questions"], ["questions"], id=f"map-{entry['name']}")
        for entry in given["bad_question_maps"]
    ]
    return questions + maps


@pytest.mark.parametrize(("questions", "named"), malformed())
async def test_a_malformed_question_is_refused_by_name_before_any_read(
    client: AppClient, reads: list[Any], questions: object, named: list[str]
) -> None:
    """422, one fault, the question's id in its path, no word of Python's errors, nothing read."""
    response = await ask(client, {"state": case("fr-006")["request"]["state"], "questions": questions})
    (fault,) = response.json()["detail"]

    assert 422 == response.status_code
    assert ["body", *named] == fault["loc"][: len(named) + 1]
    assert not {"Traceback", "NoneType", "AttributeError", "object has no attribute"} & set(fault["msg"].split())
    assert [] == reads


@pytest.mark.parametrize("control", case("fr-006")["controls"], ids=lambda control: control["name"])
async def test_questions_that_only_look_malformed_are_answered(client: AppClient, control: dict[str, Any]) -> None:
    """The controls."""
    await answer(client, {"state": "x", "questions": {"q": control["question"]}}, "q")


# --- FR-011: criteria in the wrong place ------------------------------------------------------------------------------

MISPLACED = {
    "top-level-true-false": ["true", "false"],
    "criterion": ["criterion"],
    "options-instead-of-criteria": ["options"],
    "choices-beside-criteria": ["choices"],
    "levels-instead-of-criteria": ["levels"],
    "yes-no-keys": ["yes", "no"],
    "unknown-body-field": ["quesitons"],
}


@pytest.mark.parametrize("variant", case("fr-011")["variants"], ids=lambda variant: variant["name"])
async def test_misplaced_criteria_are_never_silently_dropped(client: AppClient, variant: dict[str, Any]) -> None:
    """Refused, or answered with a warning; either way the field is named, and where its content belongs."""
    request = case("fr-011")["request"]
    if "question" in variant:
        request["questions"] = {"defect": variant["question"]}
    response = await ask(client, {**request, **variant.get("body_field", {})})
    told = response.json().get("x_warnings", response.json().get("detail", []))
    misplaced = MISPLACED.get(variant["name"], [])

    assert int(str(variant["status"])[:3]) == response.status_code
    assert len(misplaced) == len(told)
    for field, entry in zip(misplaced, told, strict=True):
        assert f"'{field}' is not read" in entry["msg"]
        assert "body" == entry["loc"][0]
        assert any(right in entry["msg"] for right in ("'criteria'", "'true'", "'false'", "'questions'"))


async def test_both_sides_of_the_criteria_reach_the_model(client: AppClient, reads: list[Any]) -> None:
    """As they were sent, and as they were swapped."""
    request = case("fr-011")["request"]
    swapped = {**request, "questions": {"defect": case("fr-011")["variants"][0]["question"]}}
    await ask(client, request)
    await ask(client, swapped)
    prompts = [client.gateway.serving.engine.tokenizer.decode(read.prompt) for read in reads]

    for prompt, (yes, no) in zip(
        prompts, (("a defect", "normal operation"), ("normal operation", "a defect")), strict=True
    ):
        assert f"yes: The text reports {yes}" in prompt
        assert f"no: The text reports {no}" in prompt


# --- FR-015: options named like numbers or like our labels ------------------------------------------------------------


@pytest.mark.parametrize("isolate", ["all", "none"])
async def test_names_like_numbers_or_labels_keep_their_meaning_and_order(client: AppClient, isolate: str) -> None:
    """Strings in the order received; a score's number is the place in the list, whatever its text says."""
    request = case("fr-015")["request"]
    answers = (await ask(client, {**request, "isolate": isolate})).json()["answers"]
    grade = answers["grade"]

    assert ["10", "9", "1", "other"] == list(answers["shelf"]["probabilities"])
    assert ["B", "A", "D", "C"] == list(answers["door"]["probabilities"])
    assert ["yes", "no"] == list(answers["word"]["probabilities"])
    assert request["questions"]["grade"]["criteria"] == [grade["legend"][key] for key in "0123"]
    assert sum(int(key) * share for key, share in grade["probabilities"].items()) == pytest.approx(grade["score"])


async def test_reversed_options_have_the_same_winner_by_name(client: AppClient) -> None:
    """Nothing is decided by position."""
    request = case("fr-015")["request"]
    for name in ("shelf", "door", "word"):
        question = request["questions"][name]
        turned = {**question, "criteria": dict(reversed(question["criteria"].items()))}
        first = await answer(client, {**request, "questions": {name: question}}, name)
        second = await answer(client, {**request, "questions": {name: turned}}, name)

        assert first["choice"] == second["choice"]


# --- FR-016: repeated keys --------------------------------------------------------------------------------------------

REPEATED = {
    "same-question": ["questions", "q"],
    "same-option": ["questions", "q", "criteria", "allow"],
    "same-state": ["state"],
    "same-type": ["questions", "q", "type"],
    "escaped-same": ["questions", "café"],
    "inside-state": ["state", "amount"],
}


@pytest.mark.parametrize("raw", case("fr-016")["raw_bodies"], ids=lambda raw: raw["id"])
async def test_a_repeated_key_is_refused_with_its_path(
    client: AppClient, reads: list[Any], raw: dict[str, str]
) -> None:
    """Everywhere, and before anything is read."""
    response = await send(client, raw["body"].encode())
    (fault,) = response.json()["detail"]

    assert 422 == response.status_code
    assert ["body", *REPEATED[raw["id"]]] == fault["loc"]
    assert [] == reads


# --- FR-017: deep nesting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", case("fr-017")["depths"])
@pytest.mark.parametrize("recipe", case("fr-017")["recipes"], ids=lambda recipe: recipe["id"])
async def test_nesting_has_one_limit_and_a_clean_refusal(client: AppClient, recipe: dict[str, str], depth: int) -> None:
    """Answered below the limit, 422 above, and the gateway lives on."""
    inside = recipe["open"] * depth + recipe.get("inner", "") + recipe["close"] * depth
    body = recipe["prefix"].replace("{", '{"model":"jev-latest",', 1) + inside + recipe["suffix"]
    response = await send(client, body.encode())
    fine = depth < MAX_DEPTH - 10 and recipe["id"] != "unclosed"

    assert (200 if fine else 422) == response.status_code, response.text[:300]
    assert 200 == (await client.get("/health")).status_code
