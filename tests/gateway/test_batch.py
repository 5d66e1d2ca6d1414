"""`canvasgate batch`: a line per row, whatever happens in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.batch import Job, in_order, kept, lines_of, pause, rows_of
from gateway.given import AskError
from tests.conftest import ROOT, RunningServer, Start
from tests.gateway.asking import QUESTIONS
from tests.gateway.policies import write
from tests.gateway.test_cli import run


@pytest.fixture(scope="module")
def server(start_server: Start, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    """A gateway with a template, and an engine that takes its time."""
    folder = tmp_path_factory.mktemp("policies")
    write(folder)
    return start_server(ENGINE="stub", TEMPLATES_DIR=str(folder), STUB_DELAY_MS="10")


def rows(path: Path, *given: Any) -> Path:
    """A JSON Lines file of these rows."""
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in given))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of an output."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_thousand_rows_survive_being_killed_twice(server: RunningServer, tmp_path: Path) -> None:
    """And end with exactly one right line per row, in order."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows(source, *({"id": f"row {number}", "ticket": f"Ticket number {number}"} for number in range(1000)))
    command = [sys.executable, "-m", "gateway.cli", "batch", str(source), str(target), "-t", "triage_sample", "-c", "8"]

    def begin() -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen([*command, "--url", server.url], cwd=ROOT, env=os.environ, stdout=quiet, stderr=quiet)

    for enough in (100, 300):
        process = begin()
        while process.poll() is None and (not target.exists() or target.read_bytes().count(b"\n") < enough):
            time.sleep(0.01)
        assert process.poll() is None
        process.kill()
        process.wait()
        with target.open("ab") as out:
            out.write(b'{"row": 7, "answers": {"q1"')  # as a torn write leaves it
    assert 0 == begin().wait()

    lines = read(target)
    answer = httpx.post(
        f"{server.url}/v1/templates/triage_sample/decide", json={"variables": {"ticket": "Ticket number 500"}}
    ).json()
    assert [*range(1, 1001)] == [line["row"] for line in lines]
    assert [f"row {number}" for number in range(1000)] == [line["id"] for line in lines]
    assert answer["answers"] == lines[500]["answers"]
    assert not any("error" in line for line in lines)


