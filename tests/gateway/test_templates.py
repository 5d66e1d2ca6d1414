"""The catalogue of templates: versions, edits, broken, removed and renamed files, and a gateway that serves on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from decisions.errors import UnknownTemplate
from decisions.template import DecisionTemplate
from gateway import templates
from gateway.template_files import SHIPPED, folders_of
from gateway.templates import Broken, Catalogue, Watcher
from tests.conftest import AppClient, Start
from tests.gateway.asking import until
from tests.gateway.policies import ROUTER, TRIAGE, write


def labels(catalogue: Catalogue) -> list[str]:
    """What is served."""
    return [template.label for template in catalogue.index.all()]


def opened(*folders: Path) -> Catalogue:
    """A catalogue that has been looked through."""
    catalogue = Catalogue(folders)
    catalogue.look()
    return catalogue


def reasons(catalogue: Catalogue) -> dict[str, str]:
    """Broken files."""
    return {broken.file: broken.reason for broken in catalogue.index.broken}


# --- Finding ----------------------------------------------------------------------------------------------------------


def test_a_bare_name_means_the_highest_version(tmp_path: Path) -> None:
    """And `name@version` pins one; ten is higher than nine."""
    for version in (9, 10, 2):
        write(tmp_path, file=f"support/triage_sample@{version}.json", version=version)
    catalogue = opened(tmp_path)

    assert 10 == catalogue.find("triage_sample").version
    assert 2 == catalogue.find("triage_sample@2").version
    assert ["triage_sample@10", "triage_sample@9", "triage_sample@2"] == labels(catalogue)
    assert "support" == catalogue.index.folders["triage_sample@2"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("triage_sampel", "Did you mean triage_sample"),
        ("triage_sample@3", "Of this name there is triage_sample@1"),
        ("triage_sample@", "Of this name there is"),
        ("triage_sample@one", "Of this name there is"),
        ("triage_sample@²", "Of this name there is"),
        ("triage_sample@" + "9" * 5000, "Of this name there is"),
        ("", "lists them all"),
        ("../../etc/passwd", "lists them all"),
        ("x" * 100_000, "lists them all"),
    ],
)
def test_an_unknown_name_is_told_with_what_is_near(tmp_path: Path, name: str, told: str) -> None:
    """In a sentence that stays short."""
    write(tmp_path)
    with pytest.raises(UnknownTemplate, match=told) as unknown:
        opened(tmp_path).find(name)

    assert 300 > len(unknown.value.message)


def test_the_operators_folder_stands_above_ours(tmp_path: Path) -> None:
    """Of the same name and version; other versions stay."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(ours, title="Ours")
    write(ours, file="triage_sample@2.json", version=2)
    write(theirs, title="Theirs")
    catalogue = opened(ours, theirs)

    assert "Theirs" == catalogue.find("triage_sample@1").title
    assert 2 == catalogue.find("triage_sample").version
    assert {} == reasons(catalogue)


def test_the_folders_are_ours_and_the_one_of_the_setting(tmp_path: Path) -> None:
    """Unset, there is only ours."""
    assert (SHIPPED,) == folders_of("")
    assert (SHIPPED, tmp_path) == folders_of(str(tmp_path))


# --- Changes ----------------------------------------------------------------------------------------------------------


