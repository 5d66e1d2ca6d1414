"""The shell completes names of templates, asked as bash asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from gateway.cli import main


def completed(*words: str) -> list[tuple[str, str]]:
    """What stands for the last of these words, and of which kind."""
    complete = ShellComplete(main, {}, "canvasgate", "_CANVASGATE_COMPLETE")
    return [(item.type, item.value) for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    "words",
    [
        ("decide", "-t"),
        ("decide", "--template"),
        ("batch", "in.jsonl", "out.jsonl", "-t"),
        ("templates", "show"),
        ("templates", "render"),
        ("templates", "plan"),
    ],
)
def test_names_of_templates_are_completed(words: tuple[str, ...]) -> None:
    assert completed(*words, "support_t") == [("plain", "support_triage")]


def test_a_name_stands_once_and_its_versions_behind_an_at() -> None:
    assert completed("templates", "show", "prompt_inj") == [("plain", "prompt_injection")]
    assert completed("templates", "show", "prompt_injection@") == [("plain", "prompt_injection@2")]


def test_templates_of_ones_own_are_completed_broken_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.json").write_text("no JSON yet")
    assert completed("templates", "show", "--dir", str(tmp_path), "min") == [("plain", "mine")]
    assert completed("decide", "-t", "min") == []
    monkeypatch.setenv("TEMPLATES_DIR", str(tmp_path))
    assert completed("decide", "-t", "min") == [("plain", "mine")]


def test_a_path_is_left_to_the_shell() -> None:
    assert completed("templates", "plan", "./pol") == [("file", "./pol")]


def test_settings_that_are_wrong_do_not_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "no port")
    assert completed("decide", "-t", "support_t") == [("plain", "support_triage")]
