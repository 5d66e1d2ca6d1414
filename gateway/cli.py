"""The `canvasgate` command: serve, ask, and show settings."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import click
from rich.console import Console

from . import __version__, ask
from .cli_templates import templates
from .config import InvalidSettings, Settings, declarations, load, shown

DEFAULT_URL = "http://127.0.0.1:8080"


class Verbatim(click.Command):
    """A command whose help keeps its examples' line breaks and lists the settings at its end."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A row per setting."""
        with formatter.section("Settings, as environment variables or as -s NAME=VALUE"):
            rows = [
                (each.variable, f"{each.help} ({each.allowed}; default {each.default or 'unset'})")
                for each in declarations()
            ]
            formatter.write_dl(rows)


@click.group()
@click.version_option(__version__, prog_name="canvasgate")
def main() -> None:
    """A gateway for the System One decision protocol: typed questions in, probabilities out."""


def load_or_exit(pairs: tuple[str, ...]) -> Settings:
    """The settings of the environment under NAME=VALUE pairs; ends the process when one is wrong."""
    known = {each.variable for each in declarations()}
    overrides = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name.upper() not in known:
            raise click.UsageError(f"{pair!r} is not a setting. `canvasgate settings` lists them all.")
        overrides[name.upper()] = value
    try:
        return load(overrides=overrides)
    except InvalidSettings as error:
        raise click.ClickException(str(error)) from error


@main.command(cls=Verbatim)
@click.option("--set", "-s", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting, over the environment's.")
def serve(pairs: tuple[str, ...]) -> None:
    """Serve until told to stop.

    \b
    Examples:
      canvasgate serve
      canvasgate serve -s PORT=9000 -s ENGINE=stub
      MODEL=google/diffusiongemma-26B-A4B-it canvasgate serve
    """
    from .serve import serve as serve_until_stopped

    sys.exit(serve_until_stopped(load_or_exit(pairs)))


@main.command()
@click.option("--set", "-s", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting, over the environment's.")
def settings(pairs: tuple[str, ...]) -> None:
    """Print every setting with its value; secrets are masked.

    \b
    Example:
      canvasgate settings -s PORT=9000
    """
    for name, value in shown(load_or_exit(pairs)).items():
        click.echo(f"{name}={value}")


@main.command()
@click.argument("request_file", required=False, type=click.File("r", encoding="utf-8"))
@click.option("--state", help="What the questions are about; @FILE reads a file. Over the request file's state.")
@click.option("--noul", "nouls", multiple=True, metavar="QUESTION", help="A yes/no question.")
@click.option("--choice", "choices", multiple=True, metavar="'QUESTION | OPTION: MEANING | ...'", help="A choice.")
@click.option("--score", "scores", multiple=True, metavar="'QUESTION | LOWEST | ... | HIGHEST'", help="A score.")
@click.option("--url", envvar="CANVASGATE_URL", default=DEFAULT_URL, show_default=True, help="The gateway's root.")
@click.option("--key", envvar="CANVASGATE_KEY", help="Bearer key.")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for the answer.")
@click.option("--json", "as_json", is_flag=True, help="Print the response as JSON instead of a table.")
def decide(request_file: TextIO | None, state: str | None, *, as_json: bool, **given: Any) -> None:
    """Ask a running gateway, and print its answers.

    REQUEST_FILE is a System One request as JSON (- is standard input); options add to it.

    \b
    Examples:
      canvasgate decide --state "I was charged twice, please refund one." --noul "Does the customer ask for money back?"
      canvasgate decide --state @mail.txt --choice "Which team? | billing: Invoices, refunds | technical | sales"
      canvasgate decide request.json --json
    """
    try:
        body = request_body(request_file, state, given)
        decided = ask.ask(given["url"], given["key"], body, given["timeout"])
    except ask.AskError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(decided, ensure_ascii=False, indent=2))
    else:
        ask.show(decided, Console())


def request_body(request_file: TextIO | None, state: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The request that a command line describes. Raises `AskError` where something is missing."""
    body = {"model": "jev-latest", "questions": {}} | (read_request(request_file) if request_file else {})
    if state is not None:
        body["state"] = ask.read_text("@-" if state == "-" else state)
    makers = {"nouls": ask.noul, "choices": ask.choice, "scores": ask.score}
    asked = [make(text) for kind, make in makers.items() for text in given[kind]]
    body["questions"] |= {f"q{number}": question for number, question in enumerate(asked, start=1)}
    if "state" not in body or not body["questions"]:
        raise ask.AskError("Give a --state and a --noul, --choice or --score, or a request file. See --help.")
    return body


def read_request(request_file: TextIO) -> dict[str, Any]:
    """The request in the file; what its fields hold is for the gateway to judge. Raises `AskError`."""
    try:
        body = json.load(request_file)
    except ValueError as error:
        raise ask.AskError(f"The request file is not JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("questions", {}), dict):
        raise ask.AskError("The request file is not a JSON object with an object of questions.")
    return body


main.add_command(templates)


if __name__ == "__main__":
    main()
