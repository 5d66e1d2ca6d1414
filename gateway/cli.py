"""The `canvasgate` command: serve, settings and keys here; asking and templates stand in files of their own."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from . import __version__
from .cli_ask import batch, decide, doctor
from .cli_templates import templates
from .config import InvalidSettings, Settings, declarations, load, shown
from .keys import LIMITS, MOST, NAME, Key, KeysFileError, digest_of, editing, moment, new_key, read_keys, write_keys


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
    """A gateway for the System One decision protocol: typed questions in, probabilities out.

    \b
    Completion for bash (zsh and fish alike), in ~/.bashrc:
      eval "$(_CANVASGATE_COMPLETE=bash_source canvasgate)"
    """


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


for command in (decide, batch, doctor, templates):
    main.add_command(command)


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
@click.option("--concurrent", type=LIMIT, help="Decisions that it may have running at once.")
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
    from rich.console import Console
    from rich.table import Table

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
