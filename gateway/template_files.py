"""Where the files of decision templates lie, and how they are named; reads none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parent
SHIPPED = next(
    (folder for folder in (_ROOT.parent / "templates", _ROOT / "data" / "templates") if folder.is_dir()),
    _ROOT.parent / "templates",
)
"""Where our own templates lie: beside this package in a checkout, in its data in a wheel."""


def folders_of(templates_dir: str) -> tuple[Path, ...]:
    """The folders of a gateway with this setting: our own, and the operator's above it."""
    return (SHIPPED, Path(templates_dir).expanduser()) if templates_dir else (SHIPPED,)


def files_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Every template file below a folder: its path within it, and its path; hidden ones are not ours.

    Plain strings, for a gateway looks again and again, and paths as objects took most of that.
    """
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        within = os.path.relpath(root, folder).replace(os.sep, "/")
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                yield name if within == "." else f"{within}/{name}", f"{root}{os.sep}{name}"
