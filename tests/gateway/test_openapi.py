"""The description of the API."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.error_answers import STATUSES
from gateway.openapi import COMPONENTS, openapi
from gateway.wire import ServedNames, ShapeLimits

DOCUMENT = json.loads(json.dumps(openapi("1.2.3", ShapeLimits(questions=7), ServedNames("own-model"))))
ROUTES = {
    ("post", "/v1/systemone"),
    ("post", "/systemone"),
    ("post", "/v1/decisions"),
    ("post", "/v1/templates/{name}/decide"),
    ("get", "/v1/templates"),
    ("get", "/v1/templates/{name}"),
    ("get", "/v1/models"),
    ("get", "/v1/limits"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/metrics"),
    ("get", "/openapi.json"),
}


def test_all_routes_are_described() -> None:
    """Those, and no others."""
    assert {(method, path) for path, operations in DOCUMENT["paths"].items() for method in operations} == ROUTES


def test_every_reference_leads_to_a_component() -> None:
    """Definitions of a schema are components of their own."""
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))

    assert references <= DOCUMENT["components"]["schemas"].keys()
    assert COMPONENTS.keys() & {"error", "systemone.request"}


@pytest.mark.parametrize("path", [path for method, path in ROUTES if method == "post"])
def test_a_decision_route_lists_every_status_of_the_table(path: str) -> None:
    """Each with the error's schema; the retried ones with their headers."""
    responses: dict[str, Any] = DOCUMENT["paths"][path]["post"]["responses"]

    unknown = set() if "{name}" in path else {"404"}

    assert {"200", *map(str, STATUSES.values())} - unknown == responses.keys()
    assert {"Retry-After", "retry-after-ms", "x-request-id", "x-typesafe-request-id"} == responses["529"][
        "headers"
    ].keys()
    assert {"x-request-id", "x-typesafe-request-id"} == responses["422"]["headers"].keys()


def test_limits_and_names_are_this_servers() -> None:
    """What a client generated from it may send is what is accepted."""
    request = DOCUMENT["components"]["schemas"]["SystemOneRequest"]["properties"]

    assert 7 == request["questions"]["maxProperties"]
    assert ["jev-latest", "jev-preview", "own-model"] == request["model"]["anyOf"][0]["enum"]
    assert re.search(request["model"]["anyOf"][1]["pattern"], "jev-1.13.0")


def test_our_own_keywords_are_left_out() -> None:
    """They are for our reading only."""
    assert "x-faults" not in json.dumps(DOCUMENT)
    assert "x-limits" not in json.dumps(DOCUMENT)


def test_it_is_a_valid_description() -> None:
    """As far as schemathesis, which reads it for fuzzing, can tell."""
    schemathesis = pytest.importorskip("schemathesis")
    operations = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]

    assert len(ROUTES) == len(operations)
