"""What `deploy/` tells operators exists: settings, metrics, paths, error codes, commands and files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from decisions.errors import DecisionError
from gateway.cli import main
from gateway.config import declarations
from gateway.metrics import METRICS
from gateway.routes import PATHS
from tests.conftest import ROOT
from tests.gateway.test_error_answers import tree

DEPLOY = ROOT / "deploy"
README = (DEPLOY / "README.md").read_text("utf-8")
TOLD = [*DEPLOY.glob("*.md"), *DEPLOY.glob("*.service"), DEPLOY / "Dockerfile", *DEPLOY.glob("balancer/*")]
SETTINGS = {each.variable for each in declarations()}
OF_OTHERS = {
    *("CUDA_VISIBLE_DEVICES", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_SERVICE_NAME"),
    *("EXTRAS", "NAME", "VALUE", "TRITON_ATTN", "BALANCER_BIND"),
}
"""Names in capitals that are no settings of ours: the driver's, the SDK's, the image's, the balancer's."""


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.name)
def test_every_setting_that_is_named_exists(path: Path) -> None:
    """Whatever is written in capitals with an underscore, or as NAME=VALUE, or as code."""
    text = path.read_text("utf-8")
    named = {*re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text), *re.findall(r"\b([A-Z]{4,})=", text)}
    named |= {*re.findall(r"`([A-Z]{4,})`", text)}

    assert named <= SETTINGS | OF_OTHERS


def test_the_defaults_that_are_named_hold() -> None:
    """In the form `NAME` (8 s)."""
    defaults = {each.variable: each.default for each in declarations()}
    named = re.findall(r"`?([A-Z_]{4,})`? \((\d+) (?:s|MiB)\)", " ".join(path.read_text("utf-8") for path in TOLD))

    assert named
    for variable, value in named:
        expected = str(int(value) * 1024 * 1024) if variable == "MAX_BODY" else value
        assert expected == defaults[variable]


def test_every_metric_path_and_code_that_is_named_exists() -> None:
    """As they are served."""
    codes = {kind.code for kind in tree(DecisionError)}

    assert {*re.findall(r"`(canvasgate_\w+)`", README)} <= {metric.name for metric in METRICS}
    assert {*re.findall(r"`(/(?:v1/\w+|health|ready|metrics))`", README)} <= PATHS
    assert {*re.findall(r"\| \d{3} `(\w+)`", README)} <= codes


def test_every_file_and_command_that_is_named_exists() -> None:
    """Files of this folder, and subcommands."""
    files = re.findall(r"`((?:balancer|observability|requirements)/[\w.-]*|canvasgate@\.service|Dockerfile)`", README)
    groups = {"keys": main.commands["keys"].commands}  # type: ignore[attr-defined]

    assert all((DEPLOY / file).exists() for file in files)
    for command, below in re.findall(r"canvasgate (settings|serve|keys)(?: (add|list|revoke))?\b", README):
        assert command in main.commands
        assert not below or below in groups[command]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    """Checked by systemd, with a program and a user that are there."""
    text = (DEPLOY / "canvasgate@.service").read_text("utf-8")
    unit = tmp_path / "canvasgate@8081.service"
    unit.write_text(text.replace("/opt/canvasgate/bin/canvasgate", "/bin/true").replace("User=canvasgate", "User=root"))
    ran = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)

    assert str(unit) not in ran.stdout + ran.stderr
