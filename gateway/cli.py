"""The `canvasgate` command: serve and show settings here; asking and templates stand in files of their own."""

from __future__ import annotations

import sys

import click

from . import __version__
from .cli_ask import batch, decide, doctor
from .cli_templates import templates
from .config import InvalidSettings, Settings, declarations, load, shown


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


if __name__ == "__main__":
    main()
