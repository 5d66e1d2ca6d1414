"""`canvasgate templates` and asking by template from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.given import AskError, given_variables
from tests.conftest import RunningServer, Start
from tests.gateway.policies import ROUTER, TRIAGE, write
from tests.gateway.test_cli import run


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are wide, and the environment names no folder."""
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("TEMPLATES_DIR", "MODEL", "CANVASGATE_URL", "CANVASGATE_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two templates, one in two versions, and a broken file."""
    made = tmp_path_factory.mktemp("policies")
    write(made, file="support/triage_sample.json")
    write(made, file="support/triage_sample@2.json", version=2, title="Triage anew")
    write(made, ROUTER)
    (made / "broken.json").write_text("{")
    return made


@pytest.fixture(scope="module")
def server(start_server: Start, folder: Path) -> RunningServer:
    """A gateway that serves them."""
    return start_server(ENGINE="stub", TEMPLATES_DIR=str(folder))


# --- Variables --------------------------------------------------------------------------------------------------------


def test_variables_are_text_unless_they_say_otherwise(tmp_path: Path) -> None:
    """JSON behind `:=`, a file behind @, true, false, and what is a JSON object or list."""
    (tmp_path / "mail.txt").write_text("[1] text\n", encoding="utf-8")
    (tmp_path / "vars.json").write_text('{"a": 1, "b": "x"}')
    pairs = ["a=2", "n:=2", 's:="x"', "t=true", 'o={"k": 1}', "l=[1]", "broken={x", f"m=@{tmp_path}/mail.txt", "e=a=b"]

    assert {
        "a": "2", "b": "x", "n": 2, "s": "x", "t": True, "o": {"k": 1}, "l": [1], "broken": "{x", "m": "[1] text\n",
        "e": "a=b",
    } == given_variables(pairs, [f"{tmp_path}/vars.json"])  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "files", "told"),
    [
        (["ticket"], [], "gives no variable. Write -v name=value"),
        (["n:=x"], [], "n is not JSON"),
        (["m=@/nowhere"], [], "Cannot read /nowhere"),
        ([], ["/nowhere"], "Cannot read /nowhere"),
        ([], ["list.json"], "JSON object of variables"),
    ],
)
def test_a_variable_that_cannot_be_read_is_told(
    pairs: list[str], files: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to write instead."""
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[1]")
    with pytest.raises(AskError, match=told):
        given_variables(pairs, files)


# --- Without a server -------------------------------------------------------------------------------------------------


def test_list_shows_every_template_and_what_is_broken(folder: Path) -> None:
    """As a table, or as JSON."""
    table = run("templates", "list", "--dir", str(folder))
    rows = json.loads(run("templates", "list", "--dir", str(folder), "--json").stdout)

    assert 0 == table.exit_code
    assert all(word in table.output for word in ("triage_sample", "2, 1", "support", "Triage anew", "ticket, customer"))
    assert "not used: broken.json" in table.output
    assert {"router_sample", "triage_sample"} <= {row["name"] for row in rows}


def test_show_tells_variables_and_questions(folder: Path) -> None:
    """Of a name, of a pinned version, of a file."""
    shown = run("templates", "show", "triage_sample@1", "--dir", str(folder))
    file = run("templates", "show", str(folder / "router_sample.json"), "--json")

    assert all(
        word in shown.output for word in ("triage_sample@1: Triage", "(needed)", '"free"', "Is money asked for?")
    )
    assert ["message", "intents"] == json.loads(file.output)["variables"]["required"]


def test_render_prints_exactly_what_would_be_asked(folder: Path) -> None:
    """Checked as the gateway checks it."""
    result = run("templates", "render", "triage_sample@1", "--dir", str(folder), "-v", "ticket=Hi {{ x }}")
    rendered = json.loads(result.output)

    assert {"ticket": "Hi {{ x }}", "customer": {"plan": "free"}} == rendered["state"]
    assert (TRIAGE["questions"], "none") == (rendered["questions"], rendered["isolate"])


def test_plan_shows_reads_slots_and_tokens(folder: Path) -> None:
    """And the prompts; many options take a second round."""
    intents = json.dumps({f"intent{number}": f"Meaning {number}" for number in range(77)})
    few = run("templates", "plan", "triage_sample", "--dir", str(folder), "-v", "ticket=Hi", "--prompt")
    many = run(
        "templates", "plan", "router_sample", "--dir", str(folder), "-v", "message=Hi", "-v", f"intents={intents}"
    )

    assert "triage_sample@2: 1 rounds, 1 reads" in few.output
    assert "--- round 1, read 1 ---" in few.output
    assert '{"ticket": "Hi", "customer": {"plan": "free"}}' in few.output
    assert "router_sample@1: 2 rounds" in many.output
    assert "a token a byte" in many.output


def test_plan_and_check_take_an_empty_thought_for_one_that_is_not_written_yet(tmp_path: Path) -> None:
    """Nothing thinks here, and a budget beyond the context is told."""
    thoughtful = write(tmp_path, settings={"think": 60})
    too_much = write(tmp_path, file="too_much.json", name="too_much", settings={"think": 4096})

    assert "<|thought><thought|>" in run("templates", "plan", str(thoughtful), "-v", "ticket=Hi", "--prompt").output
    assert "(think)" in run("templates", "check", str(too_much)).output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["render", "triage_sample", "-v", "tikcet=x"], "did you mean 'ticket'?"),
        (["render", "triage_sample", "-v", "tikcet=x"], "-v ticket=VALUE"),
        (["plan", "triage_sample"], "Field required: variable 'ticket'"),
        (["plan", "triage_sample", "-v", "ticket"], "gives no variable"),
        (["render", "triage_sampel"], "Did you mean triage_sample"),
        (["show", "nothing_like_it"], "`canvasgate templates list` lists them all"),
        (["show", "broken"], "template 'broken' cannot be used:\n  broken.json: line 1, column 2: JSON decode error"),
        (["render", "router_sample", "-v", "message=x", "-v", "intents={x"], "-v message=VALUE -v intents:='JSON'"),
        (["check", "triage_sampel"], "Did you mean triage_sample"),
        (["check", "triage_sample@7"], "Of this name there is triage_sample@2, triage_sample@1"),
        (["check", "broken"], "error: line 1, column 2: JSON decode error"),
        (["show", "./nowhere.json"], "cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(folder: Path, arguments: list[str], told: str) -> None:
    """In a few lines, never a traceback."""
    result = run("templates", *arguments, "--dir", str(folder))

    assert 1 == result.exit_code
    assert told in result.output
    assert isinstance(result.exception, SystemExit)


def test_a_text_that_does_not_fit_the_context_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With counted and allowed tokens."""
    monkeypatch.setenv("MAX_MODEL_LEN", "200")
    result = run("templates", "plan", "triage_sample", "--dir", str(folder), "-v", f"ticket={'x' * 500}")

    assert 1 == result.exit_code
    assert "at most" in result.output


def test_check_tells_errors_and_remarks(folder: Path, tmp_path: Path) -> None:
    """Of schema, variables, examples and likely mistakes; only errors end it with 1."""
    examples = [{"name": "x", "variables": {"ticket": "a"}, "expect": {"state": "b"}}]
    wrong = write(tmp_path, name="wrong_sample", examples=examples)
    large = [{**ROUTER["examples"][0], "variables": {"message": "m", "intents": {str(n): None for n in range(300)}}}]
    many = write(tmp_path, ROUTER, name="many_sample", examples=[{**large[0], "expect": {"state": "m"}}])
    letters = {"q1": {"type": "choice", "instructions": "Which?", "criteria": {"a": "First", "b": "Second"}}}
    remarks = write(tmp_path, name="remark_sample", questions=letters)
    good = run("templates", "check", str(folder / "support" / "triage_sample.json"))
    bad = run(
        "templates",
        "check",
        str(wrong),
        str(many),
        str(remarks),
        str(folder / "broken.json"),
        str(tmp_path / "no.json"),
    )

    assert (0, 1) == (good.exit_code, bad.exit_code)
    assert "error: examples.0.expect.state: expected 'b'" in bad.output
    assert "Too many choices. Must have at most 255 choices." in bad.output
    assert "remark: questions.q1.criteria.a: a name of one letter" in bad.output
    assert "JSON decode error" in bad.output
    assert "4 files have errors" in bad.output
    assert 1 == run("templates", "check", str(remarks), "--strict").exit_code


def test_check_without_files_takes_a_folder(folder: Path, tmp_path: Path) -> None:
    """All of it; an empty one is told."""
    assert "router_sample.json: " in run("templates", "check", "--dir", str(folder)).output
    assert f"There are no template files in {tmp_path}" in run("templates", "check", "--dir", str(tmp_path)).output
    assert "/nowhere is no folder that can be read" in run("templates", "check", "--dir", "/nowhere").output


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("triage_sample", ["triage_sample.json", "triage_sample@2.json"]),
        ("triage_sample@1", ["triage_sample.json"]),
        ("triage_sample@2", ["triage_sample@2.json"]),
        ("support_triage@2", ["support_triage@2.json"]),
    ],
)
def test_check_takes_names(folder: Path, name: str, files: list[str]) -> None:
    """All versions of one, or the one that is pinned; of the shipped ones too."""
    lines = [
        line for line in run("templates", "check", name, "--dir", str(folder)).output.splitlines() if ".json" in line
    ]

    assert files == [Path(line.partition(".json:")[0] + ".json").name for line in lines]


