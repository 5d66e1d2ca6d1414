"""The `canvasgate` command: serve, ask, show settings, and keep the file of keys."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console
from rich.table import Table

from . import __version__, ask
from .config import InvalidSettings, Settings, declarations, load, shown
from .keys import LIMITS, MOST, NAME, Key, KeysFileError, digest_of, editing, moment, new_key, read_keys, write_keys

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
        body["state"] = read_text(state)
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


def read_text(text: str) -> str:
    """The text itself, or the content of the file behind an @. Raises `AskError` where there is no such file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ask.AskError(f"Cannot read the state: {error}") from error


# --- Keys -------------------------------------------------------------------------------------------------------------

keys_file = click.option(
    "--file",
    "path",
    envvar="API_KEYS_FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file; API_KEYS_FILE when not given.",
)
LIMIT = click.IntRange(1, MOST)


class Moment(click.ParamType[float]):
    """A day or a time in ISO 8601, as Unix seconds."""

    name = "DATE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """The moment, in UTC where the text does not say otherwise."""
        try:
            return moment(value).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time such as 2027-01-31 or 2027-01-31T12:00:00Z.", param, ctx)


@main.group()
def keys() -> None:
    """Keep the file of clients' keys. A running gateway reads it again within a second."""


@keys.command()
@click.argument("name")
@click.option("--requests-per-second", type=LIMIT, help="Requests that the key may send in a second.")
@click.option("--tokens-per-minute", type=LIMIT, help="Tokens that it may put before the model in a minute.")
@click.option("--concurrent", type=LIMIT, help="Decisions that each replica works on for it at once.")
@click.option("--expires", type=Moment(), help="When it ends: 2027-01-31, or 2027-01-31T12:00:00Z.")
@keys_file
def add(name: str, path: Path, **given: Any) -> None:
    """Make a key and print it; it is stored hashed, so this is the only time that it is seen.

    \b
    Example:
      canvasgate keys add acme --requests-per-second 20 --tokens-per-minute 600000 --expires 2027-12-31
    """
    if not NAME.fullmatch(name):
        raise click.UsageError("A name has 1 to 64 of letters, digits, '.', '_' and '-'.")
    made = new_key()
    try:
        with editing(path):
            there = read_keys(path)
            if any(key.name == name for key in there):
                raise click.ClickException(f"There is a key {name!r} already; revoke it, or choose another name.")
            write_keys(path, [*there, Key(name, digest_of(made), **given)])
    except KeysFileError as error:
        raise click.ClickException(f"{path}: {error}") from error
    click.echo(made)


@keys.command("list")
@keys_file
def list_keys(path: Path) -> None:
    """Show every key's name, limits and expiry; never the key."""
    try:
        there = read_keys(path)
    except KeysFileError as error:
        raise click.ClickException(f"{path}: {error}") from error
    table = Table("name", "requests/s", "tokens/min", "at once", "expires")
    for key in there:
        limits = ["-" if getattr(key, limit) is None else str(getattr(key, limit)) for limit in LIMITS]
        table.add_row(key.name, *limits, shown_expiry(key.expires))
    Console().print(table)


def shown_expiry(expires: float | None) -> str:
    """When a key ends, and whether it has."""
    if expires is None:
        return "never"
    shown_time = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{shown_time}, expired" if expires <= time.time() else shown_time


@keys.command()
@click.argument("name")
@keys_file
def revoke(name: str, path: Path) -> None:
    """Take a key out of the file; whoever sends it is answered 401 from then on."""
    try:
        with editing(path):
            there = read_keys(path)
            if all(key.name != name for key in there):
                raise click.ClickException(f"There is no key {name!r}.")
            write_keys(path, [key for key in there if key.name != name])
    except KeysFileError as error:
        raise click.ClickException(f"{path}: {error}") from error


if __name__ == "__main__":
    main()
