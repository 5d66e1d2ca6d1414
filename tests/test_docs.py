"""What the README says is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from gateway import __version__
from gateway.config import declarations, markdown_table
from gateway.metrics import METRICS
from gateway.routes import PATHS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_settings_table_is_the_declarations() -> None:
    """Between its marks; `gateway.config.markdown_table` writes it."""
    found = re.search(r"<!-- settings.*?-->\n(.*?)<!-- /settings -->", README, re.DOTALL)

    assert found is not None
    assert found.group(1).strip() == markdown_table().strip()


def test_settings_named_in_the_readme_exist() -> None:
    """In the form NAME=VALUE."""
    known = {each.variable for each in declarations()}

    assert set(re.findall(r"\b([A-Z][A-Z_]{3,})=", README)) <= known | {"TORCH_BACKEND", "PYTHON", "NAME"}


def test_the_changelog_has_this_version() -> None:
    """And pyproject.toml agrees."""
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_metric_names_carry_their_unit() -> None:
    """Seconds, or a total; the rest count things that are there now."""
    for metric in METRICS:
        assert metric.name.startswith("canvasgate_")
        assert metric.kind != "counter" or metric.name.endswith("_total")
        assert metric.kind != "histogram" or metric.name.endswith("_seconds")


def test_the_readme_names_every_path_that_operators_need() -> None:
    """Health, readiness, metrics, limits, the description."""
    assert all(path in README for path in PATHS if not path.startswith(("/systemone", "/v1/models")))
