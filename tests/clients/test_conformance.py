"""The public conformance suite, `jevcompat`, against a running gateway: every MUST and every SHOULD."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunningServer, Start


def conformance(server: RunningServer, report: Path, *options: str) -> str:
    """The suite's verdict, as its last line says it; fails with what it printed when it is not conformant."""
    script = Path(sys.executable).parent / "jevcompat"
    ran = subprocess.run(
        [script, "test", server.url, "--json", report, *options], capture_output=True, text=True, check=False
    )
    results = json.loads(report.read_text())["results"]
    failed = [result for result in results if result["status"] not in {"pass", "skip", "not-applicable"}]
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert not failed, failed
    return ran.stdout


@pytest.mark.parametrize("canvas", ["128", "64"])
def test_the_stub_engine_is_conformant(start_server: Start, tmp_path: Path, canvas: str) -> None:
    """Open: MUST 32/32, SHOULD 13/13."""
    printed = conformance(start_server(ENGINE="stub", CANVAS=canvas), tmp_path / "report.json")

    assert "MUST 32/32, SHOULD 13/13" in printed


def test_the_stub_engine_is_conformant_with_a_key(start_server: Start, tmp_path: Path) -> None:
    """With a key: MUST 32/32, SHOULD 15/15."""
    server = start_server(ENGINE="stub", API_KEY="sk-test")

    assert "MUST 32/32, SHOULD 15/15" in conformance(server, tmp_path / "report.json", "--key", "sk-test")


@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_real_cpu_model_is_conformant(start_server: Start, tmp_path: Path) -> None:
    """Every MUST on the demonstration model, 255 options included."""
    server = start_server(seconds=300, ENGINE="reference", THREADS="1", QUEUE_TIMEOUT="300", REQUEST_TIMEOUT="600")

    assert "MUST 32/32" in conformance(server, tmp_path / "report.json", "--timeout", "300")
