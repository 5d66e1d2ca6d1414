"""LiteLLM and rlcd-gateway in front of an upstream System One server."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.environment import NotRun, environment
from bench.serving import KEY, Server, Start, free_port, serving

LITELLM, RLCD = "litellm[proxy]==1.106.12", "rlcd-gateway==0.1.2"
LITELLM_KEY = f"sk-{KEY}"
LOADING = 180.0
CORE = 0
"""All servers under test share this core; client and upstream have the other ones."""


def litellm_config(upstream: str) -> dict[str, Any]:
    """One model entry with the System One provider and a master key; no database."""
    parameters = {"model": "typesafe/jev-latest", "api_base": upstream, "api_key": KEY}
    return {
        "model_list": [{"model_name": "jev-latest", "litellm_params": parameters}],
        "general_settings": {"master_key": LITELLM_KEY},
    }


@contextmanager
def litellm(upstream: str) -> Iterator[Server]:
    """LiteLLM's proxy, one worker, with its key check. Raises `NotRun`."""
    binaries, port = environment("litellm-1.106.12", [LITELLM]), free_port()
    with tempfile.TemporaryDirectory() as home:
        config = Path(home) / "config.yaml"
        config.write_text(json.dumps(litellm_config(upstream)), "utf-8")  # JSON is YAML
        command = [str(binaries / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        start = Start(core=CORE, path="/health/readiness", patience=LOADING, key=LITELLM_KEY)
        settings = {"HOME": home, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
        with started("litellm", [*command, "--telemetry", "False"], port, start, settings) as server:
            yield server


@contextmanager
def rlcd(upstream: str) -> Iterator[Server]:
    """rlcd-gateway, told its upstream through its settings route. Raises `NotRun`."""
    binaries, port = environment("rlcd-gateway-0.1.2", [RLCD]), free_port()
    with tempfile.TemporaryDirectory() as home:
        command = [str(binaries / "rlcd-gateway"), "serve", "-listen", f"127.0.0.1:{port}"]
        settings_path = "/api/decisions/settings"
        start = Start(core=CORE, path=settings_path)
        with started("rlcd-gateway", command, port, start, {"HOME": home}) as server:
            backends = {"stub": {"base_url": upstream, "token": KEY}}
            body = json.dumps({"default_backend": "stub", "backends": backends}).encode()
            put(f"http://127.0.0.1:{port}{settings_path}", body)
            yield server


@contextmanager
def started(name: str, command: list[str], port: int, start: Start, settings: dict[str, str]) -> Iterator[Server]:
    """A peer's server. Raises `NotRun` where it does not start; what fails later is not the peer's start."""
    context = serving(name, command, port, start, **settings)
    try:
        server = context.__enter__()
    except (OSError, RuntimeError) as fault:
        raise NotRun(str(fault)) from fault
    try:
        yield server
    finally:
        context.__exit__(None, None, None)


def put(url: str, body: bytes) -> None:
    """Send settings. Raises `NotRun` where they are refused."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"}, method="PUT")  # noqa: S310 - our own address
    try:
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - our own address
            return
    except OSError as fault:
        raise NotRun(f"the settings were refused: {fault}") from fault
