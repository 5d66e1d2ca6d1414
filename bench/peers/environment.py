"""Makes a virtual environment for a peer, outside this repository, once per version."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PATIENCE = 900


class NotRun(Exception):
    """A peer could not be made or started; the message says why."""


def cache() -> Path:
    """Where environments are kept: `CANVASGATE_PEERS`, or a folder in the user's cache."""
    return Path(os.environ.get("CANVASGATE_PEERS") or Path.home() / ".cache" / "canvasgate" / "peers")


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The `bin` folder of an environment that has these; made if it is not there. Raises `NotRun`."""
    folder = cache() / name
    done = folder / ".done"
    wanted = "\n".join(requirements)
    if done.is_file() and done.read_text("utf-8") == wanted:
        return folder / "bin"
    try:
        call([sys.executable, "-m", "venv", "--clear", str(folder)])
        call([str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *requirements])
    except (OSError, subprocess.SubprocessError) as fault:
        said = str(getattr(fault, "stderr", None) or fault).strip().splitlines()
        raise NotRun(f"{wanted} cannot be installed: {said[-1] if said else fault}") from fault
    done.write_text(wanted, "utf-8")
    return folder / "bin"


def call(command: Sequence[str]) -> None:
    """Run an installer's command."""
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
