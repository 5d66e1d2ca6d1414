"""The command line: settings, help, and asking a running gateway."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gateway import __version__, ask
from gateway.cli import main
from gateway.config import declarations
from gateway.given import AskError
from tests.conftest import ROOT, RunningServer
from tests.gateway.asking import QUESTIONS, asked


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests says nothing; tables are as wide as here."""
    for name in [*os.environ]:
        if name.startswith("CANVASGATE_") or name in {each.variable for each in declarations()}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")


def run(*arguments: str, typed: str | None = None) -> Result:
    """The command with these arguments."""
    return CliRunner().invoke(main, arguments, input=typed)


# --- Settings and help ------------------------------------------------------------------------------------------------


def test_settings_prints_every_setting_once_and_no_secret() -> None:
    """As NAME=VALUE, so that it can be sourced."""
    result = run("settings", "-s", "port=9000", "-s", "API_KEY=sk-secret")
    lines = result.output.splitlines()

    assert 0 == result.exit_code
    assert [each.variable for each in declarations()] == [line.partition("=")[0] for line in lines]
    assert {"PORT=9000", "API_KEY=********"} <= {*lines}
    assert "secret" not in result.output


def test_serve_help_lists_every_setting() -> None:
    """With its default, without starting anything."""
    result = run("serve", "--help")

    assert 0 == result.exit_code
    assert all(each.variable in result.output for each in declarations())
    assert "default 8080" in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["serve", "settings"])
@pytest.mark.parametrize(
    ("pair", "told"), [("PROT=1", "is not a setting"), ("PORT=x", "PORT is 'x'"), ("PORT", "is not")]
)
def test_a_wrong_setting_ends_the_command_with_a_reason(command: str, pair: str, told: str) -> None:
    """Before anything is started."""
    result = run(command, "-s", pair)

    assert result.exit_code in {1, 2}
    assert told in result.output


