"""`canvasgate doctor`: what is wrong with a server, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.doctor import examine
from tests.conftest import RunningServer, Start
from tests.gateway.test_cli import run


def test_a_sound_gateway_is_sound(stub_server: RunningServer) -> None:
    """With a decision made, and a word on the stub."""
    result = run("doctor", "--url", stub_server.url)

    assert 0 == result.exit_code
    assert all(word in result.output for word in ("ready: stub engine", "a decision took", "answers are hashes"))


def test_a_wrong_key_and_a_broken_template_are_told(start_server: Start, tmp_path: Path) -> None:
    """Each with what to do."""
    (tmp_path / "broken.json").write_text("{")
    closed = start_server(ENGINE="stub", API_KEY="sk-1", TEMPLATES_DIR=str(tmp_path))
    result, opened = run("doctor", "--url", closed.url), run("doctor", "--url", closed.url, "--key", "sk-1")

    assert (1, 1) == (result.exit_code, opened.exit_code)
    assert all(word in result.output for word in ("template file broken.json", "the key is refused", "--key"))
    assert "a decision took" in opened.output


def test_nobody_there_is_told() -> None:
    """With how to start it."""
    result = run("doctor", "--url", "http://127.0.0.1:1")

    assert 1 == result.exit_code
    assert "canvasgate serve" in result.output
    assert 1 == run("doctor", "--url", "http://[::1").exit_code


HEALTH = {"phase": "ready", "version": "1", "engine": "vllm", "model": "m"}
LIMITS = {"context_tokens": 1, "reads_at_once": 1, "expected_wait_seconds": 7.0, "queue_timeout_seconds": 8.0}
WEAK = {"x_diagnostics": {"questions": {"q1": {"label_mass": 0.1}}}}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"/health": (200, "<html>")}, "is no Canvasgate"),
        ({"/health": (404, {})}, "is no Canvasgate"),
        ({"/health": (200, [])}, "is no Canvasgate"),
        ({"/ready": (503, {"reason": "loading"})}, "not ready: loading"),
        ({"/v1/limits": (503, {})}, "a decision took"),
        ({"/v1/systemone": (529, {"detail": {"message": "full"}})}, "a decision is answered with 529: full"),
        ({}, "a newcomer waits 7.0 s"),
        ({}, "would rather say something else"),
        ({"/ready": None}, "it stopped answering"),
    ],
)
def test_what_a_server_answers_is_explained(
    answers: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is."""
    usual = {"/health": (200, HEALTH), "/ready": (200, {}), "/v1/limits": (200, LIMITS), "/v1/systemone": (200, WEAK)}
    given = usual | answers

    def answer(request: httpx.Request) -> httpx.Response:
        found = given[request.url.path]
        if found is None:
            raise httpx.ReadError("gone")
        status, body = found
        return httpx.Response(status, text=body) if isinstance(body, str) else httpx.Response(status, json=body)

    client: Callable[..., httpx.Client] = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: client(**options, transport=httpx.MockTransport(answer)))

    assert any(told in finding.text for finding in examine("http://there", None, 1))