def test_an_example_that_is_no_request_is_told_with_its_place(tmp_path: Path) -> None:
    """And not as if variables had been given on a command line."""
    question = {"type": "choice", "instructions": "Which?", "criteria": "{{ intents }}"}
    example = {"name": "none", "variables": {"message": "m", "intents": {}}, "expect": {"state": "m"}}
    variables = {**ROUTER["variables"], "intents": {"type": "object", "description": "Intents."}}
    file = write(tmp_path, ROUTER, variables=variables, questions={"q1": question}, examples=[example])
    output = run("templates", "check", str(file)).output

    assert "error: example 'none': questions.q1" in output
    assert "-v" not in output


def test_plan_and_show_tell_what_hangs_on_answers(tmp_path: Path) -> None:
    """Even answers count as the first; what is not read then is named."""
    sides = TRIAGE["questions"]["q1"]
    questions = {
        **TRIAGE["questions"],
        "q4": {**sides, "ask_if": {"q2": ["technical"]}},
        "q5": {**sides, "depends_on": ["q4"]},
        "q6": {**sides, "ask_if": {"q2": ["billing"]}},
    }
    file = str(write(tmp_path, questions=questions))
    planned = run("templates", "plan", file, "-v", "ticket=Hi").output

    assert "2 rounds" in planned
    assert "here all are even, so that the first one counts" in planned
    assert "Not in it: q4, because q2 is taken to be billing, not technical." in planned
    assert "Not in it: q5, because q4 is not asked." in planned
    assert "q2: technical" in run("templates", "show", file).output