def test_a_wrong_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a right one, when something else is wrong."""
    monkeypatch.setenv("API_KEY", "sk-secret")
    monkeypatch.setenv("PORT", "0")

    assert "secret" not in run("settings").output


def test_help_is_instant_and_needs_no_engine() -> None:
    """Neither torch nor vLLM is imported for it."""
    code = "import sys, gateway.cli; print({'torch', 'transformers', 'vllm', 'uvicorn'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "set()" == ran.stdout.strip()
    assert __version__ in run("--version").output


# --- Asking -----------------------------------------------------------------------------------------------------------

ASKED = [
    "--noul=Does the customer ask for money back?",
    "--choice=Which team? | billing: Invoices | technical",
    "--score=How angry? | Calm | Annoyed | Furious",
]


def test_decide_prints_a_table(stub_server: RunningServer) -> None:
    """A row per question with its answer and a bar per possible one."""
    result = run("decide", "--url", stub_server.url, "--state", "I was charged twice.", *ASKED)

    assert 0 == result.exit_code
    for word in ("answered by stub", "q1", "yes", "no", "billing", "technical", "0 Calm", "2 Furious", "%", "█"):
        assert word in result.output
    assert "3 questions answered" in result.output


def test_decide_prints_json_that_is_the_gateways_own(stub_server: RunningServer) -> None:
    """Options and a request over HTTP ask the same."""
    result = run("decide", "--url", stub_server.url, "--state", "I was charged twice.", "--json", *ASKED)
    expected = httpx.post(f"{stub_server.url}/v1/systemone", json=asked()).json()

    assert list(expected["answers"].values()) == list(json.loads(result.output)["answers"].values())


def test_decide_reads_a_request_file_and_adds_to_it(stub_server: RunningServer, tmp_path: Path) -> None:
    """The state may stand in a file of its own, the request come from standard input."""
    (tmp_path / "state.txt").write_text("안녕하세요", encoding="utf-8")
    state = f"--state=@{tmp_path / 'state.txt'}"
    request = json.dumps({"state": "replaced", "questions": QUESTIONS})
    result = run("decide", "-", state, "--noul=Is it Korean?", "--json", "--url", stub_server.url, typed=request)

    assert ["refund", "team", "anger", "q1"] == list(json.loads(result.output)["answers"])


@pytest.mark.parametrize(
    ("arguments", "typed", "told"),
    [
        ([], None, "Give a --state"),
        (["--state", "x"], None, "Give a --state"),
        (["--state", "x", "--choice", "Which?"], None, "A choice needs answers behind its question"),
        (["--state", "x", "--score", "How?"], None, "A score needs answers"),
        (["--state", "@/nowhere"], None, "Cannot read /nowhere"),
        (["-"], "{", "The request file is not JSON"),
        (["-"], "[]", "not a JSON object"),
        (["-"], '{"state": "x", "questions": []}', "object of questions"),
        (["-"], '{"state": "x", "questions": null}', "object of questions"),
        (["--state", "x", "--noul", "?", "--url", "http://127.0.0.1:1"], None, "Is `canvasgate serve` running there?"),
        (["--state", "x", "--noul", "?", "--url", "nonsense"], None, "did not answer"),
        (["--state", "x", "--noul", "?", "--url", "http://[::1"], None, "did not answer"),
    ],
)
def test_decide_says_what_is_wrong(arguments: list[str], typed: str | None, told: str) -> None:
    """In a line, with exit code 1; never a traceback."""
    result = run("decide", *arguments, typed=typed)

    assert 1 == result.exit_code
    assert told in result.output
    assert isinstance(result.exception, SystemExit)


def test_decide_shows_the_gateways_own_words(stub_server: RunningServer) -> None:
    """Every fault with its field, or the message; behind the status."""
    question = {"type": "score", "criteria": [1]}
    faults = run("decide", "-", "--url", stub_server.url, typed=json.dumps({"state": 1, "questions": {"q": question}}))
    model = run("decide", "-", "--url", stub_server.url, typed=json.dumps(asked(model="gpt")))

    assert (1, 1) == (faults.exit_code, model.exit_code)
    assert "answered 422: state: " in faults.output
    assert "questions.q" in faults.output
    assert "answered 400: " in model.output
    assert "gpt" in model.output


class Answering:
    """Stands for `httpx.post` and keeps what it was given."""

    def __init__(self, status: int, content: bytes) -> None:
        self.response = httpx.Response(status, content=content)
        self.given: dict[str, Any] = {}

    def __call__(self, url: str, **given: Any) -> httpx.Response:
        self.given = {"url": url, **given}
        return self.response


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (200, b"<html>", "not with decisions"),
        (200, b"[]", "not with decisions"),
        (200, b'{"model": "x"}', "not with decisions"),
        (502, b"<html>Bad gateway", "answered 502: <html>Bad gateway"),
        (404, b'{"detail": "Not Found"}', "answered 404: Not Found"),
        (500, b'{"error": "x"}', 'answered 500: {"error": "x"}'),
    ],
)
def test_a_server_that_is_no_gateway_is_told(
    monkeypatch: pytest.MonkeyPatch, status: int, content: bytes, told: str
) -> None:
    """Whatever it answers with."""
    monkeypatch.setattr(httpx, "post", Answering(status, content))

    with pytest.raises(AskError, match=told.replace("{", r"\{").replace("?", r"\?")):
        ask.ask("http://elsewhere", None, {}, 1)


def test_the_key_is_sent_as_a_bearer_and_the_url_may_end_in_a_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the option or the environment."""
    double = Answering(403, b'{"detail": {"message": "no"}}')
    monkeypatch.setattr(httpx, "post", double)
    monkeypatch.setenv("CANVASGATE_KEY", "sk-1")
    result = run("decide", "--url", "http://there/", "--state", "x", "--noul", "?", "--timeout", "3")

    assert ("http://there/v1/systemone", 3.0) == (double.given["url"], double.given["timeout"])
    assert {"authorization": "Bearer sk-1"} == double.given["headers"]
    assert "sk-1" not in result.output


def test_a_question_that_was_not_asked_says_why() -> None:
    """Its row names the answer that it hung on."""
    console = Console(record=True, width=100, file=io.StringIO())
    skipped = {
        "proof": {"because": "cause", "was": "nothing", "wanted": ["lost"]},
        "photo": {"because": "proof", "was": None, "wanted": ["yes"]},
    }
    answers = {"cause": {"type": "noul", "noul": 0.25}}
    ask.show({"model": "m", "answers": answers, "usage": {"input_tokens": 9}, "x_skipped": skipped}, console)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]

    assert ["proof", "not asked", "", "cause was nothing"] in rows
    assert ["photo", "not asked", "", "proof was not asked either"] in rows
