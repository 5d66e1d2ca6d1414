"""`canvasgate decide`, `batch` and `doctor`: asking a running gateway."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import click

from .cli_complete import template_names
from .cli_templates import with_variables
from .given import AskError, given_variables, read_text

DEFAULT_URL = "http://127.0.0.1:8080"
Command = Callable[..., Any]


def of_server(command: Command) -> Command:
    """Adds the options that say which gateway is asked."""
    url = click.option(
        "--url", "-u", envvar="CANVASGATE_URL", default=DEFAULT_URL, show_default=True, help="The gateway's root."
    )
    key = click.option("--key", envvar="CANVASGATE_KEY", help="Bearer key.")
    timeout = click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for an answer.")
    return url(key(timeout(command)))


@click.command()
@click.argument("request_file", required=False, type=click.File("r", encoding="utf-8"))
@click.option(
    "-t",
    "--template",
    metavar="NAME",
    help="A decision template that the gateway serves.",
    shell_complete=template_names,
)
@with_variables
@click.option("--state", help="What the questions are about; @FILE reads a file, - standard input.")
@click.option("--noul", "nouls", multiple=True, metavar="QUESTION", help="A yes/no question.")
@click.option("--choice", "choices", multiple=True, metavar="'QUESTION | OPTION: MEANING | ...'", help="A choice.")
@click.option("--score", "scores", multiple=True, metavar="'QUESTION | LOWEST | ... | HIGHEST'", help="A score.")
@click.option("-m", "--model", help="The model; any that the gateway serves when left out.")
@of_server
@click.option("--stats", is_flag=True, help="Print time, reads and tokens as well.")
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON instead of a table.")
@click.option("--jsonl", is_flag=True, help="Print the response as one line of JSON.")
def decide(request_file: TextIO | None, **given: Any) -> None:
    """Ask a running gateway, and print its answers.

    REQUEST_FILE is a System One request as JSON (- is standard input); options add to it.

    \b
    Examples:
      canvasgate decide --state "I was charged twice, please refund one." --noul "Does the customer ask for money back?"
      canvasgate decide --state @mail.txt --choice "Which team? | billing: Invoices, refunds | technical | sales"
      canvasgate decide -t support_triage -v ticket="I was charged twice" --stats
      cat mail.txt | canvasgate decide -t support_triage -v ticket=@- -d vars.json
      canvasgate decide request.json --json
    """
    from rich.console import Console

    from . import ask

    started = time.perf_counter()
    try:
        body = request_body(request_file, given)
        decided = ask.ask(given["url"], given["key"], body, given["timeout"])
    except AskError as error:
        raise click.ClickException(str(error)) from error
    if given["jsonl"] or given["as_json"]:
        click.echo(json.dumps(decided, ensure_ascii=False, indent=None if given["jsonl"] else 2))
        return
    ask.show(decided, Console())
    if given["stats"]:
        ask.show_stats(decided, time.perf_counter() - started, Console())


def request_body(request_file: TextIO | None, given: dict[str, Any]) -> dict[str, Any]:
    """The request that a command line describes. Raises `AskError` where something is missing."""
    from . import ask

    body = {"model": "jev-latest", "questions": {}} | (read_request(request_file) if request_file else {})
    if given["model"]:
        body["model"] = given["model"]
    if given["state"] is not None:
        body["state"] = read_text("@-" if given["state"] == "-" else given["state"])
    makers = {"nouls": ask.noul, "choices": ask.choice, "scores": ask.score}
    asked = [make(text) for kind, make in makers.items() for text in given[kind]]
    body["questions"] |= {f"q{number}": question for number, question in enumerate(asked, start=1)}
    if given["stats"]:
        body["diagnostics"] = True
    variables = given_variables(given["pairs"], given["files"])
    if given["template"]:
        body |= {"template": given["template"], "variables": body.get("variables", {}) | variables}
    elif variables:
        raise AskError("Variables are those of a template: name one with -t. `canvasgate templates list` has them.")
    if "template" in body:
        return body if body["questions"] else {name: body[name] for name in body if name != "questions"}
    if "state" not in body or not body["questions"]:
        raise AskError("Give a --state and a --noul, --choice or --score, a request file, or -t. See --help.")
    return body


def read_request(request_file: TextIO) -> dict[str, Any]:
    """The request in the file; what its fields hold is for the gateway to judge. Raises `AskError`."""
    try:
        body = json.load(request_file)
    except ValueError as error:
        raise AskError(f"The request file is not JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("questions", {}), dict):
        raise AskError("The request file is not a JSON object with an object of questions.")
    return body


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "-t",
    "--template",
    metavar="NAME",
    help="A template: rows are its variables. Else rows are requests.",
    shell_complete=template_names,
)
@click.option("-m", "--model", help="The model; any that the gateway serves when left out.")
@click.option("-c", "--concurrency", default=16, show_default=True, type=click.IntRange(1, 1024), help="Rows at once.")
@of_server
def batch(source: Path, target: Path, **given: Any) -> None:
    """Ask about every row of a JSON Lines file, and write a line per row: its answers, or its error.

    A row is an object: with -t the template's variables (or has them under "variables"), else a request. Its "id", if
    any, comes back. Run the same command again after an interruption, or to try rows with errors again: answered rows
    are kept. Ends with 0 when every row has answers, 1 when some have errors, 2 when it had to stop before the end.

    \b
    Example:
      canvasgate batch tickets.jsonl answers.jsonl -t support_triage -c 32
    """
    import asyncio

    from rich.console import Console
    from rich.progress import Progress, TextColumn

    from . import batch as batches

    fields = {name: given[name] for name in ("template", "model") if given[name]}
    job = batches.Job(given["url"], given["key"], fields, given["concurrency"], timeout=given["timeout"])
    errors = Console(stderr=True)
    try:
        rows = sum(1 for _ in batches.rows_of(source))
        columns = (*Progress.get_default_columns(), TextColumn("{task.completed:.0f} of {task.total:.0f} rows"))
        with Progress(*columns, console=errors) as bar:
            task = bar.add_task("asking", total=rows)

            def progress(tally: batches.Tally) -> None:
                bar.update(task, completed=tally.kept + tally.answered + tally.failed)

            tally = asyncio.run(batches.run(job, source, target, progress))
    except KeyboardInterrupt:
        click.echo("Interrupted. Run the same command again to go on; answered rows are kept.", err=True)
        sys.exit(2)
    except AskError as error:
        click.echo(f"Error: {error}\nRun the same command again to go on; answered rows are kept.", err=True)
        sys.exit(2)
    click.echo(f"{tally.answered} rows answered, {tally.kept} kept from before, {tally.failed} with errors", err=True)
    for why, count in tally.reasons.most_common(5):
        click.echo(f"  {count} x {why}", err=True)
    sys.exit(1 if tally.failed else 0)


@click.command()
@of_server
def doctor(url: str, key: str | None, timeout: float) -> None:
    """Look at a running gateway, and explain what is wrong with it. Ends with 1 where something is.

    \b
    Example:
      canvasgate doctor --url http://gateway:8080 --key KEY
    """
    from .doctor import examine

    styles = {"ok": "green", "note": "yellow", "wrong": "red"}
    wrong = False
    for finding in examine(url, key, timeout):
        wrong = wrong or finding.mark == "wrong"
        click.echo(f"{click.style(f'{finding.mark:>5}', fg=styles[finding.mark])}  {finding.text}")
        if finding.remedy:
            click.echo(f"       {finding.remedy}")
    sys.exit(1 if wrong else 0)
