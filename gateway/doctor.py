"""Looks at a running gateway from outside, and explains what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from .ask import headers, reason

Mark = Literal["ok", "note", "wrong"]
QUESTION = {"q1": {"type": "noul", "instructions": "Is this a test?"}}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, and what to do where it is wrong."""

    mark: Mark
    text: str
    remedy: str = ""


def examine(url: str, key: str | None, timeout: float) -> Iterator[Finding]:
    """Every finding, in the order in which one depends on another; `timeout` in seconds."""
    with httpx.Client(base_url=url.rstrip("/"), headers=headers(key), timeout=timeout) as client:
        try:
            health = client.get("/health")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            yield Finding("wrong", f"nothing answers at {url} ({type(error).__name__}: {error})", _start_it(url))
            return
        body = _object(health)
        if health.status_code != httpx.codes.OK or "phase" not in body:
            yield Finding(
                "wrong", f"{url} answers, but is no Canvasgate ({health.status_code})", "Check host and port."
            )
            return
        yield Finding("ok", f"Canvasgate {body.get('version')} lives; it is {body['phase']}")
        try:
            yield from _served(client, body)
        except httpx.HTTPError as error:
            yield Finding("wrong", f"it stopped answering ({type(error).__name__}: {error})", "See the server's log.")


def _start_it(url: str) -> str:
    return f"Start it with `canvasgate serve`, or name another address with --url (this one is {url})."


def _served(client: httpx.Client, health: dict[str, Any]) -> Iterator[Finding]:
    ready = client.get("/ready")
    state = _object(ready)
    if ready.status_code == httpx.codes.OK:
        yield Finding("ok", f"ready: {health.get('engine')} engine, model {health.get('model')}")
    else:
        why = state.get("reason", ready.status_code)
        yield Finding(
            "wrong", f"not ready: {why}", "Wait while it loads; where it says failed, the log has the reason."
        )
    if health.get("engine") == "stub":
        yield Finding("note", "the stub engine's answers are hashes", "Set ENGINE=auto for a model's answers.")
    templates = state.get("templates", {})
    yield Finding("ok", f"{templates.get('served', 0)} templates")
    for broken in templates.get("broken", []):
        remedy = "Mend the file; `canvasgate templates check FILE` lists everything. The last good version is used."
        yield Finding("wrong", f"template file {broken['file']} is not used: {broken['reason']}", remedy)
    limits = client.get("/v1/limits")
    if limits.status_code in {401, 403}:
        yield Finding("wrong", f"the key is refused: {reason(limits)}", "Give the key with --key or CANVASGATE_KEY.")
        return
    if limits.status_code == httpx.codes.OK:
        yield from _limits(_object(limits))
    if ready.status_code == httpx.codes.OK:
        yield from _decision(client)


def _limits(limits: dict[str, Any]) -> Iterator[Finding]:
    yield Finding("ok", f"context {limits['context_tokens']} tokens, {limits['reads_at_once']} reads at once")
    if (wait := limits["expected_wait_seconds"]) > limits["queue_timeout_seconds"] / 2:
        yield Finding("note", f"a newcomer waits {wait:.1f} s", "Add a replica, or raise MAX_SEQS where memory allows.")


def _decision(client: httpx.Client) -> Iterator[Finding]:
    body = {"model": "jev-latest", "state": "This is a test.", "questions": QUESTION, "diagnostics": True}
    asked = time.perf_counter()
    answer = client.post("/v1/systemone", json=body)
    seconds = time.perf_counter() - asked
    if answer.status_code != httpx.codes.OK:
        yield Finding("wrong", f"a decision is answered with {answer.status_code}: {reason(answer)}", "See the log.")
        return
    told = _object(answer)
    mass = told["x_diagnostics"]["questions"]["q1"]["label_mass"]
    yield Finding("ok", f"a decision took {seconds * 1000:.0f} ms; label mass {mass:.2f}")
    if mass < 0.5:
        yield Finding(
            "note", "the model would rather say something else than yes or no", "Serve an instruction-tuned model."
        )


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