def test_an_interruption_is_told_with_how_to_go_on(
    tmp_path: Path, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does it: the run had to stop before the end."""

    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.batch.run", interrupted)
    source = tmp_path / "in.jsonl"
    rows(source, {"ticket": "a"})
    result = run("batch", str(source), str(tmp_path / "out.jsonl"), "-t", "triage_sample", "--url", server.url)

    assert 2 == result.exit_code
    assert "Interrupted. Run the same command again to go on; answered rows are kept." in result.output


def test_a_row_with_an_error_has_a_line_and_the_exit_code_tells(server: RunningServer, tmp_path: Path) -> None:
    """It is tried again the next time, and so is a row that has changed; answered ones are kept."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = {"id": 3, "variables": {"ticket": "x", "customer": {"plan": "paid"}}}
    given = ["batch", str(source), str(target), "-t", "triage_sample", "--url", server.url]
    rows(source, {"ticket": "a"}, "", "{", "[1]", {"tikcet": "b"}, good)
    first = run(*given)
    lines = read(target)

    assert 1 == first.exit_code
    assert [1, 3, 4, 5, 6] == [line["row"] for line in lines]
    assert ["answers", "error", "error", "error", "answers"] == [
        "error" if "error" in line else "answers" for line in lines
    ]
    assert "not JSON" in lines[1]["error"]
    assert "no variable 'tikcet'" in lines[3]["error"]
    assert "2 rows answered, 0 kept from before, 3 with errors" in first.output

    rows(source, {"ticket": "a"}, "", {"ticket": "c"}, {"ticket": "d"}, {"ticket": "e"}, {**good, "id": 4})
    second = run(*given)

    assert 0 == second.exit_code
    assert "4 rows answered, 1 kept from before, 0 with errors" in second.output
    assert [1, 3, 4, 5, 6] == [line["row"] for line in read(target)]
    assert 4 == read(target)[-1]["id"]


def test_rows_are_requests_where_no_template_is_named(server: RunningServer, tmp_path: Path) -> None:
    """With a model of their own, or the option's."""
    source = rows(tmp_path / "in.jsonl", {"state": "x", "questions": QUESTIONS}, {"state": "x", "questions": {}})
    result = run("batch", str(source), str(tmp_path / "out.jsonl"), "-m", "stub", "--url", server.url)

    assert 1 == result.exit_code
    assert ["refund", "team", "anger"] == list(read(tmp_path / "out.jsonl")[0]["answers"])


def test_a_server_that_is_away_stops_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row gets a line for what is not its fault."""
    monkeypatch.setattr("gateway.batch.LONGEST_PAUSE", 0.0)
    source, target = rows(tmp_path / "in.jsonl", {"ticket": "a"}), tmp_path / "out.jsonl"
    away = run("batch", str(source), str(target), "-t", "x", "--url", "http://127.0.0.1:1")
    nonsense = run("batch", str(source), str(target), "-t", "x", "--url", "nonsense")

    assert (2, 2) == (away.exit_code, nonsense.exit_code)
    assert "Is `canvasgate serve` running there?" in away.output
    assert "Run the same command again" in away.output
    assert "is no address" in nonsense.output
    assert b"" == target.read_bytes()


def test_a_wrong_key_stops_the_batch(start_server: Start, tmp_path: Path) -> None:
    """All rows would go the same way."""
    closed = start_server(ENGINE="stub", API_KEY="sk-1")
    source = rows(tmp_path / "in.jsonl", {"state": "x", "questions": QUESTIONS})
    result = run("batch", str(source), str(tmp_path / "out.jsonl"), "--url", closed.url)

    assert 2 == result.exit_code
    assert "answered 403" in result.output
    assert 0 == run("batch", str(source), str(tmp_path / "out.jsonl"), "--url", closed.url, "--key", "sk-1").exit_code


def test_files_that_do_not_serve_are_told(tmp_path: Path) -> None:
    """Before anything is asked; somebody else's file is left as it is."""
    source = rows(tmp_path / "in.jsonl", {"a": 1})
    strange = tmp_path / "notes.txt"
    strange.write_text("mine")

    assert "Cannot read" in run("batch", str(tmp_path / "nowhere"), str(tmp_path / "out.jsonl")).output
    assert "holds something else" in run("batch", str(source), str(strange)).output
    assert "Cannot write" in run("batch", str(source), str(tmp_path / "no" / "out.jsonl")).output
    assert "mine" == strange.read_text()
    assert 2 == run("batch", str(source), str(strange)).exit_code


def test_of_an_output_only_whole_lines_of_ours_are_kept(tmp_path: Path) -> None:
    """And only those of rows that are still asked so."""
    source, target = rows(tmp_path / "in.jsonl", {"ticket": "a"}), tmp_path / "out.jsonl"
    job = Job("http://there", None, {"template": "t"})
    target.write_bytes(b'{"row": 1, "input": "other", "answers": {}}\n[1]\nnot json\n{"row": 2')

    assert [1] == [row["row"] for row, _ in lines_of(target)]
    assert set() == kept(job, source, target)
    assert b"" == target.read_bytes()
    in_order(target)
    assert [(1, b'{"ticket": "a"}')] == list(rows_of(source))
    with pytest.raises(AskError):
        list(rows_of(tmp_path / "nowhere"))


def test_the_pause_is_what_the_server_says() -> None:
    """Else it doubles, up to a bound."""
    told = httpx.Response(529, headers={"retry-after-ms": "1500"})

    assert 1.5 == pause(told, 1)
    assert 0.5 == pause(None, 1)
    assert 30.0 == pause(httpx.Response(503), 20)
