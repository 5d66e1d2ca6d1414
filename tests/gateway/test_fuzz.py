"""Valid requests, broken at random in structure, bytes and headers: never a 5xx, never half an answer.

`test_edge_cases.py` makes requests from the API's description; these start right and go wrong in a place or two.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import AppClient
from tests.gateway.asking import QUESTIONS, asked

bounded = settings(
    max_examples=200,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # an example that fails is small enough, and shrinking would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

FULL = asked(
    {"text": "I was charged twice.", "rows": [1, 2.5, None, True]},
    instructions={"tone": "plain"},
    isolate="auto",
    layout="document_first",
    debias="reverse",
    samples=2,
    seed=7,
    seed_token="random",
    temperature=1.5,
    diagnostics=True,
)
FULL["questions"] = {
    **QUESTIONS,
    "both": {"type": "noul", "criteria": {"true": ["yes"], "false": {"no": 1}}, "alone": True},
    "many": {"type": "choice", "criteria": {f"option {number}": None for number in range(30)}},
}
OPENAI = {
    "model": "jev-latest",
    "input": "I was charged twice.",
    "questions": [{"type": "predicate", "name": "refund", "instructions": "Is a refund asked for?"}],
}
ROUTES = {"/v1/systemone": FULL, "/v1/decisions": OPENAI}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["", " ", "noul", "choice", "score", "auto", "all", "jev-latest", "\x00", "<|im_start|>", "\u202e"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(
    ["model", "state", "questions", "samples", "depends_on", "images", "template", "think", "steps"]
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside."""
    found = [at] if at else []
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        found += places(member, (*at, key))
    return found


def spoil(body: Any, draw: st.DataObject) -> Any:
    """One thing in the body replaced, left out, put in beside, or renamed."""
    body = copy.deepcopy(body)
    *way, last = draw.draw(st.sampled_from(places(body)))
    parent = body
    for step in way:
        parent = parent[step]
    change = draw.draw(st.sampled_from(["replace", "remove", "add", "rename"]))
    if change == "replace":
        parent[last] = draw.draw(values)
    elif change == "remove" or isinstance(parent, list):
        del parent[last]
    elif change == "add":
        parent[draw.draw(names | st.text(max_size=8))] = draw.draw(values)
    else:
        parent[draw.draw(st.text(max_size=8))] = parent.pop(last)
    return body


def check(response: httpx.Response, question_ids: list[str] | None = None) -> None:
    """A whole answer, or an error that says what is wrong."""
    assert response.status_code in {200, 400, 413, 415, 422}, (response.status_code, response.text)
    assert response.headers["x-typesafe-request-id"]
    body = response.json()
    if response.status_code == 422:
        assert all(fault["loc"][0] == "body" and fault["msg"] for fault in body["detail"])
    elif response.status_code == 200:
        assert question_ids is None or question_ids == list(body["answers"])
        if isinstance(body["answers"], dict):
            for answer in body["answers"].values():
                check_answer(answer)


def check_answer(answer: dict[str, Any]) -> None:
    """Its numbers are probabilities."""
    shares = list(answer.get("probabilities", {"yes": answer.get("noul")}).values())
    assert all(0 <= share <= 1 for share in shares)
    assert answer["type"] == "noul" or math.isclose(math.fsum(shares), 1, abs_tol=1e-9)


async def post(client: AppClient, path: str, content: bytes, **headers: str) -> httpx.Response:
    """Post these bytes as JSON, unless the headers say otherwise."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post(path, content=content, headers={"content-type": "application/json"} | named)


async def test_the_requests_that_are_broken_below_are_right(client: AppClient) -> None:
    """Otherwise the others would prove little."""
    for path, body in ROUTES.items():
        response = await post(client, path, json.dumps(body).encode())

        assert 200 == response.status_code, response.text


@bounded
@given(st.data())
async def test_a_request_that_is_broken_somewhere_is_answered_or_explained(
    client: AppClient, data: st.DataObject
) -> None:
    """One or two changes of its structure; what is still answered has an answer for each question, in order."""
    path = data.draw(st.sampled_from([*ROUTES]))
    body = spoil(ROUTES[path], data)
    if data.draw(st.booleans()) and places(body):
        body = spoil(body, data)
    questions = body.get("questions")
    ids = list(questions) if path == "/v1/systemone" and isinstance(questions, dict) else None

    check(await post(client, path, json.dumps(body).encode()), ids)


@bounded
@given(st.data())
async def test_a_request_whose_bytes_are_broken_is_answered_or_explained(
    client: AppClient, data: st.DataObject
) -> None:
    """Cut off, cut out, doubled, or written over; plain or compressed, before or after."""
    path = data.draw(st.sampled_from([*ROUTES]))
    sent = json.dumps(ROUTES[path]).encode()
    compressed = data.draw(st.sampled_from(["", "inside", "outside"]))
    if compressed == "outside":
        sent = gzip.compress(sent, mtime=0)
    start = data.draw(st.integers(0, len(sent)))
    stop = data.draw(st.integers(start, min(len(sent), start + 40)))
    sent = sent[:start] + data.draw(st.binary(max_size=8) | st.just(sent[start:stop] * 2)) + sent[stop:]
    if compressed == "inside":
        sent = gzip.compress(sent, mtime=0)

    check(await post(client, path, sent, **({"content_encoding": "gzip"} if compressed else {})))


@bounded
@given(
    st.dictionaries(
        st.sampled_from(["prefer", "content-type", "x-request-id", "authorization", "accept", "origin", "traceparent"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40)
        | st.sampled_from(["wait=9", "application/json; charset=utf-16", "multipart/form-data", "a/b+json", "*/*"]),
    )
)
async def test_no_header_gives_a_server_error(client: AppClient, headers: dict[str, str]) -> None:
    """Whatever stands in it."""
    content = json.dumps(asked()).encode()
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items() if "wait=0" not in value]

    check(await client.post("/v1/systemone", content=content, headers=raw))


@bounded
@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=30),
    st.sampled_from(["GET", "POST", "PUT"]),
)
async def test_no_path_gives_a_server_error(client: AppClient, path: str, method: str) -> None:
    """Percent signs, dots and all."""
    url = httpx.URL("http://gateway").copy_with(raw_path=b"/" + path.encode())

    assert (await client.request(method, url)).status_code < 500


@bounded
@given(values)
async def test_any_json_is_a_state_and_changes_nothing_but_the_answer(client: AppClient, state: Any) -> None:
    """Text, objects and arrays are answered, the same twice; anything else is explained."""
    content = json.dumps(asked(state)).encode()
    first, second = await post(client, "/v1/systemone", content), await post(client, "/v1/systemone", content)
    check(first, [*QUESTIONS])

    assert (200 if isinstance(state, str | list | dict) else 422) == first.status_code
    assert first.status_code != 200 or first.content == second.content
