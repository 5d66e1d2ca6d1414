"""Dashboard, alert rules and autoscaling ask only for metrics, labels and values that the gateway has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from decisions.errors import DecisionError
from gateway import __version__
from gateway.connection import REFUSALS
from gateway.error_answers import DESCRIPTIONS, HTTP_CODES
from gateway.metrics import METRICS, Metrics
from gateway.routes import PATHS
from tests.conftest import ROOT
from tests.gateway.test_error_answers import tree

FOLDER = ROOT / "deploy" / "observability"
WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
MATCHERS = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(by|on|without)\s*\(([^)]*)\)")
LANGUAGE = {"sum", "max", "min", "rate", "increase", "absent", "histogram_quantile", "avg_over_time"}
KEYWORDS = {"by", "on", "unless"}
OF_PROMETHEUS = {"instance", "job", "le"}
VALUES = {
    "code": {kind.code for kind in tree(DecisionError)} | {*HTTP_CODES.values(), *REFUSALS.values()},
    "route": PATHS,
    "status": {"200", *map(str, DESCRIPTIONS)},
    "phase": {"starting", "ready", "draining", "failed"},
}
"""What a label may be compared with."""


def samples() -> dict[str, set[str]]:
    """Every name that a scrape may hold, with its labels."""
    names: dict[str, set[str]] = {}
    for metric in METRICS:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + end: {*metric.labels} for end in ends}
    exposed = Metrics(__version__).exposition()[0].decode()
    return names | {name: set() for name in re.findall(r"^(process_\w+) ", exposed, re.MULTILINE)}


SAMPLES = samples()


def of_the_rules() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def of_the_dashboard() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for number, target in enumerate(panel["targets"]):
            yield f"{panel['title']} {number}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            yield variable["name"], f"max by ({found.group(2)}) ({found.group(1)})"


def of_the_autoscaler() -> Iterator[tuple[str, str]]:
    for number, trigger in enumerate(yaml.safe_load((FOLDER / "keda.yaml").read_text())["spec"]["triggers"]):
        yield f"trigger {number}", trigger["metadata"]["query"]


EXPRESSIONS = [*of_the_rules(), *of_the_dashboard(), *of_the_autoscaler()]


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_an_expression_asks_only_for_what_exists(name: str, expression: str) -> None:
    """Names; labels that are matched or grouped by; values that labels are compared with."""
    bare = re.sub(r"\[[^\]]*\]", "", MATCHERS.sub(r"\1", GROUPING.sub("", expression)))
    metrics = {*WORD.findall(bare)} - LANGUAGE - KEYWORDS
    labels = set().union(*(SAMPLES[metric] for metric in metrics if metric in SAMPLES)) | OF_PROMETHEUS

    assert metrics
    assert metrics <= SAMPLES.keys()
    for _, grouped in GROUPING.findall(expression):
        assert {label.strip() for label in grouped.split(",")} <= labels
    for metric, matchers in MATCHERS.findall(expression):
        for label, operator, value in MATCHER.findall(matchers):
            assert label in SAMPLES[metric] | OF_PROMETHEUS
            wanted = value.split("|") if "~" in operator else [value]
            assert label not in VALUES or {*wanted} <= VALUES[label]


def test_the_dashboard_shows_every_metric_of_ours() -> None:
    """What nobody can see need not be counted; what is served is on `/health` already."""
    shown = " ".join(expression for _, expression in of_the_dashboard())
    missing = [metric.name for metric in METRICS if metric.name not in shown]

    assert missing == []


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    """In words, with how bad it is."""
    rules: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]

    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "action"}