def test_an_edit_is_used_and_an_unchanged_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking costs a stat a file."""
    write(tmp_path)
    write(tmp_path, ROUTER)
    catalogue = opened(tmp_path)
    read: list[str] = []
    load = templates.load

    def counted(path: Path) -> DecisionTemplate:
        read.append(path.name)
        return load(path)

    monkeypatch.setattr(templates, "load", counted)

    assert not catalogue.look()
    write(tmp_path, title="Edited")
    assert catalogue.look()
    assert ("Edited", ["triage_sample.json"]) == (catalogue.find("triage_sample").title, read)


def test_a_broken_edit_keeps_the_last_good_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And says why, once; a good edit ends it."""
    path = write(tmp_path)
    catalogue = opened(tmp_path)
    with caplog.at_level(logging.ERROR):
        path.write_text('{"name": ')
        changed = [catalogue.look(), catalogue.look()]

    assert [True, False] == changed
    assert "Triage" == catalogue.find("triage_sample").title
    assert "JSON decode error" in reasons(catalogue)["triage_sample.json"]
    assert "triage_sample@1 stays as it was" in reasons(catalogue)["triage_sample.json"]
    assert 1 == caplog.text.count("template file triage_sample.json is not used")
    assert (1, 1) == catalogue.counts()

    write(tmp_path, title="Mended")
    catalogue.look()

    assert ("Mended", {}) == (catalogue.find("triage_sample").title, reasons(catalogue))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Field required"),
        (b"[]", "object"),
        (b"\xff", "not UTF-8"),
        (b'{"name": "a", "name": "b"}', "repeated"),
        (b"{}", "version"),
        (b'{"name": "a"' + b"," * 1_100_000 + b"}", "values"),
        (b" " * (templates.LARGEST_FILE + 1), "more than"),
        (b'{"name": "x", "examples": [1e999]}', "beyond 64 bits"),
        (b'{"variables": {"x": ' + b'{"items":' * 190 + b"{}" + b"}" * 190 + b"}}", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_template_is_told(tmp_path: Path, content: bytes, why: str) -> None:
    """Whatever it holds; the others are served."""
    write(tmp_path)
    (tmp_path / "other.json").write_bytes(content)
    catalogue = opened(tmp_path)

    assert ["triage_sample@1"] == labels(catalogue)
    assert why in reasons(catalogue)["other.json"]


def test_a_deeply_nested_variable_or_text_is_told(tmp_path: Path) -> None:
    """Both become Python code, which has its own bounds."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(95):
        schema = {"type": "object", "properties": {"a": schema}}
    write(tmp_path, variables={**TRIAGE["variables"], "deep": schema})
    write(tmp_path, ROUTER, state="{{ " + "(" * 500 + "message" + ")" * 500 + " }}")
    loops = "{% for a in message %}" * 30 + "{% endfor %}" * 30
    write(tmp_path, ROUTER, "loops_sample.json", name="loops_sample", state=loops)
    write(tmp_path, ROUTER, "digits_sample.json", name="digits_sample", state="{{ " + "9" * 5000 + " }}")
    catalogue = opened(tmp_path)

    assert [] == labels(catalogue)
    assert {"nested too deeply" in reason for reason in reasons(catalogue).values()} == {True}


def test_the_name_is_that_of_the_file(tmp_path: Path) -> None:
    """So that nobody has to search for it."""
    write(tmp_path, file="other.json")
    write(tmp_path, file="triage_sample@2.json")
    catalogue = opened(tmp_path)

    assert [] == labels(catalogue)
    assert all(
        "the file must be triage_sample.json or triage_sample@1.json" in why for why in reasons(catalogue).values()
    )


def test_the_same_template_in_two_files_is_told(tmp_path: Path) -> None:
    """The first is served."""
    write(tmp_path, file="a/triage_sample.json", title="First")
    write(tmp_path, file="b/triage_sample.json", title="Second")
    catalogue = opened(tmp_path)

    assert "First" == catalogue.find("triage_sample").title
    assert {"b/triage_sample.json": "triage_sample@1 is in a/triage_sample.json already"} == reasons(catalogue)


def test_a_removed_file_is_given_up_at_the_second_look(tmp_path: Path) -> None:
    """Editors remove a file before they put the new one in its place."""
    path = write(tmp_path)
    catalogue = opened(tmp_path)
    path.unlink()
    catalogue.look()

    assert ["triage_sample@1"] == labels(catalogue)
    write(tmp_path, title="Back")
    catalogue.look()
    assert "Back" == catalogue.find("triage_sample").title

    path.unlink()
    catalogue.look()
    catalogue.look()
    assert [] == labels(catalogue)


def test_a_moved_file_is_never_missing(tmp_path: Path) -> None:
    """Nor told to be twice there."""
    path = write(tmp_path, file="a/triage_sample.json")
    catalogue = opened(tmp_path)
    (tmp_path / "b").mkdir()
    path.rename(tmp_path / "b" / "triage_sample.json")
    for _ in range(3):
        catalogue.look()
        assert (["triage_sample@1"], {}) == (labels(catalogue), reasons(catalogue))

    assert "b" == catalogue.index.folders["triage_sample@1"]


def test_a_renamed_template_goes_by_its_new_name(tmp_path: Path) -> None:
    """The old one is unknown then, and the new one is named."""
    write(tmp_path).unlink()
    write(tmp_path, name="triage_renamed")
    catalogue = opened(tmp_path)

    with pytest.raises(UnknownTemplate, match="Did you mean triage_renamed"):
        catalogue.find("triage_sample")


def test_hidden_files_and_other_files_are_not_ours(tmp_path: Path) -> None:
    """A mounted ConfigMap keeps its copies in a hidden folder, and links to them."""
    hidden = write(tmp_path, file="..data/triage_sample.json")
    (tmp_path / "triage_sample.json").symlink_to(hidden)
    (tmp_path / "README.md").write_text("x")
    (tmp_path / ".swap.json").write_text("x")
    catalogue = opened(tmp_path)

    assert (["triage_sample@1"], {}) == (labels(catalogue), reasons(catalogue))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Here a link that leads nowhere."""
    (tmp_path / "lost.json").symlink_to(tmp_path / "nowhere")

    assert "cannot be read: No such file" in reasons(opened(tmp_path))["lost.json"]


def test_a_folder_that_is_not_there_is_told_until_it_is(tmp_path: Path) -> None:
    """It may be mounted later."""
    catalogue = opened(tmp_path / "later")

    assert (Broken("TEMPLATES_DIR", "it is no folder that can be read"),) == catalogue.index.broken
    (tmp_path / "later").mkdir()
    catalogue.look()
    assert {} == reasons(catalogue)


# --- Serving ----------------------------------------------------------------------------------------------------------


async def test_the_watcher_looks_again_and_at_once_when_asked(tmp_path: Path) -> None:
    """Off the event loop, until it is cancelled."""
    catalogue = Catalogue([tmp_path])
    slow, quick = Watcher(catalogue, 3600), Watcher(catalogue, 0.001)
    running = asyncio.create_task(slow.run())
    write(tmp_path)
    slow.look_now()
    await until(lambda: catalogue.index.templates)
    running.cancel()
    running = asyncio.create_task(quick.run())
    write(tmp_path, title="Edited")
    await until(lambda: catalogue.find("triage_sample").title == "Edited")
    running.cancel()


async def test_a_watcher_that_fails_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the one line that says so; what is served is served on."""
    write(tmp_path)
    async with AppClient(TEMPLATES_DIR=str(tmp_path)) as client:

        def fail() -> bool:
            raise PermissionError("no more")

        client.gateway.catalogue.look = fail
        with caplog.at_level(logging.CRITICAL):
            client.gateway.reload_templates()
            await until(client.gateway._watching.done)
            await asyncio.sleep(0)
        answer = await client.post("/v1/templates/triage_sample/decide", json={"variables": {"ticket": "x"}})

    assert 200 == answer.status_code
    assert "templates are no longer looked at" in caplog.text


async def test_no_request_fails_because_of_a_change(tmp_path: Path) -> None:
    """While a file is edited, broken, mended, removed and put back, moved, every request is answered with 200."""
    body = {"model": "jev-latest", "template": "triage_sample", "variables": {"ticket": "x"}, "diagnostics": True}
    write(tmp_path, file="triage_sample.json")
    statuses: list[int] = []
    seen: set[str] = set()
    async with AppClient(TEMPLATES_DIR=str(tmp_path)) as client:
        gateway, done = client.gateway, asyncio.Event()

        async def ask() -> None:
            while not done.is_set():
                response = await client.post("/v1/systemone", json=body)
                statuses.append(response.status_code)
                seen.add(response.json().get("x_diagnostics", {}).get("template", ""))
                await asyncio.sleep(0)  # the stub never waits

        gateway._watching.cancel()
        asking = [asyncio.create_task(ask()) for _ in range(4)]
        try:
            for version in range(2, 6):
                await change(gateway, tmp_path / "triage_sample.json", version)
        finally:
            done.set()
        await asyncio.gather(*asking)

    assert {200} == {*statuses}
    assert {f"triage_sample@{version}" for version in range(2, 6)} <= seen


async def change(gateway: Any, path: Path, version: int) -> None:
    """Edit a file, break it, remove it and put it back; after each the catalogue is looked through."""
    steps: list[Callable[[], object]] = [
        lambda: write(path.parent, version=version),
        lambda: path.write_text("{"),
        path.unlink,
        lambda: write(path.parent, version=version, title="Back"),
    ]
    for step in steps:
        step()
        await asyncio.to_thread(gateway.catalogue.look)
        for _ in range(8):
            await asyncio.sleep(0)


def test_a_running_gateway_uses_an_edit_and_reports_a_broken_one(start_server: Start, tmp_path: Path) -> None:
    """By itself and on SIGHUP; in the log, in `/ready` with 200, and in a metric."""
    path = write(tmp_path)
    server = start_server(ENGINE="stub", TEMPLATES_DIR=str(tmp_path))
    url = f"{server.url}/v1/templates/triage_sample"

    def wait_for(text: str, at: str) -> bool:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if text in httpx.get(at).text:
                return True
            time.sleep(0.05)
        return False

    write(tmp_path, title="Edited")
    assert wait_for("Edited", url)

    path.write_text("{")
    os.kill(server.process.pid, signal.SIGHUP)
    assert wait_for("triage_sample.json", f"{server.url}/ready")
    assert 200 == httpx.get(f"{server.url}/ready").status_code
    assert "canvasgate_templates_broken 1.0" in httpx.get(f"{server.url}/metrics").text
    assert "Edited" in httpx.get(url).text
    assert "template file triage_sample.json is not used" in server.log.read_text()
    assert "looking at the templates" in server.log.read_text()
