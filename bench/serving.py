"""Starts servers for a bench and ends them: with their CPU time, and the gateway's own stage times."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.openloop import DECISIONS, Target

KEY = "bench-key"
GATEWAY = [sys.executable, "-m", "gateway.cli", "serve"]
STAGES = ("parse", "plan", "queue", "engine", "combine")


@dataclass(frozen=True, slots=True)
class Start:
    """On which core a server runs (None: any), and which path says 200 within how many seconds once it is ready."""

    core: int | None = None
    path: str = "/ready"
    patience: float = 30.0
    key: str = KEY


@dataclass(frozen=True, slots=True)
class Server:
    """A server process under test."""

    name: str
    process: subprocess.Popen[bytes]
    target: Target

    def cpu_seconds(self) -> float:
        """CPU time that the process has used, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stage_seconds(self) -> dict[str, tuple[float, int]]:
        """Per stage, the seconds spent and how often, from `/metrics`."""
        with urllib.request.urlopen(f"http://{self.target.host}:{self.target.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, tuple[float, int]] = {}
        for stage in STAGES:
            mark = f'{{stage="{stage}"}}'
            total = sum(float(line.rsplit(" ", 1)[1]) for line in lines if f"_sum{mark}" in line)
            count = sum(float(line.rsplit(" ", 1)[1]) for line in lines if f"_count{mark}" in line)
            found[stage] = (total, int(count))
        return found


def on_core(core: int, process: int = 0) -> None:
    """Pin a process (this one when 0) to one core, where there are several."""
    if hasattr(os, "sched_setaffinity") and core in range(os.cpu_count() or 1):
        os.sched_setaffinity(process, {core})


@contextmanager
def serving(name: str, command: list[str], port: int, start: Start | None = None, **settings: str) -> Iterator[Server]:
    """A server process from the moment it is ready until the block ends; `settings` are its environment variables.

    Raises `RuntimeError` where it does not become ready.
    """
    how = start or Start()
    process = subprocess.Popen(
        command,
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if how.core is not None:
        on_core(how.core, process.pid)
    try:
        wait_until_ready(port, process, how)
        headers = {"authorization": f"Bearer {how.key}"}
        yield Server(name, process, Target("127.0.0.1", port, DECISIONS, headers))
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(port: int, process: subprocess.Popen[bytes], start: Start) -> None:
    """Return once its path says 200. Raises `RuntimeError` after its patience or when the process ends."""
    for _ in range(int(start.patience * 10)):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{start.path}", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {start.patience:.0f} s")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
