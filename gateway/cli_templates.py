"""`canvasgate templates`: list, show, render, plan and check decision templates; needs no server and no engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from .cli_complete import template_names_or_files, variable_pairs
from .config import InvalidSettings, Settings, load
from .given import AskError, given_variables

if TYPE_CHECKING:
    from rich.table import Table

    from decisions.protocol import Skipped
    from decisions.template import DecisionTemplate

Command = Callable[..., Any]
COPIED = frozenset({"name", "variable", "id"})
"""Columns that people copy from, so that they are not broken into lines."""


@click.group()
def templates() -> None:
    """List, show, render, plan and check decision templates, without a server."""


def in_folder(command: Command) -> Command:
    """Adds the option that names a folder of templates."""
    return click.option(
        "--dir",
        "folder",
        type=click.Path(file_okay=False),
        metavar="FOLDER",
        help="Templates of your own; TEMPLATES_DIR where it is left out.",
    )(command)


def with_variables(command: Command) -> Command:
    """Adds the options that give variables."""
    given = click.option(
        "-v",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=variable_pairs,
        help="A variable; NAME=@FILE reads it, NAME:=JSON is JSON.",
    )
    files = click.option(
        "-d",
        "files",
        type=click.Path(allow_dash=True),
        multiple=True,
        metavar="FILE",
        help="A JSON object of variables; - is input.",
    )
    return given(files(command))


def settings_of(folder: str | None) -> Settings:
    """The environment's settings, with another folder of templates where one is given."""
    try:
        return load(overrides={"TEMPLATES_DIR": folder} if folder else {})
    except InvalidSettings as error:
        raise click.ClickException(str(error)) from error


def found(name: str, folder: str | None) -> DecisionTemplate:
    """The template, or an end of the command that says what to do."""
    from .offline import Unusable, find

    try:
        return find(name, settings_of(folder))
    except Unusable as error:
        raise click.ClickException(str(error)) from error


@templates.command("list")
@in_folder
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_all(folder: str | None, *, as_json: bool) -> None:
    """List every template with its versions and variables.

    \b
    Example:
      canvasgate templates list --dir ./policies
    """
    from rich.console import Console

    from .offline import catalogue_of
    from .templates import listing

    index = catalogue_of(settings_of(folder))
    rows = listing(index)["templates"]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        table = columns("name", "versions", "folder", "title", "variables")
        for row in rows:
            versions = ", ".join(map(str, row["versions"]))
            table.add_row(row["name"], versions, row["folder"], row["title"], ", ".join(row["variables"]))
        Console().print(table)
    for broken in index.broken:
        click.echo(f"not used: {broken.file}: {broken.reason}", err=True)


@templates.command()
@click.argument("name", shell_complete=template_names_or_files)
@in_folder
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as GET /v1/templates/NAME does.")
def show(name: str, folder: str | None, *, as_json: bool) -> None:
    """Show a template: what it is for, its variables and its questions. NAME may be a file.

    \b
    Example:
      canvasgate templates show support_triage
    """
    from rich.console import Console

    from .templates import Index, detail

    template = found(name, folder)
    if as_json:
        click.echo(json.dumps(detail(Index(), template), ensure_ascii=False, indent=2))
        return
    click.echo(f"{template.label}: {template.title}\n{template.description}\n")
    variables = columns("variable", "type", "default", "description")
    for variable, schema in template.variables.declared.items():
        default = json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else "(needed)"
        variables.add_row(variable, str(schema.get("type", "any")), default, schema.get("description", ""))
    questions = columns("id", "type", "question", "asked if")
    for key, question in template.document["questions"].items():
        conditions = [
            f"{other}: {' | '.join(map(str, wanted))}" for other, wanted in (question.get("ask_if") or {}).items()
        ]
        questions.add_row(key, question["type"], str(question.get("instructions") or ""), "\n".join(conditions))
    Console().print(variables)
    Console().print(questions)


@templates.command()
@click.argument("name", shell_complete=template_names_or_files)
@with_variables
@in_folder
def render(name: str, pairs: tuple[str, ...], files: tuple[str, ...], folder: str | None) -> None:
    """Print the request that a template spells with these variables, as JSON. NAME may be a file.

    \b
    Examples:
      canvasgate templates render support_triage -v ticket="I was charged twice"
      canvasgate templates render ./policies/mine.json -v body=@mail.txt -v limit:=3
    """
    from .offline import Unusable, request_of, wire_of

    template = found(name, folder)
    try:
        variables = given_variables(pairs, files)
        request_of(wire_of(settings_of(folder), template), template, variables)
    except (AskError, Unusable) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(template.render(variables), ensure_ascii=False, indent=2))


