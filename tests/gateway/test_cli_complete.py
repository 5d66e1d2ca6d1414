"""What a shell's completion offers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from gateway.cli import main
from tests.conftest import ROOT
from tests.gateway.policies import ROUTER, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What TEMPLATES_DIR names: two templates, one in two versions, and files that are none."""
    write(tmp_path, file="support/triage_sample.json")
    write(
        tmp_path, file="support/triage_sample@10.json", version=10, variables={"words": {"description": "All.\nMore."}}
    )
    write(tmp_path, ROUTER)
    (tmp_path / "broken_sample.json").write_text("{")
    (tmp_path / "list_sample.json").write_text("[1]")
    (tmp_path / "odd_sample.json").write_text(json.dumps({"variables": {"a": 1, "b": {"description": 2}}}))
    (tmp_path / "null_sample.json").write_text(json.dumps({"variables": None}))
    monkeypatch.setenv("TEMPLATES_DIR", str(tmp_path))
    return tmp_path


def items(*typed: str, incomplete: str = "") -> list[CompletionItem]:
    """What is offered behind these words."""
    return ShellComplete(main, {}, "canvasgate", "_CANVASGATE_COMPLETE").get_completions([*typed], incomplete)


def offered(*typed: str, incomplete: str = "") -> list[str]:
    """The same as words."""
    return [item.value for item in items(*typed, incomplete=incomplete)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "typed",
    [
        ("decide", "-t"),
        ("batch", "-t"),
        ("batch", "in.jsonl", "out.jsonl", "--template"),
        ("templates", "show"),
        ("templates", "render"),
        ("templates", "plan"),
        ("templates", "check"),
        ("templates", "check", "router_sample"),
    ],
)
def test_names_of_both_folders_are_offered(typed: tuple[str, ...]) -> None:
    """Bare, and pinned where a file is named so."""
    names = offered(*typed)

    assert {"support_triage", "support_triage@2", "triage_sample", "router_sample", "broken_sample"} <= {*names}
    assert sorted(set(names)) == names
    assert ["triage_sample", "triage_sample@10"] == offered(*typed, incomplete="triage_")


def test_a_folder_that_is_named_counts(tmp_path: Path) -> None:
    """Above the environment's."""
    write(tmp_path, ROUTER)

    assert ["router_sample"] == offered("templates", "show", "--dir", str(tmp_path), incomplete="router")


@pytest.mark.parametrize("command", ["show", "render", "plan", "check"])
def test_what_is_no_name_may_be_a_file(command: str) -> None:
    """Where the command takes one; the shell lists them."""
    assert [("./mine", "file")] == [
        (item.value, item.type) for item in items("templates", command, incomplete="./mine")
    ]
    assert [] == offered("decide", "-t", incomplete="./mine")


@pytest.mark.parametrize("variable", ["PORT", "TEMPLATES_DIR"])
def test_a_wrong_setting_leaves_the_shipped_ones(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of it while somebody types."""
    monkeypatch.setenv(variable, "~nobody_of_this_name/x")

    assert ["support_triage", "support_triage@2"] == offered("decide", "-t", incomplete="support_t")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("typed", "incomplete", "expected"),
    [
        (("decide", "-t", "support_triage", "-v"), "", ["ticket=", "earlier="]),
        (("templates", "render", "router_sample", "-v"), "", ["message=", "intents="]),
        (("templates", "plan", "router_sample", "-v", "message=x", "-v"), "int", ["intents="]),
        (("templates", "render", "triage_sample", "-v"), "", ["words="]),
        (("templates", "render", "triage_sample@1", "-v"), "", ["ticket=", "customer="]),
        (("templates", "render", "triage_sample@10", "-v"), "", ["words="]),
        (("templates", "render", "router_sample", "-v"), "message=", []),
        (("templates", "render", "odd_sample", "-v"), "", ["a=", "b="]),
        (("templates", "render", "broken_sample", "-v"), "", []),
        (("templates", "render", "list_sample", "-v"), "", []),
        (("templates", "render", "null_sample", "-v"), "", []),
        (("templates", "render", "nothing_like_it", "-v"), "", []),
        (("templates", "render", "./nowhere.json", "-v"), "", []),
        (("decide", "-v"), "", []),
    ],
)
def test_variables_of_the_template_are_offered(typed: tuple[str, ...], incomplete: str, expected: list[str]) -> None:
    """Of the version that would be asked; of a broken one none."""
    assert expected == offered(*typed, incomplete=incomplete)


def test_a_variable_comes_with_the_first_line_of_its_description(folder: Path) -> None:
    """For shells that show it; of a file that is named by its path too."""
    file = folder / "support" / "triage_sample@10.json"

    assert [("words=", "All.")] == [(item.value, item.help) for item in items("templates", "render", str(file), "-v")]


def test_a_shell_gets_its_answer_without_heavy_modules_and_in_silence(folder: Path) -> None:
    """As bash asks: nothing on standard error, whatever is broken."""
    heavy = ("httpx", "jinja2", "jsonschema", "rich.console", "starlette", "decisions.template")
    script = (
        "import sys\nfrom gateway.cli import main\n"
        "try:\n    main(prog_name='canvasgate')\n"
        f"finally:\n    print([name for name in {heavy} if name in sys.modules])"
    )
    asking = {"_CANVASGATE_COMPLETE": "bash_complete", "COMP_WORDS": "canvasgate decide -t broken_", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **asking, "TEMPLATES_DIR": str(folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ("", "plain,broken_sample\n[]\n") == (done.stderr, done.stdout)
