"""Clients that we did not write, pointed at our gateway by base URL alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jev_lite
import pytest
import typesafe_sdk

from tests.conftest import RunningServer

HERE = Path(__file__).parent
STATE = {"ticket": "I was charged twice. Please fix this. " * 60}  # over 1,024 bytes, so that the SDK compresses it


def questions(sdk: Any) -> dict[str, Any]:
    """The three types, in the classes of a Python client."""
    return {
        "refund": sdk.Noul(instructions="Does the customer ask for money back?"),
        "team": sdk.Choice(instructions="Which team?", criteria={"billing": "Invoices", "technical": None}),
        "anger": sdk.Score(instructions="How angry?", criteria=["Calm", "Annoyed", "Furious"]),
    }


def test_the_official_python_sdk_works_unchanged(stub_server: RunningServer) -> None:
    """Typed answers of all three types, the request id, and the model list."""
    with typesafe_sdk.TypeSafeClient(api_key="any", base_url=stub_server.url) as client:
        answer = client.system_one(state=STATE, questions=questions(typesafe_sdk))
        models = client.models.list()

    assert 0 < answer.nouls["refund"].noul < 1
    assert answer.choices["team"].choice in {"billing", "technical"}
    assert 0 <= answer.scores["anger"].score <= 2
    assert answer.request_id.startswith("req_")
    assert "jev-latest" in {model.name for model in models.models}


def test_the_official_python_sdk_reads_an_answer_with_a_skipped_question(stub_server: RunningServer) -> None:
    """It has the others; the skipped one is simply not there."""
    gate = {"type": "noul", "instructions": "Does the customer ask for money back?"}
    other = {"type": "noul", "instructions": "Is the customer angry?"}
    asked: Any = {
        "gate": gate,
        "if": {**other, "ask_if": {"gate": [True]}},
        "else": {**other, "ask_if": {"gate": [False]}},
    }
    with typesafe_sdk.TypeSafeClient(api_key="any", base_url=stub_server.url) as client:
        answer = client.system_one(state=STATE, questions=asked)

    assert {"gate", "if" if answer.nouls["gate"].noul >= 0.5 else "else"} == answer.nouls.keys()


def test_an_error_reaches_the_official_sdk_with_its_reason(stub_server: RunningServer) -> None:
    """The SDK raises its own class for the status, and its message names what was wrong."""
    with (
        typesafe_sdk.TypeSafeClient(api_key="any", base_url=stub_server.url) as client,
        pytest.raises(typesafe_sdk.TypeSafeBadRequestError, match="no-such-model"),
    ):
        client.system_one(state="x", model="no-such-model", questions=questions(typesafe_sdk))


def test_jev_lite_works_unchanged(stub_server: RunningServer) -> None:
    """It sends an explicit null for everything that is absent."""
    with jev_lite.TypeSafe(api_key="any", base_url=stub_server.url) as client:
        answer = client.system_one.create(state="I was charged twice.", questions=questions(jev_lite))

    assert 0 < answer.nouls["refund"].noul < 1
    assert answer.choices["team"].choice in {"billing", "technical"}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_official_javascript_sdk_works_unchanged(stub_server: RunningServer) -> None:
    """The script asserts on its own side; it says ok at its end."""
    environment = {**os.environ, "TYPESAFE_BASE_URL": stub_server.url, "TYPESAFE_API_KEY": "any"}
    ran = subprocess.run(
        ["node", "javascript_sdk.mjs"], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stdout.strip()) == (0, "ok"), ran.stderr
