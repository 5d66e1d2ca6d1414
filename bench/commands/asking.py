"""What the commands share: options, progress, and how a result is shown and kept."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import record
from bench.load import Teller
from bench.openloop import Exchange, Pool, Target
from bench.workloads import Workload, named

Command = TypeVar("Command", bound=Callable[..., Any])

CONSOLE = Console(width=None if sys.stdout.isatty() else 140)
TELLING = Console(stderr=True)


class WorkloadName(click.ParamType[Workload]):
    """A workload by its name."""

    name = "workload"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Workload:  # noqa: ANN401 - click's signature
        """The workload, or click's error."""
        try:
            return value if isinstance(value, Workload) else named(value)
        except ValueError as fault:
            self.fail(str(fault), param, ctx)


class Fields(click.ParamType[dict[str, Any]]):
    """Request fields as a JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:  # noqa: ANN401 - click's signature
        """The object, or click's error."""
        try:
            found = value if isinstance(value, dict) else json.loads(value)
        except ValueError as fault:
            self.fail(f"not JSON: {fault}", param, ctx)
        if not isinstance(found, dict):
            self.fail("not a JSON object", param, ctx)
        return found


def options(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, shown in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return decorate


KEY = click.option("--key", envvar="CANVASGATE_KEY", help="Bearer key.")
URL = click.option("--url", required=True, help="The server's root, or its System One route.")
MODEL = click.option("--model", default="jev-latest", show_default=True, help="The `model` of every request.")
FIELDS = click.option("--fields", type=Fields(), default="{}", help="Fields that every request has, as JSON.")
SEED = click.option("--seed", default=1, show_default=True, help="Of bodies and arrivals.")
OUT = click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the result here as JSON.")
TIMEOUT = click.option("--timeout", default=60.0, show_default=True, help="Seconds after which a request is given up.")


@contextmanager
def telling() -> Iterator[Teller]:
    """A progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=TELLING, transient=True) as progress:
        task = progress.add_task("", total=None)

        def begin(text: str, total: int) -> None:
            progress.reset(task, description=text, total=total)

        yield Teller(begin, lambda: progress.advance(task))


def posting(url: str, key: str | None, timeout: float) -> tuple[Target, Pool]:
    """Where requests go, and the connections that carry them."""
    target = Target.at(url, key)
    return target, Pool(target, timeout)


async def post_all(exchange: Exchange, target: Target, bodies: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Send the bodies one after another; statuses and answers."""
    replies = [await exchange(target.request(body)) for body in bodies]
    return [(reply.status, reply.body) for reply in replies]


def described(url: str) -> dict[str, Any]:
    """The head of every result: how it was made, on what, against which server."""
    return {
        "command": "python -m bench " + shlex.join(sys.argv[1:]),
        "machine": record.machine(),
        "server": record.server(url),
    }


def run(work: Any) -> Any:  # noqa: ANN401 - whatever the coroutine gives
    """Run a coroutine on plain asyncio: another loop's clock may be too coarse."""
    return asyncio.run(work)