def test_names_are_not_broken_into_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a narrow terminal they can still be copied."""
    monkeypatch.setenv("COLUMNS", "80")

    assert "vulnerability_report" in run("templates", "list").output


def test_a_wrong_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere."""
    monkeypatch.setenv("PORT", "x")

    assert "PORT is 'x'" in run("templates", "list").output


@pytest.mark.parametrize("command", ["list", "show", "render", "plan", "check"])
def test_every_command_has_an_example(command: str) -> None:
    """In its help."""
    assert f"canvasgate templates {command}" in run("templates", command, "--help").output


# --- With a server ----------------------------------------------------------------------------------------------------


def test_decide_asks_by_template_and_tells_what_it_took(server: RunningServer) -> None:
    """As a table with figures, or as a line of JSON."""
    given = ["decide", "--url", server.url, "-t", "triage_sample@1", "-v", "ticket=I was charged twice."]
    table, line = run(*given, "--stats"), run(*given, "--jsonl")

    assert 0 == table.exit_code
    assert all(word in table.output for word in ("billing", "█", "template triage_sample@1, ", "reads in 1 rounds"))
    assert ["q1", "q2", "q3"] == list(json.loads(line.output)["answers"])
    assert 1 == line.output.count("\n")


def test_state_and_variables_may_come_from_standard_input(server: RunningServer) -> None:
    """And further questions stand beside the template's."""
    given = ["decide", "--url", server.url, "-t", "triage_sample", "--jsonl"]
    state = run(*given, "--state", "-", "-v", "ticket=x", "--noul", "Is it polite?", typed="Hello")
    ticket = run(*given, "-v", "ticket=@-", typed="Hello")
    plain = run(
        "decide", "--url", server.url, "--jsonl", "--state", "-", "--noul", "Is it?", "-m", "stub", typed="Hello"
    )

    assert [0, 0, 0] == [each.exit_code for each in (state, ticket, plain)]
    assert 3 == len(json.loads(ticket.output)["answers"])


def test_decide_tells_what_is_wrong_with_a_template(server: RunningServer) -> None:
    """In the gateway's words; variables without a template are told here."""
    unknown = run("decide", "--url", server.url, "-t", "triage_sampel")
    missing = run("decide", "--url", server.url, "-t", "triage_sample")
    alone = run("decide", "--url", server.url, "-v", "ticket=x")

    assert "Did you mean triage_sample" in unknown.output
    assert "variables.ticket: Field required" in missing.output
    assert "name one with -t" in alone.output