@templates.command()
@click.argument("name", shell_complete=template_names_or_files)
@with_variables
@in_folder
@click.option("--prompt", "prompts", is_flag=True, help="Print the text of every prompt as well.")
def plan(name: str, pairs: tuple[str, ...], files: tuple[str, ...], folder: str | None, *, prompts: bool) -> None:
    """Show the reads that a template costs: canvases, slots and tokens. NAME may be a file.

    Tokens are those of MODEL's tokenizer, or with MODEL unset the stub engine's: one a byte.

    \b
    Examples:
      canvasgate templates plan support_triage -v ticket=@mail.txt
      MODEL=/models/mine canvasgate templates plan support_triage -v ticket=x --prompt
    """
    from decisions.errors import DecisionError

    from .offline import Unusable, bench_of, request_of, rounds_of, wire_of

    settings, template = settings_of(folder), found(name, folder)
    try:
        bench = bench_of(settings)
        request = request_of(wire_of(settings, template), template, given_variables(pairs, files))
        planned = bench.planner.plan(request)
        rounds = list(rounds_of(planned))
    except (AskError, Unusable) as error:
        raise click.ClickException(str(error)) from error
    except DecisionError as error:
        raise click.ClickException(error.message) from error
    show_plan(template, bench.name, rounds)
    show_rest(len(rounds), planned.decision().skipped)
    for number, reads in enumerate(rounds, start=1):
        for place, read in enumerate(reads, start=1):
            if prompts:
                click.echo(f"\n--- round {number}, read {place} ---\n{bench.tokenizer.decode(read.prompt)}")


def show_plan(template: DecisionTemplate, tokenizer: str, rounds: list[tuple[Any, ...]]) -> None:
    """A row per read, and the sums."""
    from rich.console import Console

    table = columns("round", "read", "slots", "prompt tokens", "shared", "canvas tokens")
    for number, reads in enumerate(rounds, start=1):
        for place, read in enumerate(reads, start=1):
            cells = (number, place, len(read.slots), len(read.prompt), read.prefix, len(read.canvas))
            table.add_row(*map(str, cells))
    Console().print(table)
    every = [read for reads in rounds for read in reads]
    total = sum(read.tokens for read in every)
    click.echo(f"{template.label}: {len(rounds)} rounds, {len(every)} reads, {total} tokens ({tokenizer})")


def show_rest(rounds: int, skipped: Mapping[str, Skipped]) -> None:
    """What depends on answers, which are taken to be even here."""
    if rounds > 1 or skipped:
        click.echo("What later rounds read depends on answers; here all are even, so that the first one counts.")
    for name, why in skipped.items():
        was = "is not asked" if why.was is None else f"is taken to be {why.was}"
        wanted = f", not {' or '.join(why.wanted)}" if why.was is not None else ""
        click.echo(f"Not in it: {name}, because {why.because} {was}{wanted}.")


@templates.command()
@click.argument("files", nargs=-1, metavar="[NAME]...", shell_complete=template_names_or_files)
@in_folder
@click.option("--strict", is_flag=True, help="Likely mistakes count as errors.")
def check(files: tuple[str, ...], folder: str | None, *, strict: bool) -> None:
    """Check template files: schema, variables, examples, labels, likely mistakes.

    NAME is a template, in all its versions or in a pinned one, or a file; without any, all of a folder.
    Ends with 1 where a file has errors.

    \b
    Examples:
      canvasgate templates check support_triage
      canvasgate templates check policies/mine.json
      canvasgate templates check --dir policies --strict
    """
    from . import offline

    settings = settings_of(folder)
    try:
        paths, bench = offline.paths_of(files, settings), offline.bench_of(settings)
    except offline.Unusable as error:
        raise click.ClickException(str(error)) from error
    wrong = 0
    for path in paths:
        said = offline.check(path, settings, bench)
        errors = sum(each.error or strict for each in said)
        wrong += bool(errors)
        click.echo(f"{path}: {'ok' if not said else f'{errors} errors, {len(said) - errors} remarks'}")
        for each in said:
            click.echo(f"  {'error' if each.error else 'remark'}: {each.text}")
    if wrong:
        raise click.ClickException(f"{wrong} files have errors. Mend what is listed above, then check again.")


def columns(*names: str) -> Table:
    """An empty table."""
    from rich.table import Table

    table = Table()
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in COPIED)
    return table
