"""Fixtures of all tests: the app with the stub engine, in process and as a real server process."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from gateway.app import create_app
from gateway.config import load

# torch imports setuptools late, and that refuses to come after the standard library's distutils, which others import.
with warnings.catch_warnings(action="ignore"), suppress(ImportError):
    importlib.import_module("setuptools")

# No test asserts a time, so none fails for a busy machine either.
hypothesis_settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("unhurried")

ROOT = Path(__file__).parent.parent
Start = Callable[..., "RunningServer"]


@dataclass(frozen=True)
class RunningServer:
    """A `canvasgate serve` process that is ready."""

    url: str
    process: subprocess.Popen[str]
    log: Path


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(server: RunningServer, seconds: float) -> None:
    """Return once `/ready` says 200; fails with the server's log otherwise."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}/ready", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"the server was not ready: {server.log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts server processes; all of them end with the test run."""
    processes: list[subprocess.Popen[str]] = []

    def start(seconds: float = 30, ready: bool = True, port: int = 0, **settings: str) -> RunningServer:
        port = port or free_port()
        log = tmp_path_factory.mktemp("server") / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve"],
                cwd=ROOT,
                env={**os.environ, "HOST": "127.0.0.1", "PORT": str(port), "DRAIN_DELAY": "0", **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        processes.append(process)
        server = RunningServer(f"http://127.0.0.1:{port}", process, log)
        if ready:
            wait_until_ready(server, seconds)
        return server

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def stub_server(start_server: Start) -> RunningServer:
    """A server process with the stub engine and default settings."""
    return start_server(ENGINE="stub")


Connect = Callable[..., "AppClient"]


class AppClient(httpx.AsyncClient):
    """A client of an app in this process, with the app's lifespan around it."""

    def __init__(self, **settings: str) -> None:
        self.app = create_app(load({"ENGINE": "stub", "LOG_LEVEL": "error", **settings}))
        self.gateway = self.app.state.gateway
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        super().__init__(transport=transport, base_url="http://gateway")

    async def __aenter__(self) -> Self:
        self._lifespan = self.app.router.lifespan_context(self.app)
        await self._lifespan.__aenter__()
        await self.gateway.opened.wait()
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__()
        await self._lifespan.__aexit__(None, None, None)


@pytest.fixture
async def client() -> AsyncIterator[AppClient]:
    """A client of the app with the stub engine and default settings."""
    async with AppClient() as connected:
        yield connected
