"""What a shell's completion offers: names of decision templates, and their variables.

It runs at every press of a key, so it takes names from files' names and reads at most one file, without compiling it;
and whatever is broken is passed over in silence, because a shell would print it into the line being typed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from .config import InvalidSettings, load
from .template_files import SHIPPED, files_of, folders_of


def template_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names, and pinned versions where there are several files of one name."""
    names = {name for stem in _files(ctx) for name in (stem, stem.partition("@")[0])}
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def template_names_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same, and where no name begins so, files."""
    return template_names(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


def variable_pairs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`NAME=` for every variable of the template that the command line has named before."""
    if "=" in incomplete:
        return []
    variables = _variables(ctx)
    return [
        CompletionItem(f"{name}=", help=_described(schema))
        for name, schema in variables.items()
        if name.startswith(incomplete)
    ]


def _files(ctx: click.Context) -> dict[str, Path]:
    """Stem of every file of a template to its path; an operator's stands above ours."""
    try:
        own = ctx.params.get("folder") or load().templates_dir
    except InvalidSettings:
        own = ""
    try:
        folders = folders_of(own)
    except RuntimeError:  # a ~ that has no home
        folders = (SHIPPED,)
    paths = (Path(path) for folder in folders for _, path in files_of(folder))
    return {path.stem: path for path in paths}


def _variables(ctx: click.Context) -> dict[str, Any]:
    # Click leaves an argument in `args` where an option behind it has no value yet.
    name = ctx.params.get("template") or ctx.params.get("name") or next(iter(ctx.args), "")

    files = {name: Path(name)} if name.endswith(".json") else _files(ctx)
    stems = [stem for stem in files if stem == name or stem.partition("@")[0] == name.partition("@")[0]]
    if not stems:
        return {}
    chosen = name if "@" in name and name in files else _meant(name, stems)
    try:
        document = json.loads(files[chosen].read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    variables = document.get("variables") if isinstance(document, dict) else None
    return variables if isinstance(variables, dict) else {}


def _meant(name: str, stems: list[str]) -> str:
    """The file that most likely holds what is asked: of a bare name the highest version, else the unnumbered one."""
    versions = {stem: stem.partition("@")[2] for stem in stems}
    numbers = {stem: int(version) if version.isdecimal() else 0 for stem, version in versions.items()}
    return (min if "@" in name else max)(stems, key=numbers.__getitem__)


def _described(schema: object) -> str | None:
    described = schema.get("description") if isinstance(schema, dict) else None
    return described.partition("\n")[0] if isinstance(described, str) else None
