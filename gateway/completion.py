"""What the shell completes for `canvasgate`: names of templates, by the names of their files, which are not read."""

from __future__ import annotations

from pathlib import PurePath

import click
from click.shell_completion import CompletionItem

from .config import InvalidSettings, load

FILE = "file"
"""The type by which click lets the shell complete paths itself."""


def template_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that begin so, of our own templates and those of the operator's folder; versions behind an @."""
    from .templates import files_of, folders_of  # noqa: PLC0415 - only where something is completed

    try:
        folder = context.params.get("folder") or load().templates_dir
    except InvalidSettings:
        folder = ""
    stems = {PurePath(file).stem for each in folders_of(folder) for file, _ in files_of(each)}
    wanted = {stem if "@" in incomplete else stem.partition("@")[0] for stem in stems}
    return [CompletionItem(name) for name in sorted(wanted) if name.startswith(incomplete)]


def names_or_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same where a path may stand instead of a name."""
    if "/" in incomplete or incomplete.startswith((".", "~")):
        return [CompletionItem(incomplete, type=FILE)]
    return template_names(context, parameter, incomplete)
