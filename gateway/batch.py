"""Asks a gateway about every row of a JSON Lines file, a line per row, and goes on where it was interrupted.

The output always holds whole lines: it is appended to line by line, a torn last line is dropped at the next start, and
rewriting goes through a second file that takes the first one's place in one step.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from .ask import decided, headers, reason
from .given import AskError

RETRIED = frozenset({429, 502, 503, 504, 529})
"""Statuses that may be another the next time."""
LONGEST_PAUSE = 30.0
"""Seconds between two tries at most."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked, of whom, and how: `fields` go into every request; `timeout` is in seconds."""

    url: str
    key: str | None
    fields: Mapping[str, Any]
    concurrency: int = 16
    tries: int = 6
    timeout: float = 60.0

    @property
    def templated(self) -> bool:
        """Whether rows are variables of a template; else they are requests."""
        return "template" in self.fields


@dataclass(slots=True)
class Tally:
    """How many rows were answered, ended in an error, or had been answered before."""

    answered: int = 0
    failed: int = 0
    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class Stopped(AskError):
    """The server is away: nothing is wrong with the rows, so none of them gets a line."""


async def run(job: Job, source: Path, target: Path, progress: Callable[[Tally], None]) -> Tally:
    """Ask about every row that has no answer yet. Raises `AskError` where the files or the server do not serve."""
    tally = Tally()
    done = kept(job, source, target)
    tally.kept = len(done)
    progress(tally)
    rows = (row for row in rows_of(source) if row[0] not in done)
    limits = httpx.Limits(max_connections=job.concurrency)
    with target.open("ab") as out:
        async with httpx.AsyncClient(headers=headers(job.key), timeout=job.timeout, limits=limits) as client:
            asker = _Asker(job, client, out, tally, progress)
            await all_of([asyncio.create_task(asker.work(rows)) for _ in range(job.concurrency)])
    in_order(target)
    return tally


async def all_of(workers: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all workers; the first that fails ends the others."""
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class _Asker:
    """What the workers of one batch share."""

    def __init__(
        self, job: Job, client: httpx.AsyncClient, out: BinaryIO, tally: Tally, progress: Callable[[Tally], None]
    ) -> None:
        self._job = job
        self._client = client
        self._out = out
        self._tally = tally
        self._progress = progress
        self._target = f"{job.url.rstrip('/')}/v1/systemone"

    async def work(self, rows: Iterator[tuple[int, bytes]]) -> None:
        """Take rows until none are left."""
        for number, line in rows:
            head: dict[str, Any] = {"row": number, "input": digest(self._job, line)}
            try:
                row = parsed(line)
                if "id" in row:
                    head["id"] = row["id"]
                head |= await self._ask(request(self._job, row))
                self._tally.answered += 1
            except Stopped:
                raise
            except AskError as error:
                head["error"] = str(error)
                self._tally.failed += 1
                self._tally.reasons[str(error)[:80]] += 1
            self._out.write(json.dumps(head, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            self._out.flush()
            self._progress(self._tally)

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        for attempt in range(1, self._job.tries):
            response = await self._answer(body)
            if response is not None and response.status_code not in RETRIED:
                return self._decided(response)
            await asyncio.sleep(pause(response, attempt))
        response = await self._answer(body)
        if response is None:
            raise Stopped(f"{self._target} does not answer. Is `canvasgate serve` running there?")
        return self._decided(response)

    async def _answer(self, body: dict[str, Any]) -> httpx.Response | None:
        """The answer; None where none came, but one may come the next time."""
        try:
            return await self._client.post(self._target, json=body)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise Stopped(f"{self._target} is no address: {error}") from error
        except httpx.HTTPError:
            return None

    def _decided(self, response: httpx.Response) -> dict[str, Any]:
        """The decision of an answer. Raises `Stopped` where every row would go the same way."""
        status = response.status_code
        if status in {401, 403, 404} | RETRIED:
            raise Stopped(f"{self._target} answered {status}: {reason(response)}")
        if status != httpx.codes.OK:
            raise AskError(f"{status}: {reason(response)}")
        return decided(response, self._target)


def pause(response: httpx.Response | None, attempt: int) -> float:
    """Seconds until the next try: what the server says in milliseconds, else twice as long each time."""
    told = response.headers.get("retry-after-ms", "") if response is not None else ""
    seconds = int(told) / 1000 if told.isascii() and told.isdecimal() else 0.25 * 2.0**attempt
    return min(seconds, LONGEST_PAUSE)


# --- Rows -------------------------------------------------------------------------------------------------------------


def rows_of(source: Path) -> Iterator[tuple[int, bytes]]:
    """Every line that is not blank, with its number from 1. Raises `AskError` where the file cannot be read."""
    try:
        opened = source.open("rb")
    except OSError as error:
        raise AskError(f"Cannot read {source}: {error.strerror}") from error
    with opened:
        yield from ((number, line.strip()) for number, line in enumerate(opened, start=1) if line.strip())


def parsed(line: bytes) -> dict[str, Any]:
    """The row of a line. Raises `AskError`."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise AskError(f"the row is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise AskError("the row is not a JSON object")
    return row


def request(job: Job, row: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked about a row: its `variables`, or all of it but its `id`, are those of the template."""
    bare = {name: value for name, value in row.items() if name != "id"}
    if not job.templated:
        return {"model": "jev-latest", **bare, **job.fields}
    return {"model": "jev-latest", **job.fields, "variables": bare.get("variables", bare)}


def digest(job: Job, line: bytes) -> str:
    """Changes when a row or what is asked about it does, so that no old answer passes for a new one."""
    asked = json.dumps(job.fields, sort_keys=True).encode()
    return blake2b(line + b"\0" + asked, digest_size=8).hexdigest()


# --- The output -------------------------------------------------------------------------------------------------------


def lines_of(target: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every whole line of an output, parsed; a torn one, and what is none of ours, is left out."""
    if not target.exists():
        return
    with target.open("rb") as opened:
        for line in opened:
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                row = None
            if isinstance(row, dict) and isinstance(row.get("row"), int):
                yield row, line


def kept(job: Job, source: Path, target: Path) -> set[int]:
    """Rows that the output answers already; whatever else it holds is dropped. Raises `AskError`."""
    wanted = {number: digest(job, line) for number, line in rows_of(source)}
    good: dict[int, bytes] = {}
    strange = target.exists() and target.stat().st_size > 0
    for row, line in lines_of(target):
        strange = False
        if "answers" in row and wanted.get(row["row"]) == row.get("input"):
            good[row["row"]] = line
    if strange:
        raise AskError(f"{target} holds something else than a batch's lines. Name another file, or remove it.")
    replace(target, good.values())
    return set(good)


def in_order(target: Path) -> None:
    """Sort the output by row."""
    lines = sorted(((row["row"], line) for row, line in lines_of(target)), key=lambda pair: pair[0])
    replace(target, [line for _, line in lines])


def replace(target: Path, lines: Iterable[bytes]) -> None:
    """Put these lines in the place of a file, in one step."""
    fresh = target.with_name(f"{target.name}.partial")
    try:
        with fresh.open("wb") as opened:
            opened.writelines(lines)
            opened.flush()
            os.fsync(opened.fileno())
        fresh.replace(target)
    except OSError as error:
        raise AskError(f"Cannot write {target}: {error.strerror}") from error
